//! The examples of senders: `rpc_server` and `one_sided`, on both paths.

use doorbell_tests::programs::{built, on_soft_mlx5};

/// What an example says that succeeds, and the last line of it.
fn run(name: &str, path: &str) -> (String, String) {
    let mut command = on_soft_mlx5(&[], built(&format!("examples/{name}")));
    command.arg(path);
    if path == "direct" {
        // The driver's entries for posting, polling and arming abort.
        command.env("LD_PRELOAD", built("examples/libpoison.so"));
    }
    let output = command.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path}: {printed}\n{complained}");
    let last = printed.lines().last().unwrap_or_default().to_owned();
    (printed, last)
}

#[test]
fn every_client_that_lives_gets_its_replies() {
    for path in ["direct", "verbs"] {
        let (printed, last) = run("rpc_server", path);
        assert_eq!(last, "ok: 20000 replies to 4 clients, and another client died", "{printed}");
        let full = printed.lines().find(|line| line.contains("times not read")).unwrap();
        assert!(!full.starts_with("0 "), "nobody had to wait: {printed}");
    }
}

#[test]
fn every_value_that_is_read_was_written() {
    for path in ["direct", "verbs"] {
        let (printed, last) = run("one_sided", path);
        assert_eq!(last, "ok: every value read was one that was written", "{printed}");
        assert!(printed.contains("1000 writes, "), "{printed}");
    }
}
