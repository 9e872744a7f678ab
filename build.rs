//! Passes the version of the installed libibverbs on to the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
