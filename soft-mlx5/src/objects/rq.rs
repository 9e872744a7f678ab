//! Receive queues of queue pairs: a ring that the device walks by a running index.

use mlx5_wire::dbrec::RECEIVE;
use mlx5_wire::frame::StridingWqe;

use super::handover::Handover;
use super::memory::{Space, Span, Unmapped};
use super::scatter::ScatterList;
use super::strict::{Object, Rule, Strict};
use super::trace::Trace;
use super::{Errno, WqAttr};
use crate::objects;

/// Largest stride of a receive or shared receive queue, in bytes (`max_rq_desc_sz`).
pub const MAX_STRIDE: usize = 512;

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    ring: Span,
    record: Span,
    count: u32,
    shift: u32,
    // Bytes in front of the data segments of a WQE.
    prefix: usize,
    // Running index of the next WQE to take.
    next: u16,
    // WQEs that were handed over so far, and the counter that was seen.
    handover: Handover,
    seen: u16,
}

impl ReceiveQueue {
    /// Makes the queue that `attr` describes, with the QP's doorbell record.
    pub fn new(attr: WqAttr, space: &Space, record: Span) -> objects::Result<Self> {
        let valid = (attr.count == 0 || attr.count.is_power_of_two())
            && attr.count <= 1 << 15
            && (attr.count == 0 || (4..=9).contains(&attr.shift));
        if !valid {
            return Err(Errno(libc::EINVAL));
        }
        let ring = Span::of(space, attr.buf, (attr.count as usize) << attr.shift);
        let handover = Handover::new(attr.count as usize, 1 << attr.shift);
        let (count, shift) = (attr.count, attr.shift);
        Ok(Self { ring, record, count, shift, prefix: 0, next: 0, handover, seen: 0 })
    }

    /// Makes a queue whose WQEs begin with a next segment, which has no meaning in a ring.
    pub fn striding(attr: WqAttr, space: &Space, record: Span) -> objects::Result<Self> {
        Ok(Self { prefix: StridingWqe::DATA, ..Self::new(attr, space, record)? })
    }

    /// Starts again, as after a reset of the QP.
    pub fn reset(&mut self) {
        (self.next, self.seen) = (0, 0);
        self.handover.clear();
    }

    /// Gives the queue up, because the program took its memory away.
    pub fn abandon(&mut self) {
        self.reset();
        self.count = 0;
    }

    /// Returns the running index of the next WQE to take.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Returns the number of posted WQEs that were not taken.
    pub fn available(&self) -> Result<u16, Unmapped> {
        if self.count == 0 {
            return Ok(0);
        }
        Ok((self.record.record(RECEIVE)? as u16).wrapping_sub(self.next))
    }

    /// Looks at the doorbell record; `trace` gets new values. Each new WQE is copied as it is now.
    pub fn observe(&mut self, qp: Object, strict: &mut Strict, trace: &mut Trace) -> Result<(), Unmapped> {
        if self.count == 0 {
            return Ok(());
        }
        let counter = self.record.record(RECEIVE)? as u16;
        let new = counter.wrapping_sub(self.seen);
        if new == 0 {
            return Ok(());
        }
        trace.handed_over(qp, counter, new);
        let mut overflow = u32::from(new) > self.count;
        let mut wqe = [0; MAX_STRIDE];
        for index in 0..u32::from(new).min(self.count) as u16 {
            let slot = self.slot(self.seen.wrapping_add(index));
            let wqe = self.read(slot, &mut wqe)?;
            overflow |= !self.handover.take_over(slot, wqe);
        }
        self.seen = counter;
        if overflow {
            strict.violation(Rule::ReceiveOverflow, qp, self.next.into(), &counter.to_be_bytes());
        }
        Ok(())
    }

    fn slot(&self, index: u16) -> usize {
        (u32::from(index) & (self.count - 1)) as usize
    }

    fn read<'a>(&self, slot: usize, wqe: &'a mut [u8; MAX_STRIDE]) -> Result<&'a [u8], Unmapped> {
        let wqe = &mut wqe[..1 << self.shift];
        self.ring.read(slot << self.shift, wqe)?;
        Ok(wqe)
    }

    /// Takes the next WQE: its running index, and its segments in `list`.
    pub fn take(
        &mut self,
        list: &mut ScatterList,
        qp: Object,
        strict: &mut Strict,
        trace: &mut Trace,
    ) -> Result<Option<u16>, Unmapped> {
        self.observe(qp, strict, trace)?;
        // WQEs that the record covers since then are not known yet.
        let index = self.next;
        if index == self.seen {
            return Ok(None);
        }
        let slot = self.slot(index);
        let mut wqe = [0; MAX_STRIDE];
        let wqe = self.read(slot, &mut wqe)?;
        if !self.handover.is_unchanged(slot, wqe, self.prefix) {
            strict.violation(Rule::ReceiveChanged, qp, index.into(), wqe);
        }
        list.parse(&wqe[self.prefix..], qp, index.into(), strict);
        self.next = index.wrapping_add(1);
        Ok(Some(index))
    }

    /// Gives the slot of a WQE back to the program, because its CQE was written.
    pub fn complete(&mut self, index: u16) {
        if self.count > 0 {
            self.handover.give_back(self.slot(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_wire::data::DataSegment;

    #[test]
    fn the_running_index_wraps_at_16_bits() {
        let ring = [0u64; 4 * 16 / 8];
        let record = [0u64; 1];
        let span = Span::new(record.as_ptr() as u64, 8);
        let attr = WqAttr { buf: ring.as_ptr() as u64, count: 4, shift: 4 };
        let mut rq = ReceiveQueue::new(attr, &Space::Process, span.clone()).unwrap();
        let slots = Span::new(ring.as_ptr() as u64, 64);
        let (mut list, mut strict) = (ScatterList::default(), Strict::new(false));
        for index in 0..70_000u32 {
            let mut take = || rq.take(&mut list, Object::Qp(1), &mut strict, &mut Trace::default());
            assert_eq!(take(), Ok(None));
            let segment = DataSegment::new(0, index + 1, 7);
            slots.write((index % 4) as usize * 16, &segment.to_bytes()).unwrap();
            span.set_record(RECEIVE, (index + 1) & 0xffff).unwrap();
            assert_eq!(take(), Ok(Some(index as u16)));
            rq.complete(index as u16);
            assert_eq!(list.capacity(), u64::from(index + 1));
        }
        assert_eq!(strict.count(Rule::ReceiveOverflow), 0);
        span.set_record(RECEIVE, (70_000 + 5) & 0xffff).unwrap();
        let _ = rq.take(&mut list, Object::Qp(1), &mut strict, &mut Trace::default());
        assert_eq!(strict.count(Rule::ReceiveOverflow), 1);
    }

    #[test]
    fn a_queue_pair_without_receive_queue_has_nothing() {
        let record = [u64::MAX; 1];
        let span = Span::new(record.as_ptr() as u64, 8);
        let mut rq = ReceiveQueue::new(WqAttr::default(), &Space::Process, span.clone()).unwrap();
        let (mut list, mut strict) = (ScatterList::default(), Strict::new(false));
        let taken = rq.take(&mut list, Object::Qp(1), &mut strict, &mut Trace::default());
        assert_eq!(taken, Ok(None));
        for (count, shift) in [(3, 4), (4, 3)] {
            let attr = WqAttr { buf: 0, count, shift };
            assert!(ReceiveQueue::new(attr, &Space::Process, span.clone()).is_err());
        }
    }
}
