//! The example `srq_pingpong` and the program of rdma-core that it is a port of, as peers of each other.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use doorbell_tests::programs::{Ended, built, free_port, on_soft_mlx5, poisoned};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    RdmaCore,
    Direct,
    Verbs,
}

use Kind::{Direct, RdmaCore, Verbs};

impl Kind {
    /// On a fabric that the two sides share.
    fn command(self, link: &str, fabric: &str, arguments: &[&str]) -> Command {
        let program = match self {
            RdmaCore => PathBuf::from("ibv_srq_pingpong"),
            Direct | Verbs => built("examples/srq_pingpong"),
        };
        let mut command = on_soft_mlx5(&["--link", link, "--fabric", fabric], program);
        match self {
            RdmaCore => {}
            Direct => _ = poisoned(&mut command).args(["--path", "direct"]),
            Verbs => _ = command.args(["--path", "verbs"]),
        }
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Runs a server and a client with their arguments; returns what they printed.
fn play(server: (Kind, &[&str]), client: (Kind, &[&str]), link: &str) -> [Ended; 2] {
    let port = free_port().to_string();
    let fabric = format!("pingpong-{}", std::process::id());
    let arguments = [server.1, &["-p", &port]].concat();
    let mut server = server.0.command(link, &fabric, &arguments).spawn().unwrap();
    let client = loop {
        // A client that comes before the server listens ends at once.
        let there = [client.1, &["-p", &port, "127.0.0.1"]].concat();
        let ended = Ended::of(&mut client.0.command(link, &fabric, &there));
        if ended.code == Some(0) || !ended.complained.to_lowercase().contains("connect") {
            break ended;
        }
        assert!(server.try_wait().unwrap().is_none(), "{:?}", server.wait_with_output());
        thread::sleep(Duration::from_millis(20));
    };
    if client.code != Some(0) && !client.complained.contains("Failed status") {
        let _ = server.kill();
    }
    [server.wait_with_output().unwrap().into(), client]
}

fn succeed(server: Kind, client: Kind, link: &str, arguments: &[&str], iters: u32) {
    let outputs = play((server, arguments), (client, arguments), link);
    for Ended { code, printed, .. } in &outputs {
        let ok = *code == Some(0) && printed.contains(&format!("{iters} iters in "));
        assert!(ok && !printed.contains("invalid data"), "{server:?} {client:?}: {outputs:#?}");
    }
}

/// Messages of three packets, the last one not full. With events, because a program that spins takes the
/// processor from a software device.
const COMMON: &[&str] = &["-n", "300", "-s", "2500", "-r", "64", "-e", "-c"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [COMMON, more].concat()
}

#[test]
fn a_server_of_rdma_core_clients() {
    succeed(Direct, RdmaCore, "ib", &with(&["-q", "16"]), 300);
    succeed(Verbs, RdmaCore, "ib", &with(&["-q", "3"]), 300);
    succeed(Direct, RdmaCore, "roce", &with(&["-q", "3", "-g", "0"]), 300);
}

#[test]
fn a_client_of_rdma_core_servers() {
    succeed(RdmaCore, Direct, "ib", &with(&["-q", "16"]), 300);
    succeed(RdmaCore, Verbs, "ib", &with(&["-q", "3"]), 300);
    succeed(RdmaCore, Direct, "roce", &with(&["-q", "3", "-g", "0"]), 300);
}

#[test]
fn a_peer_of_its_own_kind() {
    succeed(Direct, Verbs, "ib", &with(&["-q", "4", "-g", "0", "-l", "3", "-m", "4096"]), 300);
    // Without events, and without a GID on Ethernet.
    succeed(Verbs, Direct, "roce", &["-n", "20", "-q", "1", "-s", "1", "-r", "1"], 20);
}

#[test]
fn a_message_that_does_not_fit_ends_both() {
    let small = ["-s", "64", "-q", "1"];
    let large = ["-s", "65", "-q", "1"];
    let [server, client] = play((Direct, &small), (RdmaCore, &large), "ib");
    let reported = server.complained.contains("local length error");
    assert!(server.code != Some(0) && reported, "{server}");
    assert!(client.complained.contains("remote invalid request error"), "{client}");
}

#[test]
fn what_it_cannot_do_is_refused() {
    let refused = |arguments: &[&str], reason: &str| {
        let ended = Ended::of(&mut Verbs.command("ib", "refused", arguments));
        assert!(ended.code != Some(0) && ended.complained.contains(reason), "{ended}");
    };
    refused(&["--odp"], "on-demand paging is not offered");
    refused(&["-q", "17", "-r", "16"], "at least one receive per queue pair");
    refused(&["-m", "1500"], "an MTU is 256, 512");
    refused(&["-l", "16"], "service_level is 16: it must be from 0 to 15");
    refused(&["-d", "mlx5_9"], "no RDMA device named \"mlx5_9\"");
}
