//! The programs of this build, for tests that run them in processes of their own.

use std::fmt::{self, Display};
use std::net::TcpListener;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// An example on a device with `options`, on a fabric that all examples of this process share.
pub fn example(options: &[&str], name: &str) -> Command {
    let fabric = format!("test-{}", std::process::id());
    let program = built(&format!("examples/{name}"));
    on_soft_mlx5(&[&["--fabric", &fabric], options].concat(), program)
}

/// Has the driver's entries for posting, polling and arming abort.
pub fn poisoned(command: &mut Command) -> &mut Command {
    command.env("LD_PRELOAD", built("examples/libpoison.so"))
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The output and exit code of a process.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its standard output.
    pub printed: String,
    /// Its standard error.
    pub complained: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let [printed, complained] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        Self { code: output.status.code(), printed, complained }
    }
}

impl Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "exit code {:?}\n{}{}", self.code, self.printed, self.complained)
    }
}

impl Ended {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Self {
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")).into()
    }

    /// The last line of its standard output.
    pub fn last_line(&self) -> &str {
        self.printed.lines().last().unwrap_or_default()
    }
}

/// Runs a command to its end, and checks that it succeeded.
#[track_caller]
pub fn succeed(command: &mut Command) -> Ended {
    let ended = Ended::of(command);
    assert_eq!(ended.code, Some(0), "{command:?}: {ended}");
    ended
}

/// A file or a folder in the folder for temporary files. It is removed when the value is dropped.
pub struct Temporary(PathBuf);

impl Temporary {
    /// The name of a file of this process, which does not exist yet.
    pub fn file(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("doorbell-{}-{name}", std::process::id())))
    }

    /// A new folder.
    pub fn folder(name: &str) -> Self {
        let folder = Self::file(name);
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<std::ffi::OsStr> for Temporary {
    fn as_ref(&self) -> &std::ffi::OsStr {
        self.0.as_ref()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
