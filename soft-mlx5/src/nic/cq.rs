//! Completion queues: where CQEs go, and when they raise an event.

use mlx5_wire::cqe::{CqeFormat, SOLICITED_EVENT, op_own};
use mlx5_wire::dbrec::{ARM, Arm, CONSUMER_INDEX, CONSUMER_INDEX_MASK};
use mlx5_wire::opcode::CqeOpcode;

use super::memory::Span;
use super::objects::{CqAttr, Cqn, Errno, Event, Result};
use super::strict::{Object, Rule, Strict};
use super::trace::Trace;

/// What stands in the arm record before the first arm: no arm has the upper bits set. A first arm may
/// write the zeros that the program's memory begins with.
const NEVER_ARMED: u32 = u32::MAX;

const CQE_SIZE: usize = 64;
// Owner, opcode and the fields that must not be seen before the rest: one store.
const LAST_WORD: usize = CQE_SIZE - 8;

/// A CQE on its way into a queue.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The CQE; the owner bit is the queue's business.
    pub cqe: [u8; CQE_SIZE],
    /// Payload for the 64 bytes in front of it, in a queue of 128-byte CQEs.
    pub front: Option<[u8; CQE_SIZE]>,
}

impl Completion {
    fn is_solicited(&self) -> bool {
        let op_own = self.cqe[CQE_SIZE - 1];
        let error = matches!(
            CqeOpcode::from_bits(op_own >> 4),
            CqeOpcode::RequesterError | CqeOpcode::ResponderError
        );
        error || op_own & SOLICITED_EVENT != 0
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    number: Cqn,
    attr: CqAttr,
    ring: Span,
    record: Span,
    // Both run on without wrapping at the size of the queue; 24 bits of them are the program's indices.
    produced: u32,
    consumed: u32,
    // Consumer index that follows from a resize: the program has gone past the resize CQE, but says so
    // in the record only when it polls again.
    implied: Option<u32>,
    // Producer index behind the last solicited CQE.
    solicited: Option<u32>,
    armed: Option<Arm>,
    // Sequence number of the arm that raised the last event: it is spent.
    spent: Option<u32>,
    failed: bool,
}

/// Whether 24-bit index `a` is ahead of `b`.
fn is_ahead(a: u32, b: u32) -> bool {
    let distance = a.wrapping_sub(b) & CONSUMER_INDEX_MASK;
    distance != 0 && distance <= CONSUMER_INDEX_MASK / 2
}

fn ring(buf: u64, count: u32, cqe_size: u32) -> Result<Span> {
    let sizes = count.is_power_of_two() && count <= 1 << 22 && matches!(cqe_size, 64 | 128);
    if !sizes || buf % 8 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Span::new(buf, count as usize * cqe_size as usize))
}

impl Cq {
    /// A queue in the memory that `attr` names.
    pub fn new(number: Cqn, attr: CqAttr) -> Result<Self> {
        if attr.dbrec % 8 != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let ring = ring(attr.buf, attr.cqe_count, attr.cqe_size)?;
        let record = Span::new(attr.dbrec, 8);
        record.set_record(ARM, NEVER_ARMED);
        Ok(Self {
            number,
            ring,
            record,
            attr,
            produced: 0,
            consumed: 0,
            implied: None,
            solicited: None,
            armed: None,
            spent: None,
            failed: false,
        })
    }

    /// What it was created with, except for the buffer after a resize.
    pub fn attr(&self) -> &CqAttr {
        &self.attr
    }

    /// Index of the next CQE, which runs on without wrapping at the size of the queue.
    pub fn producer(&self) -> u32 {
        self.produced
    }

    /// Bytes of payload that a CQE of this queue can carry.
    pub fn inline_capacity(&self) -> usize {
        if self.attr.cqe_size == 128 { 64 } else { 32 }
    }

    /// CQE format of an inline payload.
    pub fn inline_format(&self) -> CqeFormat {
        if self.attr.cqe_size == 128 { CqeFormat::Inline64 } else { CqeFormat::Inline32 }
    }

    /// Writes a CQE; what follows from it for the driver is returned.
    pub fn push(&mut self, completion: &Completion, strict: &mut Strict) -> Option<Event> {
        if self.failed {
            return None;
        }
        if self.is_full(strict) {
            self.failed = true;
            return Some(Event::CqError(self.number));
        }
        self.write(completion);
        if completion.is_solicited() {
            self.solicited = Some(self.produced);
        }
        self.fire()
    }

    fn is_full(&mut self, strict: &mut Strict) -> bool {
        let count = self.attr.cqe_count;
        if self.attr.ignore_overrun || self.produced.wrapping_sub(self.consumed) < count {
            return false;
        }
        // Only now is the record read: until then the index read last was good enough.
        let unread = self.unread();
        if unread > count {
            let mut bytes = [0; 4];
            self.record.read(4 * CONSUMER_INDEX, &mut bytes);
            strict.violation(Rule::ConsumerIndex, Object::Cq(self.number.0), self.produced, &bytes);
            return true;
        }
        self.consumed = self.produced.wrapping_sub(unread);
        unread == count
    }

    /// CQEs that the program has not taken, as far as it has said.
    fn unread(&self) -> u32 {
        let record = self.record.record(CONSUMER_INDEX) & CONSUMER_INDEX_MASK;
        let index = self.implied.filter(|implied| is_ahead(*implied, record)).unwrap_or(record);
        self.produced.wrapping_sub(index) & CONSUMER_INDEX_MASK
    }

    fn write(&mut self, completion: &Completion) {
        let log = self.attr.cqe_count.trailing_zeros();
        let slot = (self.produced & (self.attr.cqe_count - 1)) as usize;
        let owner = (self.produced >> log & 1) as u8;
        let size = self.attr.cqe_size as usize;
        let at = slot * size + size - CQE_SIZE;
        if let Some(front) = completion.front.as_ref().filter(|_| size > CQE_SIZE) {
            self.ring.write(slot * size, front);
        }
        self.ring.write(at, &completion.cqe[..LAST_WORD]);
        let mut last = [0; 8];
        last.copy_from_slice(&completion.cqe[LAST_WORD..]);
        last[7] = last[7] & !1 | owner;
        self.ring.publish(at + LAST_WORD, last);
        self.produced = self.produced.wrapping_add(1);
    }

    /// Looks at the arm record after a CQ doorbell.
    pub fn arm(&mut self, trace: &mut Trace) -> Option<Event> {
        let word = self.record.record(ARM);
        if word == NEVER_ARMED {
            return None;
        }
        let arm = Arm::from_word(word.into());
        if self.spent == Some(arm.sequence) {
            return None;
        }
        trace.armed(self.number, &arm);
        self.armed = Some(arm);
        self.fire()
    }

    fn fire(&mut self) -> Option<Event> {
        let arm = self.armed?;
        let behind = if arm.solicited_only { self.solicited? } else { self.produced };
        if !is_ahead(behind, arm.consumer_index) {
            return None;
        }
        self.armed = None;
        self.spent = Some(arm.sequence);
        Some(Event::Completion(self.number))
    }

    /// Ends the old buffer with a resize CQE and goes on in a new one.
    pub fn resize(&mut self, buf: u64, count: u32, strict: &mut Strict) -> Result<()> {
        let new = ring(buf, count, self.attr.cqe_size)?;
        let unread = self.unread();
        if unread > count {
            return Err(Errno(libc::EINVAL));
        }
        if self.is_full(strict) {
            return Err(Errno(libc::EBUSY));
        }
        let mut cqe = [0; CQE_SIZE];
        cqe[CQE_SIZE - 1] = op_own(CqeOpcode::ResizeCq, CqeFormat::Plain, false, 0);
        self.write(&Completion { cqe, front: None });
        self.ring = new;
        (self.attr.buf, self.attr.cqe_count) = (buf, count);
        self.consumed = self.produced.wrapping_sub(unread);
        self.implied = Some(self.consumed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx5_wire::cqe::Cqe64;

    // A CQ in plain memory, polled the way a driver does.
    struct Program {
        ring: Vec<u64>,
        record: Box<[u64; 1]>,
        size: usize,
        count: u32,
    }

    impl Program {
        fn new(count: u32, size: u32) -> (Self, Cq) {
            let ring = vec![u64::from_ne_bytes([0xf0; 8]); (count * size / 8) as usize];
            let record = Box::new([0]);
            let attr = CqAttr {
                buf: ring.as_ptr() as u64,
                dbrec: record.as_ptr() as u64,
                cqe_count: count,
                cqe_size: size,
                compression: None,
                uar: 0,
                ignore_overrun: false,
            };
            (Self { ring, record, size: size as usize, count }, Cq::new(Cqn(0x400), attr).unwrap())
        }

        fn cqe(&self, index: u32) -> Option<Cqe64> {
            let slot = (index & (self.count - 1)) as usize;
            let span = Span::new(self.ring.as_ptr() as u64, self.ring.len() * 8);
            let mut bytes = [0; 64];
            span.read(slot * self.size + self.size - 64, &mut bytes);
            let cqe = Cqe64::from_bytes(&bytes);
            let owned = u32::from(cqe.owner()) == (index / self.count) & 1;
            (owned && cqe.opcode() != CqeOpcode::Invalid).then_some(cqe)
        }

        fn record(&self) -> Span {
            Span::new(self.record.as_ptr() as u64, 8)
        }

        fn consume(&self, index: u32) {
            self.record().set_record(CONSUMER_INDEX, index & CONSUMER_INDEX_MASK);
        }

        fn arm(&self, arm: Arm) {
            self.record().set_record(ARM, arm.word().get());
        }
    }

    fn completion(counter: u16, opcode: CqeOpcode, solicited: bool) -> Completion {
        let mut cqe = Cqe64::zeroed();
        cqe.wqe_counter = counter.into();
        cqe.op_own = op_own(opcode, CqeFormat::Plain, solicited, 0);
        Completion { cqe: cqe.to_bytes(), front: None }
    }

    fn send(counter: u16) -> Completion {
        completion(counter, CqeOpcode::ResponderSend, false)
    }

    const ANY: Arm = Arm { sequence: 0, solicited_only: false, consumer_index: 0 };

    #[test]
    fn every_cqe_is_seen_once_and_no_other() {
        for size in [64, 128] {
            let (program, mut cq) = Program::new(4, size);
            let mut strict = Strict::new(false);
            for index in 0..1000 {
                assert!(program.cqe(index).is_none(), "{index} before it was written");
                assert_eq!(cq.push(&send(index as u16), &mut strict), None);
                assert_eq!(program.cqe(index).unwrap().wqe_counter.get(), index as u16);
                program.consume(index + 1);
            }
        }
    }

    #[test]
    fn indices_wrap_at_24_bits() {
        let (program, mut cq) = Program::new(4, 64);
        let mut strict = Strict::new(false);
        (cq.produced, cq.consumed) = (CONSUMER_INDEX_MASK - 1, CONSUMER_INDEX_MASK - 1);
        program.consume(CONSUMER_INDEX_MASK - 1);
        for index in CONSUMER_INDEX_MASK - 1..CONSUMER_INDEX_MASK + 9 {
            assert_eq!(cq.push(&send(0), &mut strict), None);
            program.consume(index + 1);
        }
        for _ in 0..4 {
            assert_eq!(cq.push(&send(0), &mut strict), None);
        }
        assert_eq!(cq.push(&send(0), &mut strict), Some(Event::CqError(Cqn(0x400))));
    }

    #[test]
    fn an_overrun_is_reported_once_and_writes_nothing() {
        let (program, mut cq) = Program::new(2, 64);
        let mut strict = Strict::new(false);
        cq.push(&send(1), &mut strict);
        cq.push(&send(2), &mut strict);
        assert_eq!(cq.push(&send(3), &mut strict), Some(Event::CqError(Cqn(0x400))));
        assert_eq!(cq.push(&send(3), &mut strict), None);
        assert_eq!(program.cqe(0).unwrap().wqe_counter.get(), 1);
        assert_eq!(program.cqe(1).unwrap().wqe_counter.get(), 2);
        program.consume(2);
        assert_eq!(cq.push(&send(3), &mut strict), None);
        assert!(program.cqe(2).is_none());
    }

    #[test]
    fn a_consumer_index_ahead_is_a_violation() {
        let (program, mut cq) = Program::new(2, 64);
        let mut strict = Strict::new(false);
        cq.push(&send(1), &mut strict);
        cq.push(&send(2), &mut strict);
        program.consume(3);
        cq.push(&send(3), &mut strict);
        assert_eq!(strict.count(Rule::ConsumerIndex), 1);
    }

    #[test]
    fn an_event_for_each_arm() {
        let (program, mut cq) = Program::new(8, 64);
        let mut strict = Strict::new(false);
        let event = Some(Event::Completion(Cqn(0x400)));
        // A doorbell for another CQ of the page.
        assert_eq!(cq.push(&send(9), &mut strict), None);
        assert_eq!(cq.arm(&mut Trace::default()), None);
        program.consume(1);
        // The first arm writes zeros, as they stood there before the CQ was created.
        program.arm(Arm { consumer_index: 1, ..ANY });
        assert_eq!(cq.arm(&mut Trace::default()), None);
        assert_eq!(cq.push(&send(0), &mut strict), event);
        assert_eq!(cq.push(&send(1), &mut strict), None);
        // The same sequence number again: its event was raised already.
        program.arm(Arm { consumer_index: 2, ..ANY });
        assert_eq!(cq.arm(&mut Trace::default()), None);
        // A CQE is there that the program has not taken: at once.
        program.arm(Arm { sequence: 1, consumer_index: 2, ..ANY });
        assert_eq!(cq.arm(&mut Trace::default()), event);
        program.arm(Arm { sequence: 2, consumer_index: 3, ..ANY });
        assert_eq!(cq.arm(&mut Trace::default()), None);
        assert_eq!(cq.push(&send(2), &mut strict), event);
    }

    #[test]
    fn solicited_arms_wait_for_solicited_cqes_and_errors() {
        let (program, mut cq) = Program::new(8, 64);
        let mut strict = Strict::new(false);
        let event = Some(Event::Completion(Cqn(0x400)));
        program.arm(Arm { solicited_only: true, ..ANY });
        assert_eq!(cq.arm(&mut Trace::default()), None);
        assert_eq!(cq.push(&send(0), &mut strict), None);
        let solicited = completion(1, CqeOpcode::ResponderSend, true);
        assert_eq!(cq.push(&solicited, &mut strict), event);
        // The solicited CQE was taken: it does not count again.
        program.arm(Arm { sequence: 1, solicited_only: true, consumer_index: 2 });
        assert_eq!(cq.arm(&mut Trace::default()), None);
        let error = completion(2, CqeOpcode::ResponderError, false);
        assert_eq!(cq.push(&error, &mut strict), event);
    }

    #[test]
    fn resize_ends_the_old_buffer_and_continues_in_the_new_one() {
        let (old, mut cq) = Program::new(4, 64);
        let mut strict = Strict::new(false);
        for counter in 0..3 {
            cq.push(&send(counter), &mut strict);
        }
        let mut new = vec![u64::from_ne_bytes([0xf0; 8]); 8 * 8];
        cq.resize(new.as_mut_ptr() as u64, 8, &mut strict).unwrap();
        assert_eq!(old.cqe(3).unwrap().opcode(), CqeOpcode::ResizeCq);
        assert_eq!(cq.push(&send(9), &mut strict), None);
        let new = Program { ring: new, record: old.record, size: 64, count: 8 };
        assert_eq!(new.cqe(4).unwrap().wqe_counter.get(), 9);
        // Four were not read, for the resize CQE does not count; four more fit into eight.
        for _ in 0..4 {
            assert_eq!(cq.push(&send(0), &mut strict), None);
        }
        assert_eq!(cq.resize(new.ring.as_ptr() as u64, 4, &mut strict), Err(Errno(libc::EINVAL)));
        assert!(matches!(cq.push(&send(0), &mut strict), Some(Event::CqError(_))));
        assert_eq!(strict.count(Rule::ConsumerIndex), 0);
    }
}
