//! `doorbell selftest --listen`: the other side of `--peer`.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

use doorbell::{DataPath, QpAddress};

use super::far::LocalFar;
use super::lab::Lab;
use super::messages::{Command, Completion, Reply};
use super::peer::{Lines, VERSION};
use super::stop::Stop;
use super::two_way::TwoWay;

/// Checks that need no peer take less.
const SILENCE: Duration = Duration::from_secs(120);

/// Serves one run of the checks of another host; returns `true` if none failed.
pub fn run(lab: Lab, port: u16) -> Result<bool, Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("TCP port {port}: {error}");
    // Where there is no IPv6, IPv4 alone.
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    let listener = listener.map_err(failed)?;
    let port = listener.local_addr()?.port();
    crate::output::write(&format!("listening on TCP port {port} for doorbell selftest --peer\n"))?;
    let (stream, _) = listener.accept()?;
    let lines = Lines::new(stream, SILENCE)?;
    let mut host = Host { lab, lines, far: BTreeMap::new(), two_way: None, failed: None };
    let verdict = loop {
        match host.serve() {
            Ok(None) => {}
            Ok(Some(verdict)) => break verdict,
            Err(why) => break format!("selftest: FAILED: the testing side is gone: {why}"),
        }
    };
    crate::output::write(&format!("{verdict}\n"))?;
    Ok(verdict.starts_with("selftest: ok: "))
}

struct Host {
    lab: Lab,
    lines: Lines,
    far: BTreeMap<u32, LocalFar>,
    two_way: Option<TwoWay>,
    /// The failure of a command without a reply.
    failed: Option<String>,
}

impl Host {
    /// Executes the command of the next line; returns the verdict with which the other side ends.
    fn serve(&mut self) -> Result<Option<String>, String> {
        let command: Command<'static> = self.lines.read()?;
        let done = match command {
            Command::End { verdict } => return Ok(Some(verdict)),
            Command::Post { id, qp, request } => {
                let done = self.far(id).and_then(|far| far.post(qp, &request));
                return self.no_reply(done);
            }
            Command::Close { id } => {
                self.far.remove(&id);
                return Ok(None);
            }
            Command::CloseTwoWay => {
                self.two_way = None;
                return Ok(None);
            }
            Command::Answer { count } => return self.afterwards(|end| end.answer(count)),
            Command::Stream { count } => return self.afterwards(|end| end.stream(count)),
            Command::Hello { .. } => Ok(Reply::Version(VERSION.into())),
            Command::Open { id, shape } => LocalFar::new(&self.lab, &shape).and_then(|far| {
                let reply = texts(&far.addresses()?);
                self.far.insert(id, far);
                Ok(reply)
            }),
            Command::Connect { id, near } => {
                addresses(&near).and_then(|near| self.far(id)?.connect(&near)).map(|()| Reply::Done)
            }
            Command::Poll { id, qp } => self.far(id).map(|far| Reply::Completion(poll(far, qp))),
            Command::OpenTwoWay => TwoWay::new(&self.lab, DataPath::Auto).and_then(|end| {
                let reply = texts(&[end.address()?]);
                self.two_way = Some(end);
                Ok(reply)
            }),
            Command::ConnectTwoWay { near } => {
                addresses(&[near]).and_then(|near| self.two_way()?.connect(&near[0])).map(|()| Reply::Done)
            }
        };
        let reply = match (self.failed.take(), done) {
            (Some(why), _) | (None, Err(Stop::Fail(why) | Stop::Cannot(why))) => Reply::Failed(why),
            (None, Ok(reply)) => reply,
        };
        self.lines.write(&reply).map(|()| None)
    }

    fn far(&mut self, id: u32) -> Result<&mut LocalFar, Stop> {
        Ok(self.far.get_mut(&id).ok_or("no such queue pairs")?)
    }

    fn two_way(&mut self) -> Result<&mut TwoWay, Stop> {
        Ok(self.two_way.as_mut().ok_or("no such queue pair")?)
    }

    /// Keeps a failure for the next reply.
    fn no_reply(&mut self, done: Result<(), Stop>) -> Result<Option<String>, String> {
        if let Err(Stop::Fail(why) | Stop::Cannot(why)) = done {
            self.failed.get_or_insert(why);
        }
        Ok(None)
    }

    /// Replies, and then works.
    fn afterwards(&mut self, work: impl FnOnce(&mut TwoWay) -> Result<(), Stop>) -> Result<Option<String>, String> {
        self.lines.write(&Reply::Done)?;
        let done = self.two_way().and_then(work);
        self.no_reply(done)
    }
}

/// Takes a completion, with the CQEs that came before it.
fn poll(far: &mut LocalFar, qp: usize) -> Option<Completion> {
    let (status, vendor) = far.poll(qp)?;
    Some(Completion { status: status.as_raw(), vendor, cqes: far.news(qp) })
}

fn texts(addresses: &[QpAddress]) -> Reply {
    Reply::Addresses(addresses.iter().map(ToString::to_string).collect())
}

fn addresses(texts: &[String]) -> Result<Vec<QpAddress>, Stop> {
    Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}
