//! Random frames against a device that fills strides as the sheet of the hardware says, and keeps a ledger of buffers.

use core::ptr::NonNull;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use mlx5_wire::be::Be32;
use mlx5_wire::data::DataSegment;
use mlx5_wire::frame::{StrideCount, StridingWqe};
use mlx5_wire::opcode::CqeOpcode::{Requester, ResponderError, ResponderSend};

use super::{Completion, Place, Strides, StridingQueue};
use crate::cq::CompletionQueue;
use crate::receive::{PostError, ReceiveRing};
use crate::rq::{Layout, LayoutError};
use crate::slots::{Slot, SlotState};
use crate::testing::{Arena, CqDevice, CqeSpec, Random, cases, seed};

const LKEY: u32 = 0x1805;
const STRIDE: u32 = 32;

/// Who has a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Device,
    Holder,
}

/// What the next CQE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Frame { buffer: u32, offset: u32, len: u32, is_last: bool },
    Filler { is_last: bool },
    Failed,
}

struct World {
    _arena: Arena,
    ring: StridingQueue<u32>,
    cq: CompletionQueue,
    producer: CqDevice,
    wqes: NonNull<u8>,
    dbrec: NonNull<Be32>,
    slots: u32,
    strides: Strides,
    /// WQEs that the device has seen, and those of them that it has filled.
    seen: u16,
    filled: u16,
    /// Strides that it has filled of the next one.
    used: u32,
    expected: VecDeque<Expected>,
    owners: Vec<Owner>,
    /// Slots that completed and were not given back.
    held: Vec<u32>,
}

fn layout(arena: &mut Arena, slots: u32) -> (Layout, NonNull<Slot<u32>>) {
    let buf = arena.cut::<u8>((slots * STRIDE) as usize);
    // SAFETY: memory of the arena.
    unsafe { buf.write_bytes(0xee, (slots * STRIDE) as usize) }
    let layout = Layout { buf, dbrec: arena.cut(8), wqe_cnt: slots, stride: STRIDE };
    (layout, arena.cut(slots as usize * size_of::<Slot<u32>>()))
}

impl World {
    fn new(slots: u32, strides: Strides) -> Self {
        let mut arena = Arena::default();
        let (layout, storage) = layout(&mut arena, slots);
        let producer = CqDevice::new(&mut arena, (slots * strides.count).next_power_of_two(), 64);
        Self {
            // SAFETY: memory of the arena, which the value keeps.
            ring: unsafe { StridingQueue::new(layout, strides, storage) }.unwrap(),
            cq: producer.queue(),
            producer,
            wqes: layout.buf,
            dbrec: layout.dbrec,
            slots,
            strides,
            seen: 0,
            filled: 0,
            used: 0,
            expected: VecDeque::new(),
            owners: vec![Owner::Nobody; 2 * slots as usize],
            held: Vec::new(),
            _arena: arena,
        }
    }

    fn segment(&self, buffer: u32) -> DataSegment {
        let bytes = self.strides.bytes();
        DataSegment::new(u64::from(buffer + 1) * u64::from(bytes), bytes, LKEY)
    }

    fn ring(&mut self) -> &mut crate::rq::ReceiveQueue<u32> {
        // SAFETY: WQEs of one buffer of the right size are posted, and completed by `complete`.
        unsafe { self.ring.ring_mut() }
    }

    fn free_buffer(&self) -> u32 {
        self.owners.iter().position(|owner| *owner == Owner::Nobody).unwrap() as u32
    }

    /// Posts until the queue is full.
    fn fill(&mut self) {
        loop {
            let buffer = self.free_buffer();
            let segment = self.segment(buffer);
            // SAFETY: the ledger gives the buffer to the queue.
            match unsafe { self.ring().post_segment(buffer, segment) } {
                Ok(_) => self.owners[buffer as usize] = Owner::Device,
                Err(error) => return assert_eq!(error, PostError::Full),
            }
        }
    }

    /// The device reads the doorbell record.
    fn look(&mut self) {
        // SAFETY: a doorbell record of the arena.
        let record = unsafe { self.dbrec.read_volatile() }.get();
        let posted = (record as u16).wrapping_sub(self.filled);
        assert!(record <= 0xffff && u32::from(posted) <= self.slots, "{posted} WQEs posted");
        self.seen = record as u16;
    }

    /// Returns the buffer of the WQE that the device fills, from the bytes of that WQE.
    fn buffer(&self) -> u32 {
        let slot = u32::from(self.filled) & (self.slots - 1);
        // SAFETY: a WQE of the queue.
        let wqe = unsafe { self.wqes.add((slot * STRIDE) as usize).cast::<[u8; 32]>().read() };
        let StridingWqe { next, byte_count, lkey, addr } = StridingWqe::from_bytes(&wqe);
        assert_eq!((next, lkey.get()), ([0; 16], LKEY));
        assert_eq!(byte_count.get(), self.strides.bytes());
        let buffer = addr.get() / u64::from(self.strides.bytes()) - 1;
        assert_eq!(self.owners[buffer as usize], Owner::Device, "a buffer with two owners");
        buffer as u32
    }

    fn write(&mut self, first: u32, count: StrideCount) {
        self.producer.write(&CqeSpec {
            wqe_id: self.filled,
            byte_count: count.0,
            ..CqeSpec::new(ResponderSend, first as u16)
        });
    }

    /// Takes `strides` more of the WQE; returns whether they were its last.
    fn consume(&mut self, strides: u32) -> bool {
        self.used += strides;
        let is_last = self.used == self.strides.count;
        if is_last {
            self.filled = self.filled.wrapping_add(1);
            self.used = 0;
        }
        is_last
    }

    /// A frame comes from the wire. Returns whether the device had room for it.
    fn frame(&mut self, len: u32) -> bool {
        self.look();
        let strides = len.div_ceil(self.strides.size);
        if strides > self.strides.count || self.filled == self.seen {
            return false;
        }
        let left = self.strides.count - self.used;
        if strides > left {
            self.buffer();
            self.write(self.used, StrideCount::filler(left));
            let is_last = self.consume(left);
            self.expected.push_back(Expected::Filler { is_last });
        }
        if self.filled == self.seen {
            return false;
        }
        let (buffer, first) = (self.buffer(), self.used);
        self.write(first, StrideCount::frame(len as u16, strides));
        let offset = first * self.strides.size;
        let is_last = self.consume(strides);
        self.expected.push_back(Expected::Frame { buffer, offset, len, is_last });
        true
    }

    /// The WQE fails, as all do when the WQ goes to error.
    fn fail(&mut self) {
        self.look();
        if self.filled != self.seen {
            self.buffer();
            self.producer.write(&CqeSpec::new(ResponderError, 0));
            self.consume(self.strides.count - self.used);
            self.expected.push_back(Expected::Failed);
        }
    }

    /// Takes a CQE and compares. Returns whether there was one.
    fn next(&mut self) -> bool {
        let Some(cqe) = self.cq.next() else {
            assert!(self.expected.is_empty());
            return false;
        };
        let completion = self.ring.complete(cqe);
        let ended = match (self.expected.pop_front().unwrap(), completion) {
            (Expected::Frame { buffer, offset, len, is_last }, Completion::Frame(place)) => {
                let slot = place.slot;
                assert_eq!(place, Place { slot, offset, len, is_last });
                // SAFETY: the slot of a frame has data.
                assert_eq!(unsafe { self.ring().data(slot) }, buffer);
                is_last.then_some(slot)
            }
            (Expected::Filler { is_last }, Completion::Filler(slot)) => {
                assert_eq!(is_last, slot.is_some());
                slot
            }
            (Expected::Failed, Completion::Failed(slot)) => Some(slot),
            (expected, completion) => panic!("{completion:?} for {expected:?}"),
        };
        if let Some(slot) = ended {
            assert_eq!(self.ring().slots().state(slot), SlotState::Held);
            // SAFETY: held.
            let buffer = unsafe { self.ring().data(slot) };
            self.owners[buffer as usize] = Owner::Holder;
            self.held.push(slot);
        }
        true
    }

    /// Gives the held slot at `at` back: with its buffer, with another one while the first stays with who took a frame
    /// out of it, or without one.
    fn give(&mut self, at: usize, how: u32) {
        let slot = self.held.swap_remove(at);
        // SAFETY: held, here and below; the ledger gives the buffers to the queue.
        unsafe {
            let old = self.ring().data(slot);
            let new = match how {
                0 => old,
                1 => self.free_buffer(),
                _ => {
                    self.ring().release(slot);
                    self.owners[old as usize] = Owner::Nobody;
                    return;
                }
            };
            self.owners[old as usize] = Owner::Nobody;
            self.owners[new as usize] = Owner::Device;
            if new != old {
                let segment = self.segment(new);
                self.ring().rewrite(slot, new, segment);
            }
            self.ring().recycle(slot);
        }
    }

    fn end(&mut self) {
        self.cq.publish();
        self.ring().ring_doorbell();
    }
}

fn run(random: &mut Random, slots: u32, strides: Strides, steps: u32) {
    let mut world = World::new(slots, strides);
    for _ in 0..steps {
        if random.once_in(2) {
            world.fill();
            world.end();
        }
        for _ in 0..random.below(2 * strides.count) {
            // Up to a whole WQE, and one byte more.
            let any = random.below(strides.bytes()) + 2;
            let len = random.pick(&[60, 64, 65, any]);
            world.frame(len.min(0xffff));
            if random.once_in(40) {
                world.fail();
            }
        }
        while !random.once_in(32) && world.next() {
            while world.held.len() > random.below(3) as usize {
                let (at, how) = (random.below(world.held.len() as u32), random.below(3));
                world.give(at as usize, how);
            }
        }
        if !random.once_in(4) {
            world.end();
        }
    }
}

#[test]
fn random_frames() {
    let seed = seed();
    for case in 0..cases(400) {
        let random = &mut Random::new(seed + u64::from(case));
        let strides = Strides { count: 1 << random.below(6), size: 64 << random.below(5) };
        let slots = 1 << random.below(5);
        run(random, slots, strides, 40);
    }
}

/// Past the end of the 16 bits of a WQE's index.
#[test]
fn the_index_of_a_wqe_wraps() {
    let random = &mut Random::new(seed());
    let mut world = World::new(4, Strides { count: 2, size: 64 });
    for round in 0..70_000 {
        world.fill();
        world.end();
        world.frame(60 + random.below(69));
        while world.next() {
            while !world.held.is_empty() {
                world.give(0, round % 2);
            }
        }
    }
    assert!(world.filled < world.seen.wrapping_add(5) && world.ring.ring().head() > 65_536);
}

/// Frames of every length that a WQE holds start where the ones before ended.
#[test]
fn every_length_up_to_a_whole_wqe() {
    let strides = Strides { count: 8, size: 128 };
    for len in 1..=strides.bytes() {
        let mut world = World::new(2, strides);
        world.fill();
        world.end();
        while world.frame(len) {}
        while world.next() {}
        // A filler has ended the second WQE, if it did not end with a frame.
        assert_eq!((world.filled, world.used), (2, 0), "{len} bytes");
    }
}

/// What no device writes changes nothing: the frames after it arrive.
#[test]
fn stray_cqes_change_nothing() {
    let strides = Strides { count: 4, size: 64 };
    let good = StrideCount::frame(64, 1).0;
    for (wqe_id, first, byte_count) in [
        (1, 1, good),
        (0xffff, 1, good),
        (0, 0, good),
        (0, 4, good),
        (0, 0xffff, good),
        (0, 1, StrideCount::frame(64, 0).0),
        (0, 1, StrideCount::frame(64, 4).0),
        (0, 1, StrideCount::frame(65, 1).0),
        (0, 2, StrideCount::frame(65, 2).0),
        (0, 1, StrideCount::frame(0xffff, 0x3fff).0),
        (0, 1, StrideCount::filler(4).0),
        (0, 1, StrideCount::filler(0).0),
    ] {
        let mut world = World::new(1, strides);
        world.fill();
        world.end();
        assert!(world.frame(64) && world.next());
        world.producer.write(&CqeSpec { wqe_id, byte_count, ..CqeSpec::new(ResponderSend, first) });
        let completion = world.ring.complete(world.cq.next().unwrap());
        assert_eq!(completion, Completion::Stray, "{wqe_id} {first} {byte_count:#x}");
        world.producer.write(&CqeSpec::new(Requester, 0));
        assert_eq!(world.ring.complete(world.cq.next().unwrap()), Completion::NotAReceive);
        assert!(world.frame(192) && world.next() && world.held == [0]);
        world.cq.publish();
        // Nothing is posted: the same again, for the WQE that would be next, and an error.
        world.producer.write(&CqeSpec {
            wqe_id: 1,
            byte_count: good,
            ..CqeSpec::new(ResponderSend, 0)
        });
        assert_eq!(world.ring.complete(world.cq.next().unwrap()), Completion::Stray);
        world.producer.write(&CqeSpec::new(ResponderError, 0));
        assert_eq!(world.ring.complete(world.cq.next().unwrap()), Completion::Stray);
    }
}

/// Strides that a device skips before a frame are over with it.
#[test]
fn padding_may_come_before_the_frame() {
    let mut world = World::new(1, Strides { count: 4, size: 64 });
    world.fill();
    world.end();
    let count = StrideCount::frame(100, 4).0;
    world.producer.write(&CqeSpec { byte_count: count, ..CqeSpec::new(ResponderSend, 2) });
    let place = Place { slot: 0, offset: 128, len: 100, is_last: true };
    assert_eq!(world.ring.complete(world.cq.next().unwrap()), Completion::Frame(place));
}

#[test]
fn a_reset_takes_every_wqe_back() {
    let mut world = World::new(4, Strides { count: 4, size: 64 });
    world.fill();
    world.end();
    assert!(world.frame(300) | world.frame(256) && world.frame(64));
    while world.next() {}
    let mut back = Vec::new();
    world.ring.reset(|buffer| back.push(buffer));
    // One is with its holder.
    assert_eq!(back, [1, 2, 3]);
    // SAFETY: a doorbell record of the arena, which the reset zeroes.
    unsafe { world.dbrec.write_volatile(Be32::new(0)) }
    (world.seen, world.filled, world.used) = (0, 0, 0);
    world.owners.fill(Owner::Nobody);
    world.fill();
    world.end();
    assert!(world.frame(64) && world.next());
}

#[test]
fn layouts_that_no_wqe_can_be_written_for_are_refused() {
    let mut arena = Arena::default();
    let (layout, slots) = layout(&mut arena, 2);
    let refused = |layout, count, size| {
        // SAFETY: memory of the arena.
        unsafe { StridingQueue::<u32>::new(layout, Strides { count, size }, slots) }.err()
    };
    assert_eq!(refused(layout, 1 << 13, 64), None);
    for (count, size) in [(1 << 14, 64), (0, 64), (3, 64), (4, 0), (4, 96), (4, 1 << 17)] {
        assert_eq!(refused(layout, count, size), Some(LayoutError::Stride));
    }
    assert_eq!(refused(Layout { stride: 16, ..layout }, 4, 64), Some(LayoutError::Stride));
    assert_eq!(refused(Layout { wqe_cnt: 3, ..layout }, 4, 64), Some(LayoutError::WqeCount));
}
