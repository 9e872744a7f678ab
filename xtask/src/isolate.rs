//! Runs each test of test binaries in a process of its own.
//!
//! A device that finds a rule broken stops the process, replaced entries of a context stay replaced, and
//! leaked objects stay: none of this may reach the next test. A test says that it cannot run here by a line
//! `skipped: REASON`.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::limits::{self, Ended};

/// How tests are run.
#[derive(Clone, Default)]
pub struct Options {
    /// The command that starts a test binary, for example `soft-mlx5 run --`.
    pub under: Vec<String>,
    pub variables: Vec<(String, String)>,
    /// Arguments for the test harness, which select tests.
    pub arguments: Vec<String>,
    /// Tests that run side by side; as many as processors when it is 0.
    pub jobs: usize,
    /// Seconds of processor time that a test may use.
    pub limit: u64,
}

/// A test binary, and where it runs.
#[derive(Clone)]
pub struct Binary {
    pub path: PathBuf,
    pub directory: PathBuf,
}

/// Results of tests.
#[derive(Default)]
pub struct Totals {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// The names of tests that have failed, as far as they are known.
    pub failures: Vec<String>,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs `isolate [--limit SECONDS] [--jobs N] [--under COMMAND] BINARY [ARGUMENT...]`, as a runner of cargo does.
pub fn command(arguments: &[String]) -> Result<bool> {
    const USAGE: &str = "usage: isolate [--limit SECONDS] [--jobs N] [--under COMMAND] BINARY [ARGUMENT...]";
    let mut options = Options { limit: 60, ..Options::default() };
    let mut arguments = arguments.iter();
    let binary = loop {
        let argument = arguments.next().ok_or(USAGE)?;
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: &String| text.parse().map_err(|_| format!("{text} is not a number"));
        match argument.as_str() {
            "--limit" => options.limit = number(value()?)?,
            "--jobs" => options.jobs = number(value()?)? as usize,
            "--under" => options.under = value()?.split_whitespace().map(String::from).collect(),
            _ => break Binary { path: argument.into(), directory: ".".into() },
        }
    };
    options.arguments = arguments.cloned().collect();
    Ok(run(&[binary], &options)?.failed == 0)
}

/// Runs all selected tests of the binaries, and prints their results as libtest does.
pub fn run(binaries: &[Binary], options: &Options) -> Result<Totals> {
    let began = Instant::now();
    let mut tests = Vec::new();
    for binary in binaries {
        tests.extend(options.list(binary)?.into_iter().map(|name| (binary, name)));
    }
    println!("\nrunning {} tests, each in a process of its own", tests.len());
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Totals::default());
    let worker = || -> Result<()> {
        while let Some((binary, name)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let verdict = options.try_test(binary, name)?;
            let mut totals = report.lock().map_err(|_| "a worker panicked")?;
            verdict.print(name, began.elapsed());
            match verdict {
                Verdict::Passed { .. } => totals.passed += 1,
                Verdict::Skipped { .. } => totals.skipped += 1,
                Verdict::Failed { .. } => {
                    totals.failed += 1;
                    totals.failures.push(name.clone());
                }
            }
        }
        Ok(())
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = if options.jobs == 0 { cores } else { options.jobs };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;
    let totals = report.into_inner().map_err(|_| "a worker panicked")?;
    if !totals.failures.is_empty() {
        println!("\nfailures:\n    {}", totals.failures.join("\n    "));
    }
    println!(
        "\ntest result: {}. {} passed; {} failed; {} skipped; finished in {:.2}s\n",
        if totals.failed == 0 { "ok" } else { "FAILED" },
        totals.passed,
        totals.failed,
        totals.skipped,
        began.elapsed().as_secs_f64(),
    );
    Ok(totals)
}

impl Options {
    /// Returns the command that starts a test binary.
    pub fn start(&self, binary: &Binary) -> Command {
        let mut words = self.under.iter();
        let mut command = match words.next() {
            None => Command::new(&binary.path),
            Some(program) => {
                let mut command = Command::new(program);
                command.args(words).arg(&binary.path);
                command
            }
        };
        command.current_dir(&binary.directory).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the names of the selected tests, without tests marked `#[ignore]`, which other tests start.
    fn list(&self, binary: &Binary) -> Result<Vec<String>> {
        let ignored = self.names(binary, &["--ignored"])?;
        let all = self.names(binary, &[])?;
        Ok(all.into_iter().filter(|name| !ignored.contains(name)).collect())
    }

    fn names(&self, binary: &Binary, which: &[&str]) -> Result<Vec<String>> {
        let mut command = self.start(binary);
        command.args(&self.arguments).args(["--list", "--format", "terse"]).args(which);
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
        if !output.status.success() {
            return Err(format!("{} cannot list its tests: {}", binary.path.display(), output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
    }

    fn try_test(&self, binary: &Binary, name: &str) -> Result<Verdict> {
        let mut file = memory_file().map_err(|e| format!("memfd_create: {e}"))?;
        let copy = || file.try_clone().map_err(|e| format!("dup: {e}"));
        let mut command = self.start(binary);
        command.args(["--exact", name, "--nocapture"]).stdout(copy()?).stderr(copy()?);
        let mut child = limits::spawn(&mut command)?;
        let ended = limits::wait(&mut child, Some(Duration::from_secs(self.limit)))?;
        let mut output = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut output)).map_err(|e| e.to_string())?;
        Ok(Verdict::new(ended, String::from_utf8_lossy(&output).into_owned()))
    }
}

/// Returns a file without a name. Unlike a pipe it can be read to its end although other processes still hold it.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a string that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

enum Verdict {
    Passed { notes: Vec<String> },
    Skipped { reason: String },
    Failed { cause: String, output: String },
}

impl Verdict {
    fn new(ended: Ended, output: String) -> Self {
        let cause = match ended {
            Ended::Stopped(why) => why,
            Ended::Itself(status) if !status.success() => cause(status),
            Ended::Itself(_) => {
                let after = |start: &'static str| output.lines().filter_map(move |line| line.strip_prefix(start));
                if let Some(reason) = after("skipped: ").next() {
                    return Self::Skipped { reason: reason.into() };
                }
                if output.contains("test result: ok. 1 passed;") {
                    // The standard library's notes are about panics that the test has caught.
                    let theirs = |note: &&str| note.starts_with("run with") || note.starts_with("Some details");
                    let notes = after("note: ").filter(|note| !theirs(note)).map(String::from);
                    return Self::Passed { notes: notes.collect() };
                }
                "it did not report that it ran".into()
            }
        };
        Self::Failed { cause, output }
    }

    fn print(&self, name: &str, took: Duration) {
        let mut text = match self {
            Self::Passed { .. } => format!("test {name} ... ok ({:.2} s)\n", took.as_secs_f64()),
            Self::Skipped { reason } => format!("test {name} ... skipped, {reason}\n"),
            Self::Failed { cause, .. } => {
                format!("test {name} ... FAILED ({:.2} s): {cause}\n", took.as_secs_f64())
            }
        };
        match self {
            Self::Passed { notes } => notes.iter().for_each(|n| text += &format!("    note: {n}\n")),
            Self::Skipped { .. } => {}
            // Indented, so that its lines differ from ours.
            Self::Failed { output, .. } => {
                output.lines().for_each(|line| text += &format!("    {line}\n"));
            }
        }
        let _ = io::stdout().write_all(text.as_bytes());
    }
}

fn cause(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}
