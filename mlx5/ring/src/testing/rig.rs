//! A queue and its CQ, the device behind them, and a ledger of buffers.

use std::collections::VecDeque;
use std::vec::Vec;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::data::DataSegment;
use mlx5_wire::next::NextSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::{Arena, CqDevice, CqeSpec, Device};
use crate::completion::Cqe;
use crate::cq::{self, CompletionQueue};
use crate::post::{PostError, Posting};
use crate::receive::{self, Completion, Message, Queue, Receiving};
use crate::rq::{self, ReceiveQueue};
use crate::sge::Sge;
use crate::srq::{self, SharedReceiveQueue};
use crate::{bitmap, slots};

/// A queue that a rig can make.
pub trait TestQueue: Queue<Data = u32> + Sized {
    /// Makes a queue of `slots` slots with room for `max_sge` SGEs.
    fn make(arena: &mut Arena, slots: u32, max_sge: usize) -> (Self, Device);
    /// WQEs that can be posted now.
    fn vacant(&self) -> u32;
    /// Leaves a buffer in the last slot, on an SRQ.
    fn load(&mut self, data: u32, sges: &[Sge]) -> Result<u32, PostError>;
    /// Slot of the next WQE.
    fn head_slot(&self) -> u32;
    /// The fields that decide what happens next, and none that only counts.
    fn fields(&self) -> [u8; 5];
    /// WQEs that the device was not told of.
    fn unrung(&self) -> u32;
    /// Takes over `fields` of a queue whose slots are in the same states; `unsettled` tells of slots that were
    /// given back and of which the queue knows nothing yet. Its counters are about to wrap.
    fn restore(&mut self, fields: [u8; 5], unrung: u32, unsettled: impl Fn(u32) -> bool);
    /// What [`restore`](Self::restore) finds out from the states of the slots is what the queue has.
    fn check(&mut self, unsettled: impl Fn(u32) -> bool);
    /// `wqe_counter` of the completion that the queue expects.
    fn expected_counter(&self) -> u16;
    /// Whether the link of a slot that is not posted, on an SRQ, is decided when it is.
    fn may_lead_elsewhere(&self, slot: u32) -> bool;
    /// As if `index` WQEs had been posted, completed and given back before. The queue is fresh.
    fn start_at(&mut self, index: u32);
}

impl TestQueue for SharedReceiveQueue<u32> {
    fn make(arena: &mut Arena, slots: u32, max_sge: usize) -> (Self, Device) {
        let stride = (16 * (max_sge + 1)).next_power_of_two();
        let buf = arena.cut(slots as usize * stride);
        let dbrec = arena.cut::<Be32>(4);
        let layout = srq::Layout { buf, dbrec, stride: stride as u32, head: 0, tail: slots - 1 };
        let storage = srq::Storage {
            states: arena.cut(slots as usize),
            data: arena.cut(slots as usize * 4),
            bitmap: arena.cut(bitmap::words(slots) * 8),
        };
        // SAFETY: fresh memory that lives as long as the rig.
        let queue = unsafe { Self::new(layout, storage) }.unwrap();
        (queue, Device::new(buf, stride, slots, dbrec, NextSegment::SIZE))
    }

    fn vacant(&self) -> u32 {
        self.vacant()
    }

    fn load(&mut self, data: u32, sges: &[Sge]) -> Result<u32, PostError> {
        // SAFETY: the memory is not a Rust object, and nobody touches it.
        unsafe { self.load(data, sges) }
    }

    fn head_slot(&self) -> u32 {
        self.head_slot()
    }

    fn fields(&self) -> [u8; 5] {
        self.fields()
    }

    fn unrung(&self) -> u32 {
        self.unrung()
    }

    fn restore(&mut self, fields: [u8; 5], unrung: u32, unsettled: impl Fn(u32) -> bool) {
        self.restore(fields, unrung, unsettled);
    }

    fn check(&mut self, unsettled: impl Fn(u32) -> bool) {
        self.check(unsettled);
    }

    fn expected_counter(&self) -> u16 {
        self.expected_counter()
    }

    fn may_lead_elsewhere(&self, slot: u32) -> bool {
        self.may_lead_elsewhere(slot)
    }

    fn start_at(&mut self, index: u32) {
        self.start_at(index);
    }
}

impl TestQueue for ReceiveQueue<u32> {
    fn make(arena: &mut Arena, slots: u32, max_sge: usize) -> (Self, Device) {
        let stride = (16 * max_sge).next_power_of_two();
        let buf = arena.cut(slots as usize * stride);
        let dbrec = arena.cut::<Be32>(4);
        let layout = rq::Layout { buf, dbrec, wqe_cnt: slots, stride: stride as u32 };
        let storage =
            rq::Storage { states: arena.cut(slots as usize), data: arena.cut(slots as usize * 4) };
        // SAFETY: fresh memory that lives as long as the rig.
        let queue = unsafe { Self::new(layout, storage) }.unwrap();
        (queue, Device::new(buf, stride, slots, dbrec, 0))
    }

    fn vacant(&self) -> u32 {
        self.vacant()
    }

    fn load(&mut self, _: u32, _: &[Sge]) -> Result<u32, PostError> {
        Err(PostError::Full)
    }

    fn head_slot(&self) -> u32 {
        self.head() & (self.slots() - 1)
    }

    fn fields(&self) -> [u8; 5] {
        self.fields()
    }

    fn unrung(&self) -> u32 {
        self.unrung()
    }

    fn restore(&mut self, fields: [u8; 5], unrung: u32, _: impl Fn(u32) -> bool) {
        self.restore(fields, unrung);
    }

    fn check(&mut self, _: impl Fn(u32) -> bool) {
        ReceiveQueue::check(self);
    }

    fn expected_counter(&self) -> u16 {
        self.expected_counter()
    }

    fn may_lead_elsewhere(&self, _: u32) -> bool {
        false
    }

    fn start_at(&mut self, index: u32) {
        self.start_at(index);
    }
}

/// A piece of a buffer.
pub const fn sge(buffer: u32, index: u32) -> Sge {
    Sge {
        addr: 0x10_0000 + buffer as u64 * 0x1000 + index as u64 * 0x100,
        length: 0x40 + index,
        lkey: 0x200 + buffer,
    }
}

/// Who has a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The test.
    Pool,
    /// The queue, posted or waiting.
    Queue,
    /// The test, as a message that was not given back.
    Held,
}

/// The buffers that are the test's.
pub fn pool(buffers: &[Place]) -> impl Iterator<Item = u32> + '_ {
    (0..).zip(buffers).filter(|&(_, &place)| place == Place::Pool).map(|(buffer, _)| buffer)
}

/// What a test does with a message, or between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Give {
    Recycle,
    Take,
    Hold,
    /// Recycles the message held longest.
    RecycleHeld,
    /// Takes the message held longest.
    TakeHeld,
}

/// A completion that the device wrote and the test has not seen.
#[derive(Clone, Debug)]
pub struct Arrival {
    wqe_counter: u16,
    byte_count: u32,
    pub opcode: CqeOpcode,
    /// Slot of the receive; `None` when it is of something else.
    pub slot: Option<u32>,
}

/// A message that was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub slot: u32,
    pub buffer: u32,
}

pub struct Rig<Q> {
    /// What all the rest points into.
    _arena: Arena,
    pub queue: Q,
    pub cq: CompletionQueue,
    pub device: Device,
    pub cq_device: CqDevice,
    pub buffers: Vec<Place>,
    pub held: VecDeque<Held>,
    pub arrivals: VecDeque<Arrival>,
    max_sge: usize,
    /// Messages polled.
    pub received: u64,
}

/// What of a rig a batch does not borrow.
pub struct Beside<'a> {
    pub device: &'a mut Device,
    pub cq_device: &'a mut CqDevice,
    pub buffers: &'a mut [Place],
    pub held: &'a mut VecDeque<Held>,
    pub arrivals: &'a mut VecDeque<Arrival>,
}

impl Beside<'_> {
    /// The device completes the WQE at `position` of its queue.
    pub fn complete_as(&mut self, position: usize, opcode: CqeOpcode, solicited: bool) {
        let taken = self.device.complete(position);
        let byte_count = u32::from(taken.wqe_counter) * 3 + 1;
        let send = CqeSpec::send(taken.wqe_counter, byte_count);
        self.cq_device.write(&CqeSpec { opcode, solicited, format: CqeFormat::Plain, ..send });
        let wqe_counter = taken.wqe_counter;
        let slot = Some(taken.slot);
        self.arrivals.push_back(Arrival { wqe_counter, byte_count, opcode, slot });
    }

    /// The device completes something that is no receive.
    pub fn complete_other(&mut self) {
        let opcode = CqeOpcode::NoPacket;
        self.cq_device.write(&CqeSpec { opcode, ..CqeSpec::send(0, 0) });
        self.arrivals.push_back(Arrival { wqe_counter: 0, byte_count: 0, opcode, slot: None });
    }

    /// Completions that were not polled.
    pub fn arrived(&self) -> usize {
        self.arrivals.len()
    }

    /// CQEs from the next one to be polled up to the end of the buffer, and whether its lap is an odd one.
    pub fn next_cqe(&self) -> (u32, bool) {
        self.cq_device.place(self.cq_device.producer_index.wrapping_sub(self.arrivals.len() as u32))
    }

    /// Whether the device has been told of every buffer that the queue has.
    pub fn none_waits(&self) -> bool {
        let in_queue = self.buffers.iter().filter(|&&place| place == Place::Queue).count();
        in_queue == self.device.queue.len() + self.device.completed.len()
    }

    /// Compares a completion with the one that the device wrote. Its message is held from now on.
    pub fn received<Q: Queue<Data = u32>>(
        &mut self,
        receiving: &Receiving<'_, Q>,
        completion: Completion<u32>,
    ) -> Option<Message<u32>> {
        let arrival = self.arrivals.pop_front().expect("a completion that never arrived");
        if arrival.slot.is_none() {
            assert!(matches!(completion, Completion::Other(_)), "{completion:?} for {arrival:?}");
            return None;
        }
        let failed = arrival.opcode == CqeOpcode::ResponderError;
        let message = match completion {
            Completion::Message(message) if !failed => {
                assert_eq!(message.byte_count, arrival.byte_count);
                message
            }
            Completion::Failed(message) if failed => message,
            other => panic!("{other:?} for {arrival:?}"),
        };
        // SAFETY: the position is of this batch.
        let cqe = unsafe { receiving.cqe(message.position()) };
        assert_eq!(cqe.wqe_counter(), arrival.wqe_counter);
        self.hold(&arrival, message.data, message.slot());
        Some(message)
    }

    /// As [`received`](Self::received), of a message that a cursor has lent.
    pub fn lent(&mut self, (data, byte_count): (u32, u32), slot: u32, cqe: Cqe<'_>) {
        let arrival = self.arrivals.pop_front().expect("a message that never arrived");
        assert!(arrival.slot.is_some(), "a message for {arrival:?}");
        assert_ne!(arrival.opcode, CqeOpcode::ResponderError);
        assert_eq!((byte_count, cqe.wqe_counter()), (arrival.byte_count, arrival.wqe_counter));
        self.hold(&arrival, data, slot);
    }

    /// The message that arrived, with the buffer `data`, is held.
    fn hold(&mut self, arrival: &Arrival, data: u32, slot: u32) {
        let taken = self.device.polled(arrival.wqe_counter);
        let buffer = taken.segments[0].lkey.get() - 0x200;
        assert_eq!((data, slot), (buffer, taken.slot));
        assert_eq!(self.buffers[buffer as usize], Place::Queue, "a buffer with two owners");
        self.buffers[buffer as usize] = Place::Held;
        self.held.push_back(Held { slot, buffer });
    }

    /// The message of a slot, which was held, is no more. Returns its buffer, which is at `place` now.
    pub fn let_go(&mut self, slot: u32, place: Place) -> u32 {
        let index = self.held.iter().position(|held| held.slot == slot).expect("it is held");
        let buffer = self.held.remove(index).unwrap().buffer;
        self.buffers[buffer as usize] = place;
        buffer
    }

    /// Gives a held message back; `message` if it came just now.
    pub fn give_back<Q: Queue<Data = u32>>(
        &mut self,
        receiving: &mut Receiving<'_, Q>,
        index: usize,
        message: Option<Message<u32>>,
        recycle: bool,
    ) {
        let held = self.held.remove(index).unwrap();
        let message = message.unwrap_or_else(|| Message::of(held.buffer, held.slot));
        // SAFETY: the message has completed, is held, and is given back once.
        unsafe {
            if recycle {
                receiving.recycle(message);
            } else {
                assert_eq!(receiving.take(message), held.buffer);
            }
        }
        self.buffers[held.buffer as usize] = if recycle { Place::Queue } else { Place::Pool };
    }
}

impl<Q: TestQueue> Rig<Q> {
    pub fn new(slots: u32, buffers: usize, cqes: u32) -> Self {
        Self::with(slots, buffers, cqes, 64, 1)
    }

    pub fn with(slots: u32, buffers: usize, cqes: u32, cqe_size: usize, max_sge: usize) -> Self {
        let mut arena = Arena::default();
        let (queue, device) = Q::make(&mut arena, slots, max_sge);
        let (buf, dbrec) = (arena.cut::<u8>(cqes as usize * cqe_size), arena.cut::<Be32>(8));
        let cq_device = CqDevice::new(buf, dbrec, cqes, cqe_size);
        let layout = cq::Layout { buf, dbrec, cqe_cnt: cqes, cqe_size: cqe_size as u32 };
        // SAFETY: fresh memory that lives as long as the rig.
        let cq = unsafe { CompletionQueue::new(layout) }.unwrap();
        Self {
            _arena: arena,
            queue,
            cq,
            device,
            cq_device,
            buffers: std::vec![Place::Pool; buffers],
            held: VecDeque::new(),
            arrivals: VecDeque::new(),
            max_sge,
            received: 0,
        }
    }

    /// As if `index` CQEs had been polled before.
    pub fn start_cq_at(&mut self, index: u32) {
        self.cq_device.start_at(index);
        self.cq.publish(index);
    }

    /// As if `index` WQEs had gone through the queue before.
    pub fn start_queue_at(&mut self, index: u32) {
        self.queue.start_at(index);
        self.device.start_at(index);
    }

    /// The scatter list of a buffer: never the same for two.
    pub fn sges(&self, buffer: u32) -> Vec<Sge> {
        let count = buffer % self.max_sge as u32 + 1;
        (0..count).map(|i| sge(buffer, i)).collect()
    }

    /// Posts buffers in one batch. Returns how many the queue took.
    pub fn post(&mut self, buffers: &[u32]) -> usize {
        let lists: Vec<_> = buffers.iter().map(|&buffer| self.sges(buffer)).collect();
        let vacant = self.queue.vacant() as usize;
        let mut posting = Posting::new(&mut self.queue);
        let mut taken = 0;
        // Several at once where they can be.
        if self.max_sge == 1 && buffers.len() > 1 {
            let receives: Vec<_> = buffers.iter().zip(&lists).collect();
            let describe = |&(&buffer, sges): &(&u32, &Vec<Sge>)| {
                let Sge { addr, length, lkey } = sges[0];
                (buffer, [DataSegment::new(addr, length, lkey)])
            };
            // SAFETY: the memory is not a Rust object, and nobody touches it.
            let posted = unsafe { posting.post_each(&receives, describe) };
            taken = match posted {
                Ok(()) => buffers.len(),
                Err((posted, error)) => {
                    assert_eq!(error, PostError::Full);
                    posted
                }
            };
            for &buffer in &buffers[..taken] {
                assert_eq!(self.buffers[buffer as usize], Place::Pool);
                self.buffers[buffer as usize] = Place::Queue;
            }
            assert_eq!(posting.posted() as usize, taken);
        }
        let one_by_one = if taken == 0 { buffers } else { &[] };
        for (&buffer, sges) in one_by_one.iter().zip(&lists) {
            assert_eq!(self.buffers[buffer as usize], Place::Pool);
            // SAFETY: the memory is not a Rust object, and nobody touches it.
            match unsafe { posting.post(buffer, sges) } {
                Ok(_) => self.buffers[buffer as usize] = Place::Queue,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    break;
                }
            }
            taken += 1;
            assert_eq!(posting.posted() as usize, taken);
        }
        drop(posting);
        assert_eq!(taken, buffers.len().min(vacant), "posted, of {} vacant", vacant);
        assert_eq!(self.step(), taken, "doorbell");
        taken
    }

    /// Leaves a buffer in the last slot.
    pub fn load(&mut self, buffer: u32) -> bool {
        let sges = self.sges(buffer);
        let loaded = self.queue.load(buffer, &sges).is_ok();
        if loaded {
            self.buffers[buffer as usize] = Place::Queue;
        }
        self.step();
        loaded
    }

    /// A buffer that is the test's.
    pub fn free_buffer(&self) -> Option<u32> {
        pool(&self.buffers).next()
    }

    /// The first `count` buffers that are the test's, or as many as there are.
    pub fn free_buffers(&self, count: usize) -> Vec<u32> {
        pool(&self.buffers).take(count).collect()
    }

    /// The device completes the WQE at `position` of its queue with a SEND.
    pub fn complete(&mut self, position: usize) {
        self.complete_as(position, CqeOpcode::ResponderSend, false);
    }

    /// The device completes the WQE at `position` of its queue.
    pub fn complete_as(&mut self, position: usize, opcode: CqeOpcode, solicited: bool) {
        self.parts().2.complete_as(position, opcode, solicited);
    }

    pub fn parts(&mut self) -> (&mut Q, &mut CompletionQueue, Beside<'_>) {
        let Self { queue, cq, device, cq_device, buffers, held, arrivals, .. } = self;
        (queue, cq, Beside { device, cq_device, buffers, held, arrivals })
    }

    /// Starts a batch of at most `budget` completions.
    pub fn batch(&mut self, budget: u32) -> (Receiving<'_, Q>, Beside<'_>) {
        let (queue, cq, beside) = self.parts();
        // SAFETY: all completions are of this queue; nobody touches the memory of the buffers.
        (unsafe { Receiving::new(cq, queue, budget) }, beside)
    }

    /// Polls at most `budget` completions in one batch. `script` says what to do with each message and in
    /// between; when it is used up, messages are recycled. Returns how many were polled.
    pub fn poll(&mut self, budget: u32, script: &[Give]) -> usize {
        let polled = self.poll_until(budget, script, false);
        self.finish();
        polled
    }

    /// As [`poll`](Self::poll), but the batch is noted and forgotten; `post` buffers are posted before the
    /// next one.
    pub fn poll_and_forget(&mut self, budget: u32, script: &[Give], post: &[u32]) -> usize {
        let polled = self.poll_until(budget, script, true);
        self.recover(post);
        polled
    }

    /// Posts, and finds a batch that was forgotten.
    pub fn recover(&mut self, post: &[u32]) {
        self.recover_with(post, None);
    }

    /// As [`recover`](Self::recover). A message of the slot `unsure` is nobody's, and the queue may think that it is
    /// held.
    pub fn recover_with(&mut self, post: &[u32], unsure: Option<u32>) {
        let lists: Vec<_> = post.iter().map(|&buffer| self.sges(buffer)).collect();
        let mut posting = Posting::new(&mut self.queue);
        for (&buffer, sges) in post.iter().zip(&lists) {
            // SAFETY: the memory is not a Rust object, and nobody touches it.
            if unsafe { posting.post(buffer, sges) }.is_ok() {
                self.buffers[buffer as usize] = Place::Queue;
            }
        }
        drop(posting);
        // SAFETY: the same two queues.
        unsafe { receive::recover(&mut self.cq, &mut self.queue) };
        if let Some(slot) = unsure.filter(|&slot| self.queue.book().state(slot) == slots::HELD) {
            // SAFETY: a slot that is held has data.
            let buffer = unsafe { self.queue.book().data(slot) };
            assert_eq!(self.buffers[buffer as usize], Place::Queue);
            self.buffers[buffer as usize] = Place::Held;
            self.held.push_back(Held { slot, buffer });
        }
        self.finish();
    }

    /// A batch is over.
    pub fn finish(&mut self) {
        self.step();
        assert_eq!(self.cq_device.outstanding() as usize, self.arrivals.len(), "consumer index");
    }

    fn poll_until(&mut self, budget: u32, script: &[Give], forget: bool) -> usize {
        let arrived = self.arrivals.len().min(budget as usize);
        let mut script = script.iter().copied();
        let mut polled = 0;
        let (mut receiving, mut beside) = self.batch(budget);
        loop {
            let give = script.next().unwrap_or(Give::Recycle);
            if matches!(give, Give::RecycleHeld | Give::TakeHeld) {
                if !beside.held.is_empty() {
                    beside.give_back(&mut receiving, 0, None, give == Give::RecycleHeld);
                }
            } else if let Some(completion) = receiving.next() {
                polled += 1;
                let message = beside.received(&receiving, completion);
                if give != Give::Hold {
                    let last = beside.held.len() - 1;
                    beside.give_back(&mut receiving, last, message, give == Give::Recycle);
                }
            } else {
                if forget {
                    receiving.note();
                }
                break;
            }
            if forget {
                receiving.note();
            }
        }
        if forget {
            core::mem::forget(receiving);
        } else {
            drop(receiving);
        }
        assert_eq!(polled, arrived, "completions polled");
        self.received += polled as u64;
        polled
    }

    /// Gives a held message back outside of a batch.
    pub fn give_back(&mut self, index: usize, recycle: bool) {
        let held = self.held.remove(index).unwrap();
        // SAFETY: held, and given back once.
        unsafe {
            if recycle {
                self.queue.recycle(held.slot);
            } else {
                self.queue.release(held.slot);
            }
        }
        self.queue.ring();
        self.buffers[held.buffer as usize] = if recycle { Place::Queue } else { Place::Pool };
        self.step();
    }

    /// Writes a CQE that cannot be true, and expects that nothing comes of it.
    pub fn stray(&mut self, wqe_counter: u16) {
        assert!(self.arrivals.is_empty());
        let before: Vec<_> = (0..self.device.capacity() as u32 + 1)
            .map(|slot| self.queue.book().state(slot))
            .collect();
        self.cq_device.write(&CqeSpec::send(wqe_counter, 1));
        // SAFETY: as in `poll`.
        let mut receiving = unsafe { Receiving::new(&mut self.cq, &mut self.queue, 2) };
        match receiving.next() {
            Some(Completion::Stray(_)) => {}
            other => panic!("{other:?} for a completion of WQE {wqe_counter}, which is not posted"),
        }
        assert!(receiving.next().is_none());
        drop(receiving);
        for (slot, &state) in before.iter().enumerate() {
            assert_eq!(self.queue.book().state(slot as u32), state);
        }
        assert_eq!(self.step(), 0);
    }

    /// Lets the device look, and compares. Returns how many WQEs it found.
    pub fn step(&mut self) -> usize {
        let new = self.device.look();
        let known = self.device.queue.len() - new;
        for position in known..self.device.queue.len() {
            let taken = &self.device.queue[position];
            let buffer = taken.segments.first().expect("an empty WQE").lkey.get() - 0x200;
            let segments: Vec<_> = self
                .sges(buffer)
                .iter()
                .map(|sge| DataSegment::new(sge.addr, sge.length, sge.lkey))
                .collect();
            assert_eq!(taken.segments, segments, "scatter list of buffer {buffer}");
            assert_eq!(self.buffers[buffer as usize], Place::Queue, "buffer {buffer} is posted");
            // SAFETY: posted.
            assert_eq!(unsafe { self.queue.book().data(taken.slot) }, buffer);
            let others = self.device.queue[..position].iter().chain(&self.device.completed);
            for other in others {
                assert_ne!(other.segments, segments, "buffer {buffer} is posted twice");
            }
        }
        self.check();
        new
    }

    /// What must hold between any two calls.
    pub fn check(&self) {
        self.device.check();
        let posted = self.device.posted();
        let slots = self.queue.book().count();
        let mut waiting = 0;
        let mut held = 0;
        for slot in 0..slots {
            let state = self.queue.book().state(slot);
            if posted.contains(&slot) {
                let turned = self.device.is_srq()
                    && u32::from(self.device.link_of(slot)) != (slot + 1) & (slots - 1);
                let expected = if turned { slots::POSTED_TURNED } else { slots::POSTED };
                assert_eq!(state, expected, "slot {slot} is posted");
                continue;
            }
            if self.device.is_srq() && !self.queue.may_lead_elsewhere(slot) {
                let link = u32::from(self.device.link_of(slot));
                assert_eq!(link, (slot + 1) & (slots - 1), "link of slot {slot}, not posted");
            }
            match state {
                slots::EMPTY => {}
                slots::LOADED => waiting += 1,
                slots::HELD => {
                    held += 1;
                    assert!(self.held.iter().any(|held| held.slot == slot), "slot {slot} is held");
                }
                state => panic!("slot {slot} is not posted and has state {state}"),
            }
        }
        assert_eq!(held, self.held.len(), "held slots");
        let in_queue = self.buffers.iter().filter(|&&place| place == Place::Queue).count();
        assert_eq!(in_queue, posted.len() + waiting, "buffers in the queue");
        let head = self.queue.head_slot();
        if self.device.is_srq() {
            let free = slots as usize - posted.len() - held;
            assert_eq!(self.queue.vacant() as usize, free - 1, "vacant");
            if waiting > 0 {
                assert_eq!(self.queue.book().state(head), slots::LOADED, "where a buffer waits");
                assert_eq!((waiting, free), (1, 1), "a buffer waits while a slot is free");
            }
            if !posted.is_empty() {
                assert_eq!(u32::from(self.device.next), head, "the last link leads to the head");
            }
        } else {
            let run = (0..slots)
                .take_while(|i| self.queue.book().state(head + i) == slots::EMPTY)
                .count();
            assert_eq!(self.queue.vacant() as usize, run, "vacant");
            if waiting > 0 {
                let state = self.queue.book().state(head);
                let blocked = matches!(state, slots::HELD | slots::POSTED);
                assert!(blocked, "buffers wait, and the next slot has state {state}");
            }
        }
    }
}
