//! Runs a command whose processes each have a software mlx5 device.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::{fs, io};

use crate::base::run_dir::{RunDir, fresh_path};
use crate::base::tally::OfRun;
use crate::engine::NicConfig;
use crate::engine::options::{self, Options};
use crate::fabric::playback::Playback;
use crate::fabric::{Fabric, pcap};
use crate::objects::trace;

pub use crate::base::options::DeviceOption;
pub use crate::engine::options::all as options;

const LIBRARY: &str = "libsoft_mlx5.so";

/// The library that an installed program carries, see build.rs.
#[cfg(carries_library)]
const CARRIED: Option<&[u8]> = Some(include_bytes!(env!("SOFT_MLX5_LIBRARY")));
#[cfg(not(carries_library))]
const CARRIED: Option<&[u8]> = None;

/// A command to run, and its devices.
#[derive(Debug, Clone)]
pub struct Runner {
    command: Vec<OsString>,
    config: NicConfig,
}

impl Runner {
    /// Runs this program with these arguments.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { command, config: NicConfig::default() }
    }

    /// Sets an option of the device by its name and its value, which is empty for an option without one: see
    /// [`options()`]. Without `fabric` the processes of this run have a fabric of their own.
    ///
    /// # Errors
    /// The text says which values are valid.
    pub fn set(&mut self, name: &str, value: &OsStr) -> Result<(), String> {
        self.config.set(name, value)
    }

    /// Runs the command to its end. Signals sent to this process meanwhile go to the command.
    pub fn run(&self) -> io::Result<ExitStatus> {
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no command to run"))?;
        let dir = RunDir::create(fresh_path("run"))?;
        let library = library(dir.path())?;
        let mut config = self.config.clone();
        if config.fabric == Fabric::Private {
            let own = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            config.fabric = Fabric::Named(own);
        }
        config.trace = fresh(&config.trace, trace::create)?;
        config.pcap = fresh(&config.pcap, pcap::create)?;
        if let Some(path) = &config.frames {
            Playback::open(path, None)?;
            config.frames = Some(fs::canonicalize(path)?);
        }
        let faults = config.faults;
        let injected = if faults.is_none() { None } else { Some(OfRun::create(dir.path())?) };
        let options = Options { dir: dir.path().into(), config };
        let mut command = Command::new(program);
        command.args(arguments);
        command.env("LD_PRELOAD", preload(&library, dir.path())?);
        command.env(options::VARIABLE, options.encode());
        let signals = Signals::block();
        let parent = std::process::id();
        let awaited = signals.awaited;
        // SAFETY: system calls and no allocation between fork and exec.
        unsafe { command.pre_exec(move || start(parent, &awaited)) };
        let child = command.spawn().map_err(|error| {
            let what = format!("cannot start `{}`: {error}", Path::new(program).display());
            io::Error::new(error.kind(), what)
        })?;
        let status = signals.forward_until_exit(child)?;
        if let Some(said) = injected.and_then(|injected| injected.read().summary(&faults)) {
            eprintln!("soft-mlx5: injected: {said}");
        }
        Ok(status)
    }
}

// Makes a file for all processes of the command, whatever their working directory.
fn fresh(path: &Option<PathBuf>, create: impl Fn(&Path) -> io::Result<()>) -> io::Result<Option<PathBuf>> {
    let Some(path) = path else { return Ok(None) };
    let made = create(path).and_then(|()| fs::canonicalize(path));
    made.map(Some).map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

/// Returns the exit code of a command as a shell reports it: 128 and the number of the signal that ended it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    code as u8
}

// The command must end with a killed runner, and must not start with the signals blocked that the runner
// waits for.
fn start(parent: u32, awaited: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: system calls, and a set that is only read.
    unsafe {
        libc::sigprocmask(libc::SIG_UNBLOCK, awaited, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::raise(libc::SIGKILL);
        }
    }
    Ok(())
}

// The library lies beside the program, or one directory up or down while cargo builds it. Cargo does
// not always bring all of them up to date, so the newest counts. A program that was installed is alone, and
// writes the library that it carries to the directory of the run.
fn library(run: &Path) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let candidates = [dir.join(LIBRARY), dir.join("deps").join(LIBRARY), dir.join("..").join(LIBRARY)];
    let age = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let newest = candidates.into_iter().filter(|path| path.is_file()).max_by_key(age);
    if let Some(path) = newest.and_then(|path| fs::canonicalize(path).ok()) {
        return Ok(path);
    }
    let Some(bytes) = CARRIED else {
        let what = format!("{LIBRARY} is not beside the program in {}", dir.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    };
    let path = run.join(LIBRARY);
    fs::write(&path, bytes)?;
    Ok(path)
}

// In LD_PRELOAD spaces and colons separate paths.
fn preload(library: &Path, dir: &Path) -> io::Result<OsString> {
    let separated = |path: &Path| path.to_string_lossy().contains([' ', ':']);
    let mut value = library.as_os_str().to_owned();
    if separated(library) {
        let link = dir.join(LIBRARY);
        if separated(&link) || link == library {
            let what = format!("cannot preload {}: it has a space or colon", library.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        symlink(library, &link)?;
        value = link.into();
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(others);
    }
    Ok(value)
}

const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

struct Signals {
    awaited: libc::sigset_t,
}

impl Signals {
    // Blocks the signals: they wait until they are asked for, also signals that arrive before the command
    // runs.
    fn block() -> Self {
        // SAFETY: an all-zero set is a valid value to be filled.
        let mut awaited: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid and outlives the calls.
        unsafe {
            libc::sigemptyset(&mut awaited);
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut awaited, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, std::ptr::null_mut());
        }
        Self { awaited }
    }

    fn forward_until_exit(&self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            // SAFETY: an all-zero value is valid to be filled.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: both are valid and outlive the call.
            let signal = unsafe { libc::sigwaitinfo(&self.awaited, &mut info) };
            // The terminal sends its signals to the command as well.
            if signal > 0 && signal != libc::SIGCHLD && info.si_code != libc::SI_KERNEL {
                // SAFETY: the child has not been waited for, so the number is still its own.
                unsafe { libc::kill(child.id() as i32, signal) };
            }
        }
    }
}
