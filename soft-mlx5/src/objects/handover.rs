//! Copies of the WQEs that a receive queue was handed, kept until the WQEs are used.
//!
//! An adapter may fetch a WQE at any time after the doorbell record covers it, so none of its bytes may
//! change from then on. The model reads a WQE when its message comes. To detect a change in between, it
//! copies each WQE when it first sees the record that covers it.

use mlx5_wire::data::DataSegment;

/// Copies of the WQEs in the slots of a queue, and which of them the device holds.
#[derive(Debug, Default)]
pub struct Handover {
    stride: usize,
    copies: Vec<u8>,
    held: Vec<u64>,
    count: u32,
}

impl Handover {
    /// Makes copies for a queue of `slots` slots of `stride` bytes.
    pub fn new(slots: usize, stride: usize) -> Self {
        let held = vec![0; slots.div_ceil(64)];
        Self { stride, copies: vec![0; slots * stride], held, count: 0 }
    }

    /// Gives all slots back.
    pub fn clear(&mut self) {
        self.held.fill(0);
        self.count = 0;
    }

    /// Returns the number of slots that the device holds: handed over, and their CQEs not written.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes a slot with these bytes over; returns `false` if the device holds the slot already.
    pub fn take_over(&mut self, slot: usize, wqe: &[u8]) -> bool {
        self.copies[slot * self.stride..][..self.stride].copy_from_slice(wqe);
        let (word, bit) = (&mut self.held[slot / 64], 1 << (slot % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        self.count += u32::from(fresh);
        fresh
    }

    /// Gives a slot back to the program.
    pub fn give_back(&mut self, slot: usize) {
        let Some(word) = self.held.get_mut(slot / 64) else { return };
        let bit = 1 << (slot % 64);
        self.count -= u32::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Returns `true` if a WQE is unchanged. Its first `prefix` bytes are not segments.
    pub fn is_unchanged(&self, slot: usize, wqe: &[u8], prefix: usize) -> bool {
        let then = &self.copies[slot * self.stride..][..self.stride];
        // The bytes after the last segment may change.
        let meant = |wqe: &[u8]| prefix + meant_len(&wqe[prefix..]);
        let len = meant(then);
        len == meant(wqe) && then[..len] == wqe[..len]
    }
}

// Bytes up to the end of the terminator.
fn meant_len(segments: &[u8]) -> usize {
    let mut list = segments.chunks_exact(DataSegment::SIZE);
    let end = list.position(|bytes| {
        let segment = bytes.first_chunk().map(DataSegment::from_bytes);
        segment.is_some_and(|segment| segment.is_terminator())
    });
    end.map_or(segments.len(), |index| (index + 1) * DataSegment::SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_reads_counts_as_changed() {
        let mut handover = Handover::new(4, 64);
        let mut wqe = [7; 64];
        wqe[32..48].copy_from_slice(&DataSegment::TERMINATOR.to_bytes());
        assert!(handover.take_over(2, &wqe));
        assert!(handover.is_unchanged(2, &wqe, 16));
        wqe[48..].fill(9);
        assert!(handover.is_unchanged(2, &wqe, 16), "after the terminator");
        let mut other = wqe;
        other[2] = 8;
        assert!(!handover.is_unchanged(2, &other, 16), "the link");
        other = wqe;
        other[20] = 8;
        assert!(!handover.is_unchanged(2, &other, 16), "a segment");
        other = wqe;
        other[32..48].fill(7);
        assert!(!handover.is_unchanged(2, &other, 16), "the terminator");
    }

    #[test]
    fn a_slot_is_held_until_it_is_given_back() {
        let mut handover = Handover::new(100, 16);
        assert!(handover.take_over(99, &[0; 16]));
        assert!(!handover.take_over(99, &[0; 16]));
        assert_eq!(handover.count(), 1);
        handover.give_back(99);
        handover.give_back(99);
        handover.give_back(1000);
        assert_eq!(handover.count(), 0);
        assert!(handover.take_over(99, &[0; 16]));
        handover.clear();
        assert_eq!(handover.count(), 0);
        assert!(handover.take_over(99, &[0; 16]));
    }
}
