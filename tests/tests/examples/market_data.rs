//! The market data example, as `make demo-frames` runs it, with fewer frames.

use std::process::{Command, Stdio};

use doorbell_tests::programs::{Ended, Temporary, example, free_port, poisoned};

/// One of the two programs, on a device with these options.
fn market_data(path: &str, port: u16, device: &[&str]) -> Command {
    let mut command = example(&[&["--link", "roce"], device].concat(), "market_data");
    if path == "direct" {
        poisoned(&mut command);
    }
    command.args(["--path", path, "--port", &port.to_string()]);
    command
}

/// Lets a publisher and a subscriber run; returns how many frames came, and how many were left out and found missing.
fn gaps(path: &str, device: &[&str], publish: &[&str], subscribe: &[&str]) -> (u64, u64) {
    let (frames, made, others, _) = session(path, device, publish, subscribe);
    assert_eq!(others, "0 false");
    (frames, made)
}

/// As [`gaps`]; also returns what the verdict says of other gaps, and all that the subscriber printed.
fn session(path: &str, device: &[&str], publish: &[&str], subscribe: &[&str]) -> (u64, u64, String, Ended) {
    let port = free_port();
    let mut publisher = market_data(path, port, device);
    let publisher = publisher.args(["publish", "127.0.0.1"]).args(publish);
    let mut publisher = publisher.stdout(Stdio::null()).spawn().unwrap();
    let mut subscriber = market_data(path, port, &[]);
    let subscriber = Ended::of(subscriber.arg("subscribe").args(subscribe));
    if subscriber.code != Some(0) {
        let _ = publisher.kill();
    }
    assert!(publisher.wait().unwrap().success() && subscriber.code == Some(0), "{subscriber}");
    let words = subscriber.last_line().split([' ', ',']).filter(|word| !word.is_empty());
    let words: Vec<_> = words.collect();
    let [_, "ok:", frames, .., made, "gaps", "made", found, "gaps", "found"] = words[..words.len().min(13)] else {
        panic!("{subscriber}");
    };
    assert_eq!(found, made, "{subscriber}");
    let others = words[13..].join(" ");
    (frames.parse().unwrap(), made.parse().unwrap(), others, subscriber)
}

/// The link loses frames of both feeds. What one feed lacks comes on the other, and each frame that was lost is a gap.
#[test]
fn frames_that_are_lost_on_the_way_are_counted() {
    let device = ["--loss", "0.01", "--seed", "3"];
    let publish = ["--frames", "20000", "--drop-one-in", "100"];
    let (frames, made, others, subscriber) = session("direct", &device, &publish, &["--lossy"]);
    let lost: u64 = others.strip_suffix(" lost on the way").unwrap().parse().unwrap();
    assert_eq!(frames + made + lost, 20_000, "{subscriber}");
    assert!((100..400).contains(&lost), "{subscriber}");
    // About one update in 2,500 is missing on both feeds.
    let line = subscriber.printed.lines().find(|line| line.contains("that neither feed brought")).unwrap();
    let neither: u64 = line.split(' ').nth(6).unwrap().parse().unwrap();
    assert!(neither < 30, "{line}");
}

/// A publisher sends the capture of another publisher's frames, with the same gaps.
#[test]
fn a_capture_is_sent_again() {
    let file = Temporary::file("market-data.pcap");
    let name = file.to_str().unwrap();
    let publish = ["--frames", "2000", "--drop-one-in", "20"];
    let first = gaps("direct", &["--pcap", name], &publish, &[]);
    assert!(first.1 > 20, "{first:?}");
    let again = gaps("direct", &[], &["--capture", name], &[]);
    assert_eq!(again, first);
}

/// In strides, in plain receives, and through verbs.
#[test]
fn every_gap_is_found() {
    for (path, options) in [("direct", &[][..]), ("direct", &["--plain"]), ("verbs", &["--plain"])] {
        println!("{path} {options:?}");
        let publish = ["--frames", "20000", "--drop-one-in", "100"];
        let (frames, made) = gaps(path, &[], &publish, options);
        assert_eq!(frames + made, 20_000);
        assert!(made > 100, "{made}");
    }
}
