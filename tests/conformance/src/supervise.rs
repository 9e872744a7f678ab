//! Distributes the sessions among processes, and adds up their counts.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::library;
use crate::sequence::OPERATIONS;
use crate::tally::{self, Of, Tally};

/// Sessions of one process.
const SHARE: u64 = 32;
/// Time after which a process is stopped. A process needs a few seconds for its sessions.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A file system in memory, for the small files of the devices.
const IN_MEMORY: &str = "/dev/shm";

/// A process that runs sessions.
struct Worker {
    child: Child,
    progress: File,
    output: File,
    started: Instant,
}

fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: a C string; no other code owns the returned descriptor.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

impl Worker {
    fn start(seed: u64, sessions: u64, operations: u64, fault: Option<Fault>) -> io::Result<Self> {
        let (progress, output) = (memory_file(c"progress")?, memory_file(c"output")?);
        // The program may be started by a command, such as the loader of other libraries.
        let under = std::env::var("CONFORMANCE_UNDER").unwrap_or_default();
        let mut words = under.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        words.push(std::env::current_exe()?.into_os_string());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["--worker", &sessions.to_string(), "--seed", &seed.to_string()])
            .args(["--operations", &operations.to_string()])
            .args(inject(fault))
            .stdin(Stdio::from(progress.try_clone()?))
            .stdout(Stdio::from(output.try_clone()?));
        // Each session makes two devices, and each device a tree of small files.
        if Path::new(IN_MEMORY).is_dir() {
            command.env("TMPDIR", IN_MEMORY);
        }
        Ok(Self { child: command.spawn()?, progress, output, started: Instant::now() })
    }

    /// Returns the numbers of the session and of the operation that the process began last.
    fn place(&self) -> (u64, u64) {
        let mut bytes = [0; 16];
        let _ = self.progress.read_exact_at(&mut bytes, 0);
        let [session, operation] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        (session, operation)
    }

    fn output(&self) -> String {
        let len = self.output.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; len as usize];
        let _ = self.output.read_exact_at(&mut bytes, 0);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Returns the command that repeats one session.
pub fn replay_command(session: u64, fault: Option<Fault>) -> String {
    let mut arguments = vec!["--replay".to_owned(), format!("{session:#x}")];
    arguments.extend(inject(fault));
    let arguments = arguments.join(" ");
    let under = if library::is_dropped_in() { "target/debug/doorbell run -- " } else { "" };
    format!("{under}cargo run -p doorbell-conformance --bin conformance -- {arguments}")
}

/// Returns the arguments that inject a deliberate error.
fn inject(fault: Option<Fault>) -> Vec<String> {
    fault.map_or_else(Vec::new, |fault| vec!["--inject".to_owned(), fault.name()])
}

/// Runs `operations` operations, from session `seed` on.
pub fn run(seed: u64, operations: u64, fault: Option<Fault>) -> ExitCode {
    match supervise(seed, operations, fault) {
        Ok(tally) => verdict(&tally),
        Err(report) => {
            println!("{report}");
            ExitCode::FAILURE
        }
    }
}

fn verdict(tally: &Tally) -> ExitCode {
    print!("{}", tally.table());
    println!("conformance: with {}", tally.library.as_deref().unwrap_or("no libmlx5"));
    let sessions = if library::is_dropped_in() { Of::DropIn } else { Of::Rings };
    let missing = tally.missing(sessions);
    if !missing.is_empty() {
        println!("conformance: FAILED: too little was tried: {}", missing.join("; "));
        return ExitCode::FAILURE;
    }
    let (operations, bytes) = (tally.get(tally::OPERATIONS), tally.bytes());
    println!("conformance: ok: {operations} operations, {bytes} bytes compared, 0 differences");
    ExitCode::SUCCESS
}

fn supervise(seed: u64, operations: u64, fault: Option<Fault>) -> Result<Tally, String> {
    let per_session = OPERATIONS as u64;
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let mut tally = Tally::default();
    let (mut next, mut left) = (seed, operations);
    let mut workers: Vec<Worker> = Vec::new();
    let mut reported = Instant::now();
    while left > 0 || !workers.is_empty() {
        while left > 0 && workers.len() < processes {
            let share = left.min(SHARE * per_session);
            let sessions = share.div_ceil(per_session);
            let worker = Worker::start(next, sessions, share, fault);
            workers.push(worker.map_err(|error| format!("conformance: FAILED: {error}"))?);
            (next, left) = (next + sessions, left - share);
        }
        let ended = workers.iter_mut().position(|worker| {
            if worker.started.elapsed() > PATIENCE {
                let _ = worker.child.kill();
            }
            !matches!(worker.child.try_wait(), Ok(None))
        });
        let Some(ended) = ended else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let worker = workers.swap_remove(ended);
        if let Err(report) = take(worker, &mut tally, fault) {
            for worker in &mut workers {
                let _ = worker.child.kill();
                let _ = worker.child.wait();
            }
            return Err(report);
        }
        if reported.elapsed() > Duration::from_secs(5) {
            reported = Instant::now();
            println!("conformance: {} of {operations} operations", tally.get(tally::OPERATIONS));
        }
    }
    Ok(tally)
}

/// Adds the counts of a process that has ended, or returns its error.
fn take(mut worker: Worker, tally: &mut Tally, fault: Option<Fault>) -> Result<(), String> {
    let status = worker.child.wait().map_err(|error| error.to_string())?;
    let output = worker.output();
    if status.success() {
        for line in output.lines() {
            match line.strip_prefix("library: ") {
                Some(name) => tally.library = Some(name.to_owned()),
                None => drop(tally.take(line)),
            }
        }
        return Ok(());
    }
    if output.contains("conformance: DIFFERENCE") {
        return Err(output);
    }
    let (session, operation) = worker.place();
    let how = match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    };
    Err(format!(
        "{output}conformance: STOPPED by {how} (the reason is above): seed {session:#x}, \
         operation {operation}\n  replay:   {}",
        replay_command(session, fault)
    ))
}
