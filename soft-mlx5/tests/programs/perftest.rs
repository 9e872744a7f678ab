//! The bandwidth and latency tests of perftest, all services and operations.

use crate::{LINKS, pair};

fn perftest(program: &str, arguments: &[&str]) {
    for link in LINKS {
        let words = [&[program, "-F", "-n", "200"], arguments].concat();
        let outputs = pair(&["--strict", "--link", link], &words);
        // Below the heading, lines have the size, the iterations and the results.
        let lines = outputs[1].lines().skip_while(|line| !line.starts_with(" #bytes"));
        let results: Vec<_> = lines.skip(1).take_while(|line| !line.starts_with('-')).collect();
        let measured =
            |line: &&str| line.split_whitespace().nth(2).is_some_and(|n| n.parse().is_ok_and(|n: f64| n > 0.0));
        let sensible = !results.is_empty() && results.iter().all(measured);
        assert!(sensible, "{program} {arguments:?}:\n{}", outputs[1]);
    }
}

#[test]
fn rdma_write() {
    perftest("ib_write_bw", &["-s", "65536"]);
    perftest("ib_write_lat", &[]);
}

#[test]
fn rdma_write_over_eight_queue_pairs_both_ways() {
    perftest("ib_write_bw", &["-q", "8", "-b"]);
}

#[test]
fn rdma_read() {
    perftest("ib_read_bw", &[]);
    perftest("ib_read_lat", &[]);
}

#[test]
fn send() {
    perftest("ib_send_bw", &[]);
    perftest("ib_send_lat", &[]);
}

#[test]
fn send_by_events() {
    perftest("ib_send_bw", &["-e", "-q", "4"]);
}

/// The latency programs arm before they poll: a second event for the same CQE breaks them.
#[test]
fn latency_by_events() {
    perftest("ib_send_lat", &["-e"]);
    perftest("ib_send_lat", &["-e", "-c", "UD", "-s", "1024"]);
    perftest("ib_read_lat", &["-e"]);
    perftest("ib_atomic_lat", &["-e", "-A", "CMP_AND_SWAP"]);
}

#[test]
fn send_into_a_shared_receive_queue() {
    perftest("ib_send_bw", &["--use-srq", "-q", "4"]);
}

#[test]
fn send_over_uc_and_ud() {
    perftest("ib_send_bw", &["-c", "UC"]);
    perftest("ib_send_lat", &["-c", "UD", "-s", "1024"]);
}

#[test]
fn atomics() {
    perftest("ib_atomic_bw", &["-A", "CMP_AND_SWAP"]);
    perftest("ib_atomic_lat", &["-A", "FETCH_AND_ADD"]);
}
