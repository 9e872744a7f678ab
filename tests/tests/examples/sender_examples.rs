//! The examples of senders: `rpc_server`, `one_sided` and `gpu_memory`, on both paths, and `dc_store`.

use doorbell_tests::programs::{Ended, example, poisoned, succeed};

fn run(name: &str, path: &str) -> Ended {
    let mut command = example(&[], name);
    if path == "direct" {
        poisoned(&mut command);
    }
    succeed(command.arg(path))
}

#[test]
fn every_client_that_lives_gets_its_replies() {
    for path in ["direct", "verbs"] {
        let ended = run("rpc_server", path);
        assert_eq!(ended.last_line(), "ok: 20000 replies to 4 clients, and another client died", "{ended}");
        let full = ended.printed.lines().find(|line| line.contains("times not read")).unwrap();
        assert!(!full.starts_with("0 "), "no reply had to wait: {ended}");
    }
}

#[test]
fn every_value_that_is_read_was_written() {
    for path in ["direct", "verbs"] {
        let ended = run("one_sided", path);
        assert_eq!(ended.last_line(), "ok: every value read was one that was written", "{ended}");
        assert!(ended.printed.contains("1000 writes, "), "{ended}");
    }
}

#[test]
fn every_message_goes_from_opaque_memory_to_opaque_memory() {
    for path in ["direct", "verbs"] {
        let ended = run("gpu_memory", path);
        let line = format!("100 messages of 65536 bytes from memory to memory, path {path}");
        assert_eq!(ended.last_line(), line, "{ended}");
    }
}

#[test]
fn every_client_reads_the_store_through_one_target() {
    let ended = run("dc_store", "direct");
    assert_eq!(ended.last_line(), "ok: 4000 values read by 8 clients through 1 target", "{ended}");
}
