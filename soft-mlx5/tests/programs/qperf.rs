//! qperf, on InfiniBand only: without rdma_cm it has no GIDs, which a RoCE port requires.

use crate::common::{finish, free_port, fresh_fabric, run, start, wait_for_listener};

const TESTS: [&str; 7] =
    ["rc_bw", "rc_lat", "uc_lat", "ud_lat", "rc_rdma_write_lat", "rc_rdma_read_lat", "rc_fetch_add_mr"];

#[test]
fn all_services() {
    let fabric = fresh_fabric("qperf");
    let options = ["--strict", "--fabric", &fabric];
    let port = free_port().to_string();
    let server = start(&mut run(&options, &["qperf", "-lp", &port]));
    wait_for_listener(port.parse().unwrap());
    let client = ["qperf", "-lp", &port, "127.0.0.1", "-t", "1"];
    let output = finish(&mut run(&options, &[&client[..], &TESTS].concat())).succeeded();
    for test in TESTS {
        assert!(output.contains(&format!("{test}:\n")), "{output}");
    }
    finish(&mut run(&options, &["qperf", "-lp", &port, "127.0.0.1", "quit"])).succeeded();
    server.finish().succeeded();
}
