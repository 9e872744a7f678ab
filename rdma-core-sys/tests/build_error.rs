//! On a machine without libibverbs the build stops with an error that names the package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs cargo on this crate with a linker that finds `libibverbs` under `name` only, and without
/// pkg-config. Returns the output of cargo if it failed.
fn cargo(scene: &str, name: &str, command: &[&str]) -> Option<String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(scene);
    fs::create_dir_all(&directory).unwrap();
    let linker = directory.join("linker");
    fs::write(
        &linker,
        format!(
            "#!/bin/sh\n\
             for argument; do\n\
             shift\n\
             [ \"$argument\" = -libverbs ] && argument={name}\n\
             set -- \"$@\" \"$argument\"\n\
             done\n\
             exec cc \"$@\"\n"
        ),
    )
    .unwrap();
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755)).unwrap();

    // With an explicit target the linker serves only the target, not the build scripts.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = target.to_uppercase().replace('-', "_");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(command)
        .args(["--offline", "--locked", "--target", &target, "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .env("CARGO_TARGET_DIR", directory.join("target"))
        .env(format!("CARGO_TARGET_{variable}_LINKER"), &linker)
        .env("PKG_CONFIG_LIBDIR", directory.join("no-such-directory"));
    for name in ["LD_PRELOAD", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "DOCS_RS"] {
        cargo.env_remove(name);
    }
    let output = cargo.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(printed)
}

#[test]
fn a_missing_libibverbs_is_named_with_its_package() {
    let printed = cargo("absent", "-libverbs-that-is-not-installed", &["check"]);
    let printed = printed.expect("the build succeeded");
    let errors: Vec<&str> = printed.lines().filter(|line| line.starts_with("error:")).collect();
    let errors = errors.join("\n");
    for words in ["libibverbs was not found", "libibverbs-dev", "rdma-core-devel"] {
        assert!(errors.contains(words), "{words:?} is not in the errors of:\n{printed}");
    }
}

#[test]
fn an_old_libibverbs_is_named_with_its_package() {
    // A libibverbs with the functions of the first version.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("old-library");
    fs::create_dir_all(&directory).unwrap();
    let source = directory.join("old.c");
    fs::write(&source, "void ibv_get_device_list(void) {}\n").unwrap();
    let library = directory.join("libold-ibverbs.so");
    let cc = Command::new("cc").args(["-shared", "-o"]).arg(&library).arg(&source).status();
    assert!(cc.unwrap().success());

    let printed = cargo("old", library.to_str().unwrap(), &["check"]);
    let printed = printed.expect("the build succeeded");
    assert!(printed.contains("is too old: rdma-core 44"), "{printed}");
    assert!(printed.contains("libibverbs-dev"), "{printed}");
}

#[test]
fn pkg_config_is_not_needed() {
    // A test that calls libibverbs: it links only if the build script named the library.
    assert_eq!(cargo("present", "-libverbs", &["build", "--test", "loading"]), None);
}
