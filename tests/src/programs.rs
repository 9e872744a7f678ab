//! The programs of this build, for tests that run them in processes of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file of this build, by its path in the directory of the profile.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(path.is_file(), "{} is not built: run `cargo xtask examples`", path.display());
    path
}

/// `program` in a process that has a software device, by `soft-mlx5 run` with `options`.
pub fn on_soft_mlx5(options: &[&str], program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(built("soft-mlx5"));
    command.args(["run", "--strict"]).args(options).arg("--").arg(program.as_ref());
    command.stdin(Stdio::null());
    command
}
