//! The runner of `cargo test` for packages whose tests need a device: scripts/runner.sh calls it.

use std::env;
use std::path::PathBuf;

use crate::isolate::{self, Binary, Options};
use crate::needs::Needs;
use crate::session::{Session, built};
use crate::soak::{DISTINCT, FAULTS};
use crate::suite::{on_device, options};
use crate::{Result, limits};

/// Runs a test binary that cargo has built, with the arguments of its harness: each test in a process of its own, on a
/// device of its own if it needs one. `DOORBELL_PATH` is the path under test, by default `direct`. `DOORBELL_DEVICE`
/// names a device of this machine, which takes the place of the software device.
pub fn command(arguments: &[String]) -> Result<bool> {
    let (binary, arguments) = arguments.split_first().ok_or("usage: runner BINARY [ARGUMENT...]")?;
    let variable = |name| env::var(name).map_err(|_| format!("{name} is not set: cargo sets it"));
    let (package, directory) = (variable("CARGO_PKG_NAME")?, PathBuf::from(variable("CARGO_MANIFEST_DIR")?));
    let binary = Binary { path: binary.into(), directory };
    let session = Session::new()?;
    let mut options = match source(&binary) {
        Some(source) => surroundings(&session, Needs::of(&package, "test", &source))?,
        None => surroundings(&session, Needs::of(&package, "lib", &binary.directory.join("src/lib.rs")))?,
    };
    options.arguments = arguments.to_vec();
    // Only the harness itself answers these.
    if arguments.iter().any(|a| ["--list", "--help", "--ignored", "--include-ignored"].contains(&a.as_str())) {
        let mut whole = options.start(&binary);
        let status = limits::spawn(whole.args(arguments))?.wait().map_err(|e| format!("waitpid: {e}"))?;
        return Ok(status.success());
    }
    Ok(isolate::run(&[binary], &options)?.failed == 0)
}

/// Returns the first file of an integration test; `None` if the binary is no integration test.
fn source(binary: &Binary) -> Option<PathBuf> {
    // NAME-HASH
    let name = binary.path.file_name()?.to_str()?.rsplit_once('-')?.0;
    let folder = binary.directory.join("tests");
    [folder.join(format!("{name}.rs")), folder.join(name).join("main.rs")].into_iter().find(|path| path.is_file())
}

fn surroundings(session: &Session, needs: Needs) -> Result<Options> {
    let path = env::var("DOORBELL_PATH").unwrap_or_else(|_| "direct".into());
    let software = env::var_os("DOORBELL_DEVICE").is_none();
    let device = |more: &[&str]| if software { on_device(session, &path, more) } else { options(session, 300) };
    Ok(match needs {
        Needs::Nothing | Needs::Device | Needs::Programs | Needs::Twins | Needs::Link => options(session, 900),
        Needs::AnyDevice => device(&[]),
        Needs::Network => {
            let mut options = device(&["--fabric", &format!("test-{}", std::process::id())]);
            options.variables.push(("DOORBELL_NETWORKED".into(), "1".into()));
            options
        }
        Needs::Soak => device(DISTINCT),
        Needs::Lossy => device(FAULTS),
        Needs::Examples => {
            let programs = "build --workspace --lib --bins --examples --quiet --locked";
            if !built(&mut session.cargo(programs))?.is_success() {
                return Err("the programs of the workspace do not build".into());
            }
            options(session, 300)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn an_integration_test_is_a_file_or_a_folder() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
        let of = |name: &str| source(&Binary { path: Path::new("deps").join(name), directory: directory.clone() });
        assert_eq!(of("link-0123456789abcdef"), Some(directory.join("tests/link.rs")));
        assert_eq!(of("suite-0123456789abcdef"), Some(directory.join("tests/suite/main.rs")));
        assert_eq!(of("doorbell_tests-0123456789abcdef"), None);
    }
}
