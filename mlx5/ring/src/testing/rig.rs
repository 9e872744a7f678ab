//! One or two queues on a CQ, their device, and the steps that a test can take with them.

use std::collections::VecDeque;
use std::vec::Vec;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::data::DataSegment;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use mlx5_wire::opcode::CqeOpcode;

use super::buffers::{Buffers, Owner, Shape};
use super::queue::{Kind, Queue, Ring, on};
use super::{Arena, CqDevice, CqeSpec, device::Device};
use crate::cq::CompletionQueue;
use crate::receive::{self, Completion, PostError, ReceiveRing};
use crate::sge::Sge;
use crate::slots::SlotState;

/// Sizes of a [`Rig`].
#[derive(Clone, Debug)]
pub struct Setup {
    /// Kind, slots and stride of each queue.
    pub queues: Vec<(Kind, u32, usize)>,
    pub cqes: u32,
    pub cqe_size: usize,
    pub compression: Option<MiniCqeFormat>,
    /// Bits of the counters that wrap soon.
    pub wrap: u32,
}

/// How to give back a held slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Give {
    Recycle,
    Release,
    /// Recycle it with another buffer.
    Rewrite,
}

/// A CQE that software has not taken, and what it must mean to the queue.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub queue: usize,
    pub spec: CqeSpec,
    pub completion: Completion,
}

/// A slot between its completion and its return.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub queue: usize,
    pub slot: u32,
    pub buffer: u32,
}

/// All that changes, but for the memory. A copy, and one of the memory, is a snapshot.
#[derive(Clone)]
pub struct State {
    pub queues: Vec<Queue>,
    pub cq: CompletionQueue,
    pub producer: CqDevice,
    pub arrived: VecDeque<Arrived>,
    pub held: Vec<Held>,
    pub owners: Vec<(Owner, Shape)>,
    /// Where to look for a free buffer.
    hint: usize,
    /// Bytes that were stored to WQEs of full queues.
    pub stored: usize,
}

pub struct Rig {
    pub state: State,
    pub buffers: Buffers,
    pub memory: Arena,
}

impl core::ops::Deref for Rig {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl core::ops::DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Does something with a queue. Checks that it stores nothing to the WQEs of a queue without a free slot, but to links
/// of an SRQ, and returns the number of bytes.
fn full_stores(ring: &mut Ring, device: &Device, step: impl FnOnce(&mut Ring)) -> usize {
    let is_full = match &*ring {
        Ring::Srq(srq) => srq.is_loaded(),
        Ring::Ordered(srq) => srq.is_loaded(),
        Ring::Rq(rq) => rq.free_slots() == 0,
    };
    if !is_full || device.slots > 64 {
        step(ring);
        return 0;
    }
    let stores = device.stores(|| step(ring));
    let allowed = |at: &usize| device.is_srq() && (2..4).contains(&(at % device.stride));
    assert!(stores.iter().all(allowed), "a full queue stores to its WQEs: {stores:?}");
    stores.len()
}

/// Number of the QP on which messages for a queue arrive.
pub fn qpn(queue: usize) -> u32 {
    0x70 + queue as u32
}

impl Rig {
    pub fn new(setup: &Setup) -> Self {
        let mut memory = Arena::default();
        let producer = CqDevice::new(&mut memory, setup.cqes, setup.cqe_size);
        let mut cq = producer.queue();
        if let Some(format) = setup.compression {
            cq = cq.with_compression(format).unwrap();
        }
        let queues = setup.queues.iter();
        let queues: Vec<_> =
            queues.map(|&(kind, slots, stride)| Queue::new(&mut memory, kind, slots, stride)).collect();
        // One more than the queues hold, so that a free one is always there.
        let count = 1 + queues.iter().map(|queue| queue.device.slots).sum::<u32>();
        let shape = |id| (Owner::Test, Shape(1 + (id % 2) as u8));
        let state = State {
            queues,
            cq,
            producer,
            arrived: VecDeque::new(),
            held: Vec::new(),
            owners: (0..count).map(shape).collect(),
            hint: 0,
            stored: 0,
        };
        let mut rig = Self { state, buffers: Buffers::new(count as usize), memory };
        rig.wrap_soon(setup.wrap);
        rig
    }

    /// Puts all running counters where their lower `bits` bits wrap in the next lap or two, and changes nothing else.
    pub fn wrap_soon(&mut self, bits: u32) {
        let State { queues, cq, producer, arrived, .. } = &mut self.state;
        let (laps, index, end) = (2 * producer.count, cq.consumer_index(), (1u64 << bits) as u32);
        let by = (index & (laps - 1)).wrapping_sub(laps).wrapping_add(end).wrapping_sub(index);
        cq.shift(by);
        producer.shift(by);
        for (i, queue) in queues.iter_mut().enumerate() {
            let by = queue.shift(end);
            if queue.device.is_srq() {
                continue;
            }
            for (at, cqe) in arrived.iter_mut().enumerate().filter(|(_, cqe)| cqe.queue == i) {
                cqe.spec.wqe_counter = cqe.spec.wqe_counter.wrapping_add(by as u16);
                let index = cq.consumer_index().wrapping_add(at as u32);
                producer.set_counter(index, cqe.spec.wqe_counter);
            }
        }
    }

    fn free_buffer(&mut self) -> u32 {
        let count = self.owners.len();
        let mut from = (self.hint..count).chain(0..self.hint);
        let free = from.find(|&id| self.owners[id].0 == Owner::Test);
        self.hint = free.expect("there is one more buffer than slots");
        self.hint as u32
    }

    fn sges(&self, id: u32) -> Vec<Sge> {
        self.buffers.sges(id, self.owners[id as usize].1).collect()
    }

    /// Chooses the pieces of a buffer for the next time it is posted.
    pub fn reshape(&mut self, shape: u8) {
        let id = self.free_buffer();
        self.owners[id as usize].1 = Shape(shape);
    }

    /// Posts a buffer, without a doorbell. Returns whether there was room.
    pub fn post(&mut self, queue: usize) -> bool {
        self.give_back(queue);
        let id = self.free_buffer();
        let State { queues, .. } = &self.state;
        let sges = self.sges(id);
        let Queue { device, .. } = &queues[queue];
        let room = on!(&queues[queue].ring, ring => ring.free_slots() > 0 && match &queues[queue].ring {
            Ring::Srq(_) | Ring::Ordered(_) => true,
            // A receive queue posts in order: the next slot may be in use while another one is free.
            Ring::Rq(rq) => {
                let next = rq.posted() & (device.slots - 1);
                ring.slots().state(next) == SlotState::Free
            }
        });
        let ring = &mut self.state.queues[queue].ring;
        // SAFETY: the ledger gives the buffer to the queue, and no other code touches it then.
        let result = on!(ring, ring => unsafe { ring.post(id, &sges) });
        let fits = sges.len() <= on!(&*ring, ring => ring.max_sge()) as usize;
        match result {
            Ok(index) => {
                // SAFETY: the slot is not free.
                let name = on!(&*ring, ring => unsafe { ring.data(index % ring.slots().count()) });
                assert_eq!((name, room, fits), (id, true, true));
                self.owners[id as usize].0 = Owner::Queue(queue);
            }
            Err(PostError::Full) => assert!(!room && fits, "full too early"),
            Err(PostError::TooManySges) => assert!(!fits),
        }
        result.is_ok()
    }

    /// Returns the slot of a receive queue that is posted next.
    pub fn head(&self, queue: usize) -> u32 {
        match &self.queues[queue].ring {
            Ring::Rq(rq) => rq.posted() & (self.queues[queue].device.slots - 1),
            Ring::Srq(srq) => srq.head_slot(),
            Ring::Ordered(srq) => srq.tail(),
        }
    }

    /// Returns whether an SRQ has just one free slot, which has no buffer.
    pub fn can_load(&self, queue: usize) -> bool {
        match &self.queues[queue].ring {
            Ring::Srq(srq) => srq.free_slots() == 0 && !srq.is_loaded(),
            Ring::Ordered(srq) => srq.free_slots() == 0 && !srq.is_loaded(),
            Ring::Rq(_) => false,
        }
    }

    /// Loads the last free slot of an SRQ. Returns whether that can be done now.
    pub fn load(&mut self, queue: usize) -> bool {
        self.give_back(queue);
        let (id, can) = (self.free_buffer(), self.can_load(queue));
        let sges = self.sges(id);
        let ring = &mut self.state.queues[queue].ring;
        let fits = sges.len() <= on!(&*ring, ring => ring.max_sge()) as usize;
        // SAFETY: as for `post`.
        let loaded = unsafe {
            match ring {
                Ring::Srq(srq) => srq.load(id, &sges),
                Ring::Ordered(srq) => srq.load(id, &sges),
                Ring::Rq(_) => return false,
            }
        };
        match loaded {
            Ok(()) => self.owners[id as usize].0 = Owner::Queue(queue),
            Err(PostError::Full) => assert!(!can),
            Err(PostError::TooManySges) => assert!(can && !fits),
        }
        can && fits
    }

    /// Takes the next CQE, if there is one. A slot that completed is held from then on.
    pub fn next(&mut self) -> bool {
        let State { queues, cq, arrived, held, owners, .. } = &mut self.state;
        let Some(cqe) = cq.next() else {
            assert!(arrived.is_empty(), "a CQE was not seen");
            return false;
        };
        assert!(!arrived.is_empty(), "a CQE that the device owns was taken");
        let Arrived { queue, spec, completion } = arrived.pop_front().unwrap();
        assert_eq!((cqe.wqe_counter(), cqe.byte_count()), (spec.wqe_counter, spec.byte_count));
        assert_eq!(cqe.qpn(), spec.qpn);
        let is_inline = matches!(spec.format, CqeFormat::Inline32 | CqeFormat::Inline64);
        let (Queue { ring, device }, format) = (&mut queues[queue], cqe.format());
        // SAFETY: a CQE of this queue, whose buffers are memory of this process.
        assert_eq!(on!(ring, ring => unsafe { receive::complete(ring, cqe) }), completion);
        let (Completion::Message(slot) | Completion::Failed(slot)) = completion else {
            return true;
        };
        if !is_inline {
            assert_eq!(format, CqeFormat::Plain);
        }
        device.polled(slot);
        // SAFETY: it is held.
        let buffer = on!(&*ring, ring => unsafe { ring.data(slot) });
        let (owner, shape) = &mut owners[buffer as usize];
        assert_eq!(*owner, Owner::Queue(queue), "buffer {buffer}");
        *owner = Owner::Held;
        if is_inline && matches!(completion, Completion::Message(_)) {
            let most = match (spec.opcode, spec.format) {
                (CqeOpcode::ResponderWriteImm, _) => 0,
                (_, CqeFormat::Inline32) => 32,
                _ => 64,
            };
            self.buffers.check_payload(buffer, *shape, spec.byte_count.min(most), spec.payload);
        }
        held.push(Held { queue, slot, buffer });
        true
    }

    /// Gives back the slots that were lent, as the kinds of queues want it before anything else.
    fn give_back(&mut self, queue: usize) {
        let State { queues, stored, .. } = &mut self.state;
        let Queue { ring, device } = &mut queues[queue];
        if !matches!(ring, Ring::Ordered(_)) {
            *stored += full_stores(ring, device, |ring| on!(ring, ring => ring.give_back()));
        }
    }

    /// Gives back the held slot at `at`.
    pub fn give(&mut self, at: usize, how: Give) {
        self.give_back(self.held[at].queue);
        let Held { queue, slot, buffer } = self.held[at];
        let spare = self.free_buffer();
        let segment = {
            let whole = self.buffers.sges(spare, Shape::WHOLE).next().unwrap();
            DataSegment::new(whole.addr, whole.length, whole.lkey)
        };
        let State { queues, held, owners, stored, .. } = &mut self.state;
        held.remove(at);
        owners[buffer as usize].0 = if how == Give::Recycle { Owner::Queue(queue) } else { Owner::Test };
        let Queue { ring, device } = &mut queues[queue];
        // SAFETY: the slot is held until now; the ledger gives its buffer to the queue, or takes it.
        unsafe {
            match how {
                Give::Release => return on!(ring, ring => ring.release(slot)),
                Give::Recycle => {}
                Give::Rewrite => {
                    owners[spare as usize] = (Owner::Queue(queue), Shape::WHOLE);
                    on!(ring, ring => ring.rewrite(slot, spare, segment));
                }
            }
        }
        // SAFETY: as above.
        *stored += full_stores(ring, device, |ring| on!(ring, ring => unsafe { ring.recycle(slot) }));
    }

    /// Takes the next CQE, which is of a message, and lends its slot; the buffer goes back to the queue or is taken
    /// out. Returns `false` if there is no such CQE.
    pub fn lend(&mut self, takes: bool) -> bool {
        let State { queues, cq, arrived, owners, stored, .. } = &mut self.state;
        let Some(&Arrived { queue, completion: Completion::Message(slot), spec }) = arrived.front() else {
            return false;
        };
        if spec.format != CqeFormat::Plain {
            return false;
        }
        arrived.pop_front();
        let cqe = cq.next().expect("it has arrived");
        let Queue { ring, device } = &mut queues[queue];
        assert_eq!(on!(&*ring, ring => ring.posted_slot(cqe.wqe_counter())), Some(slot));
        device.polled(slot);
        // SAFETY: the slot is posted.
        let buffer = on!(&*ring, ring => unsafe { ring.data(slot) });
        // SAFETY: the slot was returned above; the ledger gives its buffer to the queue, or takes it.
        *stored += full_stores(ring, device, |ring| on!(ring, ring => unsafe { ring.lend(slot) }));
        // SAFETY: the slot is lent.
        assert_eq!(on!(&*ring, ring => unsafe { ring.data(slot) }), buffer, "another buffer is lent");
        if takes {
            // SAFETY: as above.
            on!(ring, ring => unsafe { ring.release_lent(slot) });
            owners[buffer as usize].0 = Owner::Test;
        }
        true
    }

    /// Gives all CQEs that were taken back to the device.
    pub fn publish(&mut self) {
        self.cq.publish();
        assert_eq!(self.producer.record(), self.cq.consumer_index() & 0xff_ffff);
    }

    /// Rings the doorbell of a queue; the device looks.
    pub fn ring_doorbell(&mut self, queue: usize) {
        let State { queues, stored, .. } = &mut self.state;
        let Queue { ring, device } = &mut queues[queue];
        *stored += full_stores(ring, device, |ring| on!(ring, ring => ring.give_back()));
        on!(&mut *ring, ring => ring.ring_doorbell());
        on!(&*ring, ring => ring.check_rung());
        let new = device.look();
        let first = device.queue.len() - new;
        for i in first..device.queue.len() {
            let Queue { ring, device } = &self.queues[queue];
            let slot = device.queue[i].into();
            let id = on!(ring, ring => ring.slots().posted(slot)).expect("the slot is posted");
            let (owner, shape) = self.owners[id as usize];
            assert_eq!(owner, Owner::Queue(queue), "buffer {id}");
            assert!(device.segments(slot).eq(self.buffers.segments(id, shape)), "WQE in slot {slot}");
        }
        assert!(self.owed() <= self.producer.room(), "the CQ can overrun");
    }

    /// Ends a batch, as the safe layer does.
    pub fn end(&mut self) {
        self.publish();
        (0..self.queues.len()).for_each(|queue| self.ring_doorbell(queue));
    }

    /// Returns the number of CQEs that the device owes.
    pub fn owed(&self) -> u32 {
        self.queues.iter().map(|queue| queue.device.queue.len() as u32).sum()
    }

    /// Completes the WQE that is `position`th with the device. `spec` says how, but for counter and QP.
    pub fn complete(&mut self, queue: usize, position: usize, spec: CqeSpec) {
        let slot = self.queues[queue].device.complete(position);
        let Queue { ring, device } = &self.queues[queue];
        let spec = CqeSpec { wqe_counter: device.counter(slot), qpn: qpn(queue), ..spec };
        let id = on!(ring, ring => ring.slots().posted(slot)).expect("the slot is posted");
        self.buffers.clear(id);
        let completion = match spec.opcode {
            CqeOpcode::ResponderError => Completion::Failed(slot),
            _ => Completion::Message(slot),
        };
        self.producer.write(&spec);
        self.arrived.push_back(Arrived { queue, spec, completion });
    }

    /// Completes the WQEs from `position` on, as many of `count` as have counters that follow each other, as a
    /// compressed block. Returns whether there were two at least.
    pub fn complete_block(&mut self, queue: usize, position: usize, count: usize) -> bool {
        let Queue { ring, device } = &mut self.state.queues[queue];
        let first = device.counter(device.queue[position].into());
        let follows = |i: usize| device.counter(device.queue[position + i].into()) == first.wrapping_add(i as u16);
        let most = count.min(device.queue.len() - position);
        let count = (0..most).take_while(|&i| follows(i)).count();
        if count < 2 {
            return false;
        }
        let title = CqeSpec { qpn: qpn(queue), ..CqeSpec::new(CqeOpcode::ResponderSend, first) };
        let mut minis = Vec::new();
        for i in 0..count as u16 {
            let slot = device.complete(position);
            assert!(on!(&*ring, ring => ring.slots().posted(slot)).is_some());
            let byte_count = 1000 + u32::from(i);
            let spec = CqeSpec { wqe_counter: first.wrapping_add(i), byte_count, ..title };
            minis.push((u64::from(!i) << 32 | u64::from(byte_count)).to_be_bytes());
            self.state.arrived.push_back(Arrived { queue, spec, completion: Completion::Message(slot) });
        }
        self.state.producer.write_block(&title, &minis);
        true
    }

    /// Takes all buffers of a queue back: its QP was reset, or the SRQ destroyed. The slots that are held stay their
    /// holders', who do not give them back.
    pub fn reset(&mut self, queue: usize) {
        let State { queues, cq, arrived, held, owners, .. } = &mut self.state;
        let Queue { ring, device } = &mut queues[queue];
        device.reset();
        let before = arrived.len();
        arrived.retain(|cqe| cqe.queue != queue);
        assert_eq!(cq.purge(|cqe| cqe.qpn() == qpn(queue)) as usize, before - arrived.len());
        for held in held.iter().filter(|held| held.queue == queue) {
            owners[held.buffer as usize].0 = Owner::Test;
        }
        held.retain(|held| held.queue != queue);
        let back = |id: u32| {
            let was = core::mem::replace(&mut owners[id as usize].0, Owner::Test);
            assert_eq!(was, Owner::Queue(queue), "buffer {id}");
        };
        match ring {
            Ring::Srq(srq) => srq.drain(back),
            Ring::Ordered(srq) => srq.drain(back),
            Ring::Rq(rq) => rq.reset(back),
        }
        assert!(owners.iter().all(|(owner, _)| *owner != Owner::Queue(queue)), "buffers are lost");
    }
}
