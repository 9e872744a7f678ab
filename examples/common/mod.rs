//! Data that the server and its clients exchange over TCP besides the addresses of queue pairs.

#![allow(dead_code, reason = "each of the two programs reads what the other writes")]

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::Xxh3;

/// Longest message.
pub const MAX_MESSAGE: u32 = 64 * 1024;

/// Hash of a sequence of messages: of their bytes, and of where one ends and the next begins.
#[derive(Default)]
pub struct Digest {
    hash: Xxh3,
    messages: u64,
}

impl Digest {
    /// Adds the next message, which may be in several pieces.
    pub fn update<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let mut len = 0;
        for piece in pieces {
            self.hash.update(piece);
            len += piece.len() as u64;
        }
        self.hash.update(&len.to_be_bytes());
        self.messages += 1;
    }

    pub fn messages(&self) -> u64 {
        self.messages
    }

    pub fn report(&self) -> Report {
        Report { messages: self.messages, hash: self.hash.digest() }
    }
}

/// How many messages there were, and their hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Report {
    pub messages: u64,
    pub hash: u64,
}

impl Report {
    pub fn write(&self, mut stream: impl Write) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.messages.to_be_bytes());
        bytes[8..].copy_from_slice(&self.hash.to_be_bytes());
        stream.write_all(&bytes)
    }

    pub fn read(mut stream: impl Read) -> io::Result<Self> {
        let mut word = || {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
        };
        Ok(Self { messages: word()?, hash: word()? })
    }
}
