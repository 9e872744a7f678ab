//! Many processes, and processes that are killed.

use std::time::Duration;
use std::{fs, thread};

use crate::common::{finish, free_port, fresh_fabric, run, start, wait_for_listener};

const WAVES: usize = 4;
const PROCESSES: usize = 50;

// Each watcher holds its device until it is killed, every other one by a signal that it cannot catch.
#[test]
fn two_hundred_processes_come_and_go_on_one_fabric() {
    let fabric = fresh_fabric("waves");
    let options = ["--strict", "--fabric", &fabric];
    let dir = std::env::temp_dir().join(&fabric);
    fs::create_dir_all(&dir).unwrap();
    for _ in 0..WAVES {
        let script = format!(
            "cd {dir}; rm -f *
            for i in $(seq {PROCESSES}); do ibv_asyncwatch >$i 2>&1 & pids=\"$pids $!\"; done
            until [ $(cat * | grep -c 'async event FD') = {PROCESSES} ]; do sleep 0.1; done
            n=0; for pid in $pids; do
                n=$((n + 1)); if [ $((n % 2)) = 0 ]; then kill -KILL $pid; else kill $pid; fi
            done
            wait; ls | wc -l",
            dir = dir.display()
        );
        let output = finish(&mut run(&options, &["sh", "-c", &script])).succeeded();
        assert_eq!(output.trim(), PROCESSES.to_string());
    }
    fs::remove_dir_all(&dir).unwrap();
    // Nothing of them is left: the first address is free.
    let info = finish(&mut run(&options, &["ibv_devinfo"])).succeeded();
    let lid = info.lines().find(|line| line.contains("port_lid:")).unwrap();
    assert_eq!(lid.split_whitespace().last(), Some("1"));
}

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
        let mut second = start(&mut run(&options, &[&server[..], &["127.0.0.1"]].concat()));
        thread::sleep(Duration::from_millis(300));
        for running in [&mut first.child, &mut second.child] {
            running.kill().unwrap();
            running.wait().unwrap();
        }
        let port = free_port();
        let short = command(port, "100");
        let server: Vec<_> = short.iter().map(String::as_str).collect();
        let running = start(&mut run(&options, &server));
        wait_for_listener(port);
        finish(&mut run(&options, &[&server[..], &["127.0.0.1"]].concat())).succeeded();
        running.finish().succeeded();
    }
}
