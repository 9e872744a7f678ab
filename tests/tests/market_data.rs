//! The market data example, as `make demo-frames` runs it, with fewer frames.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use doorbell_tests::programs::{built, on_soft_mlx5};

/// One of the two programs, on a device with these options on the fabric of this test.
fn market_data(path: &str, port: u16, device: &[&str]) -> Command {
    let fabric = format!("market-data-{path}-{}", std::process::id());
    let options = [&["--link", "roce", "--fabric", &fabric], device].concat();
    let mut command = on_soft_mlx5(&options, built("examples/market_data"));
    if path == "direct" {
        // The driver's entries for posting, polling and arming abort.
        command.env("LD_PRELOAD", built("examples/libpoison.so"));
    }
    command.args(["--path", path, "--port", &port.to_string()]);
    command
}

/// Lets a publisher and a subscriber run; returns how many frames came, and how many were left out and found missing.
fn gaps(path: &str, device: &[&str], publish: &[&str], subscribe: &[&str]) -> (u64, u64) {
    // A port that was free just now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut publisher = market_data(path, port, device);
    let publisher = publisher.args(["publish", "127.0.0.1"]).args(publish);
    let mut publisher = publisher.stdout(Stdio::null()).spawn().unwrap();
    let mut subscriber = market_data(path, port, &[]);
    let subscriber = subscriber.arg("subscribe").args(subscribe).output().unwrap();
    let printed = String::from_utf8(subscriber.stdout).unwrap();
    let complained = String::from_utf8_lossy(&subscriber.stderr);
    if !subscriber.status.success() {
        let _ = publisher.kill();
    }
    assert!(
        publisher.wait().unwrap().success() && subscriber.status.success(),
        "{printed}{complained}"
    );
    let last = printed.lines().last().unwrap();
    let words: Vec<_> = last.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [_, "ok:", frames, .., made, "gaps", "made", found, "gaps", "found", "0", "false"] =
        words[..]
    else {
        panic!("{printed}");
    };
    assert_eq!(found, made, "{last}");
    (frames.parse().unwrap(), made.parse().unwrap())
}

fn finds_every_gap(path: &str, options: &[&str]) {
    let publish = ["--frames", "20000", "--drop-one-in", "100"];
    let (frames, made) = gaps(path, &[], &publish, options);
    assert_eq!(frames + made, 20_000);
    assert!(made > 100, "{made}");
}

/// A capture of what one publisher sends is sent by another one, with the same gaps.
#[test]
fn a_capture_is_sent_again() {
    let file = std::env::temp_dir().join(format!("market-data-{}.pcap", std::process::id()));
    let name = file.to_str().unwrap();
    let publish = ["--frames", "2000", "--drop-one-in", "20"];
    let first = gaps("direct", &["--pcap", name], &publish, &[]);
    assert!(first.1 > 20, "{first:?}");
    let again = gaps("direct", &[], &["--capture", name], &[]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(again, first);
}

#[test]
fn every_gap_is_found_in_strides() {
    finds_every_gap("direct", &[]);
}

#[test]
fn every_gap_is_found_in_plain_receives() {
    finds_every_gap("direct", &["--plain"]);
}

#[test]
fn every_gap_is_found_through_verbs() {
    finds_every_gap("verbs", &["--plain"]);
}
