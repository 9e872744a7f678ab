//! Shared parts of all steps: paths, arguments, and running commands.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use crate::isolate::Totals;
use crate::limits::{self, Ended};
use crate::{Result, artifacts};

/// The arguments of a run, and the places that the steps use.
pub struct Session {
    /// The root of the repository, which is the working directory of all commands.
    pub root: PathBuf,
    /// The target directory of cargo.
    pub target: PathBuf,
    /// Part of the name of the tests that are run.
    pub filter: Option<String>,
    /// Whether the long form of a step is asked for.
    pub long: bool,
    /// Tests that run side by side; as many as processors when it is 0.
    pub jobs: usize,
    /// Threads that keep processors busy beside the steps.
    pub busy: usize,
    /// Difference between their niceness and the niceness of the tests.
    pub niceness: u8,
}

impl Session {
    /// Reads `[--long] [--filter NAME] [--jobs N] [--busy N [--niceness N]] NAME...`; returns the names, too.
    pub fn parse(arguments: &[String]) -> Result<(Self, Vec<String>)> {
        let mut session = Self::new()?;
        let mut names = Vec::new();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--long" => session.long = true,
                "--filter" => session.filter = Some(value()?.clone()),
                "--jobs" => session.jobs = number("--jobs", value()?)?,
                "--busy" => session.busy = number("--busy", value()?)?,
                "--niceness" => session.niceness = number("--niceness", value()?)?,
                name if name.starts_with('-') => return Err(format!("there is no option {name}")),
                name => names.push(name.to_owned()),
            }
        }
        Ok((session, names))
    }

    /// Returns a session that runs everything.
    pub fn new() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent")?;
        // This program is in the directory of a profile.
        let program = std::env::current_exe().map_err(|e| format!("the path of xtask: {e}"))?;
        let target = program.ancestors().nth(2).ok_or("xtask is not in a target directory")?;
        let (root, target) = (root.to_owned(), target.to_owned());
        Ok(Self { root, target, filter: None, long: false, jobs: 0, busy: 0, niceness: 0 })
    }

    /// Returns a cargo command with these arguments, separated by spaces.
    pub fn cargo(&self, arguments: &str) -> Command {
        let mut command = Command::new("cargo");
        command.args(arguments.split_whitespace()).current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// Returns a command that runs a script of the repository with these arguments.
    pub fn script(&self, words: &str) -> Command {
        let mut words = words.split_whitespace();
        let mut command = Command::new(self.root.join("scripts").join(words.next().unwrap_or("")));
        command.args(words).current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// Returns the filter as arguments of a test harness.
    pub fn selection(&self) -> Vec<String> {
        self.filter.iter().cloned().collect()
    }
}

fn number<T: FromStr>(option: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| format!("{option} needs a number, not {value}"))
}

/// Whether a missing tool is a failure: a newcomer skips, continuous integration does not.
fn everything_is_there() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Counts a step that cannot run here.
pub fn skip(reason: &str) -> Totals {
    println!("skipped: {reason}");
    let failed = usize::from(everything_is_there());
    Totals { failed, skipped: 1 - failed, ..Totals::default() }
}

/// Whether a program is installed.
pub fn installed(program: &str) -> bool {
    let mut paths = std::env::var_os("PATH").unwrap_or_default();
    paths.push(":/usr/sbin:/sbin");
    std::env::split_paths(&paths).any(|path| path.join(program).is_file())
}

/// Returns the oldest supported toolchain by the name that rustup gives it.
pub fn oldest_toolchain(session: &Session) -> Result<String> {
    let manifest = session.root.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|e| format!("Cargo.toml: {e}"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = version.and_then(|rest| rest.strip_suffix('"'));
    version.map(|version| format!("{version}.0")).ok_or("Cargo.toml has no rust-version".into())
}

/// Whether this version of Rust is installed.
pub fn there_is(toolchain: &str) -> bool {
    let there = Command::new("cargo").args([&format!("+{toolchain}"), "--version"]).output();
    there.is_ok_and(|output| output.status.success())
}

/// Runs a command that is one test in itself. Exit code 3 says that it cannot run here.
pub fn whole(command: &mut Command) -> Result<Totals> {
    let mut child = limits::spawn(command)?;
    match limits::wait(&mut child, None)? {
        Ended::Itself(status) if status.success() => Ok(Totals { passed: 1, ..Totals::default() }),
        // The script itself looks whether that is a failure.
        Ended::Itself(status) if status.code() == Some(3) => Ok(Totals { skipped: 1, ..Totals::default() }),
        Ended::Itself(_) => Ok(Totals { failed: 1, ..Totals::default() }),
        Ended::Stopped(why) => Err(format!("{command:?}: {why}")),
    }
}

/// Runs a command that only builds or checks, and that is one test in itself.
pub fn built(command: &mut Command) -> Result<Totals> {
    artifacts::building(|| whole(command))
}

/// Runs a command that prints `test result:` lines like libtest, and sums them up. Exit code 3 says that it cannot run
/// here.
pub fn counted(command: &mut Command) -> Result<Totals> {
    let mut child = limits::spawn(command.stdout(Stdio::piped()))?;
    let output = child.stdout.take().ok_or("a piped stdout is there")?;
    let reader = std::thread::spawn(move || {
        let mut totals = Totals::default();
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            println!("{line}");
            totals += result_line(&line);
            totals.failures.extend(failed_test(&line).map(String::from));
        }
        totals
    });
    let ended = limits::wait(&mut child, None)?;
    let mut totals = reader.join().map_err(|_| "the reader of the output panicked")?;
    match ended {
        Ended::Stopped(why) => return Err(format!("{command:?}: {why}")),
        Ended::Itself(status) if status.code() == Some(3) => totals.skipped += 1,
        Ended::Itself(status) if !status.success() && totals.failed == 0 => totals.failed = 1,
        Ended::Itself(_) => {}
    }
    Ok(totals)
}

/// Reads the counts of a `test result:` line. Ignored tests do not count: other tests start them.
fn result_line(line: &str) -> Totals {
    let mut totals = Totals::default();
    if let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|l| l.split_once(". ")) {
        for count in counts.split(';') {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => totals.passed = number,
                "failed" => totals.failed = number,
                "skipped" => totals.skipped = number,
                _ => {}
            }
        }
    }
    totals
}

/// Returns the name of the test that a line says has failed.
fn failed_test(line: &str) -> Option<&str> {
    let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    verdict.starts_with("FAILED").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::{failed_test, result_line};

    #[test]
    fn a_failed_test_is_named_as_libtest_and_isolate_print_it() {
        assert_eq!(failed_test("test cases::one ... FAILED"), Some("cases::one"));
        assert_eq!(failed_test("test one ... FAILED (0.11 s): exit code 101"), Some("one"));
        assert_eq!(failed_test("test one ... ok (0.11 s)"), None);
        assert_eq!(failed_test("    test one ... FAILED"), None, "the output of a test");
    }

    #[test]
    fn results_are_read_as_libtest_and_isolate_print_them() {
        let of = |line| {
            let totals = result_line(line);
            (totals.passed, totals.failed, totals.skipped)
        };
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 7 filtered out";
        assert_eq!(of(line), (12, 3, 0));
        assert_eq!(of("test result: ok. 1 passed; 0 failed; 2 skipped; finished in 0.1s"), (1, 0, 2));
        assert_eq!(of("    test result: ok. 1 passed; 0 failed"), (0, 0, 0));
    }
}
