//! The programs of ibverbs-utils, which know nothing of us, on the device.

mod common;

use common::{finish, free_port, fresh_fabric, run, start, wait_for_listener};

/// Runs a pingpong program as server and as client in two processes.
fn pingpong(fabric: &str, options: &[&str], program: &str, arguments: &[&str]) {
    let fabric = fresh_fabric(fabric);
    let port = free_port().to_string();
    let options = [&["--fabric", &fabric], options].concat();
    let command = [&[program, "-g", "0", "-p", &port], arguments].concat();
    let server = start(&mut run(&options, &command));
    wait_for_listener(port.parse().unwrap());
    let client = finish(&mut run(&options, &[&command[..], &["127.0.0.1"]].concat()));
    let server = server.finish();
    let report = format!("server {server:?}\nclient {client:?}");
    assert!(server.status.success() && client.status.success(), "{report}");
    for outcome in [server, client] {
        assert!(outcome.stdout.contains(" iters in "), "{report}");
        assert!(!outcome.stderr.contains("invalid data"), "{report}");
    }
}

#[test]
fn devinfo_shows_a_connectx_5() {
    let info = finish(&mut run(&[], &["ibv_devinfo", "-v"])).succeeded();
    for line in [
        "hca_id:\tmlx5_0",
        "vendor_part_id:\t\t\t4121",
        "vendor_id:\t\t\t0x02c9",
        "max_srq_sge:\t\t\t31",
        "max_qp_wr:\t\t\t32768",
        "state:\t\t\tPORT_ACTIVE (4)",
        "link_layer:\t\tInfiniBand",
        "GID[  0]:\t\tfe80:",
    ] {
        assert!(info.contains(line), "`{line}` is missing in\n{info}");
    }
}

#[test]
fn on_ethernet_the_port_has_no_lid() {
    let info = finish(&mut run(&["--link", "roce"], &["ibv_devinfo", "-v"])).succeeded();
    assert!(info.contains("link_layer:\t\tEthernet"), "{info}");
    assert!(info.contains("port_lid:\t\t0\n"), "{info}");
    assert!(info.contains("RoCE v2"), "{info}");
}

#[test]
fn rc_by_polling() {
    pingpong("rc", &["--strict"], "ibv_rc_pingpong", &["-c", "-n", "300"]);
}

#[test]
fn rc_by_events() {
    pingpong("rc-events", &["--strict"], "ibv_rc_pingpong", &["-c", "-e"]);
}

#[test]
fn rc_over_a_lossy_link() {
    pingpong(
        "rc-loss",
        &["--loss", "0.02", "--seed", "5"],
        "ibv_rc_pingpong",
        &["-c", "-n", "300"],
    );
}

#[test]
fn rc_by_lid_without_gid() {
    let fabric = fresh_fabric("rc-lid");
    let port = free_port().to_string();
    let command = ["ibv_rc_pingpong", "-c", "-e", "-p", &port];
    let server = start(&mut run(&["--fabric", &fabric], &command));
    wait_for_listener(port.parse().unwrap());
    let client = [&command[..], &["127.0.0.1"]].concat();
    finish(&mut run(&["--fabric", &fabric], &client)).succeeded();
    server.finish().succeeded();
}

#[test]
fn one_srq_for_sixteen_queue_pairs() {
    let arguments = ["-c", "-q", "16", "-n", "300"];
    pingpong("srq", &["--strict"], "ibv_srq_pingpong", &arguments);
    pingpong("srq-events", &["--strict"], "ibv_srq_pingpong", &[&arguments[..], &["-e"]].concat());
}

#[test]
fn unreliable_services() {
    pingpong("uc", &["--strict"], "ibv_uc_pingpong", &["-c", "-e"]);
    pingpong("ud", &["--strict"], "ibv_ud_pingpong", &["-c", "-e"]);
}

#[test]
fn all_services_on_ethernet() {
    let options = ["--link", "roce", "--strict"];
    pingpong("eth-rc", &options, "ibv_rc_pingpong", &["-c", "-e"]);
    pingpong("eth-uc", &options, "ibv_uc_pingpong", &["-c", "-e"]);
    pingpong("eth-ud", &options, "ibv_ud_pingpong", &["-c", "-e"]);
    pingpong("eth-srq", &options, "ibv_srq_pingpong", &["-c", "-e", "-q", "16"]);
}

#[test]
fn xrc_is_refused_and_not_mangled() {
    let outcome = finish(&mut run(&[], &["ibv_xsrq_pingpong", "-g", "0"]));
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.stderr.contains("XRC Domain"), "{outcome:?}");
}

#[test]
fn a_run_can_be_watched_in_trace_and_capture() {
    let dir = std::env::temp_dir().join(format!("soft-mlx5-watched-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (trace, pcap) = (dir.join("trace"), dir.join("pcap"));
    let options =
        ["--strict", "--trace", trace.to_str().unwrap(), "--pcap", pcap.to_str().unwrap()];
    let port = free_port();
    let pingpong = format!("ibv_rc_pingpong -g 0 -s 1000 -n 100 -p {port}");
    let listening = format!("grep -q :{port:04X}.*0A /proc/net/tcp6 /proc/net/tcp");
    let script = format!(
        "{pingpong} & until {listening}; do sleep 0.05; done; {pingpong} 127.0.0.1 && wait $!"
    );
    finish(&mut run(&options, &["sh", "-c", &script])).succeeded();
    let lines = std::fs::read_to_string(&trace).unwrap();
    for (word, count) in [(" doorbell uar=", 200), ("opcode=RESP_SEND ", 200), ("opcode=REQ ", 200)]
    {
        assert_eq!(lines.lines().filter(|line| line.contains(word)).count(), count, "{word}");
    }
    // Each message and its acknowledgement, whichever process sent it, once.
    let mut decode = std::process::Command::new("tshark");
    let decode = decode.arg("-r").arg(&pcap).args(["-Y", "infiniband && !_ws.malformed"]);
    let decoded = finish(decode).succeeded();
    assert_eq!(decoded.matches("RC Send Only").count(), 200);
    assert_eq!(decoded.matches("RC Acknowledge").count(), 200);
    std::fs::remove_dir_all(&dir).unwrap();
}
