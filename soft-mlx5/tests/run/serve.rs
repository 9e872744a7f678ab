//! `soft-mlx5 serve`: one client after the other.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::SOFT_MLX5;

struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(name: &str) -> Self {
        let file = format!("soft-mlx5-serve-{name}-{}", std::process::id());
        let socket = std::env::temp_dir().join(file);
        let mut command = Command::new(SOFT_MLX5);
        command.args(["serve", "--link", "roce", "--loss", "0.01", "--socket"]).arg(&socket);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("soft-mlx5: listening on {}\n", socket.display()));
        Self { child, socket }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn ask(socket: &mut UnixStream, command: u8, payload: &[u8]) {
    let mut bytes = vec![0, 0, command, 0, 16 + payload.len() as u8, 0, 0, 0];
    bytes.resize(16, 0);
    bytes.extend(payload);
    socket.write_all(&bytes).unwrap();
}

fn answer(socket: &mut UnixStream) -> Vec<u8> {
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    assert_eq!(header[8..12], [1, 0, 0, 0], "a reply without error");
    let mut payload = vec![0; usize::from(header[4]) - 16];
    socket.read_exact(&mut payload).unwrap();
    payload
}

/// The upper half of the address of the command queue.
const REGISTER: [u8; 16] = [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];

#[test]
fn each_client_finds_a_device_that_was_just_powered_up() {
    let mut server = Server::start("clients");
    let mut first = server.connect();
    ask(&mut first, 10, &[&REGISTER[..], &[0, 0, 0, 7]].concat());
    assert_eq!(answer(&mut first), REGISTER);
    ask(&mut first, 9, &REGISTER);
    assert_eq!(answer(&mut first)[16..], [0, 0, 0, 7]);
    // The first client dies in the middle of a message; the second waits until the first is gone.
    let mut second = server.connect();
    ask(&mut second, 9, &REGISTER);
    first.write_all(&[0, 0, 9, 0, 32]).unwrap();
    drop(first);
    assert_eq!(answer(&mut second)[16..], [0; 4]);
    let mut said = String::new();
    BufReader::new(server.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "soft-mlx5: injected: 0 of 0 packets lost\n");
}

#[test]
fn a_server_takes_the_socket_of_a_server_that_was_killed() {
    let mut first = Server::start("socket");
    let second = Command::new(SOFT_MLX5).args(["serve", "--socket"]).arg(&first.socket).output();
    let second = second.unwrap();
    assert_eq!(second.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(complaint.contains("cannot listen on") && complaint.contains("in use"), "{complaint}");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let third = Server::start("socket");
    ask(&mut third.connect(), 4, &[]);
}
