//! Handling of arrivals: matching by the library, and the bookkeeping of matching by the device.
//!
//! When a message is unexpected, every receive in the device's list that matches it was appended with an
//! older count than the device's, so the device matches nothing to it before an operation carries that
//! count (see [`Phase`](super::phase::Phase)). The library posts no such operation before it has handled the
//! message. So it may give the message to the oldest of those receives, provided that it takes the receive
//! out of the list first: the remove always finds it.

use super::TagMatchingSrq;
use super::arrival::{Arrived, Executed, Operation};
use super::error::ListFailure;
use super::event::{ReceiveFailure, Received, Sent, TagEvent};
use super::header::{EAGER, OfferedMemory, RENDEZVOUS, TagHeader, rendezvous};
use super::ids::{Key, PeerId, SendId};
use super::message::TaggedBuffer;
use super::receives::{Receive, State};
use super::unexpected::{Content, Message};
use super::work::Work;
use crate::memory::Buffer;
use crate::status::WcStatus;

impl TagMatchingSrq {
    /// Takes all that has arrived, before a queue pair is destroyed: the driver then drops the completions of the queue
    /// pair on the CQ, and does not name their receives.
    pub(super) fn take_arrived(&mut self) {
        // Other peers may go on sending. When as many were taken as the CQ holds, all that is on the CQ now was taken.
        let mut left = self.engine.core().object.capacity() as usize;
        while left > 0 {
            match self.progress() {
                0 => return,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    /// Takes what has arrived, and posts what follows from it with one doorbell. Returns how much that was.
    pub(super) fn progress(&mut self) -> usize {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.engine.poll(&mut arrived);
        let mut taken = arrived.len();
        for each in arrived.drain(..) {
            self.handle(each);
        }
        self.arrived = arrived;
        taken += self.poll_sends();
        if self.phase.is_due() && !self.manual && self.engine.offloads() {
            self.operations.push(Operation::Synchronize);
        }
        if let Err(errno) = self.flush() {
            self.break_list(ListFailure::Verbs(errno));
        }
        self.refill();
        self.report_low_buffers();
        taken
    }

    /// Reports once that unexpected messages hold most buffers, and few are left: without a report, a message that a
    /// receive waits for would never arrive.
    fn report_low_buffers(&mut self) {
        let (posted, unexpected) = (self.engine.posted(), self.unexpected.len());
        let is_short = self.is_short_of_buffers();
        if became_low(&mut self.low_reported, is_short, posted, unexpected) {
            self.events.push_back(TagEvent::BuffersLow { posted, unexpected });
        }
    }

    /// Posts the operations that have come up.
    pub(super) fn flush(&mut self) -> Result<(), i32> {
        let (_, result) = self.flush_some();
        self.operations.clear();
        result
    }

    /// Posts the operations that have come up, with one doorbell; returns how many. They stay in the list.
    pub(super) fn flush_some(&mut self) -> (usize, Result<(), i32>) {
        if self.operations.is_empty() {
            return (0, Ok(()));
        }
        if self.operations.iter().any(|operation| matches!(operation, Operation::Synchronize)) {
            self.phase.synchronize();
        }
        let counts = self.phase.report(!self.operations.iter().all(Operation::is_remove));
        let receives = &mut self.receives;
        self.engine.post(&self.operations, counts, |index, handle| {
            if let Some(receive) = receives.get_mut(index) {
                receive.handle = handle;
            }
        })
    }

    fn handle(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Appended { phase } => self.executed(phase),
            Arrived::Synchronized { phase } => {
                self.phase.synchronized();
                self.executed(phase);
            }
            Arrived::Removed { receive, found, phase } => {
                self.executed(phase);
                self.removed(receive, found);
            }
            Arrived::Matched { receive, header, incomplete } => {
                let state = if incomplete { State::Incomplete } else { State::Matched };
                self.set(receive, state);
                if let Some(receive) = self.receives.get_mut(receive) {
                    receive.header = header;
                }
            }
            Arrived::Received { receive, header, len, qp_num } => {
                self.arrive_whole(receive, header, len, qp_num, false);
            }
            Arrived::Incomplete { receive, header, len, qp_num } => {
                self.arrive_whole(receive, header, len, qp_num, true);
            }
            Arrived::Canceled { receive } => {
                self.set(receive, State::Matched);
                self.fail(receive, ReceiveFailure::Dropped);
            }
            Arrived::Message { buffer, counted, qp_num } => {
                if counted {
                    self.phase.handle();
                }
                self.message(buffer, qp_num);
            }
            Arrived::Failed { status, qp_num } => {
                if let Some(peer) = self.peer_of(qp_num) {
                    self.peer_failed(peer, status);
                }
            }
            Arrived::Broken { status } => self.break_list(ListFailure::Status(status)),
        }
    }

    fn executed(&mut self, phase: Executed) {
        self.phase.executed(phase.count, phase.hw_phase);
    }

    fn peer_of(&self, qp_num: u32) -> Option<PeerId> {
        self.routes.find(qp_num).and_then(|&index| self.peers.id(index))
    }

    /// Changes the state of a receive that the device has matched. A message that waited for the removal of the
    /// receive goes to another receive, or waits.
    fn set(&mut self, key: Key, state: State) {
        let Some(receive) = self.receives.get_mut(key) else { return };
        let before = std::mem::replace(&mut receive.state, State::Matched);
        self.receives.set_state(key, state);
        if let State::Claimed(message) = before {
            self.arrive(message);
        }
    }

    /// The device has executed a remove.
    fn removed(&mut self, key: Key, found: bool) {
        let Some(receive) = self.receives.get_mut(key) else { return };
        match (&receive.state, found) {
            (State::Cancelling, true) => {
                if let Some((receive, buffer)) = self.end(key) {
                    self.events.push_back(TagEvent::Cancelled { receive, buffer });
                }
            }
            (State::Claimed(_), true) => {
                let claimed = std::mem::replace(&mut receive.state, State::Matched);
                if let State::Claimed(message) = claimed {
                    self.deliver(key, message);
                }
            }
            // A message was faster; its completion has come or will.
            (State::Cancelling | State::Claimed(_), false) => self.set(key, State::Matched),
            _ => {}
        }
    }

    /// A message that the device did not match.
    fn message(&mut self, buffer: Buffer, qp_num: u32) {
        let Some(peer) = self.peer_of(qp_num) else { return };
        let header = TagHeader::parse(&buffer);
        let arrival = |tag, context, content| Message { peer, tag, context, content, number: 0 };
        match header {
            Some(TagHeader::Eager { tag, context }) => {
                self.arrive(arrival(tag, context, Content::Eager(buffer)));
            }
            Some(TagHeader::Rendezvous { tag, context, memory }) => {
                self.arrive(arrival(tag, context, Content::Rendezvous(memory)));
            }
            Some(header @ TagHeader::Fin { .. }) => {
                // No peer but the one that was offered the buffer knows that it has been read.
                match self.offers.finish_if(&header, |(_, to)| *to == peer) {
                    Some((buffer, (send, to))) => {
                        self.sent(send, to, true, WcStatus::SUCCESS, buffer);
                    }
                    None => self.events.push_back(TagEvent::Malformed { peer, buffer }),
                }
            }
            Some(TagHeader::NoTag) => {
                let message = TaggedBuffer::arrived(buffer);
                self.events.push_back(TagEvent::NoTag { peer, message });
            }
            None => self.events.push_back(TagEvent::Malformed { peer, buffer }),
        }
    }

    /// A tagged message has arrived that the device did not match.
    fn arrive(&mut self, mut message: Message) {
        if message.number == 0 {
            self.arrivals += 1;
            message.number = self.arrivals;
        }
        let Some(key) = self.receives.oldest(message.tag) else {
            return self.unexpected.push(message);
        };
        if !self.engine.offloads() {
            self.receives.set_state(key, State::Matched);
            return self.deliver(key, message);
        }
        let Some(receive) = self.receives.get_mut(key) else { return };
        let handle = receive.handle;
        self.operations.push(Operation::Remove { receive: key, handle });
        self.receives.set_state(key, State::Claimed(message));
    }

    /// Brings a message to a receive whose buffer is ours.
    pub(super) fn deliver(&mut self, key: Key, message: Message) {
        let Message { peer, tag, context, content, .. } = message;
        let Some(receive) = self.receives.get_mut(key) else { return };
        receive.header = (tag, context);
        match content {
            Content::Eager(source) => {
                let payload = &source[EAGER..];
                let (len, room) = (payload.len(), receive.room());
                match &mut receive.buffer {
                    Some(buffer) if len <= room => {
                        buffer.set_len(len);
                        buffer.copy_from_slice(payload);
                        self.complete(key, peer, true);
                    }
                    _ => self.fail(key, ReceiveFailure::TooLong { len }),
                }
            }
            Content::Rendezvous(memory) => self.rendezvous(key, peer, memory),
        }
    }

    /// Reads what a receive has matched.
    fn rendezvous(&mut self, key: Key, peer: PeerId, memory: OfferedMemory) {
        let Some(receive) = self.receives.get_mut(key) else { return };
        let (tag, context) = receive.header;
        let offer = TagHeader::Rendezvous { tag, context, memory };
        let len = memory.len as usize;
        let fits = len <= receive.room() && receive.buffer.is_some();
        if let Some(buffer) = &mut receive.buffer {
            buffer.set_len(if fits { len } else { 0 });
        }
        receive.state = State::Reading;
        let Some(sender) = self.peer_mut(peer) else {
            return self.fail(key, ReceiveFailure::PeerGone);
        };
        if fits && len > 0 {
            sender.backlog.push_back(Work::Read { receive: key, offer, memory });
        } else {
            // Nothing to read, or nowhere to; the sender gets its buffer back in either case.
            sender.backlog.push_back(Work::Fin(fin(&offer)));
            match fits {
                true => self.complete(key, peer, true),
                false => self.fail(key, ReceiveFailure::TooLong { len }),
            }
        }
        self.pump(peer);
    }

    /// The data of a rendezvous was read, or could not be.
    pub(super) fn has_read(&mut self, peer: PeerId, key: Key, offer: &TagHeader, status: WcStatus, buffer: Buffer) {
        if let Some(receive) = self.receives.get_mut(key) {
            receive.buffer = Some(buffer);
        }
        if !status.is_success() {
            return self.fail(key, ReceiveFailure::Read(status));
        }
        if let Some(peer) = self.peer_mut(peer) {
            peer.backlog.push_back(Work::Fin(fin(offer)));
        }
        self.complete(key, peer, true);
    }

    /// The device has delivered a message, or the headers of a rendezvous.
    fn arrive_whole(&mut self, key: Key, header: Option<(u64, u32)>, len: u32, qp_num: u32, incomplete: bool) {
        let Some(receive) = self.receives.get_mut(key) else { return };
        let incomplete = incomplete || matches!(receive.state, State::Incomplete);
        if let Some(header) = header {
            receive.header = header;
        }
        self.set(key, State::Matched);
        let Some(receive) = self.receives.get_mut(key) else { return };
        let room = receive.room();
        let peer = self.routes.find(qp_num).and_then(|&index| self.peers.id(index));
        let Some(buffer) = &mut receive.buffer else { return };
        let Some(peer) = peer else {
            return self.fail(key, ReceiveFailure::PeerGone);
        };
        let len = len as usize;
        if incomplete {
            let headers: [u8; RENDEZVOUS] = buffer.head();
            return match TagHeader::parse(&headers) {
                Some(TagHeader::Rendezvous { memory, .. }) if len >= RENDEZVOUS => {
                    self.rendezvous(key, peer, memory);
                }
                _ => self.fail(key, ReceiveFailure::Malformed),
            };
        }
        if len > room {
            return self.fail(key, ReceiveFailure::TooLong { len });
        }
        buffer.set_len(len);
        self.complete(key, peer, false);
    }

    fn end(&mut self, key: Key) -> Option<(super::ReceiveId, Buffer)> {
        let (id, receive) = self.receives.take(key)?;
        Some((id, receive.buffer?))
    }

    fn complete(&mut self, key: Key, peer: PeerId, by_library: bool) {
        let Some(&mut Receive { header: (tag, context), late: waited, .. }) = self.receives.get_mut(key) else {
            return;
        };
        if let Some((receive, buffer)) = self.end(key) {
            let received = Received { receive, peer, tag, context, by_library, waited, buffer };
            self.events.push_back(TagEvent::Received(received));
        }
    }

    pub(super) fn fail(&mut self, key: Key, cause: ReceiveFailure) {
        if let Some((receive, mut buffer)) = self.end(key) {
            buffer.set_len(0);
            self.events.push_back(TagEvent::Failed { receive, cause, buffer });
        }
    }

    pub(super) fn sent(&mut self, send: SendId, peer: PeerId, rendezvous: bool, status: WcStatus, buffer: Buffer) {
        self.events.push_back(TagEvent::Sent(Sent { send, peer, rendezvous, status, buffer }));
    }

    pub(super) fn peer_failed(&mut self, id: PeerId, status: WcStatus) {
        if let Some(peer) = self.peer_mut(id) {
            if !std::mem::replace(&mut peer.failed, true) {
                self.events.push_back(TagEvent::PeerFailed { peer: id, status });
            }
        }
    }

    fn break_list(&mut self, cause: ListFailure) {
        if self.broken.is_none() {
            self.broken = Some(cause);
            self.events.push_back(TagEvent::Broken { cause });
        }
    }

    /// Gives the device buffers in the place of those that messages came in.
    pub(super) fn refill(&mut self) {
        if let Some(pool) = &self.pool {
            self.engine.refill(pool);
        }
    }
}

/// Returns `true` if buffers have become few because unexpected messages hold them; `was_low` says that they are few.
const fn became_low(was_low: &mut bool, is_short: bool, posted: u32, unexpected: usize) -> bool {
    let low = is_short && unexpected >= posted as usize;
    let before = std::mem::replace(was_low, low);
    low && !before
}

/// The message that ends a rendezvous.
fn fin(offer: &TagHeader) -> [u8; RENDEZVOUS] {
    match *offer {
        TagHeader::Rendezvous { tag, context, memory } => rendezvous(&TagHeader::Fin { tag, context, memory }, memory),
        _ => [0; RENDEZVOUS],
    }
}

#[cfg(test)]
mod tests {
    use super::became_low;

    #[test]
    fn few_buffers_are_reported_once_until_there_are_more() {
        let mut was_low = false;
        let mut report = |is_short, posted, unexpected| became_low(&mut was_low, is_short, posted, unexpected);
        assert!(!report(false, 20, 40), "enough are left");
        assert!(!report(true, 20, 19), "others hold them");
        assert!(report(true, 20, 20) && !report(true, 10, 30));
        assert!(!report(true, 25, 24) && report(true, 24, 24));
    }
}
