//! The side of the device of a CQ: CQEs as a fuzzer writes them.

use soft_mlx5::Device;
use soft_mlx5::engine::inspect::CompletionQueue;

/// Writes CQEs to a CQ in the place of the device.
pub struct CqWriter {
    cq: CompletionQueue,
    produced: u32,
    /// The bytes before a CQE in entries of 128 bytes.
    pub front: [u8; 64],
}

impl CqWriter {
    /// Writes to the CQ that was made last, which outlives the value.
    pub fn of_last(device: &Device) -> Self {
        let cq = *device.queues().cqs.last().expect("a CQ");
        Self { cq, produced: 0, front: [0; 64] }
    }

    /// Writes a CQE at the producer index; `owned` puts its owner bit right.
    pub fn write(&mut self, cqe: [u8; 64], owned: bool) {
        let count = self.cq.attr.cqe_count;
        let size = self.cq.attr.cqe_size as usize;
        let (slot, lap) = (self.produced % count, (self.produced / count) as u8 & 1);
        let mut bytes = cqe;
        if owned {
            bytes[63] = bytes[63] & !1 | lap;
        }
        // SAFETY: inside the buffer of the CQ, to which no references exist.
        unsafe {
            let entry = (self.cq.attr.buf as *mut u8).add(slot as usize * size);
            if size == 128 {
                entry.copy_from_nonoverlapping(self.front.as_ptr(), 64);
            }
            entry.add(size - 64).copy_from_nonoverlapping(bytes.as_ptr(), 64);
        }
        self.produced = self.produced.wrapping_add(1);
    }
}
