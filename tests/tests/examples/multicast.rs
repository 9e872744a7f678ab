//! The example `multicast`: two members and a sender, in processes of their own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use doorbell_tests::programs::{example, succeed};

const MESSAGES: u32 = 500;
/// More datagrams than the members wait for: those on their way to a slow member when the sender exits are lost.
const SENT: u32 = MESSAGES + 300;

fn multicast(path: &str, arguments: &[&str]) -> Command {
    let mut command = example(&[], "multicast");
    command.args(["--path", path]).args(arguments).stdout(Stdio::piped());
    command
}

/// A member that has joined, and its output.
fn member(path: &str) -> (Child, BufReader<impl Read>) {
    let mut member = multicast(path, &["--messages", &MESSAGES.to_string()]).spawn().unwrap();
    let mut lines = BufReader::new(member.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), format!("joined ff0e::db, path {path}"));
    (member, lines)
}

/// The number after a word.
fn number(text: &str, word: &str) -> u64 {
    let (_, rest) = text.split_once(word).unwrap_or_else(|| panic!("no `{word}` in {text}"));
    rest.trim().split([',', '\n']).next().unwrap().parse().unwrap()
}

fn every_member_gets_every_message_on(path: &str) {
    let members = [member(path), member(path)];
    let sent = succeed(&mut multicast(path, &["--send", &SENT.to_string(), "--gap", "200"]));
    assert_eq!(sent.printed, format!("{SENT} datagrams sent to ff0e::db\n"));
    for (mut member, mut lines) in members {
        let mut printed = String::new();
        lines.read_to_string(&mut printed).unwrap();
        assert!(member.wait().unwrap().success(), "{printed}");
        assert!(printed.starts_with(&format!("{MESSAGES} datagrams, 0 missed\n")), "{printed}");
        let [least, median, most] = ["least", "median", "most"].map(|word| number(&printed, word));
        // A device that was preempted takes several datagrams at once.
        assert!(least <= median && median <= most && most > 0, "{printed}");
    }
}

#[test]
fn every_member_gets_every_message() {
    ["direct", "verbs"].into_iter().for_each(every_member_gets_every_message_on);
}
