//! Sends that were posted and have not completed.

use super::datagram::AddressHandle;
use crate::memory::Buffer;
use crate::sender::{Rest, SendCompletion, SqId};
use crate::status::WcStatus;

/// Outstanding sends in the order of posting, which is that of completion. A send is known by its
/// running number, which is also its `wr_id`.
pub(super) struct Sends {
    slots: Box<[Option<Buffer>]>,
    /// Where each datagram goes: the device may look until it is sent.
    handles: Box<[Option<AddressHandle>]>,
    limit: u64,
    /// Number of the next send.
    head: u64,
    /// Number of the oldest one outstanding.
    tail: u64,
    /// Sends before this one were given up by a reset.
    given_up: u64,
}

impl Sends {
    pub(super) fn new(limit: u32) -> Self {
        let slots = (limit as usize).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| None).collect(),
            handles: (0..slots).map(|_| None).collect(),
            limit: limit.into(),
            head: 0,
            tail: 0,
            given_up: 0,
        }
    }

    pub(super) const fn outstanding(&self) -> u64 {
        self.head - self.tail
    }

    pub(super) const fn is_full(&self) -> bool {
        self.outstanding() == self.limit
    }

    /// Number of the next send.
    pub(super) const fn next(&self) -> u64 {
        self.head
    }

    fn slot(&mut self, number: u64) -> &mut Option<Buffer> {
        let mask = self.slots.len() - 1;
        &mut self.slots[number as usize & mask]
    }

    /// The send numbered [`next`](Self::next) was posted; it is not full.
    pub(super) fn posted(&mut self, buffer: Option<Buffer>) {
        self.posted_to(buffer, None);
    }

    /// The same, for a datagram.
    pub(super) fn posted_to(&mut self, buffer: Option<Buffer>, to: Option<AddressHandle>) {
        debug_assert!(!self.is_full());
        let index = self.head as usize & (self.slots.len() - 1);
        self.handles[index] = to;
        *self.slot(self.head) = buffer;
        self.head += 1;
    }

    /// The oldest send is over, if its number is `wr_id`. Anything else is not a completion of a send
    /// that is still outstanding.
    pub(super) fn complete(
        &mut self,
        wr_id: u64,
        status: WcStatus,
        vendor_err: u32,
    ) -> Option<SendCompletion<'static>> {
        if wr_id != self.tail || self.tail == self.head {
            return None;
        }
        let buffer = self.slot(wr_id).take();
        let index = wr_id as usize & (self.slots.len() - 1);
        self.handles[index] = None;
        self.tail += 1;
        let (queue, rest) = (SqId::FOREIGN, Rest::default());
        Some(SendCompletion { queue, token: 0, buffer, status, vendor_err, rest })
    }

    /// A reset ended all sends without completions.
    pub(super) fn give_up(&mut self) {
        self.given_up = self.head;
    }

    /// Whether a reset came after this send.
    pub(super) const fn was_given_up(&self, number: u64) -> bool {
        number < self.given_up
    }

    /// The oldest send, if a reset ended it.
    pub(super) fn take_given_up(&mut self) -> Option<SendCompletion<'static>> {
        if self.tail >= self.given_up {
            return None;
        }
        self.complete(self.tail, WcStatus::WR_FLUSH_ERR, 0)
    }

    /// The buffers of all sends that the device may still read.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Buffer> {
        self.tail = self.head;
        self.slots.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(limit: u32, posted: u32) -> Sends {
        let mut sends = Sends::new(limit);
        for _ in 0..posted {
            sends.posted(None);
        }
        sends
    }

    #[test]
    fn completes_each_send_once_and_in_order() {
        let mut sends = sends(3, 3);
        assert!(sends.is_full());
        assert!(sends.complete(1, WcStatus::SUCCESS, 0).is_none());
        assert!(sends.complete(0, WcStatus::SUCCESS, 0).is_some());
        assert!(sends.complete(0, WcStatus::SUCCESS, 0).is_none());
        assert!(!sends.is_full());
        assert_eq!(sends.next(), 3);
        assert!(sends.complete(1, WcStatus::SUCCESS, 0).is_some());
        assert!(sends.complete(2, WcStatus::SUCCESS, 0).is_some());
        // Never posted, though the number is next.
        assert!(sends.complete(3, WcStatus::SUCCESS, 0).is_none());
        assert_eq!(sends.outstanding(), 0);
    }

    #[test]
    fn a_reset_ends_what_was_posted_before_it_and_nothing_after() {
        let mut sends = sends(8, 3);
        assert!(sends.complete(0, WcStatus::SUCCESS, 0).is_some());
        sends.give_up();
        sends.posted(None);
        for _ in 0..2 {
            assert_eq!(sends.take_given_up().unwrap().status, WcStatus::WR_FLUSH_ERR);
        }
        assert!(sends.take_given_up().is_none());
        assert_eq!(sends.outstanding(), 1);
        assert_eq!(sends.complete(3, WcStatus::SUCCESS, 0).unwrap().status, WcStatus::SUCCESS);
    }
}
