//! The program: exit codes, JSON, completion scripts and the manual page.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn doorbell(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const ERROR: &str = "00000000 00008813 08000113 074767d2\n";
const WQE: &str = "00000f0a 001dbb03 00000008 00000000 00000000 00000000 00000000 00000000\n\
                   0000002b 00080000 00000005 9ee30800 00000000 00000000 00000000 00000000\n";

#[test]
fn exit_codes_say_what_was_found() {
    assert_eq!(doorbell(&["decode"], ERROR).status.code(), Some(1));
    assert_eq!(doorbell(&["decode"], WQE).status.code(), Some(0));
    let nothing = doorbell(&["decode"], "hello\n");
    assert_eq!(nothing.status.code(), Some(0));
    assert!(text(&nothing.stdout).starts_with("nothing found: no CQE"), "{nothing:?}");
    assert_eq!(doorbell(&["decode", "/nonexistent/file"], "").status.code(), Some(2));
    assert_eq!(doorbell(&["decode", "--nonsense"], "").status.code(), Some(2));
    assert_eq!(doorbell(&[], "").status.code(), Some(2));
}

#[test]
fn a_file_is_read_like_standard_input() {
    let path = std::env::temp_dir().join(format!("doorbell-decode-{}", std::process::id()));
    std::fs::write(&path, ERROR).unwrap();
    let from_file = doorbell(&["decode", path.to_str().unwrap()], "");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(from_file.stdout, doorbell(&["decode"], ERROR).stdout);
    assert!(text(&from_file.stdout).contains("refused the access of an RDMA_WRITE"), "{from_file:?}");
}

#[test]
fn json_says_the_same() {
    let output = doorbell(&["decode", "--json"], ERROR);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "part_of_error_cqe");
    assert_eq!(finding["bytes"], "000000000000881308000113074767d2");
    assert_eq!(finding["explanation"]["blame"], "both_ends");
    let syndrome = finding["fields"].as_array().unwrap().iter().find(|field| field["name"] == "syndrome").unwrap();
    assert_eq!((&syndrome["value"], &syndrome["offset"]), (&"0x13".into(), &55.into()));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn completion_scripts_and_the_manual_page() {
    for shell in ["bash", "zsh", "fish"] {
        let script = doorbell(&["completions", shell], "");
        assert!(script.status.success() && text(&script.stdout).contains("decode"), "{shell}");
    }
    let man = doorbell(&["man"], "");
    let page = text(&man.stdout);
    assert!(page.starts_with(".ie") || page.contains(".TH doorbell 1"), "{page}");
    for command in ["info", "decode"] {
        assert!(
            page.contains(&format!(".TH doorbell\\-{command} 1")) || page.contains(&format!("doorbell\\-{command}")),
            "{command}"
        );
    }
}
