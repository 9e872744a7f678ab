//! Programs of librdmacm, which reach each other through the connection manager: two processes on one fabric.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{Outcome, Running, finish, free_port, fresh_fabric, run, start};
use crate::{LINKS, used_doorbell};

/// Starts a program and waits until it has the first port of the fabric.
fn start_first(options: &[&str], fabric: &str, program: &[&str]) -> Running {
    let mut running = start(&mut run(options, program));
    let name = format!("@soft-mlx5/{fabric}/1");
    while !fs::read_to_string("/proc/net/unix").unwrap().contains(&name) {
        if running.child.try_wait().unwrap().is_some() {
            panic!("{program:?} has ended: {:?}", running.finish());
        }
        thread::sleep(Duration::from_millis(5));
    }
    running
}

/// Runs a program as server and as client. A client that finds no server tries again: no socket tells when a server listens.
fn connected(options: &[&str], server: &[&str], client: &[&str]) -> [Outcome; 2] {
    let fabric = fresh_fabric(&free_port().to_string());
    let options = [&["--fabric", &fabric], options].concat();
    let running = start_first(&options, &fabric, server);
    loop {
        let outcome = finish(&mut run(&options, client));
        // 8: nobody listens to the service.
        let refused = ["REJECTED", "UNREACHABLE", "Connection refused", "Unexpected CM event"];
        let text = format!("{}{}", outcome.stdout, outcome.stderr);
        if outcome.status.success() || !refused.iter().any(|word| text.contains(word)) {
            return [running.finish(), outcome];
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn both(options: &[&str], server: &[&str], client: &[&str]) -> [Outcome; 2] {
    let outcomes = connected(options, server, client);
    for outcome in &outcomes {
        assert!(outcome.status.success(), "{options:?} {server:?} {client:?} {outcomes:#?}");
        if std::env::var_os("UNDER").is_some() {
            used_doorbell(outcome, 0);
        }
    }
    outcomes
}

#[test]
fn pings_of_both_families_and_links() {
    for link in LINKS {
        let options = ["--link", link];
        for (own, address) in
            [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "10.219.0.1"), ("::0", "fe80::db:ff:fe00:1")]
        {
            let port = free_port().to_string();
            let server = ["rping", "-s", "-a", own, "-p", &port, "-C", "5", "-v"];
            let client = ["rping", "-c", "-a", address, "-p", &port, "-C", "5", "-v"];
            let [server, client] = both(&options, &server, &client);
            assert!(server.stdout.contains("server ping data: rdma-ping-4"), "{server:?}");
            assert!(client.stdout.contains("ping data: rdma-ping-4"), "{client:?}");
        }
    }
}

#[test]
fn examples_of_librdmacm() {
    for link in LINKS {
        let options = ["--link", link];
        let port = &free_port().to_string();
        let more = &free_port().to_string();
        let last = &free_port().to_string();
        for (server, client) in [
            (
                &["ucmatose", "-p", port, "-c", "10"][..],
                &["ucmatose", "-p", port, "-c", "10", "-s", "127.0.0.1"][..],
            ),
            // With migration of the identifiers to another channel.
            (
                &["ucmatose", "-p", more, "-c", "4", "-m"],
                &["ucmatose", "-p", more, "-c", "4", "-m", "-s", "10.219.0.1"],
            ),
            (
                &["udaddy", "-p", port, "-c", "4"],
                &["udaddy", "-p", port, "-c", "4", "-s", "127.0.0.1"],
            ),
            (
                &["cmtime", "-p", port, "-c", "50"],
                &["cmtime", "-p", port, "-c", "50", "-s", "127.0.0.1"],
            ),
            (
                &["rstream", "-p", last, "-I", "10", "-C", "10"],
                &["rstream", "-p", last, "-I", "10", "-C", "10", "-s", "127.0.0.1"],
            ),
        ] {
            both(&options, server, client);
        }
    }
}

#[test]
fn multicast_finds_its_members() {
    for link in LINKS {
        for group in ["239.1.2.3", "ff1e::1:2"] {
            let fabric = fresh_fabric(&free_port().to_string());
            let options = ["--link", link, "--fabric", &fabric];
            let mut receiver = start(&mut run(&options, &["mckey", "-m", group, "-C", "20"]));
            // A datagram that comes before the receiver has joined is lost: send until it has its count.
            while receiver.child.try_wait().unwrap().is_none() {
                let sender = finish(&mut run(&options, &["mckey", "-m", group, "-s", "-C", "20"]));
                assert!(sender.status.success(), "{sender:?}");
            }
            receiver.finish().succeeded();
        }
    }
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    for link in LINKS {
        for program in ["ib_write_bw", "ib_read_lat", "ib_send_bw"] {
            let port = free_port().to_string();
            let server = [program, "-R", "-F", "-n", "100", "-p", &port];
            both(&["--link", link], &server, &[&server[..], &["127.0.0.1"]].concat());
        }
    }
}

#[test]
fn a_listener_that_dies_and_an_address_without_one() {
    for link in LINKS {
        let options = ["--link", link];
        // The port exists, and nobody listens.
        let client = ["ucmatose", "-s", "127.0.0.1", "-p", &free_port().to_string()];
        let outcome = finish(&mut run(&options, &client));
        assert!(!outcome.status.success() && outcome.stdout.contains("error: 8"), "{outcome:?}");
        // No port has the address.
        let outcome = finish(&mut run(&options, &["ucmatose", "-s", "10.219.77.7"]));
        assert!(!outcome.status.success(), "{outcome:?}");
        assert!(outcome.stdout.contains("ADDR_ERROR"), "{outcome:?}");
        let outcome = finish(&mut run(&options, &["ucmatose", "-s", "198.51.100.1"]));
        assert!(outcome.stdout.contains("ADDR_ERROR, error: -19"), "{outcome:?}");
    }
}

#[test]
fn tshark_knows_the_datagrams() {
    let pcap = std::env::temp_dir().join(format!("rdma_cm-{}.pcap", std::process::id()));
    let port = free_port().to_string();
    let path = pcap.to_str().unwrap();
    let script = format!(
        "rping -s -p {port} -C 1 & until rping -c -a 127.0.0.1 -p {port} -C 1; do sleep 0.05; done; wait"
    );
    finish(&mut run(&["--link", "roce", "--pcap", path], &["sh", "-c", &script])).succeeded();
    let shown = Command::new("tshark").args(["-r", path]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    fs::remove_file(&pcap).unwrap();
    for message in ["ConnectRequest", "ConnectReply", "ReadyToUse", "DisconnectRequest"] {
        assert!(shown.contains(message), "no {message} in:\n{shown}");
    }
}
