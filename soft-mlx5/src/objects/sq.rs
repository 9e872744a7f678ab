//! Send queues: rings of basic blocks, gated by record and register.

use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB};
use mlx5_wire::dbrec::SEND;

use super::memory::{Space, Span, Unmapped};
use super::strict::{Object, Rule, Strict};
use super::wqe::SendWqe;
use super::{Errno, Service, WqAttr};
use crate::objects;

/// Units of 16 bytes in a basic block.
const UNITS_PER_BLOCK: u8 = 4;

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    ring: Span,
    record: Span,
    service: Service,
    count: u32,
    // Producer index up to which doorbells were rung, and index of the next WQE to start.
    rung: u16,
    next: u16,
    unrung: Option<Unrung>,
    // A WQE whose bytes in the register differ from those in the ring, and its index.
    instead: Option<(u16, Vec<u8>)>,
}

/// WQEs that the record covers, but no register write.
#[derive(Debug, Clone, Copy)]
struct Unrung {
    producer: u16,
    // Both must be large: time also passes while the program is stopped.
    since: u64,
    looks: u32,
}

/// Time that a program may take from the store to the record to the store to the register: it may lose its core.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Number of looks at the record that the device takes, besides [`PATIENCE_NS`], before a missing doorbell counts.
pub const PATIENCE_LOOKS: u32 = 100;

/// Returns the number of basic blocks of a WQE of `ds` units.
pub fn blocks(ds: u8) -> u16 {
    u16::from(ds.div_ceil(UNITS_PER_BLOCK))
}

impl SendQueue {
    /// Makes the queue that `attr` describes, with the QP's doorbell record.
    pub fn new(attr: WqAttr, service: Service, space: &Space, record: Span) -> objects::Result<Self> {
        let valid = (attr.count == 0 || attr.count.is_power_of_two()) && attr.count <= 1 << 15;
        if !valid {
            return Err(Errno(libc::EINVAL));
        }
        let ring = Span::of(space, attr.buf, attr.count as usize * SEND_WQE_BB);
        Ok(Self { ring, record, service, count: attr.count, rung: 0, next: 0, unrung: None, instead: None })
    }

    /// Starts again, as after a reset of the QP.
    pub fn reset(&mut self) {
        (self.rung, self.next, self.unrung, self.instead) = (0, 0, None, None);
    }

    /// Notes that a register was written with the control segment of the WQE at `index`.
    pub fn ring(&mut self, index: u16, ds: u8) {
        let end = index.wrapping_add(blocks(ds).max(1));
        let ahead = end.wrapping_sub(self.next);
        let valid = u32::from(ahead) <= self.count;
        if valid && ahead > self.rung.wrapping_sub(self.next) {
            self.rung = end;
        }
    }

    /// Takes the record as rung: a register that several queue pairs share was written, perhaps by this one.
    pub fn ring_by_record(&mut self) -> Result<(), Unmapped> {
        self.rung = self.record.record(SEND)? as u16;
        Ok(())
    }

    /// Gives the queue up, because the program took its memory away.
    pub fn abandon(&mut self) {
        self.reset();
        self.count = 0;
    }

    /// Checks at time `now` whether a doorbell is missing.
    pub fn observe(&mut self, qp: Object, now: u64, strict: &mut Strict) -> Result<(), Unmapped> {
        if self.count == 0 {
            return Ok(());
        }
        let producer = self.record.record(SEND)? as u16;
        let ahead = producer.wrapping_sub(self.rung);
        // A record before the rung index is ahead by nearly all of 16 bits.
        if ahead == 0 || u32::from(ahead) > self.count {
            self.unrung = None;
            return Ok(());
        }
        let mut unrung = self.unrung.filter(|unrung| unrung.producer == producer).unwrap_or(Unrung {
            producer,
            since: now,
            looks: 0,
        });
        unrung.looks += 1;
        let late = now - unrung.since >= PATIENCE_NS;
        if late && unrung.looks == PATIENCE_LOOKS {
            let index = self.rung.into();
            strict.violation(Rule::DoorbellMissing, qp, index, &producer.to_be_bytes());
        }
        unrung.looks = unrung.looks.min(PATIENCE_LOOKS - u32::from(!late));
        self.unrung = Some(unrung);
        Ok(())
    }

    /// Returns the number of basic blocks that both record and register cover and that were not started.
    pub fn ready(&self, qp: Object, strict: &mut Strict) -> Result<u16, Unmapped> {
        let rung = self.rung.wrapping_sub(self.next);
        if self.count == 0 || rung == 0 {
            return Ok(0);
        }
        let posted = (self.record.record(SEND)? as u16).wrapping_sub(self.next);
        if u32::from(posted) > self.count {
            let producer = self.next.wrapping_add(posted).to_be_bytes();
            strict.violation(Rule::SendOverflow, qp, self.next.into(), &producer);
        }
        Ok(posted.min(rung))
    }

    /// Returns the index of the next WQE.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Moves on from a WQE that was started and has this many basic blocks.
    pub fn advance(&mut self, blocks: u16) {
        self.next = self.next.wrapping_add(blocks);
        // The slot gets another WQE only after the index has gone round the ring.
        let behind = |index: u16| u32::from(self.next.wrapping_sub(index)) > self.count;
        self.instead.take_if(|(index, _)| behind(*index));
    }

    /// Goes back to the WQE at `index`, which was started and is started again.
    pub fn go_back(&mut self, index: u16) {
        self.next = index;
    }

    /// Executes the WQE at `index` from these bytes, and not from those in the queue.
    pub fn execute_instead(&mut self, index: u16, wqe: Vec<u8>) {
        self.instead = Some((index, wqe));
    }

    fn instead_of(&self, index: u16) -> Option<&[u8]> {
        self.instead.as_ref().filter(|(at, _)| *at == index).map(|(_, wqe)| &wqe[..])
    }

    /// Returns the control segment of the WQE at `index`.
    pub fn ctrl(&self, index: u16) -> Result<ControlSegment, Unmapped> {
        if let Some(bytes) = self.instead_of(index).and_then(|wqe| wqe.first_chunk()) {
            return Ok(ControlSegment::from_bytes(bytes));
        }
        let mut bytes = [0; ControlSegment::SIZE];
        self.ring.read(self.offset(index), &mut bytes)?;
        Ok(ControlSegment::from_bytes(&bytes))
    }

    /// Copies the WQE at `index`; its size is what `ctrl` says.
    pub fn load(&self, index: u16, ctrl: ControlSegment, wqe: &mut SendWqe) -> Result<(), Unmapped> {
        wqe.load(ctrl, self.service, |bytes| {
            let at = self.offset(index);
            let before_end = bytes.len().min(self.ring.len() - at);
            let (straight, wrapped) = bytes.split_at_mut(before_end);
            self.ring.read(at, straight)?;
            // A WQE larger than the ring was refused before: it reaches past the producer index.
            let len = wrapped.len().min(self.ring.len());
            self.ring.read(0, &mut wrapped[..len])?;
            if let Some(wqe) = self.instead_of(index) {
                let len = wqe.len().min(bytes.len());
                bytes[..len].copy_from_slice(&wqe[..len]);
            }
            Ok(())
        })
    }

    /// Returns the bytes from the WQE at `index` to the end of the ring.
    pub fn before_end(&self, index: u16) -> usize {
        self.ring.len() - self.offset(index)
    }

    fn offset(&self, index: u16) -> usize {
        (u32::from(index) & (self.count - 1)) as usize * SEND_WQE_BB
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: Object = Object::Qp(1);

    struct Program {
        _ring: Vec<u64>,
        record: Box<[u64; 1]>,
    }

    impl Program {
        fn new(count: u32) -> (Self, SendQueue) {
            let ring = vec![0u64; count as usize * 8];
            let record = Box::new([0]);
            let attr = WqAttr { buf: ring.as_ptr() as u64, count, shift: 6 };
            let span = Span::new(record.as_ptr() as u64, 8);
            (Self { _ring: ring, record }, SendQueue::new(attr, Service::Rc, &Space::Process, span).unwrap())
        }

        fn post(&self, producer: u16) {
            Span::new(self.record.as_ptr() as u64, 8).set_record(SEND, producer.into()).unwrap();
        }
    }

    #[test]
    fn both_record_and_register_are_needed() {
        let (program, mut sq) = Program::new(8);
        let mut strict = Strict::new(false);
        program.post(2);
        assert_eq!(sq.ready(QP, &mut strict), Ok(0), "no register write");
        sq.ring(0, 3);
        assert_eq!(sq.ready(QP, &mut strict), Ok(1), "the register named the first WQE only");
        sq.ring(1, 2);
        assert_eq!(sq.ready(QP, &mut strict), Ok(2));
        sq.ring(2, 5);
        assert_eq!(sq.ready(QP, &mut strict), Ok(2), "not in the record");
        program.post(4);
        assert_eq!(sq.ready(QP, &mut strict), Ok(4));
        assert_eq!(strict.count(Rule::SendOverflow), 0);
    }

    #[test]
    fn an_older_register_half_takes_nothing_back() {
        let (program, mut sq) = Program::new(8);
        let mut strict = Strict::new(false);
        program.post(3);
        sq.ring(2, 4);
        sq.ring(1, 4);
        assert_eq!(sq.ready(QP, &mut strict), Ok(3));
        sq.advance(3);
        sq.ring(0, 4);
        assert_eq!(sq.ready(QP, &mut strict), Ok(0));
    }

    #[test]
    fn indices_wrap_at_16_bits() {
        let (program, mut sq) = Program::new(4);
        let mut strict = Strict::new(false);
        for index in 0..70_000u32 {
            let index = index as u16;
            program.post(index.wrapping_add(1));
            sq.ring(index, 1);
            assert_eq!(sq.ready(QP, &mut strict), Ok(1), "{index}");
            assert_eq!(sq.next(), index);
            sq.advance(1);
        }
        program.post(sq.next().wrapping_add(5));
        sq.ring(sq.next().wrapping_add(3), 4);
        assert_eq!(sq.ready(QP, &mut strict), Ok(4));
        assert_eq!(strict.count(Rule::SendOverflow), 1);
    }

    #[test]
    fn a_wqe_that_wraps_is_read_straight() {
        let (_program, sq) = Program::new(4);
        let bytes: Vec<u8> = (0..=255).collect();
        sq.ring.write(0, &bytes).unwrap();
        let mut wqe = SendWqe::default();
        sq.load(3, ControlSegment::new(0x0a, 3, 1, 6, 0), &mut wqe).unwrap();
        assert_eq!(wqe.remote().unwrap().to_bytes(), bytes[208..224]);
        let last = wqe.segments(80).next().unwrap();
        assert_eq!(last.to_bytes(), bytes[16..32]);
    }
}
