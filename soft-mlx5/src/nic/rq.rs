//! Receive queues of queue pairs: a ring that the device walks by a running index.

use mlx5_wire::dbrec::RECEIVE;

use super::memory::Span;
use super::objects::{Errno, Result, WqAttr};
use super::scatter::ScatterList;
use super::strict::{Object, Rule, Strict};

/// Largest stride of a receive or shared receive queue, in bytes (`max_rq_desc_sz`).
pub const MAX_STRIDE: usize = 512;

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    ring: Span,
    record: Span,
    count: u32,
    shift: u32,
    // Running index of the next WQE to take.
    next: u16,
}

impl ReceiveQueue {
    /// The queue that `attr` describes, with the QP's doorbell record.
    pub fn new(attr: WqAttr, record: Span) -> Result<Self> {
        let valid = (attr.count == 0 || attr.count.is_power_of_two())
            && attr.count <= 1 << 15
            && (attr.count == 0 || (4..=9).contains(&attr.shift));
        if !valid {
            return Err(Errno(libc::EINVAL));
        }
        let ring = Span::new(attr.buf, (attr.count as usize) << attr.shift);
        Ok(Self { ring, record, count: attr.count, shift: attr.shift, next: 0 })
    }

    /// Starts again, as after a reset of the QP.
    pub fn reset(&mut self) {
        self.next = 0;
    }

    /// Running index of the next WQE to take.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Posted WQEs that were not taken.
    pub fn available(&self) -> u16 {
        if self.count == 0 {
            return 0;
        }
        (self.record.record(RECEIVE) as u16).wrapping_sub(self.next)
    }

    /// Takes the next WQE: its running index, and its segments in `list`.
    pub fn take(&mut self, list: &mut ScatterList, qp: Object, strict: &mut Strict) -> Option<u16> {
        let available = self.available();
        if available == 0 {
            return None;
        }
        let index = self.next;
        if u32::from(available) > self.count {
            let producer = index.wrapping_add(available).to_be_bytes();
            strict.violation(Rule::ReceiveOverflow, qp, index.into(), &producer);
        }
        let stride = 1 << self.shift;
        let slot = (u32::from(index) & (self.count - 1)) as usize;
        let mut wqe = [0; MAX_STRIDE];
        self.ring.read(slot * stride, &mut wqe[..stride]);
        list.parse(&wqe[..stride], qp, index.into(), strict);
        self.next = index.wrapping_add(1);
        Some(index)
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
        let mut rq = ReceiveQueue::new(attr, span).unwrap();
        let slots = Span::new(ring.as_ptr() as u64, 64);
        let (mut list, mut strict) = (ScatterList::default(), Strict::new(false));
        for index in 0..70_000u32 {
            assert_eq!(rq.take(&mut list, Object::Qp(1), &mut strict), None);
            let segment = DataSegment::new(0, index + 1, 7);
            slots.write((index % 4) as usize * 16, &segment.to_bytes());
            span.set_record(RECEIVE, (index + 1) & 0xffff);
            assert_eq!(rq.take(&mut list, Object::Qp(1), &mut strict), Some(index as u16));
            assert_eq!(list.capacity(), u64::from(index + 1));
        }
        assert_eq!(strict.count(Rule::ReceiveOverflow), 0);
        span.set_record(RECEIVE, (70_000 + 5) & 0xffff);
        rq.take(&mut list, Object::Qp(1), &mut strict);
        assert_eq!(strict.count(Rule::ReceiveOverflow), 1);
    }

    #[test]
    fn a_queue_pair_without_receive_queue_has_nothing() {
        let record = [u64::MAX; 1];
        let span = Span::new(record.as_ptr() as u64, 8);
        let mut rq = ReceiveQueue::new(WqAttr::default(), span).unwrap();
        let taken = rq.take(&mut ScatterList::default(), Object::Qp(1), &mut Strict::new(false));
        assert_eq!(taken, None);
        assert!(ReceiveQueue::new(WqAttr { buf: 0, count: 3, shift: 4 }, span).is_err());
        assert!(ReceiveQueue::new(WqAttr { buf: 0, count: 4, shift: 3 }, span).is_err());
    }
}
