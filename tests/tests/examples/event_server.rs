//! The example `event_server`: clients that behave, and one that is killed while it sends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use doorbell_tests::programs::{Temporary, example, poisoned};
use doorbell_tests::receiving;

fn command(name: &str, options: &[&str]) -> Command {
    let mut command = example(options, name);
    command.stdout(Stdio::null());
    command
}

fn client(server: &str, connections: u32, messages: u32, options: &[&str]) -> Child {
    let numbers = [connections, messages].map(|number| number.to_string());
    let mut command = command("srq_client", options);
    command.args(["--connections", &numbers[0], "--messages", &numbers[1], server]);
    command.spawn().unwrap()
}

fn serve(path: &str) {
    let mut server = command("event_server", &[]);
    server.args(["--path", path, "--connections", "3", "127.0.0.1:0"]).stdout(Stdio::piped());
    if path == "direct" {
        poisoned(&mut server);
    }
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let rest = line.strip_prefix("listening on ").unwrap();
    let (address, chosen) = rest.trim().split_once(", path ").unwrap();
    assert_eq!(chosen, path);

    // Its device writes a trace: the client is killed in the middle of the trace.
    let trace = Temporary::file("trace");
    let mut killed = client(address, 1, 10_000_000, &["--trace", trace.to_str().unwrap()]);
    receiving::wait("the client to send", || std::fs::metadata(&*trace).is_ok_and(|trace| trace.len() > 100_000));
    // The runner of the device ends with its command, and the command with it.
    killed.kill().unwrap();
    killed.wait().unwrap();
    let ok = client(address, 2, 2000, &[]).wait().unwrap().success();

    let mut printed = String::new();
    lines.read_to_string(&mut printed).unwrap();
    assert!(ok && server.wait().unwrap().success(), "{printed}");
    assert_eq!(printed.matches(": no report: ").count(), 1, "{printed}");
    assert_eq!(printed.matches(": 1000 messages, as they were sent").count(), 2, "{printed}");
    let slept = printed.trim().rsplit_once("3 connections served, slept ").unwrap().1;
    assert!(slept.strip_suffix(" times").unwrap().parse::<u32>().unwrap() > 0, "{printed}");
}

#[test]
fn either_path_sleeps_and_survives_a_client() {
    ["direct", "verbs"].into_iter().for_each(serve);
}
