//! Shared receive queues: a linked list that the device walks, for many queue pairs.

use mlx5_wire::dbrec::RECEIVE;
use mlx5_wire::next::NextSegment;

use super::memory::Span;
use super::objects::{Cqn, Errno, Event, Result, SrqAttr, SrqKind, Srqn};
use super::rq::MAX_STRIDE;
use super::scatter::ScatterList;
use super::strict::{Object, Rule, Strict};
use super::tm::MIN_POSTED;
use super::tm::list::TagList;

/// What taking a WQE led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenSlot {
    /// The slot, for `wqe_counter`.
    pub slot: u16,
    /// The limit was passed.
    pub event: Option<Event>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Tagged buffers, of a queue for tag matching.
    pub tags: Option<TagList>,
    number: Srqn,
    attr: SrqAttr,
    ring: Span,
    record: Span,
    // As many WQEs were posted as tag matching wants to see before it begins.
    flows: bool,
    // Slot of the next WQE to take, and how many were taken.
    next: u16,
    taken: u16,
    // Slots taken whose CQE is not written yet.
    pending: Vec<u64>,
}

impl Srq {
    /// The queue that `attr` describes.
    pub fn new(number: Srqn, attr: SrqAttr) -> Result<Self> {
        let valid = attr.wqe_count.is_power_of_two()
            && attr.wqe_count <= 1 << 16
            && (5..=9).contains(&attr.wqe_shift)
            && attr.dbrec % 8 == 0;
        if !valid {
            return Err(Errno(libc::EINVAL));
        }
        let tags = match attr.kind {
            SrqKind::TagMatching { max_tags, .. } => {
                let size = u16::try_from(max_tags).ok().filter(|size| (1..u16::MAX).contains(size));
                Some(TagList::new(size.ok_or(Errno(libc::EINVAL))?))
            }
            _ => None,
        };
        Ok(Self {
            flows: tags.is_none(),
            tags,
            number,
            ring: Span::new(attr.buf, (attr.wqe_count as usize) << attr.wqe_shift),
            record: Span::new(attr.dbrec, 8),
            next: 0,
            taken: 0,
            pending: vec![0; attr.wqe_count.div_ceil(64) as usize],
            attr,
        })
    }

    /// What it was created with, and the limit as it stands.
    pub fn attr(&self) -> &SrqAttr {
        &self.attr
    }

    /// Slot of the next WQE to take.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// WQEs taken.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    fn available(&self) -> u16 {
        (self.record.record(RECEIVE) as u16).wrapping_sub(self.taken)
    }

    /// The queue of its own completions, where they do not go to that of the queue pair.
    pub fn own_cq(&self) -> Option<Cqn> {
        match self.attr.kind {
            SrqKind::TagMatching { cq, .. } => Some(cq),
            _ => None,
        }
    }

    /// Whether messages are taken.
    pub fn flows(&mut self) -> bool {
        self.flows |= self.available() >= MIN_POSTED;
        self.flows
    }

    /// Sets the limit; the event comes at once when fewer WQEs are left.
    pub fn set_limit(&mut self, limit: u32) -> Option<Event> {
        self.attr.limit = limit;
        self.check_limit(self.available())
    }

    fn check_limit(&mut self, left: u16) -> Option<Event> {
        if u32::from(left) >= self.attr.limit {
            return None;
        }
        self.attr.limit = 0;
        Some(Event::SrqLimit(self.number))
    }

    /// Takes the next WQE: its slot, and its segments in `list`.
    pub fn take(&mut self, list: &mut ScatterList, strict: &mut Strict) -> Option<TakenSlot> {
        let available = self.available();
        if available == 0 {
            return None;
        }
        let owner = Object::Srq(self.number.0);
        let slot = self.next;
        let stride = 1 << self.attr.wqe_shift;
        let mut wqe = [0; MAX_STRIDE];
        self.ring.read(usize::from(slot) * stride, &mut wqe[..stride]);
        let (link, segments) = wqe[..stride].split_at(NextSegment::SIZE);
        if u32::from(available) > self.attr.wqe_count {
            let counter = self.taken.wrapping_add(available).to_be_bytes();
            strict.violation(Rule::ReceiveOverflow, owner, slot.into(), &counter);
        }
        let (word, bit) = (usize::from(slot / 64), 1 << (slot % 64));
        if self.pending[word] & bit != 0 {
            strict.violation(Rule::SrqSlotTwice, owner, slot.into(), link);
        }
        self.pending[word] |= bit;
        list.parse(segments, owner, slot.into(), strict);
        let next = u16::from_be_bytes([link[2], link[3]]);
        if u32::from(next) >= self.attr.wqe_count {
            strict.violation(Rule::SrqLink, owner, slot.into(), link);
        }
        // An adapter would read outside the queue here; the model stays inside.
        self.next = (u32::from(next) & (self.attr.wqe_count - 1)) as u16;
        self.taken = self.taken.wrapping_add(1);
        Some(TakenSlot { slot, event: self.check_limit(available - 1) })
    }

    /// The CQE of a slot was written: the program may post it again.
    pub fn complete(&mut self, slot: u16) {
        if let Some(word) = self.pending.get_mut(usize::from(slot / 64)) {
            *word &= !(1 << (slot % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::objects::{Pdn, SrqKind};
    use mlx5_wire::data::DataSegment;

    struct Program {
        ring: Vec<u64>,
        record: Box<[u64; 1]>,
        posted: u16,
    }

    impl Program {
        fn new(limit: u32) -> (Self, Srq) {
            let ring = vec![0u64; 8 * 32 / 8];
            let record = Box::new([0u64; 1]);
            let attr = SrqAttr {
                pd: Pdn(1),
                kind: SrqKind::Basic,
                buf: ring.as_ptr() as u64,
                dbrec: record.as_ptr() as u64,
                wqe_count: 8,
                wqe_shift: 5,
                user_index: 0,
                limit,
            };
            (Self { ring, record, posted: 0 }, Srq::new(Srqn(0x1000), attr).unwrap())
        }

        fn write(&self, slot: u16, next: u16, len: u32) {
            let span = Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8);
            span.write(usize::from(slot) * 32, &NextSegment::new(next).to_bytes());
            let segment = DataSegment::new(0, len, 7);
            span.write(usize::from(slot) * 32 + 16, &segment.to_bytes());
        }

        fn ring(&mut self, count: u16) {
            self.posted = self.posted.wrapping_add(count);
            let span = Span::new(self.record.as_ptr() as u64, 8);
            span.set_record(RECEIVE, self.posted.into());
        }
    }

    fn take(srq: &mut Srq, strict: &mut Strict) -> Option<(u16, u64)> {
        let mut list = ScatterList::default();
        srq.take(&mut list, strict).map(|taken| (taken.slot, list.capacity()))
    }

    #[test]
    fn the_device_follows_the_links_and_counts() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        for (slot, next) in [(0, 5), (5, 2), (2, 7)] {
            program.write(slot, next, u32::from(slot) + 100);
        }
        assert_eq!(take(&mut srq, &mut strict), None);
        program.ring(3);
        assert_eq!(take(&mut srq, &mut strict), Some((0, 100)));
        assert_eq!(take(&mut srq, &mut strict), Some((5, 105)));
        assert_eq!(take(&mut srq, &mut strict), Some((2, 102)));
        assert_eq!(take(&mut srq, &mut strict), None);
        program.write(7, 0, 1);
        program.ring(1);
        assert_eq!(take(&mut srq, &mut strict), Some((7, 1)));
        assert_eq!(strict.count(Rule::SrqSlotTwice), 0);
    }

    #[test]
    fn a_slot_comes_back_only_after_its_cqe() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        program.write(0, 0, 1);
        program.ring(1);
        take(&mut srq, &mut strict);
        srq.complete(0);
        program.ring(1);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::SrqSlotTwice), 0);
        program.ring(1);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::SrqSlotTwice), 1);
    }

    #[test]
    fn a_wild_link_is_a_violation_and_stays_inside() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        program.write(0, 0x8003, 1);
        program.ring(2);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::SrqLink), 1);
        assert_eq!(take(&mut srq, &mut strict).map(|(slot, _)| slot), Some(3));
    }

    #[test]
    fn the_counter_wraps_at_16_bits() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        for slot in 0..8 {
            program.write(slot, (slot + 1) % 8, 1);
        }
        for index in 0..70_000u32 {
            program.ring(1);
            let (slot, _) = take(&mut srq, &mut strict).unwrap();
            assert_eq!(u32::from(slot), index % 8);
            srq.complete(slot);
        }
        assert_eq!(take(&mut srq, &mut strict), None);
    }

    #[test]
    fn the_limit_raises_one_event() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        for slot in 0..8 {
            program.write(slot, (slot + 1) % 8, 1);
        }
        program.ring(4);
        assert_eq!(srq.set_limit(3), None);
        let mut list = ScatterList::default();
        let events: Vec<_> =
            (0..3).map(|_| srq.take(&mut list, &mut strict).unwrap().event).collect();
        assert_eq!(events, [None, Some(Event::SrqLimit(Srqn(0x1000))), None]);
        assert_eq!(srq.attr().limit, 0);
        assert_eq!(srq.set_limit(2), Some(Event::SrqLimit(Srqn(0x1000))));
        assert_eq!(srq.set_limit(1), None);
    }
}
