//! Programs whose peer gets no processor for a while.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::common::{PATIENCE, Running, finish, free_port, fresh_fabric, run, start, wait_for_listener};

/// Starts a server that writes its process number to a file.
fn server(options: &[&str], program: &str) -> (Running, i32) {
    let file = std::env::temp_dir().join(format!("{}.pid", fresh_fabric("stopped-server")));
    let script = format!("echo $$ > {}; exec {program}", file.display());
    let running = start(&mut run(options, &["sh", "-c", &script]));
    let begun = Instant::now();
    let pid = loop {
        if let Ok(pid) = fs::read_to_string(&file).unwrap_or_default().trim().parse() {
            break pid;
        }
        assert!(begun.elapsed() < PATIENCE, "the server does not start");
        thread::sleep(Duration::from_millis(5));
    };
    fs::remove_file(file).unwrap();
    (running, pid)
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a process of this test, which has not ended.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A stopped process is the extreme case of one that gets no processor. An adapter would answer all the same.
#[test]
fn a_stopped_peer_is_waited_for() {
    let fabric = fresh_fabric("stopped");
    let port = free_port();
    let options = ["--strict", "--fabric", &fabric];
    // The client always has requests that the server's device has not acknowledged.
    let writes = format!("ib_write_bw -F -s 1024 -n 100000000 -p {port}");
    let (server, pid) = server(&options, &writes);
    wait_for_listener(port);
    let trace = std::env::temp_dir().join(format!("{fabric}.trace"));
    let traced = [&options[..], &["--trace", trace.to_str().unwrap()]].concat();
    let words = format!("{writes} 127.0.0.1");
    let words: Vec<_> = words.split(' ').collect();
    let mut client = start(&mut run(&traced, &words));
    let progress = || fs::metadata(&trace).map_or(0, |trace| trace.len());
    let wait_for = |length: u64, client: &mut Running| {
        let begun = Instant::now();
        while progress() < length {
            assert_eq!(client.child.try_wait().unwrap(), None, "the client gave up");
            assert!(begun.elapsed() < PATIENCE, "the client does not send");
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(20_000, &mut client);
    signal(pid, libc::SIGSTOP);
    // Ten times the time-outs and retries of this program (14 and 7) on an adapter.
    thread::sleep(Duration::from_secs(6));
    assert_eq!(client.child.try_wait().unwrap(), None, "the client gave up");
    let before = progress();
    signal(pid, libc::SIGCONT);
    wait_for(before + 20_000, &mut client);
    client.signal(libc::SIGTERM);
    signal(pid, libc::SIGTERM);
    let (client, server) = (client.finish(), server.finish());
    assert!(!client.stderr.contains("Completion with error"), "{client:?}");
    assert!(!server.stderr.contains("Completion with error"), "{server:?}");
    assert!(client.stderr.contains("has taken no packet for"), "{client:?}");
    fs::remove_file(&trace).unwrap();
}

/// Once its retries are used up, the device says what is probably wrong, in one line.
#[test]
fn what_is_probably_wrong_is_said_once() {
    let said = |options: &[&str], command: &[&str]| {
        let outcome = finish(&mut run(options, command));
        let lines = outcome.stderr.lines().filter(|line| line.contains("retry counter exceeded"));
        let lines: Vec<_> = lines.filter(|line| line.starts_with("soft-mlx5: ")).collect();
        assert_eq!(lines.len(), 1, "{outcome:?}");
        lines[0].to_owned()
    };
    // Two fabrics: the client's peer has the client's own LID.
    let (port, fabrics) = (free_port(), ["one", "two"].map(fresh_fabric));
    let number = port.to_string();
    let pingpong = ["ibv_rc_pingpong", "-n", "10", "-p", &number];
    let mut server = start(&mut run(&["--fabric", &fabrics[0]], &pingpong));
    wait_for_listener(port);
    let line = said(&["--fabric", &fabrics[1]], &[&pingpong[..], &["127.0.0.1"]].concat());
    assert!(line.contains("--fabric") && line.contains(&fabrics[1]), "{line}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}
