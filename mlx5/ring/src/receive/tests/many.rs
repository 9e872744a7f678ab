//! Posting many WQEs and completing them without more ado: as one by one.

use core::ptr::NonNull;
use std::thread;
use std::vec::Vec;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::{Cqe64, CqeFormat, op_own};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::super::ReceiveRing;
use crate::completion::Cqe;
use crate::rq::{self, ReceiveQueue};
use crate::sge;
use crate::slots::Slot;
use crate::srq::{self, SharedReceiveQueue};
use crate::testing::{Arena, wait_for};

const COUNT: u32 = 8;
const STRIDE: u32 = 64;

#[repr(C, align(64))]
struct Memory {
    wqes: [u8; (COUNT * STRIDE) as usize],
    record: [Be32; 2],
    slots: [Slot<u32>; COUNT as usize],
}

impl Memory {
    const NEW: Self = Self {
        wqes: [0; (COUNT * STRIDE) as usize],
        record: [Be32::new(0); 2],
        slots: [Slot::FREE; COUNT as usize],
    };
}

/// The CQE of a message, which each one overwrites.
struct Message(NonNull<u8>);

impl Message {
    fn new(arena: &mut Arena) -> Self {
        Self(arena.cut(Cqe64::SIZE))
    }

    fn of(&mut self, wqe_counter: u16) -> Cqe<'_> {
        let op_own = op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);
        let cqe = Cqe64 { wqe_counter: wqe_counter.into(), op_own, ..Cqe64::zeroed() };
        // SAFETY: an aligned CQE in the arena.
        unsafe {
            self.0.cast().write(cqe.to_bytes());
            Cqe::read(self.0, 0, Cqe64::SIZE)
        }
    }
}

fn rq<const CONCURRENT: bool>(memory: NonNull<Memory>) -> ReceiveQueue<u32, CONCURRENT> {
    // SAFETY: memory of the test, which lives longer than the queue and has no other user.
    unsafe {
        let memory = memory.as_ptr();
        let layout = rq::Layout {
            buf: NonNull::new_unchecked(&raw mut (*memory).wqes).cast(),
            dbrec: NonNull::new_unchecked(&raw mut (*memory).record).cast(),
            wqe_cnt: COUNT,
            stride: STRIDE,
        };
        let slots = NonNull::new_unchecked(&raw mut (*memory).slots).cast();
        ReceiveQueue::new(layout, slots).unwrap()
    }
}

fn srq(memory: NonNull<Memory>) -> SharedReceiveQueue<u32> {
    // SAFETY: as in `rq`.
    unsafe {
        let memory = memory.as_ptr();
        let layout = srq::Layout {
            buf: NonNull::new_unchecked(&raw mut (*memory).wqes).cast(),
            dbrec: NonNull::new_unchecked(&raw mut (*memory).record).cast(),
            stride: STRIDE,
            head: 0,
            tail: COUNT - 1,
        };
        let slots = NonNull::new_unchecked(&raw mut (*memory).slots).cast();
        SharedReceiveQueue::new(layout, slots).unwrap()
    }
}

/// `complete` completes a receive and gives its slot back.
fn twins<Q: ReceiveRing<Data = u32>>(
    make: fn(NonNull<Memory>) -> Q,
    complete: fn(&mut Q, Cqe<'_>) -> Option<u32>,
) {
    let (mut one, mut many) = (Memory::NEW, Memory::NEW);
    let memory = [&mut one, &mut many].map(NonNull::from);
    let [mut one, mut many] = memory.map(make);
    let mut arena = Arena::default();
    let mut cqe = Message::new(&mut arena);
    let mut posted = Vec::new();
    let mut number = 0;
    for round in 0..60 {
        let segment = |number: u32| DataSegment::new(number.into(), number + 1, 7);
        // More than there is room for, at times.
        let count = round * 5 % (COUNT + 2);
        let first = number;
        for number in first..first + count {
            // SAFETY: no message arrives.
            if let Ok(index) = unsafe { one.post_segment(number, segment(number)) } {
                posted.push(index as u16);
            }
        }
        // SAFETY: as above; a WQE has room for a segment.
        unsafe {
            many.post_each(|segments, capacity| {
                if number == first + count {
                    return None;
                }
                sge::write_one(segments, capacity, segment(number));
                number += 1;
                Some(number - 1)
            });
        }
        number = first + count;
        one.ring_doorbell();
        many.ring_doorbell();
        assert_eq!(one.posted(), many.posted());
        assert!(!one.needs_doorbell() && !many.needs_doorbell());
        // The receives of an SRQ complete in any order.
        for turn in 0..round * 3 % 7 {
            if posted.is_empty() {
                break;
            }
            let index = posted.remove((turn * round) as usize % posted.len());
            let held = one.complete(index).unwrap();
            // SAFETY: the slot is held; no buffer waits in `many`.
            let [one, released, twice] = unsafe {
                let data = one.data(held);
                one.release(held);
                let many = [index, index].map(|index| complete(&mut many, cqe.of(index)));
                [Some(data), many[0], many[1]]
            };
            assert_eq!((one, twice), (released, None));
        }
        assert_eq!(complete(&mut many, cqe.of(0x7fff)), None, "never posted");
        assert_eq!((one.has_room(), one.free_slots()), (many.has_room(), many.free_slots()));
        let states =
            |queue: &Q| (0..COUNT).map(|slot| queue.slots().state(slot)).collect::<Vec<_>>();
        assert_eq!(states(&one), states(&many));
        // SAFETY: the queues write to it in calls only.
        let [one, many] = memory.map(|memory| unsafe { (*memory.as_ptr()).wqes });
        assert_eq!(one, many);
    }
}

#[test]
fn a_receive_queue_posts_many_as_one_by_one() {
    // SAFETY: no other code completes; the CQE has no payload.
    let complete = |queue: &mut ReceiveQueue<u32, true>, cqe: Cqe<'_>| unsafe {
        queue.completer().complete(cqe)
    };
    twins(rq, complete);
}

#[test]
fn a_shared_receive_queue_posts_many_as_one_by_one() {
    // SAFETY: no buffer is loaded; the CQE has no payload.
    twins(srq, |queue, cqe| unsafe { queue.complete_and_release(cqe) });
}

/// One thread posts and another one completes; they share nothing but the slots.
#[test]
fn one_thread_posts_and_another_completes() {
    const MESSAGES: u32 = 20_000;
    let mut memory = Memory::NEW;
    let mut queue = rq::<true>(NonNull::from(&mut memory));
    queue.count_to(u32::MAX - 5);
    let start = queue.posted();
    // SAFETY: one thread completes.
    let completer = unsafe { queue.completer() };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0;
            while number < MESSAGES {
                wait_for(|| queue.has_room().then_some(()));
                // SAFETY: no message arrives; a WQE has room for a segment.
                unsafe {
                    queue.post_each(|segments, capacity| {
                        if number == MESSAGES {
                            return None;
                        }
                        let segment = DataSegment::new(number.into(), number + 1, 7);
                        sge::write_one(segments, capacity, segment);
                        number += 1;
                        Some(number - 1)
                    });
                }
            }
        });
        let mut arena = Arena::default();
        let mut cqe = Message::new(&mut arena);
        for number in 0..MESSAGES {
            let cqe = cqe.of(start.wrapping_add(number) as u16);
            // SAFETY: as above; the CQE has no payload.
            assert_eq!(wait_for(|| unsafe { completer.complete(cqe) }), number);
        }
    });
}
