//! The TCP connection between two programs, beside their queue pairs.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

/// How long to wait for the other program to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for `peer`, which connects.
pub fn accept(port: u16, peer: &str) -> Result<TcpStream> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("waiting for {peer} on {}", listener.local_addr()?);
    let stream = listener.accept()?.0;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to the other program, which may still be starting.
pub fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((host, port)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(_) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(format!("connection to {host}:{port}: {error}").into()),
        }
    }
}

pub fn write_u64(stream: &mut impl Write, value: u64) -> io::Result<()> {
    stream.write_all(&value.to_be_bytes())
}

pub fn read_u64(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
