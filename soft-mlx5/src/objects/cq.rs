//! Completion queues: the places of CQEs, and the events that CQEs raise.

use mlx5_wire::cqe::{Cqe64, CqeFormat, op_own};
use mlx5_wire::dbrec::{ARM, Arm, CONSUMER_INDEX, CONSUMER_INDEX_MASK};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::signature;

use super::completion::Completion;
use super::compress::Block;
use super::defects::Defects;
use super::memory::{Space, Spaces, Span, Unmapped};
use super::strict::{Object, Rule, Strict};
use super::trace::Trace;
use super::{CqAttr, CqStatus, Cqn, Errno, Event};
use crate::base::defect::Defect;
use crate::objects;

/// Content of the arm record before the first arm: no arm has the upper bits set. A first arm may
/// write zeros, with which the program's memory begins.
const NEVER_ARMED: u32 = u32::MAX;

const EFAULT: Errno = Errno(libc::EFAULT);

const CQE_SIZE: usize = 64;
// Owner, opcode and the fields that must not be seen before the rest: one store.
const LAST_WORD: usize = CQE_SIZE - 8;
const SIGNATURE: usize = CQE_SIZE - 2;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    number: Cqn,
    attr: CqAttr,
    ring: Span,
    record: Span,
    // Both counters run on without wrapping at the size of the queue; 24 bits of them are the program's indices.
    produced: u32,
    consumed: u32,
    // Consumer index that follows from a resize: the program has consumed the resize CQE, but updates the
    // record only when it polls again.
    implied: Option<u32>,
    // Producer index after the last solicited CQE that no event has announced.
    solicited: Option<u32>,
    // Producer index of the last event, which announced the CQEs before it (`last_notified_index`).
    notified: u32,
    // CQEs after that index. The distance of the indices says less: it is zero again after 2^32 CQEs.
    unannounced: u32,
    armed: Option<Arm>,
    // Sequence number of the arm that raised the last event, and raises no other.
    spent: Option<u32>,
    failed: bool,
    // CQEs that wait to be compressed, in a queue with compression.
    block: Option<Block>,
    // A resize was the last thing that happened.
    resized: bool,
    // Place of a torn CQE, and its bytes except the last word.
    torn: Option<(usize, [u8; LAST_WORD])>,
}

/// Returns the completion with its timestamp in real time: seconds in the upper half, nanoseconds in the lower. CQEs
/// of errors have no timestamp.
fn in_real_time(completion: &Completion, epoch: u64) -> Option<Completion> {
    const SECOND: u64 = 1_000_000_000;
    let mut cqe = Cqe64::from_bytes(&completion.cqe);
    if matches!(cqe.opcode(), CqeOpcode::RequesterError | CqeOpcode::ResponderError) {
        return None;
    }
    let time = epoch + cqe.timestamp.get();
    cqe.timestamp = (((time / SECOND) << 32) | (time % SECOND)).into();
    Some(Completion { cqe: cqe.to_bytes(), front: completion.front })
}

/// Returns `true` if 24-bit index `a` is ahead of `b`.
fn is_ahead(a: u32, b: u32) -> bool {
    let distance = a.wrapping_sub(b) & CONSUMER_INDEX_MASK;
    distance != 0 && distance <= CONSUMER_INDEX_MASK / 2
}

fn ring(space: &Space, buf: u64, count: u32, cqe_size: u32) -> objects::Result<Span> {
    let sizes = count.is_power_of_two() && count <= 1 << 22 && matches!(cqe_size, 64 | 128);
    if !sizes || buf % 8 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Span::of(space, buf, count as usize * cqe_size as usize))
}

impl Cq {
    /// Makes a queue in the memory that `attr` names.
    pub fn new(number: Cqn, attr: CqAttr, spaces: &Spaces) -> objects::Result<Self> {
        if attr.dbrec % 8 != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let ring = ring(&spaces.ring, attr.buf, attr.cqe_count, attr.cqe_size)?;
        let record = Span::of(&spaces.record, attr.dbrec, 8);
        record.set_record(ARM, NEVER_ARMED).map_err(|Unmapped| EFAULT)?;
        Ok(Self {
            number,
            ring,
            record,
            attr,
            produced: 0,
            consumed: 0,
            implied: None,
            solicited: None,
            notified: 0,
            unannounced: 0,
            armed: None,
            spent: None,
            failed: false,
            block: attr.compression.map(Block::new),
            resized: false,
            torn: None,
        })
    }

    /// Gives the queue its number.
    pub fn renumber(&mut self, number: Cqn) {
        self.number = number;
    }

    /// Returns its number.
    pub fn number(&self) -> Cqn {
        self.number
    }

    /// Returns the attributes of the creation, with the buffer of the last resize.
    pub fn attr(&self) -> &CqAttr {
        &self.attr
    }

    /// Returns the state for QUERY_CQ.
    pub fn status(&self) -> CqStatus {
        let unread = self.unread().unwrap_or_default();
        let consumer = self.produced.wrapping_sub(unread);
        CqStatus { failed: self.failed, consumer, producer: self.produced, cqe_count: self.attr.cqe_count }
    }

    /// Returns the index of the next CQE, which runs on without wrapping at the size of the queue.
    pub fn producer(&self) -> u32 {
        self.produced.wrapping_add(self.held())
    }

    /// Returns the producer index of the last event.
    pub fn last_notified(&self) -> u32 {
        self.notified
    }

    fn held(&self) -> u32 {
        self.block.as_ref().map_or(0, Block::len)
    }

    /// Returns `true` if CQEs wait to be compressed.
    pub fn holds_back(&self) -> bool {
        self.held() > 0
    }

    /// Returns the number of payload bytes that a CQE of this queue can carry.
    pub fn inline_capacity(&self) -> usize {
        if self.attr.cqe_size == 128 { 64 } else { 32 }
    }

    /// Returns the CQE format of an inline payload.
    pub fn inline_format(&self) -> CqeFormat {
        if self.attr.cqe_size == 128 { CqeFormat::Inline64 } else { CqeFormat::Inline32 }
    }

    /// Writes a CQE; returns the event that the driver gets.
    pub fn push(&mut self, completion: &Completion, defects: &Defects, strict: &mut Strict) -> Option<Event> {
        if self.failed {
            return None;
        }
        let pushed = self.try_push(completion, defects, strict);
        self.unless_lost(pushed, strict)
    }

    fn try_push(
        &mut self,
        completion: &Completion,
        defects: &Defects,
        strict: &mut Strict,
    ) -> Result<Option<Event>, Unmapped> {
        if self.is_full(strict)? {
            self.failed = true;
            return Ok(Some(Event::CqError(self.number)));
        }
        if defects.is(Defect::LostResize) && std::mem::take(&mut self.resized) {
            return Ok(None);
        }
        let converted = self.attr.real_time.and_then(|epoch| in_real_time(completion, epoch));
        let completion = converted.as_ref().unwrap_or(completion);
        if let Some(block) = &mut self.block {
            if !block.takes(completion) {
                self.end_block(defects)?;
            }
        }
        match &mut self.block {
            Some(block) if block.takes(completion) => block.hold(completion),
            _ => self.write(completion, defects)?,
        }
        if completion.is_solicited() {
            self.solicited = Some(self.producer());
        }
        // CQEs that are held back are not there yet.
        Ok(if self.holds_back() { None } else { self.fire() })
    }

    // Fails the queue if the program took its memory away. An adapter would still write to the old memory.
    fn unless_lost(&mut self, found: Result<Option<Event>, Unmapped>, strict: &mut Strict) -> Option<Event> {
        found.unwrap_or_else(|Unmapped| {
            strict.violation(Rule::QueueMemory, Object::Cq(self.number.0), self.produced, &[]);
            self.failed = true;
            Some(Event::CqError(self.number))
        })
    }

    /// Writes the CQEs that were held back.
    pub fn write_block(&mut self, defects: &Defects, strict: &mut Strict) -> Option<Event> {
        let written = self.end_block(defects).map(|()| self.fire());
        self.unless_lost(written, strict)
    }

    fn end_block(&mut self, defects: &Defects) -> Result<(), Unmapped> {
        let len = self.held();
        let mut cqes = self.block.as_mut().map(Block::take).unwrap_or_default();
        let Some(((_, title), arrays)) = cqes.split_last_mut() else { return Ok(()) };
        for (place, array) in arrays {
            let slot = self.produced.wrapping_add(*place) & (self.attr.cqe_count - 1);
            defects.mini_cqes(array);
            self.ring.write(slot as usize * CQE_SIZE, array)?;
        }
        self.write(&Completion { cqe: *title, front: None }, &Defects::default())?;
        self.advance(len - 1);
        Ok(())
    }

    fn is_full(&mut self, strict: &mut Strict) -> Result<bool, Unmapped> {
        let count = self.attr.cqe_count;
        if self.attr.ignore_overrun || self.producer().wrapping_sub(self.consumed) < count {
            return Ok(false);
        }
        // The record is read only now: until now the index read last was sufficient.
        let unread = self.unread()? + self.held();
        if unread > count {
            let mut bytes = [0; 4];
            self.record.read(4 * CONSUMER_INDEX, &mut bytes)?;
            strict.violation(Rule::ConsumerIndex, Object::Cq(self.number.0), self.produced, &bytes);
            return Ok(true);
        }
        self.consumed = self.producer().wrapping_sub(unread);
        Ok(unread == count)
    }

    /// Returns the number of CQEs that the program has not taken, by its consumer index.
    fn unread(&self) -> Result<u32, Unmapped> {
        let record = self.record.record(CONSUMER_INDEX)? & CONSUMER_INDEX_MASK;
        let index = self.implied.filter(|implied| is_ahead(*implied, record)).unwrap_or(record);
        Ok(self.produced.wrapping_sub(index) & CONSUMER_INDEX_MASK)
    }

    fn write(&mut self, completion: &Completion, defects: &Defects) -> Result<(), Unmapped> {
        self.finish_torn()?;
        let log = self.attr.cqe_count.trailing_zeros();
        let slot = if self.attr.collapsed { 0 } else { (self.produced & (self.attr.cqe_count - 1)) as usize };
        let owner = (self.produced >> log & 1) as u8;
        let size = self.attr.cqe_size as usize;
        let at = slot * size + size - CQE_SIZE;
        if let Some(front) = completion.front.as_ref().filter(|_| size > CQE_SIZE) {
            self.ring.write(slot * size, front)?;
        }
        let mut cqe = completion.cqe;
        cqe[CQE_SIZE - 1] = cqe[CQE_SIZE - 1] & !1 | owner;
        cqe[SIGNATURE] = signature(&cqe, self.produced);
        defects.finish(&mut cqe);
        if defects.is(Defect::TornCqe) {
            let mut rest = [0; LAST_WORD];
            rest.copy_from_slice(&cqe[..LAST_WORD]);
            self.torn = Some((at, rest));
        } else {
            self.ring.write(at, &cqe[..LAST_WORD])?;
        }
        let mut last = [0; 8];
        last.copy_from_slice(&cqe[LAST_WORD..]);
        self.ring.publish(at + LAST_WORD, last)?;
        self.advance(1);
        Ok(())
    }

    fn advance(&mut self, count: u32) {
        self.produced = self.produced.wrapping_add(count);
        self.unannounced = self.unannounced.saturating_add(count);
    }

    fn finish_torn(&mut self) -> Result<(), Unmapped> {
        let Some((at, rest)) = self.torn.take() else { return Ok(()) };
        self.ring.write(at, &rest)
    }

    /// Writes the rest of a torn CQE.
    #[cold]
    pub fn mend(&mut self, strict: &mut Strict) {
        let mended = self.finish_torn().map(|()| None);
        self.unless_lost(mended, strict);
    }

    /// Looks at the arm record after a CQ doorbell.
    pub fn arm(&mut self, strict: &mut Strict, trace: &mut Trace) -> Option<Event> {
        if self.failed {
            return None;
        }
        let Ok(word) = self.record.record(ARM) else {
            return self.unless_lost(Err(Unmapped), strict);
        };
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

    // Raises the event of an arm if there is a CQE that the program has not taken and that no event has announced. A
    // program may thus arm before it polls the CQEs of the last event.
    fn fire(&mut self) -> Option<Event> {
        let arm = self.armed.filter(|_| self.unannounced > 0)?;
        let is_written = |index: &u32| !is_ahead(*index, self.produced);
        let solicited = self.solicited.filter(is_written);
        let behind = if arm.solicited_only { solicited? } else { self.produced };
        if !is_ahead(behind, arm.consumer_index) {
            return None;
        }
        if solicited.is_some() {
            self.solicited = None;
        }
        self.armed = None;
        self.spent = Some(arm.sequence);
        (self.notified, self.unannounced) = (self.produced, 0);
        Some(Event::Completion(self.number))
    }

    /// Ends the old buffer with a resize CQE and goes on in a new one.
    pub fn resize(&mut self, space: &Space, buf: u64, count: u32, strict: &mut Strict) -> objects::Result<()> {
        self.try_resize(space, buf, count, strict).unwrap_or(Err(EFAULT))
    }

    fn try_resize(
        &mut self,
        space: &Space,
        buf: u64,
        count: u32,
        strict: &mut Strict,
    ) -> Result<objects::Result<()>, Unmapped> {
        let new = match ring(space, buf, count, self.attr.cqe_size) {
            Ok(new) => new,
            Err(error) => return Ok(Err(error)),
        };
        let unread = self.unread()?;
        if unread > count {
            return Ok(Err(Errno(libc::EINVAL)));
        }
        if self.is_full(strict)? {
            return Ok(Err(Errno(libc::EBUSY)));
        }
        let mut cqe = [0; CQE_SIZE];
        cqe[CQE_SIZE - 1] = op_own(CqeOpcode::ResizeCq, CqeFormat::Plain, false, 0);
        self.write(&Completion { cqe, front: None }, &Defects::default())?;
        self.ring = new;
        self.resized = true;
        (self.attr.buf, self.attr.cqe_count) = (buf, count);
        self.consumed = self.produced.wrapping_sub(unread);
        self.implied = Some(self.consumed);
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests;
