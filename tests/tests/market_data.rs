//! The market data example, as `make demo-frames` runs it, with fewer frames.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use doorbell_tests::programs::{built, on_soft_mlx5};

/// One of the two programs, on the fabric of this test.
fn market_data(path: &str, port: u16) -> Command {
    let fabric = format!("market-data-{path}-{}", std::process::id());
    let options = ["--link", "roce", "--fabric", &fabric];
    let mut command = on_soft_mlx5(&options, built("examples/market_data"));
    if path == "direct" {
        // The driver's entries for posting, polling and arming abort.
        command.env("LD_PRELOAD", built("examples/libpoison.so"));
    }
    command.args(["--path", path, "--port", &port.to_string()]);
    command
}

fn finds_every_gap(path: &str, options: &[&str]) {
    // A port that was free just now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut publisher = market_data(path, port);
    let publisher =
        publisher.args(["publish", "127.0.0.1", "--frames", "20000", "--drop-one-in", "100"]);
    let mut publisher = publisher.stdout(Stdio::null()).spawn().unwrap();
    let subscriber = market_data(path, port).arg("subscribe").args(options).output().unwrap();
    let said = String::from_utf8(subscriber.stdout).unwrap();
    let complained = String::from_utf8_lossy(&subscriber.stderr);
    if !subscriber.status.success() {
        let _ = publisher.kill();
    }
    assert!(
        publisher.wait().unwrap().success() && subscriber.status.success(),
        "{said}{complained}"
    );
    let last = said.lines().last().unwrap();
    let words: Vec<_> = last.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [_, "ok:", frames, .., made, "gaps", "made", found, "gaps", "found", "0", "false"] =
        words[..]
    else {
        panic!("{said}");
    };
    let (frames, made): (u64, u64) = (frames.parse().unwrap(), made.parse().unwrap());
    assert_eq!((found.parse(), frames + made), (Ok(made), 20_000), "{last}");
    assert!(made > 100, "{last}");
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
