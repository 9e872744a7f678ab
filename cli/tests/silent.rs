//! Text in which nothing is reported: counters at 0, results of tests, source code, help, documents.

use std::io::Write;
use std::process::{Command, Stdio};

use doorbell_cli::decode::decode;

/// The texts and their titles.
fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let texts = include_str!("silent.txt").split("### ").skip(1);
    texts.map(|text| text.split_once('\n').expect("a title and a text"))
}

#[test]
fn what_reports_nothing_has_no_finding() {
    let mut found = Vec::new();
    for (title, text) in texts() {
        for finding in decode(text.as_bytes()).findings {
            let line = text.lines().nth(finding.line - 1).unwrap_or_default();
            found.push(format!(
                "{title}: {line}: {}",
                finding.explanation.map_or(String::new(), |explained| explained.failed)
            ));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    assert!(texts().count() >= 40);
}

#[test]
fn all_texts_in_one_input_have_no_finding() {
    let all: String = texts().map(|(_, text)| format!("{text}\n")).collect();
    let mut decode = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .arg("decode")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    decode.stdin.take().unwrap().write_all(all.as_bytes()).unwrap();
    let output = decode.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), printed.starts_with("nothing found")), (Some(0), true), "{printed}");
}
