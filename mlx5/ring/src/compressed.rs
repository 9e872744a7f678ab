//! Compressed blocks: a title CQE, and arrays of mini CQEs for what differs from CQE to CQE (basic layout,
//! as `mlx5dv_create_cq` makes it with `MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE`).
//!
//! A block of `n` CQEs takes the place of `n` CQEs, and all of them are software's once the title is. So a
//! block is expanded where it stands, into the CQEs that the device did not write. Everything else then
//! sees plain CQEs: a batch may end inside a block, and no entry that the device skipped keeps an owner bit
//! that would be right a lap later.

use core::mem::offset_of;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::{Cqe64, CqeFormat, SOLICITED_EVENT, op_own};
use mlx5_wire::mini_cqe::{ChecksumMiniCqe, HashMiniCqe, MINI_CQES_PER_ARRAY, MiniCqeFormat, array_of};

use crate::barrier;
use crate::cq::{CompletionQueue, LayoutError};

impl CompletionQueue {
    /// For a CQ that was created with compression. Its CQEs have 64 bytes.
    ///
    /// # Errors
    /// [`LayoutError::CqeSize`] when they have 128.
    pub const fn with_compression(mut self, format: MiniCqeFormat) -> Result<Self, LayoutError> {
        if self.stride() != Cqe64::SIZE {
            return Err(LayoutError::CqeSize);
        }
        self.compression = Some(format);
        Ok(self)
    }

    /// Makes plain CQEs of the block whose title, which is software's, stands at `index`. `false` when there
    /// is no such block: then nothing has changed.
    #[cold]
    pub(crate) fn expand(&mut self, index: u32) -> bool {
        let Some(format) = self.compression else {
            return false;
        };
        let bytes = self.software_cqe(index).bytes();
        let title = Cqe64::from_bytes(&bytes);
        let count = title.byte_cnt.get();
        // CQEs before the title may be software's still.
        let room = self.capacity().saturating_sub(index.wrapping_sub(self.published));
        let is_block =
            title.format() == CqeFormat::Compressed && title.opcode().is_responder() && (2..=room).contains(&count);
        if !is_block {
            return false;
        }
        let solicited = title.op_own & SOLICITED_EVENT != 0;
        let plain = op_own(title.opcode(), CqeFormat::Plain, solicited, 0);
        let first_word = u32::from(title.wqe_counter.get()) << 16 | u32::from(title.signature) << 8 | u32::from(plain);
        let mut array = [0; Cqe64::SIZE];
        for i in 0..count {
            let place = i as usize % MINI_CQES_PER_ARRAY;
            if place == 0 {
                // Before the CQE that it makes way for is written.
                array = self.software_cqe(index.wrapping_add(array_of(i))).bytes();
            }
            let mut mini = [0; HashMiniCqe::SIZE];
            mini.copy_from_slice(&array[place * HashMiniCqe::SIZE..][..HashMiniCqe::SIZE]);
            let to = index.wrapping_add(i);
            let last_word = first_word.wrapping_add(i << 16) | u32::from(self.owner(to));
            let cqe = self.cqe(to);
            // SAFETY: inside the CQE, which is software's, and aligned because CQEs are to 64 bytes.
            unsafe {
                cqe.cast().write(bytes);
                match format {
                    MiniCqeFormat::Hash => {
                        let hash = HashMiniCqe::from_bytes(&mini).rx_hash_result;
                        cqe.add(offset_of!(Cqe64, rx_hash_result)).cast().write(hash);
                    }
                    MiniCqeFormat::Checksum => {
                        let checksum = ChecksumMiniCqe::from_bytes(&mini).checksum;
                        cqe.add(offset_of!(Cqe64, check_sum)).cast().write(checksum);
                    }
                }
                // Both formats have the length in the same place.
                let length = HashMiniCqe::from_bytes(&mini).byte_cnt;
                cqe.add(offset_of!(Cqe64, byte_cnt)).cast().write(length);
                cqe.add(offset_of!(Cqe64, wqe_counter)).cast().write(Be32::new(last_word));
            }
        }
        barrier::cqe_stores_before_consumer_index();
        true
    }
}
