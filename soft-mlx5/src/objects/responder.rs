//! State of the receiving side of a queue pair: the message in progress, and the answers that the peer must get.

use std::collections::VecDeque;

use mlx5_wire::tm::AppOp;

use super::QpModify;
use super::completion::Failure;
use super::scatter::ScatterList;
use crate::fabric::headers::{NakCode, PSN_MASK, Syndrome};
use crate::fabric::psn;

/// Role of the message in progress in tag matching.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// The queue pair has no tag list.
    #[default]
    None,
    /// The message goes into a WQE.
    Slot(AppOp),
    /// The message goes into the buffer of an entry.
    Matched(u16, Delivery),
}

/// Form of a matched message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The data follows the header.
    Eager,
    /// The device reads the data from the sender.
    Rendezvous,
    /// Software must read the data: it gets the headers.
    Headers,
}

/// A message that has begun and not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Message {
    /// None.
    #[default]
    None,
    /// SEND into the receive WQE that was taken.
    Send,
    /// RDMA WRITE.
    Write {
        /// Address of the next byte.
        va: u64,
        /// Key of the memory.
        rkey: u32,
        /// Bytes of the whole message.
        length: u32,
        /// Bytes still to come.
        remaining: u32,
    },
}

/// The receive WQE that was taken for a message.
#[derive(Debug, Default)]
pub struct Receive {
    /// `wqe_counter` of its CQE; `None` if no WQE is held.
    pub counter: Option<u16>,
    /// Destination of its bytes.
    pub list: ScatterList,
    /// Bytes placed so far.
    pub placed: u64,
    /// Role of the message in tag matching.
    pub role: Role,
}

/// An answer that the peer must get, in the order of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Verdict { psn: u32, syndrome: Syndrome },
    Atomic { psn: u32, original: u64, is_repeat: bool },
    Read(ReadAnswer),
}

/// The answer to a READ, packet by packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadAnswer {
    pub psn: u32,
    pub va: u64,
    pub rkey: u32,
    pub length: u32,
    pub packets: u32,
    pub next: u32,
    pub is_repeat: bool,
}

/// State of the receiving side.
#[derive(Debug)]
pub struct Responder {
    pub(crate) expected_psn: u32,
    pub(crate) msn: u32,
    /// Message in progress.
    pub message: Message,
    /// Receive WQE in progress.
    pub receive: Receive,
    // The peer got a NAK, sequence error or RNR: send it once.
    pub(crate) refused: bool,
    pub(crate) answers: VecDeque<Answer>,
    // Answers to the last atomics: they cannot be executed twice.
    pub(crate) atomics: VecDeque<(u32, u64)>,
    pub(crate) ack: Ack,
    pub(crate) max_reads: usize,
    pub(crate) rnr_timer: u8,
}

/// The acknowledgement that waits at the pace of an adapter, so that it covers later requests, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ack {
    #[default]
    None,
    Waits,
    Due,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            expected_psn: 0,
            msn: 0,
            message: Message::None,
            receive: Receive::default(),
            refused: false,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            ack: Ack::None,
            max_reads: 1,
            rnr_timer: 0,
        }
    }
}

impl Responder {
    /// Applies the changes of MODIFY_QP.
    pub fn modify(&mut self, change: &QpModify) {
        if let Some(psn) = change.rq_psn {
            self.expected_psn = psn & PSN_MASK;
        }
        if let Some(count) = change.max_dest_rd_atomic {
            self.max_reads = usize::from(count).max(1);
        }
        if let Some(timer) = change.min_rnr_timer {
            self.rnr_timer = timer & 0x1f;
        }
    }

    /// Returns the packet sequence number expected next.
    pub fn expected_psn(&self) -> u32 {
        self.expected_psn
    }

    /// Returns `true` if an answer to the peer was not sent yet.
    pub fn owes_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the number of READs and atomics that were not answered yet. Repeated answers do not count against the
    /// limit of the peer: it may have got the first answer, and asked for more.
    pub(crate) fn reads_pending(&self) -> usize {
        let is_first = |answer: &&Answer| match answer {
            Answer::Verdict { .. } => false,
            Answer::Atomic { is_repeat, .. } => !is_repeat,
            Answer::Read(read) => !read.is_repeat,
        };
        self.answers.iter().filter(is_first).count()
    }

    /// Lets an acknowledgement go that waits.
    pub fn release_ack(&mut self) {
        if self.ack == Ack::Waits {
            self.ack = Ack::Due;
        }
    }

    /// Returns `true` if the only answer is an acknowledgement.
    pub(crate) fn has_only_ack(&self) -> bool {
        let is_ack = |answer: &Answer| matches!(answer, Answer::Verdict { syndrome: Syndrome::Ack, .. });
        self.answers.len() == 1 && self.answers.front().is_some_and(is_ack)
    }

    /// Adds a verdict for the peer.
    pub(crate) fn say(&mut self, psn: u32, syndrome: Syndrome) {
        // An ACK covers all packets before it: one is enough.
        if let (Some(Answer::Verdict { psn: last, syndrome: Syndrome::Ack }), Syndrome::Ack) =
            (self.answers.back_mut(), syndrome)
        {
            if psn::diff(psn, *last) > 0 {
                *last = psn;
            }
            return;
        }
        self.answers.push_back(Answer::Verdict { psn, syndrome });
    }
}

/// Reason why a request was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No receive WQE is posted.
    NotReady,
    /// The request is wrong; the receive WQE in progress, if any, completes with this failure.
    Fatal(NakCode, Option<Failure>),
}

impl Refusal {
    /// The request is not legal.
    pub const INVALID: Self = Self::Fatal(NakCode::InvalidRequest, None);
    /// A key does not allow it.
    pub const ACCESS: Self = Self::Fatal(NakCode::RemoteAccess, None);
}
