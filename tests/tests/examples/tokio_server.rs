//! The example `tokio_server`: fifty clients, some of which leave, some are killed, and the rest ends with the server.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use doorbell_tests::programs::{Temporary, example, poisoned};
use doorbell_tests::receiving;

/// A process that has printed its first line.
struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
    first: String,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        Self { child, lines, first: first.trim().to_owned() }
    }

    /// Starts clients, and returns when all of them are connected.
    fn clients(server: &str, count: u32, requests: Option<u32>, options: &[&str]) -> Self {
        let mut command = example(options, "tokio_server");
        command.args(["--clients", &count.to_string()]);
        if let Some(requests) = requests {
            command.args(["--requests", &requests.to_string()]);
        }
        command.arg(server);
        let clients = Self::start(command);
        assert_eq!(clients.first, format!("{count} clients are connected"));
        clients
    }

    /// Waits for the end, and returns the rest of what it printed.
    #[track_caller]
    fn succeed(mut self) -> String {
        let mut printed = String::new();
        self.lines.read_to_string(&mut printed).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}\n{printed}", self.first);
        printed
    }
}

fn serve(path: &str) {
    let mut command = example(&[], "tokio_server");
    command.args(["--path", path, "127.0.0.1:0"]);
    if path == "direct" {
        poisoned(&mut command);
    }
    let server = Program::start(command);
    let rest = server.first.strip_prefix("listening on ").unwrap().to_owned();
    let (address, rest) = rest.split_once(", path ").unwrap();
    assert_eq!(rest.split_once(", device ").unwrap().0, path);
    assert!(rest.ends_with("(soft-mlx5)"), "{rest}");

    let staying = Program::clients(address, 40, None, &[]);
    // The device of the clients that are killed writes a trace, which shows that they send.
    let trace = Temporary::file("trace");
    let mut killed = Program::clients(address, 5, None, &["--trace", trace.to_str().unwrap()]);
    receiving::wait("the clients to send", || fs::metadata(&*trace).is_ok_and(|trace| trace.len() > 100_000));
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let leaving = Program::clients(address, 5, Some(200), &[]);
    assert_eq!(leaving.succeed().trim(), "5 clients, 1000 replies");

    // SAFETY: the runner of a device, which passes the signal to the server.
    assert_eq!(unsafe { libc::kill(server.child.id() as i32, libc::SIGTERM) }, 0);
    let stayed = staying.succeed();
    let replies = stayed.trim().strip_prefix("40 clients, ").and_then(|rest| rest.strip_suffix(" replies")).unwrap();
    let printed = server.succeed();
    assert_eq!(printed.matches(": the client died: ").count(), 5, "{printed}");
    assert!(printed.ends_with("tokio_server: 45 clients left, 5 died\n"), "{printed}");
    let answered = printed.split_once(" requests answered, ").unwrap().0.rsplit_once('\n').unwrap().1;
    let [answered, replies] = [answered, replies].map(|number| number.parse::<u64>().unwrap());
    assert!(replies > 0 && answered > replies + 1000, "{answered} answered, {replies} of the clients that stayed");
}

#[test]
fn either_path_serves_fifty_clients_and_ends_with_them() {
    ["direct", "verbs"].into_iter().for_each(serve);
}
