//! Invariants between any two steps.

use std::vec;
use std::vec::Vec;

use super::buffers::Owner;
use super::queue::{Queue, Ring, on};
use super::rig::Rig;
use crate::receive::{Completion, ReceiveRing};
use crate::slots::SlotState;

impl Rig {
    /// Checks everything.
    pub fn check(&self) {
        let arrived = self.arrived.len() as u32;
        let index = self.cq.consumer_index();
        assert_eq!(self.producer.producer_index.wrapping_sub(index), arrived, "consumer index");
        assert_eq!(self.producer.record(), self.cq.published & 0xff_ffff);
        assert_eq!(self.cq.is_empty(), arrived == 0);
        (0..self.queues.len()).for_each(|queue| self.check_queue(queue));
    }

    fn check_queue(&self, number: usize) {
        let Queue { ring, device } = &self.queues[number];
        let slots = on!(ring, ring => ring.slots());
        device.check();
        let count = |state| (0..device.slots).filter(|&slot| slots.state(slot) == state).count();
        let [free, loaded, posted, held] =
            [SlotState::Free, SlotState::Loaded, SlotState::Posted, SlotState::Held].map(count);

        // Each buffer of the queue is in one slot.
        let mut seen = vec![false; self.owners.len()];
        for slot in (0..device.slots).filter(|&slot| slots.state(slot) != SlotState::Free) {
            // SAFETY: the slot is not free.
            let id = unsafe { slots.data(slot) };
            assert!(!core::mem::replace(&mut seen[id as usize], true), "buffer {id} is in two slots");
            let owner = if slots.state(slot) == SlotState::Held { Owner::Held } else { Owner::Queue(number) };
            let (now, shape) = self.owners[id as usize];
            assert_eq!(now, owner, "buffer {id} in slot {slot}");
            let described = device.segments(slot).eq(self.buffers.segments(id, shape));
            assert!(described, "the WQE in slot {slot} describes another buffer than {id}");
        }
        let owned = self.owners.iter().filter(|(owner, _)| *owner == Owner::Queue(number));
        assert_eq!(owned.count(), loaded + posted, "buffers of the queue");
        let ours: Vec<_> = self.held.iter().filter(|held| held.queue == number).collect();
        assert_eq!(ours.len(), held);
        assert!(ours.iter().all(|held| slots.state(held.slot) == SlotState::Held));

        // The device has each posted slot, or will have it with the next doorbell.
        let completed = self.arrived.iter().filter(|cqe| cqe.queue == number);
        let completed =
            completed.filter(|cqe| matches!(cqe.completion, Completion::Message(_) | Completion::Failed(_)));
        let taken = device.queue.len() + completed.count();
        assert!((0..device.slots).all(|slot| !device.has(slot) || slots.state(slot) == SlotState::Posted));
        let to_ring = posted.checked_sub(taken).expect("the device has what is not posted");
        assert_eq!(device.record(), device.seen, "the record was written without a doorbell");
        let capacity = device.capacity() as usize;
        assert!(taken + to_ring <= capacity, "overcommitted");
        let room = on!(ring, ring => ring.free_slots()) as usize;
        let new = |slot| slots.state(slot) == SlotState::Posted && !device.has(slot);
        match ring {
            Ring::Rq(rq) => {
                assert_eq!(room, capacity - held - posted - loaded);
                assert_eq!(rq.posted() as u16, device.seen.wrapping_add(to_ring as u16));
                let mask = device.slots - 1;
                assert!((0..to_ring as u32).all(|i| new((u32::from(device.seen) + i) & mask)));
            }
            Ring::Srq(srq) => {
                assert_eq!(srq.posted() as u16, device.seen.wrapping_add(to_ring as u16));
                assert_eq!((room, srq.is_loaded()), (free.saturating_sub(1), free == 0));
                srq.check();
                let mut next = u32::from(device.next);
                for _ in 0..to_ring {
                    assert!(new(next), "the list leads to slot {next}");
                    next = device.link(next).into();
                }
                assert_eq!(next, srq.tail(), "the device goes on at another slot");
                for slot in 0..device.slots {
                    // SAFETY: a slot of the queue.
                    let copy = unsafe { slots.get(slot).index };
                    assert_eq!(copy, device.link(slot), "link of slot {slot} and its copy");
                }
            }
        }
    }
}
