//! Open files of the connection manager, and the events that wait in them.
//!
//! The program's descriptor is one end of a socket pair. Each event is a byte there, a token: so poll, epoll and
//! `O_NONBLOCK` work without help, and waiting for an event is a read.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::objects::Result;
use crate::uverbs::kernel::abi::Abi;
use crate::uverbs::kernel::abi::rdma_cm::{ConnParam, EventHead, EventTail, UdParam};
use crate::uverbs::kernel::errno::EMFILE;
use crate::uverbs::kernel::events::{out_of_the_way, socket_pair};

/// An event that no program has read yet.
#[derive(Debug)]
pub struct Queued {
    /// Identifier that it is of.
    pub of: u32,
    /// Multicast group that it is of.
    pub group: Option<u32>,
    /// Identifier that is new with it.
    pub fresh: Option<u32>,
    /// The event.
    pub head: EventHead,
    /// Its parameters.
    pub param: Param,
}

/// Parameters of an event.
#[derive(Debug)]
pub enum Param {
    /// None.
    None,
    /// Parameters of a connection.
    Conn(Box<ConnParam>),
    /// Parameters of a datagram service.
    Ud(Box<UdParam>),
    /// Argument that the program gave with the event.
    Argument(u64),
}

impl Queued {
    /// Returns the answer to GET_EVENT.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.to_bytes();
        match &self.param {
            Param::None => {}
            Param::Conn(param) => bytes.extend(param.to_bytes()),
            Param::Ud(param) => bytes.extend(param.to_bytes()),
            Param::Argument(argument) => bytes.extend(argument.to_ne_bytes()),
        }
        bytes.resize(EventHead::SIZE + UdParam::SIZE + EventTail::SIZE, 0);
        bytes
    }
}

/// Least room for an answer to GET_EVENT.
pub const LEAST_ROOM: usize = EventHead::SIZE + UdParam::SIZE;

/// An open file.
#[derive(Debug)]
pub struct File {
    /// Descriptors of the program that name it.
    pub descriptors: u32,
    /// Threads of the program that wait for an event.
    pub waiting: u32,
    events: VecDeque<Queued>,
    send: OwnedFd,
    // The program's end once more, to take tokens back.
    receive: OwnedFd,
    // Tokens that did not fit into the socket.
    owed: usize,
}

impl File {
    /// Opens a file; returns the program's descriptor, too.
    pub fn open() -> Result<(Self, RawFd)> {
        let (program, send) = socket_pair(libc::SOCK_SEQPACKET).ok_or(EMFILE)?;
        let send = out_of_the_way(send);
        let receive = out_of_the_way(program.try_clone().map_err(|_| EMFILE)?);
        let events = VecDeque::new();
        let file = Self { descriptors: 1, waiting: 0, events, send, receive, owed: 0 };
        Ok((file, program.into_raw_fd()))
    }

    /// Returns `true` if the program cannot use the file any more.
    pub fn is_over(&self) -> bool {
        self.descriptors == 0 && self.waiting == 0
    }

    /// Adds an event.
    pub fn push(&mut self, queued: Queued) {
        self.events.push_back(queued);
        self.owed += 1;
        self.flush();
    }

    /// Takes the first event, for a program that has read a token.
    pub fn pop(&mut self) -> Option<Queued> {
        let first = self.events.pop_front();
        self.flush();
        first
    }

    /// Puts an event back that could not be handed out.
    pub fn put_back(&mut self, queued: Queued) {
        self.events.push_front(queued);
        self.owed += 1;
        self.flush();
    }

    /// Takes the events out that `which` selects.
    pub fn extract(&mut self, which: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let (out, rest): (Vec<_>, Vec<_>) = self.events.drain(..).partition(|event| which(event));
        self.events = rest.into();
        for _ in &out {
            // A token that a program has read already is missing; the program then finds no event and waits on.
            self.take_token();
        }
        self.flush();
        out
    }

    fn take_token(&mut self) {
        if self.owed > 0 {
            self.owed -= 1;
            return;
        }
        let mut token = [0u8];
        // SAFETY: `token` is valid for writes of one byte.
        unsafe {
            let fd = self.receive.as_raw_fd();
            libc::recv(fd, token.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT);
        }
    }

    fn flush(&mut self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        while self.owed > 0 {
            let token = [0u8];
            // SAFETY: `token` is valid for reads of one byte.
            let sent = unsafe { libc::send(self.send.as_raw_fd(), token.as_ptr().cast(), 1, flags) };
            if sent != 1 {
                return;
            }
            self.owed -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::FromRawFd;

    fn event(of: u32) -> Queued {
        let head = EventHead { id: of, ..EventHead::default() };
        Queued { of, group: None, fresh: None, head, param: Param::None }
    }

    #[test]
    fn each_event_is_one_token_beyond_what_the_socket_holds() {
        let (mut file, fd) = File::open().unwrap();
        // SAFETY: the descriptor was handed out to the program, which is this test.
        let mut program = unsafe { std::fs::File::from_raw_fd(fd) };
        for id in 0..3000 {
            file.push(event(id));
        }
        assert_eq!(file.extract(|queued| queued.of % 3 == 0).len(), 1000);
        let mut token = [0; 8];
        for id in (0..3000).filter(|id| id % 3 != 0) {
            assert_eq!(program.read(&mut token).unwrap(), 1);
            let queued = file.pop().unwrap();
            assert_eq!(queued.of, id);
            if id % 7 == 0 {
                file.put_back(queued);
                assert_eq!(program.read(&mut token).unwrap(), 1);
                assert_eq!(file.pop().unwrap().of, id);
            }
        }
        assert!(file.pop().is_none());
        // SAFETY: plain call on a descriptor of this test.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert!(program.read(&mut token).is_err(), "no token is left");
        drop(file);
        assert_eq!(program.read(&mut token).unwrap(), 0);
    }

    #[test]
    fn every_event_has_the_size_of_the_largest() {
        assert_eq!(event(1).to_bytes().len(), 336);
        let conn = Queued { param: Param::Conn(Box::default()), ..event(1) };
        assert_eq!(conn.to_bytes().len(), 336);
    }
}
