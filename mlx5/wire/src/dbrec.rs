//! Doorbell records: pairs of big-endian words in host memory through which software notifies the
//! device how far it has come (`mlx5dv_qp.dbrec`, `mlx5dv_cq.dbrec`, `mlx5dv_srq.dbrec`).

use crate::be::{Be32, Be64};

/// Word of a QP's record that counts posted receive WQEs (`MLX5_RCV_DBR`).
pub const RECEIVE: usize = 0;
/// Word of a QP's record that counts posted basic blocks of the send queue (`MLX5_SND_DBR`).
pub const SEND: usize = 1;
/// Word of a CQ's record with the consumer index (`MLX5_CQ_SET_CI`).
pub const CONSUMER_INDEX: usize = 0;
/// Word of a CQ's record that arms it (`MLX5_CQ_ARM_DB`).
pub const ARM: usize = 1;

/// The consumer index has 24 bits.
pub const CONSUMER_INDEX_MASK: u32 = 0xff_ffff;

/// Word for a queue whose running count is `count`: receive queues, SRQs and send queues count modulo
/// 65,536 and leave the upper half zero.
#[inline(always)]
pub const fn work_queue(count: u32) -> Be32 {
    Be32::new(count & 0xffff)
}

/// Word for a CQ of which `consumer_index` CQEs have been taken.
#[inline(always)]
pub const fn completion_queue(consumer_index: u32) -> Be32 {
    Be32::new(consumer_index & CONSUMER_INDEX_MASK)
}

/// Request for an event when the next CQE arrives: the arm word of the record, and with the CQ number
/// the doorbell of the UAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Sequence number of the request; advances with each event, two bits count.
    pub sequence: u32,
    /// Only a solicited CQE (or one in error) raises the event.
    pub solicited_only: bool,
    /// CQEs that have been taken.
    pub consumer_index: u32,
}

impl Arm {
    const SOLICITED_ONLY: u32 = 1 << 24;

    /// The arm word.
    #[inline]
    pub const fn word(&self) -> Be32 {
        let solicited = if self.solicited_only { Self::SOLICITED_ONLY } else { 0 };
        Be32::new((self.sequence & 3) << 28 | solicited | self.consumer_index & CONSUMER_INDEX_MASK)
    }

    /// Returns the word that is written to the UAR at [`crate::uar::CQ_DOORBELL`].
    #[inline]
    pub const fn doorbell(&self, cqn: u32) -> Be64 {
        Be64::new((self.word().get() as u64) << 32 | cqn as u64)
    }

    /// Reads an arm word.
    #[inline]
    pub const fn from_word(word: Be32) -> Self {
        let word = word.get();
        Self {
            sequence: word >> 28 & 3,
            solicited_only: word & Self::SOLICITED_ONLY != 0,
            consumer_index: word & CONSUMER_INDEX_MASK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Field;

    fn bytes(word: Be32) -> [u8; 4] {
        let mut bytes = [0; 4];
        word.write(&mut bytes);
        bytes
    }

    #[test]
    fn counts_wrap_where_the_device_wraps_them() {
        assert_eq!(bytes(work_queue(0x1_0002)), [0, 0, 0, 2]);
        assert_eq!(bytes(completion_queue(0x0100_0003)), [0, 0, 0, 3]);
    }

    #[test]
    fn arm_word_and_doorbell() {
        let arm = Arm { sequence: 6, solicited_only: true, consumer_index: 0x1234_5678 };
        assert_eq!(bytes(arm.word()), [0x21, 0x34, 0x56, 0x78]);
        assert_eq!(arm.doorbell(0x99).get(), 0x2134_5678_0000_0099);
        let read = Arm::from_word(arm.word());
        assert_eq!(read, Arm { sequence: 2, solicited_only: true, consumer_index: 0x34_5678 });
        let any = Arm { solicited_only: false, ..arm };
        assert!(!Arm::from_word(any.word()).solicited_only);
    }
}
