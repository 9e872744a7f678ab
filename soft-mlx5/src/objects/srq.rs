//! Shared receive queues: a linked list or a ring that the device walks, for many queue pairs.

use mlx5_wire::dbrec::RECEIVE;
use mlx5_wire::next::NextSegment;

use super::handover::Handover;
use super::memory::{Spaces, Span, Unmapped};
use super::rq::MAX_STRIDE;
use super::scatter::ScatterList;
use super::strict::{Object, Rule, Strict};
use super::tag_list::{MIN_POSTED, TagList};
use super::trace::Trace;
use super::{Cqn, Errno, Event, SrqAttr, SrqKind, Srqn};
use crate::objects;

/// A WQE that was taken.
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
    // The program took the memory away.
    abandoned: bool,
    // Enough WQEs were posted for tag matching to begin.
    flows: bool,
    // Slot of the next WQE to take, and how many were taken.
    next: u16,
    taken: u16,
    // WQEs that were handed over so far, the counter that was seen, and the slot after the last WQE.
    handover: Handover,
    seen: u16,
    tail: u16,
}

impl Srq {
    /// Makes the queue that `attr` describes.
    pub fn new(number: Srqn, attr: SrqAttr, spaces: &Spaces) -> objects::Result<Self> {
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
            ring: Span::of(&spaces.ring, attr.buf, (attr.wqe_count as usize) << attr.wqe_shift),
            record: Span::of(&spaces.record, attr.dbrec, 8),
            abandoned: false,
            next: 0,
            taken: 0,
            handover: Handover::new(attr.wqe_count as usize, 1 << attr.wqe_shift),
            seen: 0,
            tail: 0,
            attr,
        })
    }

    /// Returns the attributes of the creation, with the present limit.
    pub fn attr(&self) -> &SrqAttr {
        &self.attr
    }

    /// Returns the slot of the next WQE to take.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Returns the number of WQEs taken.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Returns the number of posted WQEs that were not taken.
    pub fn available(&self) -> Result<u16, Unmapped> {
        Ok((self.record.record(RECEIVE)? as u16).wrapping_sub(self.taken))
    }

    /// Gives the queue up, because the program took its memory away. Returns `false` if the queue was given up
    /// before.
    pub fn abandon(&mut self) -> bool {
        !std::mem::replace(&mut self.abandoned, true)
    }

    /// Returns `true` if the memory was taken away.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Returns the CQ of its own completions, if they do not go to the CQ of the queue pair.
    pub fn own_cq(&self) -> Option<Cqn> {
        match self.attr.kind {
            SrqKind::TagMatching { cq, .. } => Some(cq),
            _ => None,
        }
    }

    /// Returns `true` if messages are taken.
    pub fn flows(&mut self) -> bool {
        // Missing memory is noticed when a WQE is taken.
        self.flows |= self.available().is_ok_and(|posted| posted >= MIN_POSTED);
        self.flows
    }

    /// Sets the limit; returns the event if fewer WQEs are left.
    pub fn set_limit(&mut self, limit: u32) -> Option<Event> {
        self.attr.limit = limit;
        self.check_limit(self.available().unwrap_or_default())
    }

    fn check_limit(&mut self, left: u16) -> Option<Event> {
        if u32::from(left) >= self.attr.limit {
            return None;
        }
        self.attr.limit = 0;
        Some(Event::SrqLimit(self.number))
    }

    /// Looks at the doorbell record; `trace` gets new values. Each new WQE is copied as it is now.
    pub fn observe(&mut self, strict: &mut Strict, trace: &mut Trace) -> Result<(), Unmapped> {
        if self.abandoned {
            return Ok(());
        }
        let counter = self.record.record(RECEIVE)? as u16;
        let new = counter.wrapping_sub(self.seen);
        if new == 0 {
            return Ok(());
        }
        self.seen = counter;
        let owner = Object::Srq(self.number.0);
        trace.handed_over(owner, counter, new);
        let mut wqe = [0; MAX_STRIDE];
        let wqe = &mut wqe[..1 << self.attr.wqe_shift];
        // A longer walk would only go in circles.
        for _ in 0..u32::from(new).min(self.attr.wqe_count) {
            let slot = self.tail;
            self.read(slot, wqe)?;
            let link = &wqe[..NextSegment::SIZE];
            let next = self.successor(slot, link);
            if u32::from(next) >= self.attr.wqe_count {
                strict.violation(Rule::SrqLink, owner, slot.into(), link);
            }
            if !self.handover.take_over(slot.into(), wqe) {
                strict.violation(Rule::SrqSlotTwice, owner, slot.into(), link);
            }
            self.tail = self.inside(next);
        }
        // The last WQE of a list must link to a slot, which therefore cannot be posted.
        let most = self.attr.wqe_count - u32::from(!self.attr.cyclic);
        let outstanding = self.handover.count();
        if outstanding > most || u32::from(new) > most {
            let slot = self.tail.into();
            strict.violation(Rule::ReceiveOverflow, owner, slot, &counter.to_be_bytes());
        }
        Ok(())
    }

    // Returns the slot after this one, whose WQE begins with this link.
    fn successor(&self, slot: u16, link: &[u8]) -> u16 {
        if self.attr.cyclic { self.inside(slot.wrapping_add(1)) } else { next_of(link) }
    }

    fn read(&self, slot: u16, wqe: &mut [u8]) -> Result<(), Unmapped> {
        self.ring.read(usize::from(slot) << self.attr.wqe_shift, wqe)
    }

    // An adapter would read outside the queue after a wild link; the model stays inside.
    fn inside(&self, slot: u16) -> u16 {
        (u32::from(slot) & (self.attr.wqe_count - 1)) as u16
    }

    /// Takes the next WQE: its slot, and its segments in `list`.
    pub fn take(
        &mut self,
        list: &mut ScatterList,
        strict: &mut Strict,
        trace: &mut Trace,
    ) -> Result<Option<TakenSlot>, Unmapped> {
        self.observe(strict, trace)?;
        // WQEs that the record covers since then are not known yet.
        let available = self.seen.wrapping_sub(self.taken);
        if available == 0 || self.abandoned {
            return Ok(None);
        }
        let owner = Object::Srq(self.number.0);
        let slot = self.next;
        let mut wqe = [0; MAX_STRIDE];
        let wqe = &mut wqe[..1 << self.attr.wqe_shift];
        self.read(slot, wqe)?;
        if !self.handover.is_unchanged(slot.into(), wqe, NextSegment::SIZE) {
            strict.violation(Rule::ReceiveChanged, owner, slot.into(), wqe);
        }
        let (link, segments) = wqe.split_at(NextSegment::SIZE);
        list.parse(segments, owner, slot.into(), strict);
        self.next = self.inside(self.successor(slot, link));
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(TakenSlot { slot, event: self.check_limit(available - 1) }))
    }

    /// Goes on with the slot after this one, whatever its link says: a [defect](super::defects).
    #[cold]
    pub fn ignore_link(&mut self, slot: u16) {
        self.next = self.inside(slot.wrapping_add(1));
    }

    /// Gives a slot back to the program, because its CQE was written.
    pub fn complete(&mut self, slot: u16) {
        self.handover.give_back(slot.into());
    }
}

fn next_of(link: &[u8]) -> u16 {
    u16::from_be_bytes([link[2], link[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Pdn, SrqKind};
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
                cyclic: false,
            };
            (Self { ring, record, posted: 0 }, Srq::new(Srqn(0x1000), attr, &Spaces::default()).unwrap())
        }

        fn write(&self, slot: u16, next: u16, len: u32) {
            let span = Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8);
            span.write(usize::from(slot) * 32, &NextSegment::new(next).to_bytes()).unwrap();
            let segment = DataSegment::new(0, len, 7);
            span.write(usize::from(slot) * 32 + 16, &segment.to_bytes()).unwrap();
        }

        fn ring(&mut self, count: u16) {
            self.posted = self.posted.wrapping_add(count);
            let span = Span::new(self.record.as_ptr() as u64, 8);
            span.set_record(RECEIVE, self.posted.into()).unwrap();
        }
    }

    fn take(srq: &mut Srq, strict: &mut Strict) -> Option<(u16, u64)> {
        let mut list = ScatterList::default();
        let taken = srq.take(&mut list, strict, &mut Trace::default()).unwrap();
        taken.map(|taken| (taken.slot, list.capacity()))
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
    fn a_ring_goes_on_with_the_next_slot_and_may_be_full() {
        let (mut program, srq) = Program::new(0);
        let attr = SrqAttr { cyclic: true, ..*srq.attr() };
        let mut srq = Srq::new(Srqn(0x1000), attr, &Spaces::default()).unwrap();
        let mut strict = Strict::new(false);
        for slot in 0..8 {
            program.write(slot, 0x8003, u32::from(slot) + 100);
        }
        for lap in 0..3 {
            program.ring(8);
            for slot in 0..8 {
                assert_eq!(take(&mut srq, &mut strict), Some((slot, u64::from(slot) + 100)), "{lap}");
            }
            assert_eq!(take(&mut srq, &mut strict), None);
            (0..8).for_each(|slot| srq.complete(slot));
        }
        assert_eq!([Rule::SrqLink, Rule::ReceiveOverflow].map(|rule| strict.count(rule)), [0, 0]);
        program.ring(9);
        take(&mut srq, &mut strict);
        assert_ne!(strict.count(Rule::ReceiveOverflow), 0);
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
    fn what_was_handed_over_does_not_change() {
        let (mut program, mut srq) = Program::new(0);
        let (mut strict, mut trace) = (Strict::new(false), Trace::default());
        for (slot, next) in [(0, 1), (1, 2), (2, 3)] {
            program.write(slot, next, 1);
        }
        program.ring(2);
        // The record does not cover the WQE yet: it may change.
        srq.observe(&mut strict, &mut trace).unwrap();
        program.write(2, 4, 1);
        program.ring(1);
        srq.observe(&mut strict, &mut trace).unwrap();
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::ReceiveChanged), 0);
        program.write(1, 2, 99);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::ReceiveChanged), 1, "the segment");
        program.write(2, 5, 1);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::ReceiveChanged), 2, "the link");
    }

    #[test]
    fn one_slot_always_stays_unposted() {
        let (mut program, mut srq) = Program::new(0);
        let mut strict = Strict::new(false);
        for slot in 0..8 {
            program.write(slot, (slot + 1) % 8, 1);
        }
        program.ring(7);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::ReceiveOverflow), 0);
        // The device has taken one WQE, but its CQE is not written.
        program.ring(1);
        take(&mut srq, &mut strict);
        assert_eq!(strict.count(Rule::ReceiveOverflow), 1);
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
            (0..3).map(|_| srq.take(&mut list, &mut strict, &mut Trace::default()).unwrap().unwrap().event).collect();
        assert_eq!(events, [None, Some(Event::SrqLimit(Srqn(0x1000))), None]);
        assert_eq!(srq.attr().limit, 0);
        assert_eq!(srq.set_limit(2), Some(Event::SrqLimit(Srqn(0x1000))));
        assert_eq!(srq.set_limit(1), None);
    }
}
