//! Programs of Debian, which know nothing of us, on the device. docs/programs.md lists them.

#[path = "../common/mod.rs"]
mod common;

mod devinfo;
mod killed;
mod mpi;
mod perftest;
mod pingpong;
mod qperf;
mod rdma_cm;
mod tshark;
mod ucx;

use common::{Outcome, finish, fresh_fabric, run, start, wait_for_listener};

const LINKS: [&str; 2] = ["ib", "roce"];

/// Runs a program as server and as client, two processes on one fabric. Both must succeed; returns what
/// they printed.
fn pair(options: &[&str], port: u16, server: &[&str], client: &[&str]) -> [String; 2] {
    let fabric = fresh_fabric(&port.to_string());
    let options = [&["--fabric", &fabric], options].concat();
    let running = start(&mut run(&options, server));
    wait_for_listener(port);
    let client = finish(&mut run(&options, client));
    let server = running.finish();
    let report = |outcome: &Outcome| format!("{outcome:?}").replace("\\n", "\n");
    assert!(
        server.status.success() && client.status.success(),
        "{options:?}\nserver {}\nclient {}",
        report(&server),
        report(&client)
    );
    [server.stdout, client.stdout]
}
