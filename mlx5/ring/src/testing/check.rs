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
        let lent = if let Ring::Srq(srq) = ring { srq.lent() } else { None };
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
            let is_held = slots.state(slot) == SlotState::Held && lent != Some(slot);
            let owner = if is_held { Owner::Held } else { Owner::Queue(number) };
            let (now, shape) = self.owners[id as usize];
            assert_eq!(now, owner, "buffer {id} in slot {slot}");
            let described = device.segments(slot).eq(self.buffers.segments(id, shape));
            assert!(described, "the WQE in slot {slot} describes another buffer than {id}");
        }
        let owned = self.owners.iter().filter(|(owner, _)| *owner == Owner::Queue(number));
        let lent = usize::from(lent.is_some());
        assert_eq!(owned.count(), loaded + posted + lent, "buffers of the queue");
        let ours: Vec<_> = self.held.iter().filter(|held| held.queue == number).collect();
        assert_eq!(ours.len() + lent, held);
        assert!(ours.iter().all(|held| slots.state(held.slot) == SlotState::Held));

        // The device has each posted slot, or will have it with the next doorbell.
        let completed = self.arrived.iter().filter(|cqe| cqe.queue == number);
        let completed =
            completed.filter(|cqe| matches!(cqe.completion, Completion::Message(_) | Completion::Failed(_)));
        let taken = device.queue.len() + completed.count();
        assert!((0..device.slots).all(|slot| !device.has(slot) || slots.state(slot) == SlotState::Posted));
        let to_ring = posted.checked_sub(taken).expect("the device has what is not posted");
        assert_eq!(on!(ring, ring => ring.needs_doorbell()), to_ring > 0);
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
                assert!(loaded + free > 0, "[last-free]");
                assert_eq!(room, loaded + free - 1);
                assert!(loaded == 0 || (loaded, free) == (1, 0), "[loaded-alone]");
                assert_eq!(srq.is_loaded(), loaded == 1);
                let list = self.list(number);
                assert!(list[..to_ring].iter().all(|&slot| new(slot)), "links to {list:?}");
                assert!(srq.head_slot() == list[to_ring], "the device goes on at another slot");
                let rest = &list[to_ring..];
                assert!(
                    rest.iter()
                        .all(|&slot| slots.state(slot) == if loaded > 0 { SlotState::Loaded } else { SlotState::Free })
                );
                let mut listed = vec![false; device.slots as usize];
                list.iter().for_each(|&slot| assert!(!core::mem::replace(&mut listed[slot as usize], true)));
                for slot in 0..device.slots {
                    // SAFETY: a slot of the queue.
                    let copy = unsafe { slots.get(slot).index };
                    assert_eq!(copy, device.link(slot), "link of slot {slot} and its copy");
                }
            }
            Ring::Ordered(srq) => {
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

    /// Returns the slots of an SRQ from the one that the device will take next to the last free one, by the links in
    /// memory.
    pub fn list(&self, number: usize) -> Vec<u32> {
        let Queue { ring, device } = &self.queues[number];
        let slots = on!(ring, ring => ring.slots());
        let listed = |&slot: &u32| slots.state(slot) != SlotState::Held && !device.has(slot);
        let len = (0..device.slots).filter(listed).count();
        let mut slot = u32::from(device.next);
        let mut list = Vec::with_capacity(len);
        for _ in 0..len {
            list.push(slot);
            slot = device.link(slot).into();
        }
        list
    }
}
