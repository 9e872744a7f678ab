//! Processes that are killed.

use std::thread;
use std::time::Duration;

use crate::common::{finish, free_port, fresh_fabric, run, start, wait_for_listener};

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
