//! Compressed CQEs, basic layout: a title, and arrays of mini CQEs for the fields that differ from CQE to CQE.
//!
//! The device holds a CQE back as long as the next one may join it, at most until the end of the step, and
//! then writes all of them as one block.

use mlx5_wire::cqe::{Cqe64, CqeFormat, SOLICITED_EVENT, op_own};
use mlx5_wire::mini_cqe::{ChecksumMiniCqe, HashMiniCqe, MINI_CQES_PER_ARRAY, MiniCqeFormat, array_of};

use super::completion::Completion;

/// CQEs in a block at most (`cqe_comp_caps.max_num`).
pub const MAX_BLOCK: usize = 64;

const CQE_SIZE: usize = Cqe64::SIZE;

/// CQEs that are held back.
#[derive(Debug)]
pub struct Block {
    format: MiniCqeFormat,
    cqes: Vec<Cqe64>,
}

impl Block {
    /// Makes a block for a CQ created with this `MLX5DV_CQE_RES_FORMAT_*`.
    pub fn new(format: u8) -> Self {
        let format = match format {
            2 => MiniCqeFormat::Checksum,
            _ => MiniCqeFormat::Hash,
        };
        Self { format, cqes: Vec::new() }
    }

    /// Returns the number of CQEs held back.
    pub fn len(&self) -> u32 {
        self.cqes.len() as u32
    }

    /// Returns `true` if this completion fits into a mini CQE after the CQEs held back.
    pub fn takes(&self, completion: &Completion) -> bool {
        let cqe = Cqe64::from_bytes(&completion.cqe);
        let is_message = cqe.opcode().is_responder() && cqe.format() == CqeFormat::Plain && cqe.app == 0;
        let Some(first) = self.cqes.first() else { return is_message };
        let counter = first.wqe_counter.get().wrapping_add(self.cqes.len() as u16);
        let mut common =
            Cqe64 { byte_cnt: first.byte_cnt, wqe_counter: first.wqe_counter, timestamp: first.timestamp, ..cqe };
        match self.format {
            MiniCqeFormat::Hash => common.rx_hash_result = first.rx_hash_result,
            MiniCqeFormat::Checksum => common.check_sum = first.check_sum,
        }
        is_message && self.cqes.len() < MAX_BLOCK && cqe.wqe_counter.get() == counter && common == *first
    }

    /// Holds a completion back.
    pub fn hold(&mut self, completion: &Completion) {
        self.cqes.push(Cqe64::from_bytes(&completion.cqe));
    }

    /// Returns the CQEs to write, the title last, each with its place relative to the title.
    pub fn take(&mut self) -> Vec<(u32, [u8; CQE_SIZE])> {
        let cqes = std::mem::take(&mut self.cqes);
        let Some(first) = cqes.first() else { return Vec::new() };
        if cqes.len() == 1 {
            return vec![(0, first.to_bytes())];
        }
        let mut written = Vec::new();
        for (n, eight) in cqes.chunks(MINI_CQES_PER_ARRAY).enumerate() {
            let mut array = [0; CQE_SIZE];
            for (mini, cqe) in array.chunks_exact_mut(HashMiniCqe::SIZE).zip(eight) {
                mini.copy_from_slice(&self.mini(cqe));
            }
            written.push((array_of((n * MINI_CQES_PER_ARRAY) as u32), array));
        }
        let solicited = first.op_own & SOLICITED_EVENT != 0;
        let title = Cqe64 {
            byte_cnt: (cqes.len() as u32).into(),
            op_own: op_own(first.opcode(), CqeFormat::Compressed, solicited, 0),
            ..*first
        };
        written.push((0, title.to_bytes()));
        written
    }

    fn mini(&self, cqe: &Cqe64) -> [u8; HashMiniCqe::SIZE] {
        let Cqe64 { byte_cnt, rx_hash_result, check_sum, .. } = *cqe;
        match self.format {
            MiniCqeFormat::Hash => HashMiniCqe { rx_hash_result, byte_cnt }.to_bytes(),
            MiniCqeFormat::Checksum => ChecksumMiniCqe { checksum: check_sum, reserved2: [0; 2], byte_cnt }.to_bytes(),
        }
    }
}
