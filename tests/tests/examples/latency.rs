//! The example `latency` on the software device.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use doorbell_tests::programs::{Ended, Temporary, example, free_port};

/// Runs a server and a client; returns what the client printed.
fn measure(paths: &[&str], more: &[&str]) -> String {
    let port = free_port().to_string();
    let command = |more: &[&str]| {
        let mut command = example(&[], "latency");
        command.args(paths).args(["--events", "--port", &port]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = command(&[]).spawn().unwrap();
    let client = loop {
        let client = Ended::of(&mut command(&[&["127.0.0.1"], more].concat()));
        // A client that comes before the server listens ends at once.
        if client.code == Some(0) || server.try_wait().unwrap().is_some() {
            break client;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let server = Ended::from(server.wait_with_output().unwrap());
    assert!(client.code == Some(0) && server.code == Some(0), "{client}\n{server}");
    client.printed
}

/// The numbers after `name`, one of each path.
fn values(printed: &str, name: &str) -> Vec<f64> {
    let line = printed.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {printed}"));
    line.split_whitespace().map(|value| value.parse().unwrap()).collect()
}

#[test]
fn quantiles_are_in_order_and_drawn() {
    let svg = Temporary::file("latency.svg");
    let arguments = ["-n", "500", "-w", "10", "-s", "2000", "--svg", svg.to_str().unwrap()];
    let printed = measure(&["--path", "direct"], &arguments);
    assert!(printed.starts_with("500 messages of 2000 bytes on mlx5_0 (soft-mlx5): "), "{printed}");
    let names = ["min", "p50", "p90", "max"];
    let values = names.map(|name| values(&printed, name)[0]);
    // 500 messages are too few for a p99.
    assert!(!printed.contains("p99"), "{printed}");
    assert!(values[0] > 0.0 && values.is_sorted(), "{printed}");

    let drawn = std::fs::read_to_string(&*svg).unwrap();
    let points = drawn.split_once("points=\"").unwrap().1.split('"').next().unwrap();
    let points: Vec<(f64, f64)> = points
        .split_whitespace()
        .map(|point| point.split_once(',').unwrap())
        .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
        .collect();
    assert_eq!(points.len(), 201);
    // Upwards is slower.
    assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1), "{drawn}");
    assert!(points.iter().all(|(_, y)| (60.0..=380.0).contains(y)), "{drawn}");
    assert!(drawn.ends_with("</svg>\n"), "{drawn}");
}

#[test]
fn both_paths_take_turns() {
    // The server drives its ends as the client does.
    let printed = measure(&[], &["-n", "100", "-w", "0"]);
    assert!(printed.lines().any(|line| line.split_whitespace().eq(["path", "direct", "verbs"])), "{printed}");
    let maxima = values(&printed, "max");
    assert!(maxima.len() == 2 && maxima.iter().all(|&max| max > 0.0), "{printed}");
}

#[test]
fn one_thread_is_both_ends() {
    let svg = Temporary::file("local.svg");
    let mut command = example(&[], "latency");
    command.args(["--local", "--events", "-n", "100", "-w", "5", "--svg"]).arg(&*svg);
    let ended = Ended::of(&mut command);
    assert_eq!(ended.code, Some(0), "{ended}");
    let drawn = std::fs::read_to_string(&*svg).unwrap();
    assert!(drawn.contains("on mlx5_0 (soft-mlx5)"), "{drawn}");
    assert_eq!((drawn.matches("<polyline").count(), drawn.matches("<circle").count()), (2, 2), "{drawn}");
}
