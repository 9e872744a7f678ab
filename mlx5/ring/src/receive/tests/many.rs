//! Posting many WQEs and completing them without more ado: as one by one.

use core::ptr::NonNull;
use std::vec::Vec;

use mlx5_wire::be::Be32;
use mlx5_wire::data::DataSegment;

use super::super::ReceiveRing;
use crate::rq::{self, ReceiveQueue};
use crate::sge;
use crate::slots::Slot;
use crate::srq::{self, SharedReceiveQueue};

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

fn rq(memory: NonNull<Memory>) -> ReceiveQueue<u32> {
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

fn twins<Q: ReceiveRing<Data = u32>>(make: fn(NonNull<Memory>) -> Q) {
    let (mut one, mut many) = (Memory::NEW, Memory::NEW);
    let memory = [&mut one, &mut many].map(NonNull::from);
    let [mut one, mut many] = memory.map(make);
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
        assert_eq!(one.ring_doorbell(), many.ring_doorbell());
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
                let many = [index, index].map(|index| many.complete_and_release(index));
                [Some(data), many[0], many[1]]
            };
            assert_eq!((one, twice), (released, None));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { many.complete_and_release(0x7fff) }, None, "never posted");
        assert_eq!(one.free_slots(), many.free_slots());
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
    twins(rq);
}

#[test]
fn a_shared_receive_queue_posts_many_as_one_by_one() {
    twins(srq);
}
