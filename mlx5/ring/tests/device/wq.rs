//! The device's side of a receive queue or an SRQ.

use std::collections::VecDeque;

use super::buffers::{Buffers, Owner};
use super::memory::Memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Srq,
    Rq,
}

/// What the device has in its own memory.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// WQEs taken since the queue exists.
    pub taken: u32,
    /// SRQ: the slot that the last WQE taken links to.
    pub cursor: u32,
    /// Slots of the WQEs that were taken and have not completed, oldest first.
    pub outstanding: VecDeque<u32>,
    /// By slot: the WQE as it was when the device took it.
    pub images: Vec<[u8; 64]>,
    /// By slot: its `wqe_counter`.
    pub counters: Vec<u16>,
    pub busy: Vec<bool>,
}

#[derive(Debug)]
pub struct WorkQueue {
    pub kind: Kind,
    pub wqes: Memory,
    /// Both words.
    pub record: Memory,
    pub stride: usize,
    pub slots: u32,
    pub state: State,
}

impl WorkQueue {
    /// Queue memory as libmlx5 leaves it: an SRQ's slots are linked.
    pub fn new(kind: Kind, slots: u32, stride: usize) -> Self {
        assert!(stride <= 64);
        let wqes = Memory::new(slots as usize * stride);
        for slot in 0..slots {
            if kind == Kind::Srq {
                wqes.write(slot as usize * stride + 2, &((slot + 1) as u16).to_be_bytes());
            }
        }
        let state = State {
            images: vec![[0; 64]; slots as usize],
            counters: vec![0; slots as usize],
            busy: vec![false; slots as usize],
            ..State::default()
        };
        Self { kind, wqes, record: Memory::new(8), stride, slots, state }
    }

    /// Bytes of a WQE before its data segments.
    pub fn lead(&self) -> usize {
        if self.kind == Kind::Srq { 16 } else { 0 }
    }

    pub fn max_sge(&self) -> usize {
        (self.stride - self.lead()) / 16
    }

    /// WQEs that can be with the device.
    pub fn usable(&self) -> u32 {
        self.slots - u32::from(self.kind == Kind::Srq)
    }

    fn wqe(&self, slot: u32) -> [u8; 64] {
        let mut image = [0; 64];
        self.wqes.read(slot as usize * self.stride, &mut image[..self.stride]);
        image
    }

    /// Takes the WQEs that the doorbell record covers.
    pub fn take(&mut self, buffers: &mut Buffers) -> u32 {
        let word = self.record.be32(0);
        assert_eq!(word >> 16, 0, "the upper half of the doorbell record is not zero");
        let new = (word as u16).wrapping_sub(self.state.taken as u16);
        for _ in 0..new {
            self.take_one(buffers);
        }
        new.into()
    }

    fn take_one(&mut self, buffers: &mut Buffers) {
        let taken = self.state.taken;
        let (slot, counter) = match self.kind {
            Kind::Srq => (self.state.cursor, self.state.cursor as u16),
            Kind::Rq => (taken % self.slots, taken as u16),
        };
        assert!(slot < self.slots, "a link leads to slot {slot}");
        assert!(!self.state.busy[slot as usize], "slot {slot} was handed over twice");
        let image = self.wqe(slot);
        if let Some(id) = buffers.identify(&image[self.lead()..]) {
            let segments = buffers.segments(id, self.max_sge());
            assert_eq!(image[self.lead()..][..segments.len()], segments, "slot {slot}");
            buffers.set_owner(id, &[Owner::Ring], Owner::Device(slot));
        }
        let state = &mut self.state;
        state.cursor = u16::from_be_bytes([image[2], image[3]]).into();
        state.taken = taken.wrapping_add(1);
        state.busy[slot as usize] = true;
        state.counters[slot as usize] = counter;
        state.images[slot as usize] = image;
        state.outstanding.push_back(slot);
        assert!(state.outstanding.len() <= self.usable() as usize, "no slot is left unposted");
    }

    /// The WQE in `slot` is as it was when the device took it.
    pub fn check(&self, slot: u32) {
        assert_eq!(self.wqe(slot), self.state.images[slot as usize], "WQE {slot} was changed");
    }

    pub fn check_all(&self) {
        self.state.outstanding.iter().for_each(|&slot| self.check(slot));
    }

    /// Ends outstanding WQE `index`, counted from the oldest. Returns its slot.
    pub fn finish(&mut self, index: usize) -> u32 {
        let slot = self.state.outstanding.remove(index).unwrap();
        self.check(slot);
        self.state.busy[slot as usize] = false;
        slot
    }

    pub fn counter(&self, slot: u32) -> u16 {
        self.state.counters[slot as usize]
    }

    /// The data segments that the WQE in `slot` had when the device took it last.
    pub fn segments(&self, slot: u32) -> &[u8] {
        &self.state.images[slot as usize][self.lead()..self.stride]
    }

    /// The QP goes to RESET.
    pub fn reset(&mut self) {
        self.record.write(0, &[0; 8]);
        (self.state.taken, self.state.cursor) = (0, 0);
        self.state.outstanding.clear();
        self.state.busy.fill(false);
    }
}
