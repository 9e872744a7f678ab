//! `doorbell selftest --peer` between two processes on one fabric: the checks hold over the link, the verdict is that
//! of both sides, and a side that dies ends the other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use doorbell_tests::programs::{Temporary, built};

/// `doorbell selftest` in a process of its own.
struct Side {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Side {
    fn start(fabric: &str, device: &[&str], arguments: &[&str]) -> Self {
        let mut command = Command::new(built("soft-mlx5"));
        command.args(["run", "--fabric", fabric]).args(device).arg("--").arg(built("doorbell"));
        command.arg("selftest").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The line that begins so.
    fn line(&mut self, begins: &str) -> String {
        let line = self.lines.by_ref().lines().map(Result::unwrap);
        line.into_iter().find(|line| line.starts_with(begins)).expect(begins)
    }

    /// Waits for its end; returns the rest of its output, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut text = String::new();
        self.lines.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The testing side and the listening one, each on a device with its options; and the report, which the test removes.
fn pair(name: &str, devices: [&[&str]; 2], checks: &[&str]) -> (Side, Side, Temporary) {
    let fabric = format!("selftest-{name}-{}", std::process::id());
    let report = Temporary::file("report");
    let mut far = Side::start(&fabric, devices[1], &["--listen", "--tcp-port", "0"]);
    let line = far.line("listening on TCP port ");
    let port = line.split(' ').nth(4).unwrap();
    let mut arguments = vec!["--peer", "localhost", "--tcp-port", port];
    arguments.extend(["--report", report.to_str().unwrap()]);
    arguments.extend(checks);
    let near = Side::start(&fabric, devices[0], &arguments);
    (near, far, report)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn the_checks_hold_over_a_link() {
    for link in ["ib", "roce"] {
        // Sends, shared queues, datagrams, opcodes of both sides, errors, events, and checks that need a peer.
        let checks = ["--quick", "--only", "B8,C10,C11,C16,D20,D25,E30,E32,F36,I53,I54,J51"];
        let (near, far, report) = pair(link, [&["--link", link, "--strict"]; 2], &checks);
        let (printed, code) = near.end();
        assert_eq!(last_line(&printed), "selftest: ok: 12 checks, 0 could not run", "{printed}");
        assert_eq!(code, Some(0), "{printed}");
        let (theirs, code) = far.end();
        assert_eq!((last_line(&theirs), code), (last_line(&printed), Some(0)));
        let written = std::fs::read_to_string(&*report).unwrap();
        assert!(!written.contains("localhost") && !written.contains("::1"), "{written}");
    }
}

/// The syndrome of a refused WRITE is written by the device of the sender.
#[test]
fn what_the_peer_sends_is_what_is_checked() {
    let (near, far, _report) = pair("fault", [&[], &["--fault", "syndrome"]], &["--quick", "--only", "C10,E30"]);
    let (printed, code) = near.end();
    let verdict = "selftest: FAILED: E30 (1 passed, 0 could not run)";
    assert_eq!(last_line(&printed), verdict, "{printed}");
    assert_eq!(code, Some(1));
    let (theirs, code) = far.end();
    assert_eq!((last_line(&theirs), code), (last_line(&printed), Some(1)));
}

#[test]
fn a_peer_that_dies_ends_the_run() {
    let (mut near, mut far, _report) = pair("far-dies", [&[]; 2], &["--soak", "1h", "--only", "C10,G39,I54"]);
    near.line("C10  ok");
    far.child.kill().unwrap();
    let (printed, code) = near.end();
    assert!(printed.contains("G39  FAIL") && printed.contains("the peer is gone"), "{printed}");
    let verdict = "selftest: FAILED: G39 (1 passed, 1 could not run)";
    assert_eq!(last_line(&printed), verdict, "{printed}");
    assert_eq!(code, Some(1));
}

#[test]
fn a_testing_side_that_dies_ends_the_other() {
    let (mut near, far, _report) = pair("near-dies", [&[]; 2], &["--soak", "1h", "--only", "C10,G39"]);
    near.line("C10  ok");
    near.child.kill().unwrap();
    let (printed, code) = far.end();
    let verdict = "selftest: FAILED: the testing side is gone: ";
    assert!(last_line(&printed).starts_with(verdict), "{printed}");
    assert_eq!(code, Some(1));
}

#[test]
fn an_unknown_peer_is_refused_without_naming_it() {
    let fabric = format!("selftest-stranger-{}", std::process::id());
    let mut far = Side::start(&fabric, &[], &["--listen", "--tcp-port", "0"]);
    let line = far.line("listening on TCP port ");
    let port: u16 = line.split(' ').nth(4).unwrap().parse().unwrap();
    let mut stranger = TcpStream::connect(("localhost", port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let (printed, code) = far.end();
    assert!(last_line(&printed).contains("what this version does not understand"), "{printed}");
    assert_eq!(code, Some(1));
    // No program listens there any more.
    let arguments = ["--peer", "localhost", "--tcp-port", &port.to_string()];
    let (printed, code) = Side::start(&fabric, &[], &arguments).end();
    assert_eq!((&*printed, code), ("", Some(2)));
}
