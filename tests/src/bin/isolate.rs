//! Runs each test of a test binary in a process of its own.
//!
//! A device that finds a rule broken stops the process, replaced entries of a context stay replaced,
//! and what leaks leaks: none of this may reach the next test. As cargo's runner it is called as
//!
//! `isolate [--limit SECONDS] [--jobs N] [--under COMMAND] BINARY [ARGUMENTS]`
//!
//! and prints what libtest would. A test says that it cannot run here by a line `skipped: REASON`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

struct Options {
    limit: Duration,
    jobs: usize,
    /// The command that starts the binary, the binary included.
    command: Vec<OsString>,
    /// What cargo passes on from behind `--`.
    arguments: Vec<OsString>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        // Most tests keep two threads busy: the program's and the device's.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self {
            limit: Duration::from_secs(60),
            jobs: (cores / 2).max(1),
            command: Vec::new(),
            arguments: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next().and_then(|value| value.into_string().ok());
                value.ok_or(format!("{} needs a value", argument.to_string_lossy()))
            };
            let number = |value: String| {
                value.parse::<u32>().map_err(|_| format!("{value} is not a number"))
            };
            match argument.to_str() {
                Some("--limit") => options.limit = Duration::from_secs(number(value()?)?.into()),
                Some("--jobs") => options.jobs = number(value()?)?.max(1) as usize,
                Some("--under") => {
                    options.command = value()?.split_whitespace().map(OsString::from).collect();
                }
                _ => {
                    options.command.push(argument);
                    options.arguments = arguments.collect();
                    return Ok(options);
                }
            }
        }
        Err("usage: isolate [--limit SECONDS] [--jobs N] [--under COMMAND] BINARY [ARGUMENTS]"
            .into())
    }

    fn start(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null());
        command
    }

    /// The names of the tests that the arguments select. Those marked `#[ignore]` are run by others.
    fn list(&self) -> Result<Vec<String>, String> {
        let ignored = self.names(&["--ignored"])?;
        let all = self.names(&[])?;
        Ok(all.into_iter().filter(|name| !ignored.contains(name)).collect())
    }

    fn names(&self, which: &[&str]) -> Result<Vec<String>, String> {
        let mut command = self.start();
        command.args(&self.arguments).args(["--list", "--format", "terse"]).args(which);
        let output =
            command.stderr(Stdio::inherit()).output().map_err(|e| self.cannot_start(&e))?;
        if !output.status.success() {
            return Err(format!("listing the tests: {}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
    }

    fn cannot_start(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.command[0].to_string_lossy())
    }

    /// Runs one test.
    fn run(&self, name: &str) -> Result<Verdict, String> {
        let mut file = memory_file().map_err(|e| format!("memfd_create: {e}"))?;
        let copy = || file.try_clone().map_err(|e| format!("dup: {e}"));
        let mut command = self.start();
        command.args(["--exact", name, "--nocapture"]).stdout(copy()?).stderr(copy()?);
        command.process_group(0);
        // SAFETY: prctl may be called between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
        let mut child = command.spawn().map_err(|e| self.cannot_start(&e))?;
        let group = child.id() as libc::pid_t;

        let began = Instant::now();
        let mut pause = Duration::from_micros(200);
        let status = loop {
            match child.try_wait().map_err(|e| format!("waitpid: {e}"))? {
                Some(status) => break Some(status),
                None if began.elapsed() > self.limit => break None,
                None => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        // Whatever the test left behind goes with it.
        // SAFETY: sends a signal and touches no memory.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        if status.is_none() {
            child.wait().map_err(|e| format!("waitpid: {e}"))?;
        }

        let mut output = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut output)).map_err(|e| e.to_string())?;
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Verdict::new(status, output, self.limit))
    }
}

/// Its group of its own keeps a test from the signals that end us.
fn die_with_parent() -> io::Result<()> {
    // SAFETY: sets an attribute of the process and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A file without a name. Unlike a pipe it is at its end when the test is, whoever still holds it.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a string.
    let fd = unsafe { libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

enum Verdict {
    Passed { notes: String },
    Skipped { reason: String },
    Failed { cause: String, output: String },
}

impl Verdict {
    fn new(status: Option<ExitStatus>, output: String, limit: Duration) -> Self {
        let cause = match status {
            None => format!("not done after {} s", limit.as_secs()),
            Some(status) if !status.success() => match status.signal() {
                Some(signal) => format!("killed by signal {signal}"),
                None => format!("exit code {}", status.code().unwrap_or(-1)),
            },
            Some(_) => {
                let skipped = output.lines().find_map(|line| line.strip_prefix("skipped: "));
                if let Some(reason) = skipped {
                    return Self::Skipped { reason: reason.into() };
                }
                if output.contains("test result: ok. 1 passed;") {
                    let notes = output.lines().filter(|line| line.starts_with("note: "));
                    return Self::Passed {
                        notes: notes.map(|line| format!("\n    {line}")).collect(),
                    };
                }
                "it did not report that it ran".into()
            }
        };
        Self::Failed { cause, output }
    }
}

#[derive(Default)]
struct Totals {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
}

impl Totals {
    fn add(&mut self, name: &str, verdict: Verdict, took: Duration) {
        let seconds = took.as_secs_f64();
        match verdict {
            Verdict::Passed { notes } => {
                self.passed += 1;
                println!("test {name} ... ok ({seconds:.2} s){notes}");
            }
            Verdict::Skipped { reason } => {
                self.skipped += 1;
                println!("test {name} ... skipped, {reason}");
            }
            Verdict::Failed { cause, output } => {
                self.failed.push(name.into());
                println!("test {name} ... FAILED ({seconds:.2} s): {cause}");
                // Indented, so that nobody takes its lines for ours.
                output.lines().for_each(|line| println!("    {line}"));
            }
        }
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let names = options.list()?;
    println!("\nrunning {} tests, each in a process of its own", names.len());
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let totals = Mutex::new(Totals::default());
    let worker = || -> Result<(), String> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let verdict = options.run(name)?;
            let mut totals = totals.lock().map_err(|_| "a worker panicked")?;
            totals.add(name, verdict, began.elapsed());
            let _ = io::stdout().flush();
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;

    let Totals { passed, skipped, failed } = totals.into_inner().map_err(|e| e.to_string())?;
    if !failed.is_empty() {
        println!("\nfailures:\n    {}", failed.join("\n    "));
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {skipped} skipped; finished in {:.2}s\n",
        failed.len(),
        began.elapsed().as_secs_f64(),
    );
    Ok(failed.is_empty())
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args_os().skip(1)).and_then(|options| run(&options));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(message) => {
            eprintln!("isolate: {message}");
            ExitCode::from(2)
        }
    }
}
