//! Finds libibverbs by pkg-config or, where that is not installed, by linking a program to it.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Version of libibverbs in rdma-core 44.
const OLDEST: &str = "1.14.44";
/// A function of the first public version, and the newest function that is bound.
const OLD_SYMBOL: &str = "ibv_get_device_list";
const NEW_SYMBOL: &str = "ibv_query_qp_data_in_order";

/// Tells cargo how to link libibverbs. The error says what to install.
pub fn libibverbs() -> Result<(), String> {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let mut installed = pkg_config::Config::new();
    installed.env_metadata(false);
    if installed.clone().atleast_version(OLDEST).probe("libibverbs").is_ok() {
        return Ok(());
    }
    if let Ok(old) = installed.cargo_metadata(false).probe("libibverbs") {
        return Err(too_old(&old.version));
    }

    println!("cargo::rustc-link-lib=ibverbs");
    if links(Some(NEW_SYMBOL))? {
        Ok(())
    } else if links(Some(OLD_SYMBOL))? {
        Err(too_old("without a pkg-config file"))
    } else if links(None)? {
        Err(format!(
            "libibverbs was not found for {}. Install its development package:\n\
             Debian, Ubuntu: apt-get install libibverbs-dev\n\
             Fedora, RHEL:   dnf install rdma-core-devel",
            variable("TARGET")?
        ))
    } else {
        // Nothing links here, as when `cargo check` runs for a foreign target without its linker.
        // If that matters, the real link reports it better.
        Ok(())
    }
}

fn too_old(found: &str) -> String {
    format!(
        "the installed libibverbs ({found}) is too old: rdma-core 44 (libibverbs {OLDEST}) or newer \
         is needed.\nThe package is libibverbs-dev on Debian and Ubuntu, rdma-core-devel on Fedora \
         and RHEL"
    )
}

/// Returns `true` if a program links that takes `symbol`, or nothing, from libibverbs.
fn links(symbol: Option<&str>) -> Result<bool, String> {
    let directory = PathBuf::from(variable("OUT_DIR")?);
    let source = directory.join("probe.rs");
    let program = match symbol {
        Some(symbol) => format!(
            "#[link(name = \"ibverbs\")] unsafe extern \"C\" {{ fn {symbol}(); }}\n\
             fn main() {{ unsafe {{ {symbol}() }} }}\n"
        ),
        None => String::from("fn main() {}\n"),
    };
    fs::write(&source, program).map_err(|e| format!("{}: {e}", source.display()))?;

    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.args(["--edition=2024", "--crate-type=bin", "--target"]).arg(variable("TARGET")?);
    rustc.arg("-o").arg(directory.join("probe")).arg(&source);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    }
    let output = rustc.output().map_err(|e| format!("rustc cannot be run: {e}"))?;
    Ok(output.status.success())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
