//! Headers that tag matching puts in front of a message on the wire (`struct ibv_tmh` and
//! `struct ibv_rvh` of `infiniband/tm_types.h`).

use crate::be::{Be32, Be64};

/// Opcode of a tag-matching header: what follows the header (`enum ibv_tmh_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmhOpcode {
    /// A message that is not matched.
    NoTag,
    /// A rendezvous header: the receiver reads the data.
    Rendezvous,
    /// The receiver has read the data.
    Fin,
    /// The data.
    Eager,
    /// A value without a name.
    Unknown(u8),
}

impl TmhOpcode {
    /// The opcode with this number.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::NoTag,
            1 => Self::Rendezvous,
            2 => Self::Fin,
            3 => Self::Eager,
            other => Self::Unknown(other),
        }
    }

    /// The number.
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Self::NoTag => 0,
            Self::Rendezvous => 1,
            Self::Fin => 2,
            Self::Eager => 3,
            Self::Unknown(other) => other,
        }
    }
}

layout! {
    /// Tag-matching header.
    pub struct Tmh: 16 {
        /// Opcode, see [`TmhOpcode`].
        0 => opcode: u8,
        /// Must be zero.
        1 => reserved1: [u8; 3],
        /// Opaque to the device, handed to the receiver.
        4 => app_ctx: Be32,
        /// Tag.
        8 => tag: Be64,
    }
}

layout! {
    /// Rendezvous header: where the receiver reads the data.
    pub struct Rvh: 16 {
        /// First byte at the sender.
        0 => va: Be64,
        /// Remote key of the sender's memory.
        8 => rkey: Be32,
        /// Bytes.
        12 => len: Be32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_survives_the_round_trip() {
        for byte in 0..=255 {
            assert_eq!(TmhOpcode::from_byte(byte).byte(), byte);
        }
    }

    #[test]
    fn eager_header() {
        let bytes = [3, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x12, 0x34];
        let tmh = Tmh::from_bytes(&bytes);
        assert_eq!(TmhOpcode::from_byte(tmh.opcode), TmhOpcode::Eager);
        assert_eq!((tmh.app_ctx.get(), tmh.tag.get()), (7, 0x1234));
        assert_eq!(tmh.to_bytes(), bytes);
    }

    #[test]
    fn rendezvous_header() {
        let bytes = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 9, 0, 1, 0, 0];
        let rvh = Rvh::from_bytes(&bytes);
        assert_eq!((rvh.va.get(), rvh.rkey.get(), rvh.len.get()), (0x1000, 9, 65536));
        assert_eq!(rvh.to_bytes(), bytes);
    }
}
