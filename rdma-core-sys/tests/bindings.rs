//! With the feature `bindgen`: the bindings that the crate carries are those that bindgen makes of
//! the headers of rdma-core 44, and are the same for both architectures.
#![cfg(feature = "bindgen")]

use std::fs;
use std::path::Path;
use std::process::Command;

const CARRIED: [(&str, &str); 2] = [("verbs.rs", "x86_64-carried.rs"), ("mlx5dv.rs", "mlx5dv.rs")];

fn generated(name: &str) -> String {
    fs::read_to_string(Path::new(env!("OUT_DIR")).join(name)).unwrap()
}

/// The version of the installed headers, which only pkg-config knows.
fn installed() -> Option<String> {
    let output = Command::new("pkg-config").args(["--modversion", "libibverbs"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn what_the_crate_carries_is_what_bindgen_makes() {
    match installed() {
        Some(version) if version.starts_with("1.14.44.") => {}
        version => {
            println!("skipped: made from rdma-core 44, but installed is {version:?}");
            return;
        }
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    for (carried, made) in CARRIED {
        let carried = directory.join(carried);
        assert!(
            fs::read_to_string(&carried).unwrap() == generated(made),
            "{} is not current: copy {}/{made} over it",
            carried.display(),
            env!("OUT_DIR"),
        );
    }
}

#[test]
fn the_bindings_do_not_depend_on_the_architecture() {
    let other = Path::new(env!("OUT_DIR")).join("aarch64-carried.rs");
    if !other.exists() {
        println!("skipped: the headers of libc6-dev-arm64-cross are not installed");
        return;
    }
    assert!(generated("x86_64-carried.rs") == generated("aarch64-carried.rs"));
}
