//! Programs of librdmacm, which reach each other through the connection manager: two processes on one fabric.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use crate::common::{Outcome, Running, finish, free_port, fresh_fabric, run, start, wait_for_listener};
use crate::{LINKS, used_doorbell};

/// Attempts of a client. Each takes as long as the start of a process.
const ATTEMPTS: usize = 300;

/// Starts a program and waits until it has the first port of the fabric.
fn start_first(options: &[&str], fabric: &str, program: &[&str]) -> Running {
    let mut running = start(&mut run(options, program));
    let name = crate::socket_name(fabric, "1");
    while !fs::read_to_string("/proc/net/unix").unwrap().contains(&name) {
        if running.child.try_wait().unwrap().is_some() {
            panic!("{program:?} has ended: {:?}", running.finish());
        }
        thread::sleep(Duration::from_millis(5));
    }
    running
}

/// Runs a program as server and as client. A client that finds no server tries again: no socket tells when a server
/// listens.
fn connected(options: &[&str], server: &[&str], client: &[&str]) -> [Outcome; 2] {
    let fabric = fresh_fabric(&free_port().to_string());
    let options = [&["--fabric", &fabric], options].concat();
    let mut running = start_first(&options, &fabric, server);
    for _ in 0..ATTEMPTS {
        let outcome = finish(&mut run(&options, client));
        // A server that a client has reached ends.
        if outcome.status.success() || running.child.try_wait().unwrap().is_some() {
            return [running.finish(), outcome];
        }
        thread::sleep(Duration::from_millis(20));
    }
    running.signal(libc::SIGKILL);
    panic!("{client:?} does not reach {:?}", running.finish());
}

/// Runs a client until it succeeds, or fails after it was served; returns how its last attempt ended.
fn until_served(options: &[&str], client: &[&str], was_served: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut attempts = ATTEMPTS;
    loop {
        let outcome = finish(&mut run(options, client));
        attempts -= 1;
        if outcome.status.success() || was_served(&outcome) || attempts == 0 {
            return outcome;
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
    const CLOSED_CHANNEL: &str = "rdma_get_cm_event: Bad file descriptor";
    for link in LINKS {
        let options = ["--link", link];
        for (own, address) in [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "10.219.0.1"), ("::0", "fe80::db:ff:fe00:1")] {
            let port = free_port().to_string();
            let server = ["rping", "-s", "-a", own, "-p", &port, "-C", "5", "-v"];
            let client = ["rping", "-c", "-a", address, "-p", &port, "-C", "5", "-v"];
            let [server, client] = connected(&options, &server, &client);
            for outcome in [server, client] {
                // After the last ping, one thread closes the channel that another reads. The reader ends the process
                // with an error if it comes second.
                assert!(outcome.status.success() || outcome.stderr.contains(CLOSED_CHANNEL), "{outcome:?}");
                assert!(outcome.stdout.contains("ping data: rdma-ping-4"), "{outcome:?}");
                if std::env::var_os("UNDER").is_some() {
                    used_doorbell(&outcome, 0);
                }
            }
        }
    }
}

// Each has one connection: a server that listens only when a client of several has asked for the first would wait for
// ever.
#[test]
fn examples_of_librdmacm() {
    for link in LINKS {
        let options = ["--link", link];
        let port = &free_port().to_string();
        let more = &free_port().to_string();
        let last = &free_port().to_string();
        for (server, client) in [
            (
                &["ucmatose", "-p", port, "-S", "1000"][..],
                &["ucmatose", "-p", port, "-S", "1000", "-s", "127.0.0.1"][..],
            ),
            // With migration of the identifiers to another channel.
            (&["ucmatose", "-p", more, "-m"], &["ucmatose", "-p", more, "-m", "-s", "10.219.0.1"]),
            (&["udaddy"], &["udaddy", "-s", "127.0.0.1"]),
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
fn fifty_connections_at_once() {
    for link in LINKS {
        let fabric = fresh_fabric(&free_port().to_string());
        let options = ["--link", link, "--fabric", &fabric];
        // This server has no end.
        let mut server = start_first(&options, &fabric, &["cmtime", "-c", "50"]);
        let client = ["cmtime", "-c", "50", "-s", "127.0.0.1"];
        while !finish(&mut run(&options, &client)).status.success() {
            assert!(server.child.try_wait().unwrap().is_none(), "{:?}", server.finish());
        }
        server.signal(libc::SIGTERM);
        server.finish();
    }
}

#[test]
fn a_file_is_copied() {
    // More than a socket of librdmacm buffers at either end.
    let bytes: Vec<u8> = (0..300_001u32).map(|index| (index ^ index >> 8) as u8).collect();
    for link in LINKS {
        let port = free_port().to_string();
        let fabric = fresh_fabric(&port);
        let options = ["--link", link, "--fabric", &fabric];
        let [from, to] = ["from", "to"].map(|end| std::env::temp_dir().join(format!("{fabric}.{end}")));
        fs::write(&from, &bytes).unwrap();
        // This server has no end.
        let server = start_first(&options, &fabric, &["rcopy", "-p", &port]);
        let target = format!("127.0.0.1:{}", to.display());
        // The client takes options after the files only.
        let client = ["rcopy", from.to_str().unwrap(), &target, "-p", &port];
        let copied = until_served(&options, &client, |outcome| outcome.stdout.contains("opening"));
        server.signal(libc::SIGTERM);
        let server = server.finish();
        assert!(copied.status.success(), "{link} {copied:?} {server:?}");
        assert!(fs::read(&to).unwrap() == bytes, "{link} {server:?}");
        if std::env::var_os("UNDER").is_some() {
            used_doorbell(&copied, 1);
        }
        fs::remove_file(&from).unwrap();
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn fio_writes_and_reads() {
    let job = ["--bs=4k", "--size=256k", "--iodepth=4"];
    for link in LINKS {
        for verb in ["--verb=write", "--verb=read"] {
            let port = format!("--port={}", free_port());
            let server = [&["fio", "--name=server", "--ioengine=rdma", "--rw=read", &port][..], &job].concat();
            let client = ["fio", "--name=client", "--ioengine=rdma", "--rw=write", &port, verb];
            let more = [&client[..], &["--hostname=127.0.0.1"]].concat();
            both(&["--link", link], &server, &[&more[..], &job].concat());
        }
    }
}

/// Waits until one of two programs has ended, and a few seconds for the other.
fn wait_for_both(ends: &mut [Running; 2]) {
    let mut patience = 500;
    while patience > 0 {
        match ends.each_mut().map(|end| end.child.try_wait().unwrap().is_some()) {
            [true, true] => return,
            [false, false] => {}
            _ => patience -= 1,
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn endpoints_of_libfabric() {
    for link in LINKS {
        for (provider, endpoint) in [("verbs", "msg"), ("verbs", "dgram"), ("verbs;ofi_rxm", "rdm")] {
            let port = free_port();
            let number = port.to_string();
            let fabric = fresh_fabric(&number);
            let options = ["--link", link, "--fabric", &fabric];
            let server = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "10", "-S", "1024", "-B", &number];
            let running = start(&mut run(&options, &server));
            wait_for_listener(port);
            let mut client = server;
            client[client.len() - 2] = "-P";
            let mut ends = [running, start(&mut run(&options, &[&client[..], &["127.0.0.1"]].concat()))];
            let is_rxm = provider.ends_with("rxm");
            // Whoever has the last message leaves. The other end of ofi_rxm may then read the flushed receives of its
            // connection, or close the connection before it reads the CQE of its last message, and wait for ever.
            if is_rxm {
                wait_for_both(&mut ends);
                for end in &mut ends {
                    if end.child.try_wait().unwrap().is_none() {
                        end.signal(libc::SIGKILL);
                    }
                }
            }
            let ends = ends.map(Running::finish);
            let is_done = |end: &Outcome| {
                let flushed = end.stderr.contains("Work Request Flushed Error");
                end.stdout.contains("=10") && (end.status.success() || flushed)
            };
            let waited = |end: &Outcome| is_rxm && end.status.signal() == Some(libc::SIGKILL);
            let good = ends.iter().any(is_done) && ends.iter().all(|end| is_done(end) || waited(end));
            assert!(good, "{link} {provider} {endpoint} {ends:#?}");
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
fn a_group_is_known_to_the_subnet_administrator_while_it_has_members() {
    let fabric = fresh_fabric(&free_port().to_string());
    let options = ["--fabric", &fabric];
    let mut receiver = start(&mut run(&options, &["mckey", "-m", "239.1.2.3", "-C", "20"]));
    let is_known = || finish(&mut run(&options, &["saquery", "-g"])).stdout.contains("ff12:4001:ffff::f01:203");
    for _ in 0..ATTEMPTS {
        if is_known() {
            receiver.child.kill().unwrap();
            receiver.child.wait().unwrap();
            assert!(!is_known(), "the member has ended");
            return;
        }
        assert_eq!(receiver.child.try_wait().unwrap(), None, "the receiver waits for datagrams");
    }
    receiver.child.kill().unwrap();
    panic!("the group has no member: {:?}", receiver.finish());
}

/// perftest connects twice: the first connection tells both sides when to make the second one, for which the server
/// listens no sooner than the client asks. A client that wins this race is rejected, and may crash in its next attempt
/// because it has destroyed the identifier. Its server waits for ever, so both sides begin anew.
#[test]
fn perftest_connects_by_the_connection_manager() {
    const LOST_RACE: &str = "Failed to connect RDMA CM events";
    for link in LINKS {
        for program in ["ib_write_bw", "ib_send_bw", "ib_read_lat"] {
            let mut races = 0;
            let [server, client] = loop {
                let port = free_port().to_string();
                let server = [program, "-R", "-F", "-n", "100", "-p", &port];
                let fabric = fresh_fabric(&port);
                let options = ["--link", link, "--fabric", &fabric];
                let running = start_first(&options, &fabric, &server);
                let client = [&server[..], &["127.0.0.1"]].concat();
                let lost = |outcome: &Outcome| outcome.stderr.contains(LOST_RACE);
                let client = until_served(&options, &client, lost);
                if client.status.success() {
                    break [running.finish(), client];
                }
                running.signal(libc::SIGKILL);
                let server = running.finish();
                races += 1;
                assert!(lost(&client) && races < ATTEMPTS, "{program} {server:#?} {client:#?}");
            };
            assert!(server.status.success(), "{program} {server:#?} {client:#?}");
            if std::env::var_os("UNDER").is_some() {
                used_doorbell(&server, 0);
                used_doorbell(&client, 0);
            }
        }
    }
}

#[test]
fn a_peer_that_is_killed_is_missed() {
    for link in LINKS {
        let port = free_port().to_string();
        let fabric = fresh_fabric(&port);
        let options = ["--link", link, "--fabric", &fabric];
        let mut server = start_first(&options, &fabric, &["rping", "-s", "-p", &port]);
        let trace = std::env::temp_dir().join(format!("{fabric}.trace"));
        let traced = [&options[..], &["--trace", trace.to_str().unwrap()]].concat();
        // Without an end.
        let client = ["rping", "-c", "-a", "127.0.0.1", "-p", &port];
        let mut running = start(&mut run(&traced, &client));
        while fs::metadata(&trace).map_or(0, |trace| trace.len()) < 20_000 {
            if running.child.try_wait().unwrap().is_some() {
                // The server did not listen yet.
                running = start(&mut run(&traced, &client));
            }
            thread::sleep(Duration::from_millis(5));
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        let outcome = running.finish();
        assert!(outcome.status.code().is_some(), "it had to be killed, too: {outcome:?}");
        fs::remove_file(&trace).unwrap();
    }
}

#[test]
fn a_port_without_a_listener_and_an_address_without_a_port() {
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
    // A client that the server has served may end with an error.
    let script = format!(
        "rping -s -p {port} -C 1 & \
         until rping -c -a 127.0.0.1 -p {port} -C 1 || ! kill -0 $!; do sleep 0.05; done; wait"
    );
    finish(&mut run(&["--link", "roce", "--pcap", path], &["sh", "-c", &script])).succeeded();
    let shown = Command::new("tshark").args(["-r", path]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    fs::remove_file(&pcap).unwrap();
    for message in ["ConnectRequest", "ConnectReply", "ReadyToUse", "DisconnectRequest"] {
        assert!(shown.contains(message), "no {message} in:\n{shown}");
    }
}
