//! The exchange of addresses as the ping-pong programs of rdma-core do it: text over TCP.
//!
//! The client sends its addresses, the server connects its queue pairs and sends its own, and the client
//! says `done`. An address is `LID:QPN:PSN:GID` in hexadecimal with a zero byte at its end.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::str;

use doorbell::{Mtu, QpAddress};

use crate::MAX_QP;

/// Bytes of `0000:000000:000000:00000000000000000000000000000000` and its zero.
const LEN: usize = 52;
const DONE: &[u8; 5] = b"done\0";

/// Connects queue pairs to those at the addresses.
type Connect<'a> = dyn FnMut(&[QpAddress]) -> doorbell::Result<()> + 'a;
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Is the client.
pub fn call(host: &str, port: u16, here: &[QpAddress], connect: &mut Connect<'_>) -> Result<Vec<QpAddress>> {
    let stream = TcpStream::connect((host, port));
    let mut stream = stream.map_err(|error| format!("connection to {host}:{port}: {error}"))?;
    write(&mut stream, here)?;
    let there = read(&mut stream, here)?;
    stream.write_all(DONE)?;
    connect(&there)?;
    Ok(there)
}

/// Is the server.
pub fn serve(port: u16, here: &[QpAddress], connect: &mut Connect<'_>) -> Result<Vec<QpAddress>> {
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.map_err(|error| format!("port {port}: {error}"))?;
    let (mut stream, _) = listener.accept()?;
    let there = read(&mut stream, here)?;
    // Before the client learns where to send.
    connect(&there)?;
    write(&mut stream, here)?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done)?;
    if done != *DONE {
        return Err("the client did not say that it is done".into());
    }
    Ok(there)
}

fn write(stream: &mut TcpStream, addresses: &[QpAddress]) -> Result<()> {
    let mut text = Vec::with_capacity(MAX_QP * LEN);
    for i in 0..MAX_QP {
        let (lid, qpn, psn, gid) = match addresses.get(i) {
            Some(a) => (a.lid, a.qpn, a.psn, u128::from_be_bytes(a.gid)),
            None => (0, 0, 0, 0),
        };
        write!(text, "{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0")?;
    }
    Ok(stream.write_all(&text)?)
}

/// Reads all addresses, and returns as many as there are here. The programs do not exchange the MTU: both sides are
/// started with the same.
fn read(stream: &mut TcpStream, here: &[QpAddress]) -> Result<Vec<QpAddress>> {
    let mut text = vec![0; MAX_QP * LEN];
    stream.read_exact(&mut text)?;
    let addresses = text.chunks(LEN).zip(here);
    addresses
        .map(|(text, here)| {
            parse(text, here.mtu).ok_or_else(|| format!("\"{}\" is no address", text.escape_ascii()).into())
        })
        .collect()
}

fn parse(text: &[u8], mtu: Mtu) -> Option<QpAddress> {
    let text = str::from_utf8(text).ok()?.strip_suffix('\0')?;
    let mut fields = text.split(':');
    let mut number = |digits| u128::from_str_radix(fields.next().filter(|f| f.len() == digits)?, 16).ok();
    let (lid, qpn, psn, gid) = (number(4)?, number(6)?, number(6)?, number(32)?);
    let address = QpAddress { lid: lid as u16, qpn: qpn as u32, psn: psn as u32, gid: gid.to_be_bytes(), mtu };
    fields.next().is_none().then_some(address)
}

pub fn print(side: &str, address: &QpAddress) {
    let QpAddress { lid, qpn, psn, gid, .. } = address;
    let gid = Ipv6Addr::from(*gid);
    println!("  {side} LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}");
}
