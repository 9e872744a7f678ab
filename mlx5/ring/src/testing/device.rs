//! The device's side of a receive queue or SRQ.

use core::ptr::NonNull;
use std::vec;
use std::vec::Vec;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::data::DataSegment;

use super::Arena;

/// Reads a queue as hardware would, and believes nothing.
#[derive(Clone, Debug)]
pub struct Device {
    pub wqes: NonNull<u8>,
    /// Copies of the WQEs, as they were at the doorbell.
    copies: NonNull<u8>,
    pub stride: usize,
    pub slots: u32,
    pub dbrec: NonNull<Be32>,
    /// Bytes of a WQE before its data segments; an SRQ's have a link there.
    lead: usize,
    /// Count of WQEs handed over, as far as seen.
    pub seen: u16,
    /// SRQ: slot of the WQE after the last one seen.
    pub next: u16,
    /// Slots whose WQEs the device has, in the order in which it was given them.
    pub queue: Vec<u16>,
    /// Which slots are in `queue`, or have completed and were not polled.
    taken: Vec<bool>,
}

impl Device {
    pub fn new(arena: &mut Arena, slots: u32, stride: usize, is_srq: bool) -> Self {
        let bytes = slots as usize * stride;
        Self {
            wqes: arena.cut(bytes),
            copies: arena.cut(bytes),
            stride,
            slots,
            dbrec: arena.cut(8),
            lead: if is_srq { 16 } else { 0 },
            seen: 0,
            next: 0,
            queue: Vec::new(),
            taken: vec![false; slots as usize],
        }
    }

    pub fn is_srq(&self) -> bool {
        self.lead > 0
    }

    /// Returns the number of WQEs that can be with the device at once.
    pub fn capacity(&self) -> u32 {
        self.slots - u32::from(self.is_srq())
    }

    /// Returns the count in the doorbell record.
    pub fn record(&self) -> u16 {
        // SAFETY: a doorbell record of the test's.
        let record = unsafe { self.dbrec.read_volatile() }.get();
        assert_eq!(record >> 16, 0, "upper half of the doorbell record");
        record as u16
    }

    pub fn set_record(&mut self, count: u16) {
        // SAFETY: a doorbell record of the test's.
        unsafe { self.dbrec.write_volatile(Be32::new(count.into())) }
        self.seen = count;
    }

    /// Reads the doorbell record and takes over what it announces. Returns how many WQEs that were.
    pub fn look(&mut self) -> usize {
        let new = self.record().wrapping_sub(self.seen);
        assert!(u32::from(new) <= self.capacity(), "doorbell for {new} WQEs");
        for _ in 0..new {
            let slot = if self.is_srq() { self.next } else { self.seen & (self.slots - 1) as u16 };
            assert!(u32::from(slot) < self.slots, "a link leads out of the queue, to {slot}");
            assert!(!self.has(slot.into()), "slot {slot} posted twice");
            let at = usize::from(slot) * self.stride;
            // SAFETY: a WQE of the queue and its copy.
            unsafe { self.copies.add(at).copy_from_nonoverlapping(self.wqes.add(at), self.stride) }
            self.next = self.link(slot.into());
            self.taken[usize::from(slot)] = true;
            self.queue.push(slot);
            self.seen = self.seen.wrapping_add(1);
        }
        new.into()
    }

    /// Returns `true` if the WQE in `slot` is the device's, as far as software can know.
    pub fn has(&self, slot: u32) -> bool {
        self.taken[slot as usize]
    }

    /// Completes the WQE at `position` of the queue; returns its slot.
    pub fn complete(&mut self, position: usize) -> u32 {
        self.queue.remove(position).into()
    }

    /// Takes note that the completion of `slot` was polled.
    pub fn polled(&mut self, slot: u32) {
        assert!(core::mem::replace(&mut self.taken[slot as usize], false));
    }

    /// Forgets everything, as when the QP is reset.
    pub fn reset(&mut self) {
        self.queue.clear();
        self.taken.fill(false);
        self.set_record(0);
    }

    /// Returns the `wqe_counter` of the completion of the WQE in `slot`, which the device has: of the running indices
    /// that share a slot, the last one.
    pub fn counter(&self, slot: u32) -> u16 {
        if self.is_srq() {
            return slot as u16;
        }
        let last = self.seen.wrapping_sub(1);
        last.wrapping_sub(last.wrapping_sub(slot as u16) & (self.slots - 1) as u16)
    }

    /// Returns the data segments of a WQE, up to the terminator.
    pub fn segments(&self, slot: u32) -> impl Iterator<Item = DataSegment> {
        // SAFETY: a WQE of the queue.
        let first = unsafe { self.wqes.add(slot as usize * self.stride + self.lead) };
        let count = (self.stride - self.lead) / 16;
        // SAFETY: segments of the WQE.
        let segments = (0..count).map(move |i| unsafe { first.cast::<DataSegment>().add(i).read() });
        segments.take_while(|segment| *segment != DataSegment::TERMINATOR)
    }

    /// Returns the link of a WQE.
    pub fn link(&self, slot: u32) -> u16 {
        // SAFETY: a WQE of the queue; aligned by the stride.
        unsafe { self.wqes.add(slot as usize * self.stride + 2).cast::<Be16>().read() }.get()
    }

    /// Checks that every WQE that the device has reads as it did at the doorbell, link included.
    pub fn check(&self) {
        for slot in (0..self.slots as usize).filter(|slot| self.taken[*slot]) {
            let at = slot * self.stride;
            let bytes = |from: NonNull<u8>| {
                // SAFETY: a WQE of the queue or its copy, which no code writes now.
                unsafe { core::slice::from_raw_parts(from.add(at).as_ptr(), self.stride) }
            };
            assert!(bytes(self.wqes) == bytes(self.copies), "WQE in slot {slot} changed");
        }
    }

    /// Returns the offsets of the bytes that `write` stores to the WQEs, which it must not read.
    pub fn stores(&self, write: impl FnOnce()) -> Vec<usize> {
        let size = self.slots as usize * self.stride;
        // SAFETY: bytes of the queue.
        let byte = |i| unsafe { self.wqes.add(i) };
        let invert = |i| {
            // SAFETY: as above.
            unsafe { byte(i).write(!byte(i).read()) }
        };
        (0..size).for_each(invert);
        // SAFETY: as above.
        let before: Vec<u8> = (0..size).map(|i| unsafe { byte(i).read() }).collect();
        write();
        // SAFETY: as above.
        let (stored, kept): (Vec<_>, Vec<_>) = (0..size).partition(|&i| unsafe { byte(i).read() } != before[i]);
        kept.into_iter().for_each(invert);
        stored
    }
}
