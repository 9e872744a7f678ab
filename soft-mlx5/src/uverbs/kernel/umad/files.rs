//! Open files: their agents, what they sent, and the datagrams that programs read.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use super::agent::{Agent, Registration};
use super::send::{Sent, header};
use crate::fabric::mad::Arrived;
use crate::objects::Result;
use crate::uverbs::fd_table::{self, Entry};
use crate::uverbs::kernel::errno::{EBADF, EINVAL, EMFILE, ENOMEM};
use crate::uverbs::kernel::events::FileId;

const MOST_AGENTS: u32 = 32;
/// Datagrams that wait for a program that does not read; further ones are lost.
const BACKLOG: usize = 1024;
/// Requests that wait for an answer.
const MOST_SENT: usize = 4096;

/// An open file.
#[derive(Debug)]
pub struct UmadFile {
    descriptors: u32,
    // Our end of the socket pair whose other end is the program's.
    socket: OwnedFd,
    backlog: VecDeque<Vec<u8>>,
    agents: BTreeMap<u32, Agent>,
    // Headers have an index of a partition key, as the second version of the interface.
    pub with_pkey: bool,
    last_transaction: u32,
}

/// All open files of a port.
#[derive(Debug)]
pub struct UmadFiles {
    slot: u8,
    files: BTreeMap<FileId, UmadFile>,
    sent: Vec<Sent>,
}

fn socket_pair() -> io::Result<[OwnedFd; 2]> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptors were just made and have no other owner.
    Ok(pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl UmadFiles {
    /// Starts without files; `slot` is the number of the device in its process.
    pub fn new(slot: u8) -> Self {
        Self { slot, files: BTreeMap::new(), sent: Vec::new() }
    }

    /// Opens a file with these flags; returns the program's descriptor.
    pub fn open(&mut self, id: FileId, flags: i32) -> Result<RawFd> {
        let [program, socket] = socket_pair().map_err(|_| EMFILE)?;
        let closes = if flags & libc::O_CLOEXEC == 0 { 0 } else { libc::FD_CLOEXEC };
        for (command, value) in [(libc::F_SETFL, flags & libc::O_NONBLOCK), (libc::F_SETFD, closes)] {
            // SAFETY: plain call on a descriptor that is ours.
            unsafe { libc::fcntl(program.as_raw_fd(), command, value) };
        }
        let entry = Entry { kind: fd_table::Kind::Umad, slot: self.slot, id };
        if !fd_table::set(program.as_raw_fd(), entry) {
            return Err(EMFILE);
        }
        let file = UmadFile {
            descriptors: 1,
            socket,
            backlog: VecDeque::new(),
            agents: BTreeMap::new(),
            with_pkey: false,
            last_transaction: id << 8,
        };
        self.files.insert(id, file);
        Ok(program.into_raw_fd())
    }

    /// Counts a copied descriptor.
    pub fn duplicate(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.descriptors += 1;
        }
    }

    /// Counts a closed descriptor; the last one ends the file.
    pub fn close(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.descriptors -= 1;
            if file.descriptors == 0 {
                self.files.remove(&id);
                self.sent.retain(|sent| sent.file != id);
            }
        }
    }

    /// Ends all files: programs read what is there and then the end of the file.
    pub fn shut_down(&mut self) {
        self.sent.clear();
        for file in self.files.values_mut() {
            file.flush();
            // SAFETY: plain call on a socket that is ours.
            unsafe { libc::shutdown(file.socket.as_raw_fd(), libc::SHUT_WR) };
        }
    }

    /// Returns an open file.
    pub fn file(&mut self, id: FileId) -> Result<&mut UmadFile> {
        self.files.get_mut(&id).ok_or(EBADF)
    }

    /// Remembers what waits for an answer.
    pub fn expect(&mut self, sent: Sent) -> Result<()> {
        if self.sent.len() >= MOST_SENT {
            return Err(ENOMEM);
        }
        self.sent.push(sent);
        Ok(())
    }

    /// Takes out what was not answered by `now`.
    pub fn take_late(&mut self, now: u64) -> Vec<Sent> {
        let (late, waiting) = self.sent.drain(..).partition(|sent| sent.deadline <= now);
        self.sent = waiting;
        late
    }

    /// Returns when the next answer is late.
    pub fn next_deadline(&self) -> Option<u64> {
        self.sent.iter().map(|sent| sent.deadline).min()
    }

    /// Hands an answer to the agent that waits for it. The answer may be longer than the datagram that arrived with it.
    pub fn answered(&mut self, arrived: &Arrived, answer: &[u8]) {
        let key = |mad: &[u8]| (mad[1], mad.get(8..16).map(<[u8]>::to_vec));
        let waits = |sent: &Sent| sent.qpn == arrived.qpn && key(&sent.mad) == key(answer);
        let Some(at) = self.sent.iter().position(waits) else { return };
        let sent = self.sent.swap_remove(at);
        self.deliver(sent.file, sent.agent, arrived, answer);
    }

    /// Hands a request to the agent that takes it; returns `false` if there is none.
    pub fn requested(&mut self, arrived: &Arrived) -> bool {
        let takes = |agent: &Agent| agent.wanted.takes(arrived.qpn, &arrived.mad);
        let agents = |file: &UmadFile| file.agents.iter().find(|(_, agent)| takes(agent)).map(|(number, _)| *number);
        let found = self.files.iter().find_map(|(id, file)| Some((*id, agents(file)?)));
        let Some((id, agent)) = found else { return false };
        self.deliver(id, agent, arrived, &arrived.mad);
        true
    }

    fn deliver(&mut self, id: FileId, agent: u32, arrived: &Arrived, mad: &[u8]) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let mut bytes = header(agent, arrived, mad.len(), file.with_pkey);
        bytes.extend(mad);
        file.push(bytes);
    }

    /// Moves waiting datagrams into the sockets, as far as there is room.
    pub fn flush(&mut self) {
        self.files.values_mut().for_each(UmadFile::flush);
    }
}

impl UmadFile {
    /// Checks a registration; returns the number that its agent gets, and the agent.
    pub fn register(&mut self, wanted: &Registration, roce: bool) -> Result<(u32, Agent)> {
        wanted.check(roce)?;
        if self.agents.values().any(|agent| agent.wanted.overlaps(wanted)) {
            return Err(EINVAL);
        }
        let free = (0..MOST_AGENTS).find(|number| !self.agents.contains_key(number));
        let number = free.ok_or(ENOMEM)?;
        self.last_transaction = self.last_transaction.wrapping_add(1);
        Ok((number, Agent { wanted: *wanted, transaction: self.last_transaction }))
    }

    /// Adds a registered agent.
    pub fn add(&mut self, number: u32, agent: Agent) {
        self.agents.insert(number, agent);
    }

    /// Removes an agent.
    pub fn unregister(&mut self, number: u32) -> Result<()> {
        self.agents.remove(&number).map(drop).ok_or(EINVAL)
    }

    /// Returns an agent.
    pub fn agent(&self, number: u32) -> Result<Agent> {
        self.agents.get(&number).copied().ok_or(EINVAL)
    }

    /// Turns to headers with an index of a partition key. The interface is chosen before the first agent.
    pub fn enable_pkey(&mut self) -> Result<()> {
        if !self.agents.is_empty() {
            return Err(EINVAL);
        }
        self.with_pkey = true;
        Ok(())
    }

    /// Gives bytes to the program to read.
    pub fn push(&mut self, bytes: Vec<u8>) {
        if self.backlog.len() < BACKLOG {
            self.backlog.push_back(bytes);
        }
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(bytes) = self.backlog.front() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let fd = self.socket.as_raw_fd();
            // SAFETY: the bytes are valid for their length.
            let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
            let again = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
            if sent < 0 && again {
                return;
            }
            // A datagram that the socket never takes is lost.
            self.backlog.pop_front();
        }
    }
}
