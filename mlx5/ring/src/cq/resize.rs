//! A CQ whose driver gives it a buffer of another size.
//!
//! The device writes a last CQE to the old buffer ([`CqeOpcode::ResizeCq`]), and goes on in the new one. The last CQE has
//! an index of its own, so a CQE that was not taken before has an index that is one higher in the new buffer.

use mlx5_wire::cqe::{CqeFormat, op_own};

use super::*;
use crate::completion::CqeKind;
use mlx5_wire::opcode::CqeOpcode;

impl CompletionQueue {
    /// Shows the entries that have arrived and were not taken, whole, up to the CQE that says that the CQ was resized.
    /// Returns `false` if there is no such CQE.
    pub fn before_resize(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        let mut entry = [0_u8; 128];
        for ahead in 0..self.count {
            let index = self.consumer_index.wrapping_add(ahead);
            let Some(cqe) = self.arrived(index) else { return false };
            if cqe.opcode() == CqeOpcode::ResizeCq {
                return true;
            }
            if cqe.kind() == CqeKind::Compressed {
                self.expand(index);
            }
            let entry = &mut entry[..self.stride];
            // SAFETY: a whole entry, which is software's.
            unsafe { entry.as_mut_ptr().copy_from_nonoverlapping(self.entry(index), entry.len()) };
            each(entry);
        }
        false
    }

    /// Has the CQE at `index` of the old buffer say that the CQ was resized: for a driver that copies CQEs by an index of its
    /// own.
    pub fn end_at(&mut self, index: u32) {
        let last = op_own(CqeOpcode::ResizeCq, CqeFormat::Plain, false, self.owner(index));
        // SAFETY: inside the CQE; the device does not write to the buffer any more.
        unsafe { self.cqe(index).add(offset_of!(Cqe64, op_own)).write_volatile(last) }
    }

    /// Goes on in the new buffer, with the entries that [`before_resize`](Self::before_resize) has shown, and publishes the
    /// consumer index.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// As [`new`](Self::new), but for CQEs that the device has written since. There are no more `entries`, of the same size,
    /// than the new buffer has.
    pub unsafe fn resized(&mut self, layout: Layout, entries: &[u8]) -> Result<(), LayoutError> {
        // SAFETY: the caller passes a layout as for `new`. CQEs that the device has written since are valid, too.
        let mut queue = unsafe { Self::new(layout) }?;
        if queue.stride != self.stride {
            return Err(LayoutError::CqeSize);
        }
        for (ahead, entry) in entries.chunks_exact(queue.stride).enumerate() {
            let from = self.consumer_index.wrapping_add(ahead as u32);
            // SAFETY: an entry of the new buffer that the device leaves out, because it has written one for this index.
            unsafe { queue.store(entry.as_ptr(), from, self.owner(from), from.wrapping_add(1)) }
        }
        queue.compression = self.compression;
        queue.published = self.published;
        queue.seek(self.consumer_index.wrapping_add(1));
        *self = queue;
        self.publish();
        Ok(())
    }
}
