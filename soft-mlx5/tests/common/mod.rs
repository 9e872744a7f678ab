//! Runs programs with a bound on their time.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The program under test.
pub const SOFT_MLX5: &str = env!("CARGO_BIN_EXE_soft-mlx5");

pub const PATIENCE: Duration = Duration::from_secs(240);

/// Output and exit status of a program.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Fails the test unless the program succeeded; returns its output.
    pub fn succeeded(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }
}

/// Returns `soft-mlx5 run` with these options and the command. `UNDER` is a command that starts the command.
pub fn run(options: &[&str], command: &[&str]) -> Command {
    let under = std::env::var("UNDER").unwrap_or_default();
    let mut run = Command::new(SOFT_MLX5);
    run.arg("run").args(options).arg("--").args(under.split_whitespace()).args(command);
    run
}

/// A program at work.
pub struct Running {
    pub child: Child,
    output: Vec<thread::JoinHandle<String>>,
}

/// Starts a program.
pub fn start(command: &mut Command) -> Running {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    Running { child, output: vec![collect(stdout), collect(stderr)] }
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    /// Sends a signal to a program that was not waited for.
    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for the end, but not for ever.
    pub fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                break self.child.wait().unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mut output = self.output.into_iter().map(|output| output.join().unwrap());
        let (stdout, stderr) = (output.next().unwrap(), output.next().unwrap());
        Outcome { status, stdout, stderr }
    }
}

/// Runs a program to its end.
pub fn finish(command: &mut Command) -> Outcome {
    start(command).finish()
}

/// Returns a TCP port without a listener.
pub fn free_port() -> u16 {
    TcpListener::bind(("0.0.0.0", 0)).unwrap().local_addr().unwrap().port()
}

/// Waits for a listener on a port, without connecting to it.
pub fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| listens(table, port)) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("no program listens on port {port}");
}

fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let Ok(table) = std::fs::read_to_string(table) else { return false };
    table.lines().skip(1).any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words[1].ends_with(&format!(":{port:04X}")) && words[3] == LISTEN
    })
}

/// Returns a script that runs `ibv_rc_pingpong` in the background, and again as its client.
pub fn pingpong(options: &str) -> String {
    let port = free_port();
    let pingpong = format!("ibv_rc_pingpong -g 0 {options} -p {port}");
    // Its port, the remote one, and the state LISTEN.
    let listening = format!("grep -q ':{port:04X} [0-9A-F]*:0000 0A ' /proc/net/tcp6 /proc/net/tcp");
    format!("{pingpong} & until {listening}; do sleep 0.05; done; {pingpong} 127.0.0.1")
}

/// Returns a fabric of its own for each test.
pub fn fresh_fabric(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}
