//! The main job, as `make demo` does it, with fewer messages: on the direct path with the driver's
//! entries for posting and polling replaced by functions that abort.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use doorbell_tests::programs::{example, poisoned, succeed};

const MESSAGES: u32 = 20_000;

fn on_device(name: &str, is_poisoned: bool) -> Command {
    let mut command = example(&[], name);
    if is_poisoned {
        poisoned(&mut command);
    }
    command
}

/// Runs the server on `path` and two clients; returns whether all succeeded, and the server's standard output and
/// standard error.
fn main_job(path: &str, poisoned: bool) -> (bool, String, String) {
    let mut server = on_device("srq_server", poisoned)
        .args(["--connections", "4", "--path", path, "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = server.stderr.take().unwrap();
    let complained = thread::spawn(move || io::read_to_string(stderr).unwrap());

    let (mut printed, mut clients) = (String::new(), Vec::new());
    for line in BufReader::new(server.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(address) = line.strip_prefix("waiting for 4 connections on ") {
            clients = [1, 2].map(|seed| client(seed, address, poisoned)).into();
        }
        printed += &line;
        printed.push('\n');
    }
    let mut ok = server.wait().unwrap().success();
    for client in &mut clients {
        if !ok {
            let _ = client.kill();
        }
        ok &= client.wait().unwrap().success();
    }
    (ok, printed, complained.join().unwrap())
}

fn client(seed: u32, server: &str, poisoned: bool) -> Child {
    on_device("srq_client", poisoned)
        .args(["--connections", "2", "--messages", &(MESSAGES / 2).to_string()])
        .args(["--seed", &seed.to_string(), server])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_direct_path_is_direct_and_the_verbs_path_does_the_same() {
    for (path, poisoned) in [("direct", true), ("verbs", false)] {
        let (ok, printed, complained) = main_job(path, poisoned);
        assert!(ok, "{printed}\n{complained}");
        let verdict =
            format!("demo: ok: {MESSAGES} messages, path {path}, device mlx5_0 (soft-mlx5), 0 lost, 0 corrupted");
        assert_eq!(printed.lines().last(), Some(&*verdict), "{printed}\n{complained}");
        assert_eq!(complained.contains("poison: direct or not at all"), poisoned, "{complained}");
    }
}

#[test]
fn the_poison_ends_a_program_on_the_verbs_path() {
    let (ok, printed, complained) = main_job("verbs", true);
    assert!(!ok, "{printed}");
    let abort = "the direct path called post_srq_recv of the driver";
    assert!(complained.contains(abort), "{complained}");
}

/// `make demo-tags` with fewer messages; on the direct path with the driver's entries replaced.
#[test]
fn tags_are_matched_by_the_device_and_by_the_library() {
    for (link, options, is_poisoned, offload) in [
        ("ib", &["--path", "direct"][..], true, "device"),
        ("roce", &["--path", "direct"], true, "device"),
        ("ib", &["--path", "verbs"], false, "device"),
        ("roce", &["--path", "verbs"], false, "library"),
        ("ib", &["--path", "direct", "--software"], true, "library"),
        ("ib", &["--path", "verbs", "--software"], false, "library"),
    ] {
        let mut command = example(&["--link", link], "tag_matching");
        if is_poisoned {
            poisoned(&mut command);
        }
        let ended = succeed(command.args(["--messages", "1600"]).args(options));
        let printed = ended.last_line();
        let (start, rest) = printed.split_at("demo-tags: ok: 4800 matched, ".len());
        assert_eq!(start, "demo-tags: ok: 4800 matched, ", "{printed}");
        let (unexpected, rest) = rest.split_once(' ').unwrap();
        assert!(unexpected.parse::<u32>().is_ok(), "{printed}");
        let end = format!("unexpected, 600 rendezvous, offload: {offload}, 0 out of order");
        assert_eq!(rest, end);
    }
}

/// The two programs on the first page of the book.
#[test]
fn the_first_program_counts_what_the_second_sends() {
    let mut receiver = on_device("first_receiver", true).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(receiver.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(printed.next().as_deref(), Some("255 receives posted, path direct"));
    let waiting = printed.next().unwrap();
    let address = waiting.strip_prefix("waiting for a sender on ").unwrap();
    let sender = on_device("first_sender", true).arg(address).status().unwrap();
    if !sender.success() {
        receiver.kill().unwrap();
    }
    assert_eq!(printed.next().as_deref(), Some("1000 messages, 64000 bytes"));
    assert!(receiver.wait().unwrap().success());
}
