//! State of the sending side of a queue pair: WQEs that were started, and the part of them that was sent and
//! acknowledged.
//!
//! A WQE stays in the program's queue until it is complete. The requester keeps only its packet sequence
//! numbers. Packets that are sent again are read from the queue again, as an adapter does.

use std::collections::VecDeque;

use mlx5_wire::opcode::WqeOpcode;

use super::QpModify;
use super::completion::Failure;
use super::wqe::{Flags, Kind, Trailer};
use crate::fabric::psn;

/// Packets in flight at most.
const MAX_WINDOW: u32 = 256;
const MIN_WINDOW: u32 = 8;

/// A WQE that was started.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Index of its first basic block.
    pub index: u16,
    /// Opcode of the WQE.
    pub opcode: WqeOpcode,
    /// Operation.
    pub kind: Kind,
    /// Trailer of its last packet.
    pub trailer: Trailer,
    /// Flags of its control segment.
    pub flags: Flags,
    /// Stream of an initiator of dynamic connections.
    pub stream: u16,
    /// First packet sequence number.
    pub first_psn: u32,
    /// Packet sequence numbers it uses; for a READ those of the answer.
    pub packets: u32,
    /// Bytes of the message.
    pub length: u32,
    /// Digest of the WQE when it was started.
    pub digest: u64,
    /// Reason why it cannot go on; reported when all requests before it are complete.
    pub failure: Option<Failure>,
}

impl Request {
    /// Returns the first packet sequence number after this request.
    pub fn end(&self) -> u32 {
        psn::add(self.first_psn, self.packets)
    }
}

/// An echo on its way. A time-out counts when it is back: until then the peer has not got the processor for what was
/// sent, and nothing is sent again.
#[derive(Debug, Clone, Copy)]
pub struct Inquiry {
    /// Token of the echo.
    pub token: u32,
    /// Time of the first echo.
    pub since: u64,
    /// Time of the next echo.
    pub again_at: u64,
}

/// State of the sending side.
#[derive(Debug)]
pub struct Requester {
    // Started and not complete, oldest first.
    pub(crate) requests: VecDeque<Request>,
    // Position of transmission: a request and a packet of it. Every packet before was sent at least once.
    pub(crate) current: usize,
    pub(crate) packet: u32,
    // Next number to give, first number that was never sent, first number that is not acknowledged.
    next_psn: u32,
    sent_psn: u32,
    pub(crate) unacked_psn: u32,
    window: u32,
    reads: u32,
    // Number of an answer that was concluded to be lost, because a later one came. It is concluded only once.
    pub(crate) implied_loss: Option<u32>,
    // Waiting for the responder to get ready.
    pub(crate) backing_off: bool,
    // Echo that the peer has not returned yet.
    pub(crate) inquiry: Option<Inquiry>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: u8,
    max_reads: u32,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            current: 0,
            packet: 0,
            next_psn: 0,
            sent_psn: 0,
            unacked_psn: 0,
            window: MAX_WINDOW,
            reads: 0,
            implied_loss: None,
            backing_off: false,
            inquiry: None,
            retries_left: 0,
            rnr_left: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            timeout: 0,
            max_reads: 1,
        }
    }
}

impl Requester {
    /// Applies the changes of MODIFY_QP.
    pub fn modify(&mut self, change: &QpModify) {
        if let Some(psn) = change.sq_psn {
            let psn = psn::add(psn, 0);
            (self.next_psn, self.sent_psn, self.unacked_psn) = (psn, psn, psn);
        }
        if let Some(count) = change.max_rd_atomic {
            self.max_reads = u32::from(count).max(1);
        }
        if let Some(timeout) = change.timeout {
            self.timeout = timeout & 0x1f;
        }
        if let Some(count) = change.retry_cnt {
            (self.retry_cnt, self.retries_left) = (count & 7, count & 7);
        }
        if let Some(count) = change.rnr_retry {
            (self.rnr_retry, self.rnr_left) = (count & 7, count & 7);
        }
    }

    /// Returns the next packet sequence number to give.
    pub fn next_psn(&self) -> u32 {
        self.next_psn
    }

    /// Returns `true` if all started WQEs are complete.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns `true` if nothing is open but READs and atomics, whose requests were sent, and WQEs that sent nothing.
    pub fn has_only_reads(&self) -> bool {
        self.requests.iter().all(|request| request.kind.is_read_like() || request.packets == 0)
    }

    /// Returns the oldest request that is not complete.
    pub fn front(&self) -> Option<&Request> {
        self.requests.front()
    }

    /// Returns the first packet sequence number that is not acknowledged.
    pub fn unacked_psn(&self) -> u32 {
        self.unacked_psn
    }

    /// Returns the first packet sequence number that was never sent.
    pub fn sent_psn(&self) -> u32 {
        self.sent_psn
    }

    /// Returns `true` if the responder asked for time.
    pub fn is_backing_off(&self) -> bool {
        self.backing_off
    }

    /// Returns the request to send from, and the packet of it, or `None` if all that was started was sent.
    pub fn current(&self) -> Option<(Request, u32)> {
        Some((*self.requests.get(self.current)?, self.packet))
    }

    /// Returns `true` if the window lets packet `psn` go.
    pub fn is_in_window(&self, psn: u32) -> bool {
        psn::diff(psn, self.unacked_psn) < self.window as i32
    }

    /// Returns `true` if a WQE with these flags may start now.
    pub fn may_start(&self, flags: Flags, read_like: bool) -> bool {
        let fence_holds = flags.fenced() && self.reads > 0;
        let reads_full = read_like && self.reads >= self.max_reads;
        !fence_holds && !reads_full
    }

    /// Adds a request whose first packet sequence number is [`Self::next_psn`].
    pub fn push(&mut self, request: Request) {
        self.next_psn = request.end();
        self.reads += u32::from(request.kind.is_read_like());
        self.requests.push_back(request);
        self.settle_cursor();
    }

    /// Notes that the current request was sent up to its packet `end`; returns the sequence number there.
    pub fn sent(&mut self, request: &Request, end: u32) -> u32 {
        self.packet = end;
        self.settle_cursor();
        let psn = psn::add(request.first_psn, end);
        if psn::diff(psn, self.sent_psn) > 0 {
            self.sent_psn = psn;
        }
        psn
    }

    /// Forgets all requests, and gives the next packet the number 0.
    pub fn start_over(&mut self) {
        let Self { retry_cnt, rnr_retry, timeout, max_reads, .. } = *self;
        let kept = Self { retry_cnt, rnr_retry, timeout, max_reads, ..Self::default() };
        *self = Self { retries_left: retry_cnt, rnr_left: rnr_retry, ..kept };
    }

    /// Notes that the current request cannot go on.
    pub fn refuse(&mut self, failure: Failure) {
        if let Some(request) = self.requests.get_mut(self.current) {
            request.failure = Some(failure);
        }
    }

    pub(crate) fn has_unacked(&self) -> bool {
        self.unacked_psn != self.sent_psn
    }

    /// Returns `true` if the oldest packet that is not acknowledged is also the next to send.
    pub(crate) fn is_at_oldest(&self) -> bool {
        let next = self.requests.get(self.current);
        next.is_some_and(|next| psn::add(next.first_psn, self.packet) == self.unacked_psn)
    }

    /// Sends again from the oldest packet that is not acknowledged.
    pub(crate) fn go_back(&mut self) {
        self.current = 0;
        self.packet = self.requests.front().map_or(0, |front| {
            let acked = psn::diff(self.unacked_psn, front.first_psn);
            acked.clamp(0, front.packets.saturating_sub(1) as i32) as u32
        });
        self.settle_cursor();
        self.window = (self.window / 2).max(MIN_WINDOW);
    }

    /// Notes that every packet before `psn` is acknowledged.
    pub fn acknowledged_up_to(&mut self, psn: u32) {
        let count = psn::diff(psn, self.unacked_psn);
        if count <= 0 {
            return;
        }
        self.unacked_psn = psn;
        self.window = (self.window + count as u32).min(MAX_WINDOW);
        self.implied_loss = None;
        self.retries_left = self.retry_cnt;
        self.rnr_left = self.rnr_retry;
        // Packets that were acknowledged while they were being sent again need not be sent.
        if self.current == 0 {
            if let Some(front) = self.requests.front() {
                let acked = psn::diff(psn, front.first_psn).clamp(0, front.packets as i32) as u32;
                self.packet = self.packet.max(acked);
                self.settle_cursor();
            }
        }
    }

    /// Moves on from a request that was sent whole, or needs no packet.
    fn settle_cursor(&mut self) {
        while let Some(request) = self.requests.get(self.current) {
            if request.failure.is_some() || self.packet < request.packets {
                return;
            }
            self.current += 1;
            self.packet = 0;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        if self.current == 0 {
            self.packet = 0;
        } else {
            self.current -= 1;
        }
        self.reads -= u32::from(request.kind.is_read_like());
        self.settle_cursor();
        Some(request)
    }
}
