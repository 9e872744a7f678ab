//! Builds the library that `doorbell run` preloads for the program to carry, so that the program installs as one file.
//!
//! Only release builds do: in others the library lies beside the program, where cargo puts it.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    println!("cargo::rustc-check-cfg=cfg(carries_library)");
    for path in
        ["build.rs", "Cargo.toml", "../drop-in/build.rs", "../drop-in/src", "../mlx5/ring/src", "../mlx5/wire/src"]
    {
        if PathBuf::from(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let variable = |name: &str| env::var(name).unwrap_or_default();
    // docs.rs has no network for a cargo inside of cargo, and documentation needs no library.
    if variable("PROFILE") != "release" || env::var_os("DOCS_RS").is_some() {
        return ExitCode::SUCCESS;
    }
    let target_dir = PathBuf::from(variable("OUT_DIR")).join("preload");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["rustc", "--quiet", "--release", "--package", "doorbell-drop-in", "--lib"]);
    cargo.args(["--crate-type", "cdylib", "--target", &variable("TARGET"), "--target-dir"]);
    cargo.arg(&target_dir).current_dir(variable("CARGO_MANIFEST_DIR"));
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    match cargo.status() {
        Ok(status) if status.success() => {
            let folder = target_dir.join(variable("TARGET")).join("release");
            println!("cargo::rustc-cfg=carries_library");
            println!("cargo::rustc-env=DROP_IN_LIBRARY={}/libdoorbell_drop_in.so", folder.display());
            ExitCode::SUCCESS
        }
        Ok(status) => refuse(&status.to_string()),
        Err(error) => refuse(&error.to_string()),
    }
}

fn refuse(why: &str) -> ExitCode {
    println!("cargo::error=cannot build the library that doorbell run preloads: {why}");
    ExitCode::FAILURE
}
