//! Finds libibverbs; with the feature `bindgen` also generates the bindings.

mod find;
#[cfg(feature = "bindgen")]
mod generate;

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=DOCS_RS");

    #[cfg(feature = "bindgen")]
    if let Err(message) = generate::write() {
        return refuse(&message);
    }
    // docs.rs has no libibverbs, and documentation needs none.
    if std::env::var_os("DOCS_RS").is_some() {
        return ExitCode::SUCCESS;
    }
    match find::libibverbs() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => refuse(&message),
    }
}

fn refuse(message: &str) -> ExitCode {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    ExitCode::FAILURE
}
