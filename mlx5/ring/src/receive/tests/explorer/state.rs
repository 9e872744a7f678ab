//! What decides the future, in a few bytes: explored is what is made of them anew, and nothing else.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::fmt::{self, Debug, Formatter};

use mlx5_wire::cqe;
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::chain;
use super::lending::Lending;
use super::steps::{By, Open};
use crate::cq::CompletionQueue;
use crate::receive::batch::{Batch, Noted, Stretch};
use crate::receive::{COMMON, Cursor, Receiving};
use crate::ring::{Expected, last_word};
use crate::sge::Sge;
use crate::slots;
use crate::testing::{Beside, Held, Place, Rig, TestQueue, sge};

/// Slots that a queue may have.
pub const MOST: usize = 8;
/// CQEs that may wait.
const WAITING: usize = 8;
/// Entries of the CQ, where CQEs do not wait: more than twice what a batch comes through.
pub const ENTRIES: u32 = 4 * MOST as u32;
/// CQEs before the end of its buffer from which no batch comes there.
pub const FAR_OFF: u32 = ENTRIES - MOST as u32;
/// What an unlimited budget has left after a stretch.
const UNLIMITED: u32 = 100;
/// What nobody should read.
const POISON: u8 = 0xa5;

/// A state of a queue, its CQ, the device and the ledger. Values that only count are not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    slots: [Slot; MOST],
    /// [`TestQueue::fields`].
    queue: [u8; 5],
    unrung: u8,
    /// CQEs from the next one up to the end of the buffer, or [`far`]; whether the lap is odd; and whether the
    /// device is on its first one.
    to_end: u8,
    odd: bool,
    first: bool,
    /// CQEs that wait: opcode in the upper half, slot of a receive in the lower. 0 is none.
    arrivals: [u8; WAITING],
    batch: Option<Registers>,
}

/// A slot: its state in three bits, whether the device has its WQE, whether it is held, and whether it is in the
/// [chain](chain::walk) that the device was not told of.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Slot(u8);

impl Slot {
    const WITH_DEVICE: u8 = 1 << 3;
    const HELD: u8 = 1 << 4;
    const IN_CHAIN: u8 = 1 << 5;

    const fn state(self) -> u8 {
        self.0 & 7
    }

    const fn is(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

impl Debug for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let with_device = if self.is(Self::WITH_DEVICE) { " with the device" } else { "" };
        let held = if self.is(Self::HELD) { " held" } else { "" };
        let in_chain = if self.is(Self::IN_CHAIN) { " in the chain" } else { "" };
        write!(f, "state {}{with_device}{held}{in_chain}", self.state())
    }
}

/// A batch that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registers {
    to_go: i8,
    limit: u8,
    /// Messages that the queue was not told of.
    unsettled: u8,
    cursor: bool,
    /// All of them were recycled, taken; all but the last one, which is lent and can be taken, too.
    recycled: bool,
    taken: bool,
    all_but_one: bool,
    lent: bool,
    /// In this stretch nothing is expected.
    never: bool,
    /// CQEs that are not published; where CQEs do not wait, whether there are any.
    unpublished: u8,
    /// What is left of the budget after the stretch.
    after: u8,
    /// Nothing was done in it, and buffers wait to be posted.
    fresh: bool,
}

/// A place in the CQ that is farther from its end than a batch comes.
const fn far(slots: u32) -> u32 {
    slots + 1
}

impl Registers {
    /// CQEs that were seen beyond `to_go`. A cursor has gone past the message that it lends.
    fn ahead(&self) -> u32 {
        u32::from(self.lent && !self.cursor)
    }

    /// The slots whose messages the queue was not told of.
    fn unsettled(&self, slot: u32) -> bool {
        let upto = i64::from(self.limit) + i64::from(self.to_go);
        (upto - i64::from(self.unsettled)..upto).contains(&slot.into())
    }
}

impl State {
    /// Of a queue between batches.
    pub fn of<Q: TestQueue>(rig: &mut Rig<Q>, wait: bool) -> Self {
        let (queue, cq, beside) = rig.parts();
        assert_eq!(cq.batch.noted, Noted::Nothing, "no batch is left");
        Self::with(queue, cq, &beside, None, wait)
    }

    /// Of a queue in a batch.
    pub fn in_batch<Q: TestQueue>(open: &mut Open<'_, Q>, wait: bool) -> Self {
        let Open { by, beside, left, fresh } = open;
        let cursor = matches!(by, By::Cursor(_));
        let (lent, all_but_one);
        let (queue, cq, at, recycled, taken) = match by {
            By::Batch(receiving) => {
                let Receiving { at, recycled_from, taken_from, .. } = **receiving;
                (lent, all_but_one) = (receiving.lent, false);
                let (queue, cq) = receiving.parts();
                assert_eq!((cq.batch.noted, at.limit), (Noted::Nothing, cq.batch.limit));
                let settled = cq.batch.settled;
                (queue, cq, at, recycled_from == settled, taken_from == settled)
            }
            By::Cursor(lending) => {
                let at = lending.cursor;
                lent = lending.lent;
                let (queue, cq) = lending.parts();
                assert_eq!((cq.batch.noted, cq.batch.stretch.to_go), (Noted::Lent, at.to_go));
                let (count, recycled, taken) = cq.batch.unsettled(at.to_go);
                // Else one is not taken for good, and it does not matter how many.
                all_but_one = lent && !recycled && cq.batch.taken + 1 == count as isize;
                (queue, cq, at, recycled, taken)
            }
        };
        let to_go = at.to_go;
        let batch = &cq.batch;
        let unsettled = to_go - batch.settled;
        let index = batch.index(to_go);
        let owner = cq.owner(batch.index(0).wrapping_sub(1));
        let never = at.expected & Expected::NEVER != 0;
        let counter = queue.expected_counter().wrapping_add(unsettled as u16);
        let word = if never { Expected::NEVER } else { last_word(counter, 0).into() };
        let word = word | u64::from(last_word(0, COMMON | owner));
        assert_eq!((at.states, at.data), queue.book().entry(batch.limit));
        // Of a stretch that is over no slot is looked at; and where that is as far as stretches may go, no CQE.
        let differs = at.expected ^ word;
        let looked_at = u64::from(last_word(0, !cqe::SOLICITED_EVENT));
        assert!(to_go == 0 || differs == 0, "{:x}, not {word:x}", at.expected);
        assert!(index == batch.reach || differs & looked_at == 0, "{:x}", at.expected);
        assert!(index == batch.reach || at.cqe == cq.cqe(index), "the CQE of another index");
        let after = batch.until.wrapping_sub(batch.stop);
        assert_eq!(batch.reach, reach(cq, batch.stop, after), "how far stretches may go");
        let unpublished = index.wrapping_sub(cq.published);
        let registers = Registers {
            to_go: to_go as i8,
            limit: batch.limit as u8,
            unsettled: unsettled as u8,
            cursor,
            recycled,
            taken,
            all_but_one,
            lent,
            never,
            unpublished: if wait { unpublished } else { unpublished.min(1) } as u8,
            after: after.min(UNLIMITED) as u8,
            fresh: *fresh && !beside.none_waits(),
        };
        let left_after = after.wrapping_add(-to_go as u32) - registers.ahead();
        assert_eq!(*left, left_after, "budget");
        let taken = index.wrapping_add(registers.ahead());
        let polled = beside.cq_device.producer_index.wrapping_sub(beside.arrived() as u32);
        assert_eq!(taken, polled, "consumer index");
        Self::with(queue, cq, beside, Some(registers), wait)
    }

    fn with<Q: TestQueue>(
        queue: &mut Q,
        cq: &CompletionQueue,
        beside: &Beside<'_>,
        batch: Option<Registers>,
        wait: bool,
    ) -> Self {
        check(queue, cq, beside, batch);
        let count = queue.book().count();
        let (mut to_end, mut odd) = beside.next_cqe();
        if !wait {
            (to_end, odd) = (to_end.min(far(count)), false);
        }
        let mut arrivals = [0; WAITING];
        for (to, arrival) in arrivals.iter_mut().zip(beside.arrivals.iter()) {
            *to = arrival.opcode.bits() << 4 | arrival.slot.unwrap_or(0) as u8;
        }
        assert!(beside.arrivals.len() <= if wait { WAITING } else { 0 });
        Self {
            slots: slots_of(queue, beside),
            queue: queue.fields(),
            unrung: queue.unrung() as u8,
            to_end: to_end as u8,
            odd,
            first: wait && beside.cq_device.first_lap,
            arrivals,
            batch,
        }
    }

    /// Makes the rig what it was, but for what nobody can tell: buffers are named after their slots, and counters
    /// wrap in the next lap. What is in no buffer's slot reads as garbage.
    pub fn restore<Q: TestQueue>(&self, rig: &mut Rig<Q>, wait: bool) {
        let Rig { queue, device, buffers, held, arrivals, .. } = rig;
        let count = queue.book().count();
        buffers.fill(Place::Pool);
        held.clear();
        arrivals.clear();
        let (lead, stride) = (Q::LEAD, queue.stride());
        for (slot, of) in (0..count).zip(&self.slots) {
            queue.book_mut().set_state(slot, of.state());
            let wqe = queue.wqe(slot);
            // SAFETY: inside the queue, which is not a Rust object.
            unsafe { wqe.write_bytes(POISON, stride) }
            if lead > 0 {
                let link = match of.state() {
                    // To no other slot: the device has followed it already.
                    slots::POSTED_TURNED => slot,
                    _ => (slot + 1) % count,
                };
                device.set_link(slot, link as u16);
            }
            let (data, place) = match of.state() {
                slots::EMPTY => (u32::MAX, None),
                _ if of.is(Slot::HELD) => (slot, Some(Place::Held)),
                _ => (slot, Some(Place::Queue)),
            };
            // SAFETY: in range; the WQE has room for a segment.
            unsafe {
                queue.book_mut().set_data_at(slot as usize, data);
                if let Some(place) = place {
                    buffers[slot as usize] = place;
                    queue.segments(slot).write_volatile(describe(slot));
                }
            }
            if of.is(Slot::HELD) {
                held.push_back(Held { slot, buffer: slot });
            }
        }
        let batch = self.batch;
        let unsettled = |slot| batch.is_some_and(|batch| batch.unsettled(slot));
        queue.restore(self.queue, self.unrung.into(), unsettled);
        for slot in (0..count).filter(|&slot| queue.may_lead_elsewhere(slot)) {
            device.set_link(slot, slot as u16);
        }
        let are = |flag| (0..count).filter(move |&slot| self.slots[slot as usize].is(flag));
        let chain = are(Slot::IN_CHAIN).fold(0, |chain, slot| chain | 1 << slot);
        let next = if lead > 0 { chain::lay(queue, device, chain) } else { 0 };
        let completed = self.arrivals().filter_map(|(_, slot)| slot);
        let with_device = are(Slot::WITH_DEVICE);
        let seen = queue.posted().wrapping_sub(self.unrung.into());
        device.restore(seen as u16, next as u16, with_device.chain(completed));
        self.restore_cq(rig, count, wait);
    }

    fn restore_cq<Q: TestQueue>(&self, rig: &mut Rig<Q>, count: u32, wait: bool) {
        let far = !wait && u32::from(self.to_end) == far(count);
        let to_end = if far { FAR_OFF } else { self.to_end.into() };
        let seen = |batch: Registers| u32::from(batch.unpublished) + batch.ahead();
        let index = match self.first {
            true => rig.cq_device.first_index_at(to_end),
            false => rig.cq_device.index_at(to_end, self.odd || !wait),
        };
        rig.cq_device.start_at(index);
        rig.cq.batch = Batch::new();
        let published = index.wrapping_sub(self.batch.map_or(0, seen));
        rig.cq.publish(published);
        for (opcode, slot) in self.arrivals() {
            match slot {
                Some(slot) => rig.complete_as(rig.device.position(slot), opcode, false),
                None => rig.parts().2.complete_other(),
            }
        }
    }

    pub const fn is_in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// The batch of a rig that [`restore`](Self::restore) made, if one is open.
    pub fn open<'a, Q: TestQueue>(&self, rig: &'a mut Rig<Q>) -> Option<Open<'a, Q>> {
        let registers = self.batch?;
        let Registers { limit, unsettled, cursor, recycled, taken, lent, never, .. } = registers;
        let (queue, cq, beside) = rig.parts();
        let to_go = isize::from(registers.to_go);
        let index = cq.published.wrapping_add(registers.unpublished.into());
        let stop = index.wrapping_sub(to_go as u32);
        let settled = to_go - isize::from(unsettled);
        let unlimited = registers.after == UNLIMITED as u8;
        let after = if unlimited { u32::MAX / 2 } else { registers.after.into() };
        cq.batch = Batch {
            until: stop.wrapping_add(after),
            reach: reach(cq, stop, after),
            stop,
            limit: limit.into(),
            settled,
            ..Batch::new()
        };
        let counter = queue.expected_counter().wrapping_add(unsettled.into());
        let word = if never { Expected::NEVER } else { last_word(counter, 0).into() };
        let owner = cq.owner(stop.wrapping_sub(1));
        let expected = word | u64::from(last_word(0, COMMON | owner));
        let stretch = Stretch { cqe: cq.cqe(index), expected, to_go };
        let mut at = Cursor::new(NonNull::from(&mut *cq), stretch, limit.into(), queue.book());
        let from = |all: bool| if all { settled } else { settled - 1 };
        let (recycled_from, taken_from) = (from(recycled), from(taken));
        let by = if cursor {
            let batch = &mut cq.batch;
            batch.put(to_go, recycled_from, taken_from);
            if registers.all_but_one {
                batch.taken = isize::from(unsettled) - 1;
            }
            (batch.stretch.to_go, batch.noted) = (to_go, Noted::Lent);
            // A cursor that was reloaded has an old one.
            at.limit = u32::MAX;
            By::Cursor(Lending::new(queue, at, lent))
        } else {
            let cq = PhantomData;
            let receiving = Receiving { queue, at, lent, recycled_from, taken_from, cq };
            By::Batch(ManuallyDrop::new(receiving))
        };
        let left = after + (-to_go) as u32 - registers.ahead();
        Some(Open { by, beside, left, fresh: registers.fresh })
    }

    /// CQEs that wait: opcode, and slot of a receive.
    fn arrivals(&self) -> impl Iterator<Item = (CqeOpcode, Option<u32>)> {
        let waiting = self.arrivals.into_iter().take_while(|&arrival| arrival != 0);
        waiting.map(|arrival| {
            let opcode = CqeOpcode::from_bits(arrival >> 4);
            (opcode, (opcode != CqeOpcode::NoPacket).then_some((arrival & 7).into()))
        })
    }

    /// All of it as bytes.
    pub fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let (slots, rest) = bytes.split_at_mut(MOST);
        for (byte, slot) in slots.iter_mut().zip(self.slots) {
            *byte = slot.0;
        }
        let [q0, q1, q2, q3, q4] = self.queue;
        let lap = u8::from(self.odd) << 1 | u8::from(self.first);
        let queue = [q0, q1, q2, q3, q4, self.unrung, self.to_end, lap];
        rest[..8].copy_from_slice(&queue);
        rest[8..16].copy_from_slice(&self.arrivals);
        if let Some(batch) = self.batch {
            let Registers { to_go, limit, unsettled, unpublished, after, .. } = batch;
            let fates = [batch.recycled, batch.taken, batch.all_but_one, batch.lent];
            let flags = fates.into_iter().chain([batch.cursor, batch.never, batch.fresh, true]);
            let flags = flags.fold(0, |bits, flag| bits << 1 | u8::from(flag));
            let batch = [to_go as u8, limit, unsettled, unpublished, after, flags];
            rest[16..22].copy_from_slice(&batch);
        }
        bytes
    }
}

/// Where stretches of a batch end at the latest: with the budget, of which so much is left after the one that ends at
/// `stop`, or with the buffer.
fn reach(cq: &CompletionQueue, stop: u32, after: u32) -> u32 {
    stop.wrapping_add(after.min(cq.until_wrap(stop.wrapping_sub(1)) - 1))
}

/// What is not in a state and is made anew from it is as it would be made.
fn check<Q: TestQueue>(
    queue: &mut Q,
    cq: &CompletionQueue,
    beside: &Beside<'_>,
    batch: Option<Registers>,
) {
    queue.check(|slot| batch.is_some_and(|batch| batch.unsettled(slot)));
    let rung = queue.posted().wrapping_sub(queue.unrung());
    assert_eq!(rung as u16, beside.device.seen, "WQEs rung for");
    let outstanding = beside.cq_device.producer_index.wrapping_sub(cq.published);
    assert_eq!(cq.consumer_index, cq.published);
    assert_eq!(outstanding, beside.cq_device.outstanding(), "what the record of the CQ says");
    if batch.is_none() {
        assert_eq!(outstanding as usize, beside.arrived(), "consumer index");
    }
    let count = queue.book().count();
    let mut owned = 0u32;
    for slot in 0..count {
        let state = queue.book().state(slot);
        let decided = state != slots::POSTED_TURNED && !queue.may_lead_elsewhere(slot);
        if beside.device.is_srq() && decided {
            assert_eq!(u32::from(beside.device.link_of(slot)), (slot + 1) % count, "link");
        }
        if state == slots::EMPTY {
            continue;
        }
        // Each buffer is where the slot says, and once.
        // SAFETY: the slot has data, and its WQE is inside the queue.
        let (buffer, segment) =
            unsafe { (queue.book().data(slot), queue.segments(slot).read_volatile()) };
        assert_eq!(segment, describe(buffer), "the WQE of slot {slot}, buffer {buffer}");
        assert_eq!(owned >> buffer & 1, 0, "buffer {buffer} in slot {slot} and another one");
        owned |= 1 << buffer;
        let held = beside.held.iter().any(|held| held.slot == slot);
        let place = if held { Place::Held } else { Place::Queue };
        assert_eq!(beside.buffers[buffer as usize], place, "slot {slot}, buffer {buffer}");
    }
    let elsewhere = beside.buffers.iter().filter(|&&place| place != Place::Pool).count();
    assert_eq!(owned.count_ones() as usize, elsewhere, "buffers in no slot");
}

/// The slots of a state.
fn slots_of<Q: TestQueue>(queue: &Q, beside: &Beside<'_>) -> [Slot; MOST] {
    let mut all = [Slot(0); MOST];
    for taken in &beside.device.queue {
        all[taken.slot as usize].0 |= Slot::WITH_DEVICE;
    }
    for held in beside.held.iter() {
        all[held.slot as usize].0 |= Slot::HELD;
    }
    for (slot, of) in (0..queue.book().count()).zip(&mut all) {
        let state = queue.book().state(slot);
        assert!(state != slots::EMPTY || of.0 == 0, "slot {slot} is empty");
        of.0 |= state;
    }
    if beside.device.is_srq() {
        let chain = chain::walk(queue, beside.device);
        for (slot, of) in all.iter_mut().enumerate() {
            if chain >> slot & 1 != 0 {
                assert!(!of.is(Slot::WITH_DEVICE), "the device has slot {slot}");
                of.0 |= Slot::IN_CHAIN;
            }
        }
    }
    all
}

/// The only segment of a buffer.
pub const fn describe(buffer: u32) -> DataSegment {
    let Sge { addr, length, lkey } = sge(buffer, 0);
    DataSegment::new(addr, length, lkey)
}
