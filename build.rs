//! Refuses the targets that doorbell cannot work on, by name, before their compilers complain.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") != "linux" {
        println!("cargo::error=doorbell drives adapters through libibverbs, which only Linux has");
    }
    // The barriers between CPU and adapter are written for these.
    if !["x86_64", "aarch64"].contains(&target("ARCH").as_str()) || target("ENDIAN") != "little" {
        println!("cargo::error=doorbell is written for x86-64 and aarch64 (little-endian)");
    }
}
