//! The device's side of a receive queue or SRQ.

use core::ptr::NonNull;
use std::collections::BTreeSet;
use std::vec::Vec;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::data::DataSegment;

/// A WQE from its doorbell until its completion is polled.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// `wqe_counter` of its completion.
    pub wqe_counter: u16,
    pub slot: u32,
    /// All its bytes, link included.
    bytes: Vec<u8>,
    pub segments: Vec<DataSegment>,
}

/// Reads a queue as hardware would, and believes nothing.
#[derive(Clone, Debug)]
pub struct Device {
    wqes: NonNull<u8>,
    stride: usize,
    slots: u32,
    dbrec: NonNull<Be32>,
    /// Bytes of a WQE before its data segments; an SRQ's have a link there.
    lead: usize,
    /// Count of WQEs handed over, as far as seen.
    pub seen: u16,
    /// SRQ: slot of the WQE after the last one seen.
    pub next: u16,
    /// WQEs that the device has, in the order in which it will take them.
    pub queue: Vec<Taken>,
    /// WQEs that have completed; their CQEs were not polled yet.
    pub completed: Vec<Taken>,
}

impl Device {
    pub fn new(
        wqes: NonNull<u8>,
        stride: usize,
        slots: u32,
        dbrec: NonNull<Be32>,
        lead: usize,
    ) -> Self {
        let (queue, completed) = (Vec::new(), Vec::new());
        Self { wqes, stride, slots, dbrec, lead, seen: 0, next: 0, queue, completed }
    }

    /// As if `index` WQEs had been handed over before.
    pub fn start_at(&mut self, index: u32) {
        self.seen = index as u16;
        // SAFETY: a doorbell record of the test's.
        unsafe { self.dbrec.write_volatile(Be32::new(index & 0xffff)) }
    }

    pub fn is_srq(&self) -> bool {
        self.lead > 0
    }

    /// WQEs that can be with the device at once.
    pub fn capacity(&self) -> usize {
        self.slots as usize - usize::from(self.is_srq())
    }

    fn bytes(&self, slot: u32) -> impl Iterator<Item = u8> + use<> {
        let (wqes, start) = (self.wqes, slot as usize * self.stride);
        // SAFETY: `slot` was checked to be inside the queue.
        (start..start + self.stride).map(move |i| unsafe { wqes.add(i).read_volatile() })
    }

    fn link(bytes: &[u8]) -> u16 {
        u16::from_be_bytes(bytes[2..4].try_into().unwrap())
    }

    /// Reads the doorbell record and takes over what it announces. Returns how many WQEs that were.
    pub fn look(&mut self) -> usize {
        // SAFETY: a doorbell record of the test's.
        let record = unsafe { self.dbrec.read_volatile() }.get();
        assert_eq!(record >> 16, 0, "upper half of the doorbell record");
        let new = (record as u16).wrapping_sub(self.seen);
        assert!(usize::from(new) <= self.capacity(), "doorbell for {new} WQEs");
        for _ in 0..new {
            let (slot, wqe_counter) = if self.is_srq() {
                (u32::from(self.next), self.next)
            } else {
                (u32::from(self.seen) & (self.slots - 1), self.seen)
            };
            assert!(slot < self.slots, "a link leads out of the queue, to {slot}");
            let posted = || self.queue.iter().chain(&self.completed);
            assert!(posted().all(|taken| taken.slot != slot), "slot {slot} posted twice");
            let taken = self.read(slot, wqe_counter);
            self.next = Self::link(&taken.bytes);
            self.queue.push(taken);
            self.seen = self.seen.wrapping_add(1);
        }
        assert!(self.queue.len() + self.completed.len() <= self.capacity(), "overcommitted");
        new.into()
    }

    fn read(&self, slot: u32, wqe_counter: u16) -> Taken {
        let mut taken = Taken::default();
        self.read_into(&mut taken, slot, wqe_counter);
        taken
    }

    fn read_into(&self, taken: &mut Taken, slot: u32, wqe_counter: u16) {
        (taken.slot, taken.wqe_counter) = (slot, wqe_counter);
        taken.bytes.clear();
        taken.bytes.extend(self.bytes(slot));
        taken.segments.clear();
        for segment in taken.bytes[self.lead..].chunks_exact(16) {
            let segment = DataSegment::from_bytes(segment.try_into().unwrap());
            if segment.is_terminator() {
                assert_eq!(segment, DataSegment::TERMINATOR);
                break;
            }
            taken.segments.push(segment);
        }
    }

    /// As if it had the WQEs in these slots, after `seen` that were handed over. On an SRQ, `next` is the slot of
    /// the next one.
    pub fn restore(&mut self, seen: u16, next: u16, slots: impl Iterator<Item = u32>) {
        (self.seen, self.next) = (seen, next);
        // SAFETY: a doorbell record of the test's.
        unsafe { self.dbrec.write_volatile(Be32::new(seen.into())) }
        let mut old = std::mem::take(&mut self.queue);
        old.append(&mut self.completed);
        for slot in slots {
            // Of the indices that share a slot, the last one.
            let last = seen.wrapping_sub(1);
            let age = last.wrapping_sub(slot as u16) & (self.slots as u16 - 1);
            let counter = if self.is_srq() { slot as u16 } else { last.wrapping_sub(age) };
            // Memory of those that it had: this is done often.
            let mut taken = old.pop().unwrap_or_default();
            self.read_into(&mut taken, slot, counter);
            self.queue.push(taken);
        }
    }

    /// Every WQE that the device has reads as it did at the doorbell, link included; on an SRQ the links of
    /// those that have completed must stay until the completion is polled, too.
    pub fn check(&self) {
        for taken in self.queue.iter().chain(&self.completed) {
            let unchanged = self.bytes(taken.slot).eq(taken.bytes.iter().copied());
            assert!(unchanged, "WQE in slot {} changed", taken.slot);
        }
    }

    /// The position in the queue of the WQE in `slot`.
    pub fn position(&self, slot: u32) -> usize {
        self.queue.iter().position(|taken| taken.slot == slot).expect("it is with the device")
    }

    /// Values of `wqe_counter` that no CQE can have now.
    pub fn not_posted(&self) -> Vec<u16> {
        let slots = self.slots as u16;
        let counters = if self.is_srq() { 0..slots + 2 } else { 0..3 * slots + 2 };
        let first = if self.is_srq() { 0 } else { self.seen.wrapping_sub(2 * slots) };
        let posted = |counter: &u16| self.queue.iter().any(|taken| taken.wqe_counter == *counter);
        counters.map(|i| first.wrapping_add(i)).filter(|counter| !posted(counter)).collect()
    }

    /// The WQE at `position` of the queue has completed.
    pub fn complete(&mut self, position: usize) -> Taken {
        let taken = self.queue.remove(position);
        self.completed.push(taken.clone());
        taken
    }

    /// The completion of `wqe_counter` was polled.
    pub fn polled(&mut self, wqe_counter: u16) -> Taken {
        let found = self.completed.iter().position(|taken| taken.wqe_counter == wqe_counter);
        self.completed.remove(found.expect("polled a completion that the device did not write"))
    }

    /// Slots that are with the device, or were when their CQEs were written.
    pub fn posted(&self) -> BTreeSet<u32> {
        self.queue.iter().chain(&self.completed).map(|taken| taken.slot).collect()
    }

    /// Puts a link into a slot.
    pub fn set_link(&mut self, slot: u32, link: u16) {
        // SAFETY: as in `link_of`.
        unsafe {
            let wqe = self.wqes.add(slot as usize * self.stride + 2);
            wqe.cast::<Be16>().write_volatile(Be16::new(link));
        }
    }

    /// The link in a slot.
    pub fn link_of(&self, slot: u32) -> u16 {
        // SAFETY: a slot of the queue; aligned by the stride.
        unsafe { self.wqes.add(slot as usize * self.stride + 2).cast::<Be16>().read_volatile() }
            .get()
    }
}
