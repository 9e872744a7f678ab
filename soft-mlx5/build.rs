//! Builds the library that `soft-mlx5 run` preloads, and that the program carries: so the program installs as one file.
//!
//! Only release builds of the program carry the library: in other builds it lies beside the program, where cargo puts
//! it.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    println!("cargo::rustc-check-cfg=cfg(carries_library)");
    for path in ["build.rs", "src", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let wanted = env::var_os("CARGO_FEATURE_CLI").is_some() && variable("PROFILE") == "release";
    // docs.rs has no network for a cargo inside of cargo, and documentation needs no library.
    if !wanted || env::var_os("DOCS_RS").is_some() {
        return ExitCode::SUCCESS;
    }
    let target_dir = PathBuf::from(variable("OUT_DIR")).join("preload");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["rustc", "--quiet", "--release", "--lib", "--crate-type", "cdylib"]);
    cargo.args(["--no-default-features", "--target", &variable("TARGET"), "--target-dir"]);
    cargo.arg(&target_dir).current_dir(variable("CARGO_MANIFEST_DIR"));
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    // The build script of the inner build would inherit this variable and build the library again, without end.
    cargo.env_remove("CARGO_FEATURE_CLI");
    match cargo.status() {
        Ok(status) if status.success() => {
            let folder = target_dir.join(variable("TARGET")).join("release");
            println!("cargo::rustc-cfg=carries_library");
            println!("cargo::rustc-env=SOFT_MLX5_LIBRARY={}/libsoft_mlx5.so", folder.display());
            ExitCode::SUCCESS
        }
        Ok(status) => refuse(&status.to_string()),
        Err(error) => refuse(&error.to_string()),
    }
}

fn refuse(why: &str) -> ExitCode {
    println!("cargo::error=cannot build the library that soft-mlx5 preloads: {why}");
    ExitCode::FAILURE
}
