//! The other host: it makes the queue pairs that send, and posts the requests that this host sends it over TCP.
//!
//! A command or reply is a line of JSON. Commands that have no reply are not waited for; their failure is the reply to
//! the next command that has one.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use doorbell::{QpAddress, WcStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::messages::{Command, FarShape, Reply, Request};
use super::stop::Stop;
use super::witness::Witness;

/// The version, which must be the same on both sides.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (selftest 1)");
/// A peer that says nothing for so long has died.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of the longest line.
const LINE: u64 = 1 << 20;

/// A stream of lines.
pub struct Lines {
    reader: BufReader<TcpStream>,
}

impl Lines {
    /// Wraps a stream; a peer that is silent for longer than that is an error.
    pub fn new(stream: TcpStream, silence: Duration) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Writes a line.
    pub fn write(&mut self, message: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).map_err(|error| describe(&error))
    }

    /// Reads a line.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE).read_until(b'\n', &mut line);
        match read {
            Ok(0) => Err("it has closed the connection".into()),
            Ok(_) => serde_json::from_slice(&line)
                .map_err(|error| format!("it says what this version does not understand: {error}")),
            Err(error) => Err(describe(&error)),
        }
    }
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "it does not answer".into(),
        _ => error.to_string(),
    }
}

/// The other host.
pub struct Peer {
    lines: Lines,
    next: u32,
    /// The peer has left: the checks that need it cannot run.
    gone: bool,
}

impl Peer {
    /// Connects to `doorbell selftest --listen`.
    pub fn connect(host: &str, port: u16) -> Result<Self, String> {
        let failed =
            |why: String| format!("{host}, TCP port {port}: {why}; does doorbell selftest --listen run there?");
        let mut last = "no address".into();
        for address in (host, port).to_socket_addrs().map_err(|error| failed(error.to_string()))? {
            match TcpStream::connect_timeout(&address, SILENCE) {
                Ok(stream) => {
                    let lines = Lines::new(stream, SILENCE).map_err(|e| failed(e.to_string()))?;
                    let mut peer = Self { lines, next: 0, gone: false };
                    return peer.greet().map(|()| peer).map_err(failed);
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(failed(last))
    }

    fn greet(&mut self) -> Result<(), String> {
        self.lines.write(&Command::Hello { version: VERSION.into() })?;
        match self.lines.read()? {
            Reply::Version(theirs) if theirs == VERSION => Ok(()),
            Reply::Version(theirs) => Err(format!("version {theirs} there, {VERSION} here: both must be the same")),
            Reply::Failed(why) => Err(why),
            _ => Err("an unexpected answer".into()),
        }
    }

    /// Sends a command that has no reply.
    pub fn tell(&mut self, command: &Command<'_>) -> Result<(), Stop> {
        if self.gone {
            return Err(Stop::Cannot("the peer is gone".into()));
        }
        self.lines.write(command).map_err(|why| self.lost(&why))
    }

    /// Sends a command, and returns the reply.
    pub fn ask(&mut self, command: &Command<'_>) -> Result<Reply, Stop> {
        self.tell(command)?;
        match self.lines.read() {
            Ok(Reply::Failed(why)) => Err(Stop::Fail(format!("at the peer: {why}"))),
            Ok(reply) => Ok(reply),
            Err(why) => Err(self.lost(&why)),
        }
    }

    /// Asks for addresses.
    pub fn addresses(&mut self, command: &Command<'_>) -> Result<Vec<QpAddress>, Stop> {
        match self.ask(command)? {
            Reply::Addresses(texts) => Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?),
            _ => Err(self.lost("an unexpected answer")),
        }
    }

    fn lost(&mut self, why: &str) -> Stop {
        self.gone = true;
        Stop::Fail(format!("the peer is gone: {why}"))
    }
}

/// Queue pairs of the peer.
pub struct RemoteFar {
    peer: Rc<RefCell<Peer>>,
    witness: Rc<RefCell<Witness>>,
    id: u32,
    /// Their addresses.
    pub addresses: Vec<QpAddress>,
    /// The CQEs of each that the peer has reported.
    pub seen: Vec<Vec<[u8; 64]>>,
}

impl RemoteFar {
    /// Has the peer make them.
    pub fn new(peer: Rc<RefCell<Peer>>, witness: Rc<RefCell<Witness>>, shape: &FarShape) -> Result<Self, Stop> {
        let mut link = peer.borrow_mut();
        link.next += 1;
        let id = link.next;
        let addresses = link.addresses(&Command::Open { id, shape: *shape })?;
        drop(link);
        let seen = vec![Vec::new(); addresses.len()];
        Ok(Self { peer, witness, id, addresses, seen })
    }

    /// Has the peer connect them.
    pub fn connect(&mut self, near: &[QpAddress]) -> Result<(), Stop> {
        let near = near.iter().map(ToString::to_string).collect();
        self.peer.borrow_mut().ask(&Command::Connect { id: self.id, near }).map(drop)
    }

    /// Has the peer post a request.
    pub fn post(&mut self, qp: usize, request: &Request<'_>) -> Result<(), Stop> {
        let command = Command::Post { id: self.id, qp, request: request.clone() };
        self.peer.borrow_mut().tell(&command)
    }

    /// Has the peer take a completion.
    pub fn poll(&mut self, qp: usize) -> Result<Option<(WcStatus, u32)>, Stop> {
        let reply = self.peer.borrow_mut().ask(&Command::Poll { id: self.id, qp })?;
        let Reply::Completion(done) = reply else {
            return Err(self.peer.borrow_mut().lost("an unexpected answer"));
        };
        let Some(done) = done else { return Ok(None) };
        for cqe in done.cqes {
            let Ok(bytes) = <[u8; 64]>::try_from(cqe.bytes) else { continue };
            self.witness.borrow_mut().note(cqe.cqn, cqe.size, cqe.index, &bytes);
            self.seen[qp].push(bytes);
        }
        Ok(Some((WcStatus::from_raw(done.status), done.vendor)))
    }
}

impl Drop for RemoteFar {
    fn drop(&mut self) {
        // A peer that has left has nothing to destroy.
        _ = self.peer.borrow_mut().tell(&Command::Close { id: self.id });
    }
}
