//! Messages between the testing and the listening side, and the requests that they carry.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Shape of the queue pairs that send.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct FarShape {
    /// Queue pairs.
    pub qps: u32,
    /// Datagrams.
    pub datagrams: bool,
    /// libibverbs posts, also where doorbell could.
    pub verbs: bool,
    /// The CQEs are watched.
    pub watched: bool,
    /// Code of the time for an acknowledgement, as in `ibv_qp_attr`.
    pub timeout: u8,
    /// Retries after that time.
    pub retries: u8,
    /// Retries where no receive is posted; 7 is without end.
    pub rnr_retry: u8,
}

/// A request to a queue pair that sends.
#[derive(Clone, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Bytes that are sent inline.
    Send {
        /// The bytes.
        bytes: Cow<'a, [u8]>,
        /// Immediate data.
        imm: Option<u32>,
        /// The receiver's completion is a solicited one.
        solicited: bool,
    },
    /// A message with this number of bytes, from a buffer.
    Long(u32),
    /// Eight bytes to memory of the receiver.
    Write {
        /// Address of the memory.
        address: u64,
        /// Key of the memory.
        key: u32,
    },
}

/// Commands of the testing side to the listening side.
#[derive(Serialize, Deserialize)]
pub enum Command<'a> {
    /// The first: replied to with the version of the other side.
    Hello { version: String },
    /// Makes queue pairs: replied to with their addresses.
    Open { id: u32, shape: FarShape },
    /// Connects them.
    Connect { id: u32, near: Vec<String> },
    /// Posts a request. No reply.
    Post { id: u32, qp: usize, request: Request<'a> },
    /// Takes a completion.
    Poll { id: u32, qp: usize },
    /// Destroys queue pairs. No reply.
    Close { id: u32 },
    /// Makes a queue pair that sends and receives: replied to with its address.
    OpenTwoWay,
    /// Connects it.
    ConnectTwoWay { near: String },
    /// Answers `count` messages. Replied to before the first.
    Answer { count: u32 },
    /// Sends `count` messages. Replied to before the first.
    Stream { count: u32 },
    /// Destroys it. No reply.
    CloseTwoWay,
    /// Ends the session with its verdict. No reply.
    End { verdict: String },
}

/// Replies of the listening side.
#[derive(Serialize, Deserialize)]
pub enum Reply {
    /// To [`Command::Hello`].
    Version(String),
    /// The addresses of queue pairs.
    Addresses(Vec<String>),
    /// The command is done.
    Done,
    /// A completion, if there was one.
    Completion(Option<Completion>),
    /// This command, or one without a reply before it, failed.
    Failed(String),
}

/// A completion of a send.
#[derive(Serialize, Deserialize)]
pub struct Completion {
    pub status: u32,
    pub vendor: u32,
    /// CQEs that came since the last completion.
    pub cqes: Vec<SeenCqe>,
}

/// A CQE of the other side.
#[derive(Serialize, Deserialize)]
pub struct SeenCqe {
    pub cqn: u32,
    pub size: usize,
    pub index: u32,
    pub bytes: Vec<u8>,
}
