//! Artifacts that cargo builds, from its JSON messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::isolate::Binary;
use crate::limits::children_time;

/// Milliseconds of processor time that went into building.
static BUILDING: AtomicU64 = AtomicU64::new(0);

/// Returns the processor time of all builds so far.
pub fn building_time() -> Duration {
    Duration::from_millis(BUILDING.load(Ordering::Relaxed))
}

/// Runs a build, and adds its processor time to [`building_time`].
pub fn building<T>(build: impl FnOnce() -> T) -> T {
    let before = children_time();
    let result = build();
    let used = (children_time() - before).as_millis() as u64;
    BUILDING.fetch_add(used, Ordering::Relaxed);
    result
}

/// An executable that cargo has built.
pub struct Artifact {
    pub package: String,
    /// The name of the library, the program or the file in `tests`.
    pub target: String,
    /// `lib`, `bin`, `test` or `example`.
    pub kind: String,
    /// The file of its crate root.
    pub source: PathBuf,
    /// Whether it has a test harness.
    pub test: bool,
    pub binary: Binary,
}

/// Runs `cargo build` or `cargo test --no-run` for the whole workspace, and returns the executables.
///
/// All packages are always chosen, so that the features of dependencies, and so the artifacts, are the same for
/// each choice of targets.
pub fn build(command: &mut Command) -> Result<Vec<Artifact>> {
    build_these(command.arg("--workspace"))
}

/// Builds targets of the packages that the command names, and returns their artifacts.
pub fn build_these(command: &mut Command) -> Result<Vec<Artifact>> {
    command.args(["--quiet", "--locked"]);
    command.arg("--message-format=json-render-diagnostics").stdin(Stdio::null());
    let output = building(|| command.stderr(Stdio::inherit()).output());
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let mut artifacts = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        artifacts.extend(artifact(&message));
    }
    Ok(artifacts)
}

fn artifact(message: &Value) -> Option<Artifact> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    Some(Artifact {
        package: package_name(message["package_id"].as_str()?).to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        source: PathBuf::from(message["target"]["src_path"].as_str()?),
        test: message["profile"]["test"].as_bool()?,
        binary: Binary { path: PathBuf::from(message["executable"].as_str()?), directory },
    })
}

/// Returns the name of `path+file:///a/b#0.1.0` or `path+file:///a/b#name@0.1.0`.
fn package_name(id: &str) -> &str {
    let (path, name) = id.rsplit_once('#').unwrap_or(("", id));
    match name.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::package_name;

    #[test]
    fn packages_have_the_name_of_their_folder_or_another() {
        assert_eq!(package_name("path+file:///src/soft-mlx5#0.1.0"), "soft-mlx5");
        assert_eq!(package_name("path+file:///src/mlx5/ring#mlx5-ring@0.1.0"), "mlx5-ring");
        let registry = "registry+https://github.com/rust-lang/crates.io-index#clap@4.5.1";
        assert_eq!(package_name(registry), "clap");
    }
}
