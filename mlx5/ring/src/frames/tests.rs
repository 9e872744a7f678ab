//! Random frames against a device that fills WQEs as the sheet of the hardware says, and keeps a ledger of buffers.

use core::ptr::NonNull;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use mlx5_wire::data::DataSegment;
use mlx5_wire::frame::{StrideCount, StridingWqe};
use mlx5_wire::opcode::CqeOpcode::{Requester, ResponderError, ResponderSend};

use super::{Completion, Frame, FrameBuffer, FrameQueue, Shape, Strides};
use crate::cq::CompletionQueue;
use crate::rq::{Layout, LayoutError};
use crate::testing::{Arena, CqDevice, CqeSpec, Random, cases, seed};

const LKEY: u32 = 0x1805;
const STRIDE: u32 = 32;

/// The owner of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Device,
    Holder,
}

/// Contents of the next CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Frame { wqe: u32, buffer: u32, offset: u32, len: u32 },
    Filler,
    Failed,
}

struct World {
    _arena: Arena,
    ring: FrameQueue,
    cq: CompletionQueue,
    producer: CqDevice,
    layout: Layout,
    shape: Shape,
    /// First byte of the first buffer.
    memory: NonNull<u8>,
    /// WQEs that the device has seen, and those of them that it has filled.
    seen: u16,
    filled: u32,
    /// Strides that it has filled of the next one.
    used: u32,
    expected: VecDeque<Expected>,
    owners: Vec<Owner>,
    has_masked_ids: bool,
}

fn layout(arena: &mut Arena, slots: u32) -> (Layout, NonNull<FrameBuffer>) {
    let buf = arena.cut::<u8>((slots * STRIDE) as usize);
    // SAFETY: memory of the arena.
    unsafe { buf.write_bytes(0xee, (slots * STRIDE) as usize) }
    let layout = Layout { buf, dbrec: arena.cut(8), wqe_cnt: slots, stride: STRIDE };
    (layout, arena.cut(slots as usize * size_of::<FrameBuffer>()))
}

impl World {
    /// A queue, and as many buffers again.
    fn new(slots: u32, shape: Shape) -> Self {
        let mut arena = Arena::default();
        let (layout, storage) = layout(&mut arena, slots);
        // Exactly one CQE for each stride.
        let producer = CqDevice::new(&mut arena, slots * shape.completions(), 64);
        let memory = arena.cut::<u8>((2 * slots * shape.bytes()) as usize);
        let posted = (0..slots).map(|index| buffer(memory, shape, index));
        // SAFETY: memory of the arena, which the value keeps.
        let ring = unsafe { FrameQueue::new(layout, shape, LKEY, storage, posted) }.unwrap();
        let mut owners = vec![Owner::Nobody; 2 * slots as usize];
        owners[..slots as usize].fill(Owner::Device);
        let mut world = Self {
            ring,
            cq: producer.queue(),
            producer,
            layout,
            shape,
            memory,
            seen: 0,
            filled: 0,
            used: 0,
            expected: VecDeque::new(),
            owners,
            has_masked_ids: false,
            _arena: arena,
        };
        world.look();
        assert_eq!(world.seen, 0, "a doorbell that no call rang");
        world.end();
        world
    }

    fn strides(&self) -> Strides {
        match self.shape {
            Shape::Plain(size) => Strides { count: 1, size },
            Shape::Striding(strides) => strides,
        }
    }

    /// The number of the WQE that the device fills, in one of two forms.
    fn wqe_id(&self) -> u16 {
        if self.has_masked_ids { (self.filled & (self.layout.wqe_cnt - 1)) as u16 } else { self.filled as u16 }
    }

    fn set_owner(&mut self, buffer: u32, from: Owner, to: Owner) {
        assert_eq!(std::mem::replace(&mut self.owners[buffer as usize], to), from, "{buffer}");
    }

    /// The device reads the doorbell record.
    fn look(&mut self) {
        // SAFETY: a doorbell record of the arena.
        let record = unsafe { self.layout.dbrec.read_volatile() }.get();
        let posted = (record as u16).wrapping_sub(self.filled as u16);
        assert!(record <= 0xffff && u32::from(posted) <= self.layout.wqe_cnt, "{posted} WQEs");
        self.seen = record as u16;
    }

    fn has_wqe(&self) -> bool {
        self.filled as u16 != self.seen
    }

    /// Returns the buffer of the WQE that the device fills, from the bytes of that WQE.
    fn buffer(&self) -> u32 {
        let slot = self.filled & (self.layout.wqe_cnt - 1);
        // SAFETY: a WQE of the queue.
        let wqe = unsafe { self.layout.buf.add((slot * STRIDE) as usize).cast::<[u8; 32]>().read() };
        let wqe = match self.shape {
            Shape::Striding(_) => StridingWqe::from_bytes(&wqe),
            Shape::Plain(_) => {
                let [data, end] = [0, 16].map(|at| DataSegment::from_bytes(wqe[at..at + 16].try_into().unwrap()));
                assert_eq!(end, DataSegment::TERMINATOR);
                StridingWqe::new(data)
            }
        };
        let StridingWqe { next, byte_count, lkey, addr } = wqe;
        assert_eq!((next, lkey.get(), byte_count.get()), ([0; 16], LKEY, self.shape.bytes()));
        let offset = addr.get() - self.memory.as_ptr().addr() as u64;
        assert_eq!(offset % u64::from(self.shape.bytes()), 0);
        let buffer = (offset / u64::from(self.shape.bytes())) as u32;
        assert_eq!(self.owners[buffer as usize], Owner::Device, "a buffer with two owners");
        buffer
    }

    fn write(&mut self, first: u32, byte_count: u32) {
        let spec = match self.shape {
            Shape::Plain(_) => CqeSpec::new(ResponderSend, self.filled as u16),
            Shape::Striding(_) => CqeSpec { wqe_id: self.wqe_id(), ..CqeSpec::new(ResponderSend, first as u16) },
        };
        self.producer.write(&CqeSpec { byte_count, ..spec });
    }

    /// Takes `strides` more of the WQE.
    fn consume(&mut self, strides: u32) {
        self.used += strides;
        if self.used == self.strides().count {
            self.filled = self.filled.wrapping_add(1);
            self.used = 0;
        }
    }

    /// A frame comes from the wire. Returns whether the device had room for it.
    fn frame(&mut self, len: u32) -> bool {
        self.look();
        let Strides { count, size } = self.strides();
        let strides = len.div_ceil(size);
        if strides > count || !self.has_wqe() {
            return false;
        }
        let left = count - self.used;
        if strides > left {
            self.buffer();
            self.write(self.used, StrideCount::filler(left).0);
            self.consume(left);
            self.expected.push_back(Expected::Filler);
        }
        if !self.has_wqe() {
            return false;
        }
        let (wqe, buffer, first) = (self.filled, self.buffer(), self.used);
        let byte_count = match self.shape {
            Shape::Plain(_) => len,
            Shape::Striding(_) => StrideCount::frame(len as u16, strides).0,
        };
        self.write(first, byte_count);
        let offset = first * size;
        self.consume(strides);
        self.expected.push_back(Expected::Frame { wqe, buffer, offset, len });
        true
    }

    /// The WQE fails, as all do when the WQ goes to error.
    fn fail(&mut self) {
        self.look();
        if self.has_wqe() {
            self.buffer();
            let counter = if let Shape::Plain(_) = self.shape { self.filled as u16 } else { 0 };
            self.producer.write(&CqeSpec::new(ResponderError, counter));
            self.consume(self.strides().count - self.used);
            self.expected.push_back(Expected::Failed);
        }
    }

    /// Takes a CQE, as a batch does, and compares. Returns whether there was one.
    fn next(&mut self) -> bool {
        let Some(cqe) = self.cq.next() else {
            assert!(self.expected.is_empty());
            return false;
        };
        let held = self.ring.held();
        let completion = match self.ring.frame(cqe) {
            Some(frame) => Completion::Frame(frame),
            None => self.ring.complete(cqe),
        };
        match (self.expected.pop_front().unwrap(), completion) {
            (Expected::Frame { wqe, buffer: index, offset, len }, Completion::Frame(frame)) => {
                let whole = buffer(self.memory, self.shape, index);
                // SAFETY: in the buffer.
                let start = unsafe { whole.start.add(offset as usize) };
                assert_eq!(frame, Frame { wqe, start, len: len as usize });
                assert_eq!(self.ring.buffer(wqe), whole);
            }
            (Expected::Filler, Completion::Filler) | (Expected::Failed, Completion::Failed) => {}
            (expected, completion) => panic!("{completion:?} for {expected:?}"),
        }
        if self.ring.held() > held {
            let buffer = self.ring.held_buffer(held).index;
            self.set_owner(buffer, Owner::Device, Owner::Holder);
        }
        true
    }

    /// Gives back the oldest of the held WQEs: with their buffers, or with others, while the holder keeps those that
    /// frames were taken out of.
    fn give(&mut self, count: u32, with_others: bool) {
        for at in 0..count {
            let old = self.ring.held_buffer(at).index;
            let is_free = |owner: &Owner| *owner == Owner::Nobody;
            let other = self.owners.iter().position(is_free).unwrap() as u32;
            let new = if with_others { other } else { old };
            self.set_owner(old, Owner::Holder, Owner::Nobody);
            if new != old {
                self.ring.replace(at, buffer(self.memory, self.shape, new));
            }
            self.set_owner(new, Owner::Nobody, Owner::Device);
        }
        // SAFETY: the ledger gives the buffers to the queue.
        unsafe { self.ring.recycle(count) };
    }

    fn end(&mut self) {
        self.cq.publish();
        self.ring.ring_doorbell();
    }

    fn write_cqe(&mut self, spec: CqeSpec) -> Completion {
        self.producer.write(&spec);
        let cqe = self.cq.next().unwrap();
        match self.ring.frame(cqe) {
            Some(frame) => Completion::Frame(frame),
            None => self.ring.complete(cqe),
        }
    }
}

fn buffer(memory: NonNull<u8>, shape: Shape, index: u32) -> FrameBuffer {
    // SAFETY: inside the memory of the world.
    FrameBuffer { start: unsafe { memory.add((index * shape.bytes()) as usize) }, index }
}

fn run(random: &mut Random, slots: u32, shape: Shape, steps: u32) {
    let mut world = World::new(slots, shape);
    for _ in 0..steps {
        for _ in 0..random.below(2 * shape.completions().max(slots)) {
            // Up to a whole WQE, and one byte more.
            let any = random.below(shape.bytes()) + 2;
            let len = random.pick(&[60, 64, 65, any]);
            world.frame(len.min(0xffff));
            if random.once_in(40) {
                world.fail();
            }
        }
        while !random.once_in(32) && world.next() {}
        world.give(random.below(world.ring.held() + 1), random.once_in(2));
        // A batch that was forgotten.
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
        let plain = Shape::Plain(random.pick(&[64, 100, 2048]));
        let slots = 1 << random.below(5);
        let shape = random.pick(&[plain, Shape::Striding(strides)]);
        run(random, slots, shape, 40);
    }
}

/// Past the end of the 16 bits of a WQE's index.
#[test]
fn the_index_of_a_wqe_wraps() {
    let striding = Shape::Striding(Strides { count: 2, size: 64 });
    for (shape, has_masked_ids) in [(Shape::Plain(128), false), (striding, false), (striding, true)] {
        let random = &mut Random::new(seed());
        let mut world = World { has_masked_ids, ..World::new(4, shape) };
        for round in 0..70_000 {
            world.frame(60 + random.below(69));
            while world.next() {}
            world.give(world.ring.held(), round % 2 == 0);
            world.end();
        }
        assert!(world.ring.completed() > 65_536);
        assert_eq!(world.ring.has_masked_ids(), (shape == striding).then_some(has_masked_ids));
    }
}

/// Frames of every length that a WQE holds start where the ones before ended.
#[test]
fn every_length_up_to_a_whole_wqe() {
    let shape = Shape::Striding(Strides { count: 8, size: 128 });
    for len in 1..=shape.bytes() {
        let mut world = World::new(2, shape);
        while world.frame(len) {}
        while world.next() {}
        // A filler has ended the second WQE, if it did not end with a frame.
        assert_eq!((world.filled, world.used, world.ring.held()), (2, 0, 2), "{len} bytes");
    }
}

/// CQEs that no device writes change nothing: the frames after them arrive.
#[test]
fn stray_cqes_change_nothing() {
    let shape = Shape::Striding(Strides { count: 4, size: 64 });
    let good = StrideCount::frame(64, 1).0;
    for (wqe_id, first, byte_count) in [
        // The index of the WQE is looked at where a WQE starts and ends.
        (1, 1, StrideCount::frame(192, 3).0),
        (1, 1, StrideCount::filler(3).0),
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
        let mut world = World::new(1, shape);
        assert!(world.frame(64) && world.next());
        let spec = CqeSpec { wqe_id, byte_count, ..CqeSpec::new(ResponderSend, first) };
        let completion = world.write_cqe(spec);
        assert_eq!(completion, Completion::Stray, "{wqe_id} {first} {byte_count:#x}");
        assert_eq!(world.write_cqe(CqeSpec::new(Requester, 0)), Completion::NotAReceive);
        assert!(world.frame(192) && world.next() && world.ring.held() == 1);
        world.cq.publish();
        // Nothing is posted: the same again, for the WQE that would be next, and an error.
        let spec = CqeSpec { wqe_id: 1, byte_count: good, ..CqeSpec::new(ResponderSend, 0) };
        assert_eq!(world.write_cqe(spec), Completion::Stray);
        assert_eq!(world.write_cqe(CqeSpec::new(ResponderError, 0)), Completion::Stray);
    }
}

#[test]
fn stray_cqes_of_plain_queues_change_nothing() {
    for (opcode, counter, byte_count) in [
        (ResponderSend, 0, 60),
        (ResponderSend, 2, 60),
        (ResponderSend, 1, 65),
        (ResponderSend, 1, !0),
        (ResponderError, 0, 0),
        (ResponderError, 0x101, 0),
    ] {
        let mut world = World::new(2, Shape::Plain(64));
        assert!(world.frame(64) && world.next());
        let spec = CqeSpec { byte_count, ..CqeSpec::new(opcode, counter) };
        assert_eq!(world.write_cqe(spec), Completion::Stray, "{spec:?}");
        world.cq.publish();
        assert!(world.frame(60) && world.next() && world.ring.held() == 2);
        let spec = CqeSpec::new(ResponderSend, 2);
        assert_eq!(world.write_cqe(spec), Completion::Stray, "nothing is posted");
    }
}

/// Strides that a device skips before a frame are over with it.
#[test]
fn padding_may_come_before_the_frame() {
    let mut world = World::new(1, Shape::Striding(Strides { count: 4, size: 64 }));
    let byte_count = StrideCount::frame(100, 4).0;
    let completion = world.write_cqe(CqeSpec { byte_count, ..CqeSpec::new(ResponderSend, 2) });
    // SAFETY: in the only buffer.
    let start = unsafe { world.memory.add(128) };
    assert_eq!(completion, Completion::Frame(Frame { wqe: 0, start, len: 100 }));
    assert_eq!(world.ring.held(), 1);
}

/// A caller that adds up what fillers say was dropped sees the next frame in `complete`.
#[test]
fn the_frame_after_a_filler_takes_the_slow_path() {
    let mut world = World::new(2, Shape::Striding(Strides { count: 8, size: 64 }));
    // A filler in the middle of a WQE, and one that ends it.
    for (wqe_id, first, filled) in [(0, 3, 2), (1, 0, 3)] {
        let frame = |first| CqeSpec {
            wqe_id: 0,
            byte_count: StrideCount::frame(64, 1).0,
            ..CqeSpec::new(ResponderSend, first)
        };
        if wqe_id == 0 {
            assert!(matches!(world.write_cqe(frame(0)), Completion::Frame(_)));
        }
        let byte_count = StrideCount::filler(if wqe_id == 0 { filled } else { 4 }).0;
        let filler = CqeSpec { byte_count, ..CqeSpec::new(ResponderSend, 1) };
        assert_eq!(world.write_cqe(filler), Completion::Filler);
        world.producer.write(&CqeSpec { wqe_id, ..frame(first) });
        let cqe = world.cq.next().unwrap();
        assert_eq!(world.ring.frame(cqe), None);
        assert!(matches!(world.ring.complete(cqe), Completion::Frame(_)));
    }
}

/// The queue reports every buffer that was posted and has not completed, before and after the doorbell.
#[test]
fn posted_buffers_are_those_the_device_may_write() {
    let mut world = World::new(4, Shape::Striding(Strides { count: 4, size: 64 }));
    assert!(world.frame(256) && world.frame(256) && world.frame(64));
    while world.next() {}
    let posted = |world: &World| {
        let mut posted = Vec::new();
        world.ring.posted(|buffer| posted.push(buffer.index));
        posted
    };
    assert_eq!(posted(&world), [2, 3]);
    world.give(1, true);
    assert_eq!(posted(&world), [2, 3, 4]);
}

#[test]
#[should_panic = "WQE 1 of 1 that are held"]
fn only_held_wqes_are_written() {
    let mut world = World::new(4, Shape::Plain(64));
    assert!(world.frame(64) && world.next());
    world.ring.replace(1, buffer(world.memory, world.shape, 4));
}

#[test]
fn layouts_that_no_wqe_can_be_written_for_are_refused() {
    let mut arena = Arena::default();
    let (layout, slots) = layout(&mut arena, 2);
    let refused = |layout, shape| {
        let none = FrameBuffer { start: NonNull::dangling(), index: 0 };
        // SAFETY: memory of the arena; nothing is handed over.
        unsafe { FrameQueue::new(layout, shape, LKEY, slots, [none; 2]) }.err()
    };
    let striding = |count, size| Shape::Striding(Strides { count, size });
    assert_eq!(refused(layout, striding(1 << 13, 64)), None);
    for (count, size) in [(1 << 14, 64), (0, 64), (3, 64), (4, 0), (4, 96), (4, 1 << 17)] {
        assert_eq!(refused(layout, striding(count, size)), Some(LayoutError::Stride));
    }
    let narrow = Layout { stride: 16, ..layout };
    assert_eq!(refused(narrow, striding(4, 64)), Some(LayoutError::Stride));
    assert_eq!(refused(narrow, Shape::Plain(64)), None);
    assert_eq!(refused(layout, Shape::Plain(0)), Some(LayoutError::Stride));
    let odd = Layout { wqe_cnt: 3, ..layout };
    assert_eq!(refused(odd, Shape::Plain(64)), Some(LayoutError::WqeCount));
}
