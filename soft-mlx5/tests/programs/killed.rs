//! Processes that come and go, many of them, and are killed.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::common::{PATIENCE, Running, finish, free_port, fresh_fabric, run, start, wait_for_listener};

#[test]
fn a_killed_pair_does_not_keep_the_next_one_from_working() {
    let fabric = fresh_fabric("killed");
    let options = ["--strict", "--fabric", &fabric];
    let command = |port: u16, iterations: &'static str| {
        let port = port.to_string();
        let words = ["ibv_rc_pingpong", "-g", "0", "-c", "-n", iterations, "-p", &port];
        words.map(str::to_owned)
    };
    for _ in 0..3 {
        let port = free_port();
        let endless = command(port, "1000000000");
        let server: Vec<_> = endless.iter().map(String::as_str).collect();
        let mut first = start(&mut run(&options, &server));
        wait_for_listener(port);
        // Its device writes a trace: both processes are killed in the middle of that.
        let trace = std::env::temp_dir().join(format!("{fabric}-{port}.trace"));
        let traced = [&options[..], &["--trace", trace.to_str().unwrap()]].concat();
        let mut second = start(&mut run(&traced, &[&server[..], &["127.0.0.1"]].concat()));
        let begun = Instant::now();
        while fs::metadata(&trace).map_or(0, |trace| trace.len()) < 20_000 {
            assert!(begun.elapsed() < PATIENCE, "the client does not send");
            thread::sleep(Duration::from_millis(5));
        }
        for running in [&mut first.child, &mut second.child] {
            running.kill().unwrap();
            running.wait().unwrap();
        }
        fs::remove_file(&trace).unwrap();
        let port = free_port();
        let short = command(port, "100");
        let server: Vec<_> = short.iter().map(String::as_str).collect();
        let running = start(&mut run(&options, &server));
        wait_for_listener(port);
        finish(&mut run(&options, &[&server[..], &["127.0.0.1"]].concat())).succeeded();
        running.finish().succeeded();
    }
}

// Devices on a fabric: each has an abstract socket there.
fn members(fabric: &str) -> usize {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.matches(&crate::socket_name(fabric, "")).count()
}

/// Processes that end with a failed test: so many would keep the machine busy.
struct Crowd(Vec<Running>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for running in &mut self.0 {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

#[test]
fn two_hundred_processes_start_and_stop_on_one_fabric() {
    const ROUNDS: usize = 4;
    const EACH: usize = 50;
    // On two idle cores all of it takes a fraction of this.
    let deadline = Instant::now() + 10 * PATIENCE;
    let fabric = fresh_fabric("many");
    let dir = std::env::temp_dir().join(&fabric);
    fs::create_dir(&dir).unwrap();
    let command = |program: &[&str]| {
        let mut command = run(&["--strict", "--fabric", &fabric], program);
        command.env("TMPDIR", &dir);
        command
    };
    for _ in 0..ROUNDS {
        let all = (0..EACH).map(|_| start(&mut command(&["ibv_asyncwatch"])));
        let mut all = Crowd(all.collect());
        while members(&fabric) != EACH {
            let ended = |running: &mut Running| running.child.try_wait().unwrap().is_some();
            if let Some(index) = all.0.iter_mut().position(ended) {
                panic!("ended early: {:?}", all.0.remove(index).finish());
            }
            assert!(Instant::now() < deadline, "{} of {EACH} are there", members(&fabric));
            thread::sleep(Duration::from_millis(20));
        }
        // Half of them end by a signal that they could handle, half by SIGKILL.
        for (index, running) in all.0.iter_mut().enumerate() {
            running.signal([libc::SIGTERM, libc::SIGKILL][index % 2]);
        }
        for running in all.0.drain(..) {
            assert!(!running.finish().status.success());
        }
        // A killed `soft-mlx5 run` takes its command along.
        while members(&fabric) != 0 {
            assert!(Instant::now() < deadline, "{} are left", members(&fabric));
            thread::sleep(Duration::from_millis(20));
        }
    }
    // The next process finds an empty fabric, and removes the directories of the dead ones.
    let info = finish(&mut command(&["ibv_devinfo", "-v"])).succeeded();
    assert!(info.contains("port_lid:\t\t1\n"), "{info}");
    let left = fs::read_dir(&dir).unwrap().flatten().flat_map(|base| fs::read_dir(base.path()));
    let left: Vec<_> = left.flatten().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(Instant::now() < deadline, "took too long");
    fs::remove_dir_all(&dir).unwrap();
}
