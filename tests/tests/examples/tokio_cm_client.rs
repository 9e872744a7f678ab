//! The example `tokio_cm_client`: it comes before its server, which is killed and comes again.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use doorbell_tests::programs::{example, poisoned};

fn start(name: &str, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut command = example(&[], name);
    command.args(["--path", "direct"]).args(arguments).stdout(Stdio::piped());
    poisoned(&mut command);
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn it_connects_again_when_the_server_comes_again() {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let server = format!("127.{high}.{low}.1:18518");
    // Three seconds of messages if nothing happens.
    let arguments = ["--messages", "300", "--gap", "10000", &server];
    let (mut client, mut printed) = start("tokio_cm_client", &arguments);
    let (mut first, _lines) = start("cm_server", &[&server]);
    assert_eq!(line(&mut printed), "connected, 0 of 300 messages sent");
    first.kill().unwrap();
    first.wait().unwrap();
    let lost = line(&mut printed);
    assert!(lost.contains("; the server has "), "{lost}");
    let (mut second, mut served) = start("cm_server", &["--connections", "1", &server]);
    let again = line(&mut printed);
    let before = again.strip_prefix("connected, ").and_then(|rest| rest.strip_suffix(" of 300 messages sent"));
    let before: u32 = before.unwrap_or_else(|| panic!("{again}")).parse().unwrap();
    assert_eq!(line(&mut printed), "tokio_cm_client: 300 messages sent");
    assert!(client.wait().unwrap().success());
    // The message that was under way when the first server died may have arrived there, and comes again.
    let rest = 300 - before;
    let mut lines = String::new();
    served.read_to_string(&mut lines).unwrap();
    assert!(lines.contains(&format!(": {rest} of {rest} messages\n")), "{lines}");
    assert!(second.wait().unwrap().success());
}
