//! Opcodes of send WQEs (`MLX5_OPCODE_*`) and of CQEs (`MLX5_CQE_*`).

/// Opcode of a send WQE; any byte is a value, the named ones are those of `mlx5dv.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WqeOpcode(u8);

impl WqeOpcode {
    /// No operation.
    pub const NOP: Self = Self(0x00);
    /// SEND that invalidates a key of the receiver.
    pub const SEND_INVAL: Self = Self(0x01);
    /// RDMA WRITE.
    pub const RDMA_WRITE: Self = Self(0x08);
    /// RDMA WRITE with immediate data.
    pub const RDMA_WRITE_IMM: Self = Self(0x09);
    /// SEND.
    pub const SEND: Self = Self(0x0a);
    /// SEND with immediate data.
    pub const SEND_IMM: Self = Self(0x0b);
    /// Segmented Ethernet send.
    pub const TSO: Self = Self(0x0e);
    /// RDMA READ.
    pub const RDMA_READ: Self = Self(0x10);
    /// Compare and swap.
    pub const ATOMIC_CS: Self = Self(0x11);
    /// Fetch and add.
    pub const ATOMIC_FA: Self = Self(0x12);
    /// Masked compare and swap.
    pub const ATOMIC_MASKED_CS: Self = Self(0x14);
    /// Masked fetch and add.
    pub const ATOMIC_MASKED_FA: Self = Self(0x15);
    /// Invalidation of a local key.
    pub const LOCAL_INVAL: Self = Self(0x1b);
    /// Setting of a protection signature value.
    pub const SET_PSV: Self = Self(0x20);
    /// User-mode memory registration.
    pub const UMR: Self = Self(0x25);
    /// Tag-matching list operation.
    pub const TAG_MATCHING: Self = Self(0x28);
    /// Several Ethernet frames with one Ethernet segment (enhanced multi-packet WQE).
    pub const ENHANCED_MPSW: Self = Self(0x29);

    /// The opcode with this number.
    #[inline]
    pub const fn new(value: u8) -> Self {
        Self(value)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the name in `mlx5dv.h` without the prefix, or that of Linux (`include/linux/mlx5/device.h`) or DPDK
    /// (`mlx5_prm.h`) for an opcode that has none there.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|row| row.0 == self.0).map(|row| row.1)
    }

    /// Returns the opcode of this name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|row| row.1 == name).map(|row| Self(row.0))
    }
}

/// Opcodes of WQEs and their names.
const NAMES: [(u8, &str); 25] = [
    (0x00, "NOP"),
    (0x01, "SEND_INVAL"),
    (0x08, "RDMA_WRITE"),
    (0x09, "RDMA_WRITE_IMM"),
    (0x0a, "SEND"),
    (0x0b, "SEND_IMM"),
    (0x0e, "TSO"),
    (0x0f, "WAIT"),
    (0x10, "RDMA_READ"),
    (0x11, "ATOMIC_CS"),
    (0x12, "ATOMIC_FA"),
    (0x14, "ATOMIC_MASKED_CS"),
    (0x15, "ATOMIC_MASKED_FA"),
    (0x18, "BIND_MW"),
    (0x1b, "LOCAL_INVAL"),
    (0x1f, "CONFIG_CMD"),
    (0x20, "SET_PSV"),
    (0x21, "GET_PSV"),
    (0x22, "CHECK_PSV"),
    (0x23, "DUMP"),
    (0x25, "UMR"),
    (0x28, "TAG_MATCHING"),
    (0x29, "ENHANCED_MPSW"),
    (0x2d, "ACCESS_ASO"),
    (0x2f, "MMO"),
];

/// Opcode of a CQE: bits 4..7 of `op_own`. All sixteen values are representable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqeOpcode {
    /// A send WQE completed.
    Requester,
    /// RDMA WRITE with immediate arrived.
    ResponderWriteImm,
    /// SEND arrived.
    ResponderSend,
    /// SEND with immediate arrived.
    ResponderSendImm,
    /// SEND with invalidate arrived.
    ResponderSendInv,
    /// The CQ was resized: the rest is in the new buffer.
    ResizeCq,
    /// A completion without a packet: tag-matching list operations.
    NoPacket,
    /// Signature check failed.
    SignatureError,
    /// A send WQE failed.
    RequesterError,
    /// A receive WQE failed.
    ResponderError,
    /// The device has not written this CQE.
    Invalid,
    /// A value without a name in `mlx5dv.h`.
    Unknown(u8),
}

impl CqeOpcode {
    /// The opcode with this number; only the lower four bits count.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0xf {
            0 => Self::Requester,
            1 => Self::ResponderWriteImm,
            2 => Self::ResponderSend,
            3 => Self::ResponderSendImm,
            4 => Self::ResponderSendInv,
            5 => Self::ResizeCq,
            6 => Self::NoPacket,
            12 => Self::SignatureError,
            13 => Self::RequesterError,
            14 => Self::ResponderError,
            15 => Self::Invalid,
            other => Self::Unknown(other),
        }
    }

    /// The number.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Requester => 0,
            Self::ResponderWriteImm => 1,
            Self::ResponderSend => 2,
            Self::ResponderSendImm => 3,
            Self::ResponderSendInv => 4,
            Self::ResizeCq => 5,
            Self::NoPacket => 6,
            Self::SignatureError => 12,
            Self::RequesterError => 13,
            Self::ResponderError => 14,
            Self::Invalid => 15,
            Self::Unknown(other) => other & 0xf,
        }
    }

    /// Returns the name in `mlx5dv.h` without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requester => "REQ",
            Self::ResponderWriteImm => "RESP_WR_IMM",
            Self::ResponderSend => "RESP_SEND",
            Self::ResponderSendImm => "RESP_SEND_IMM",
            Self::ResponderSendInv => "RESP_SEND_INV",
            Self::ResizeCq => "RESIZE_CQ",
            Self::NoPacket => "NO_PACKET",
            Self::SignatureError => "SIG_ERR",
            Self::RequesterError => "REQ_ERR",
            Self::ResponderError => "RESP_ERR",
            Self::Invalid => "INVALID",
            Self::Unknown(_) => "without a name",
        }
    }

    /// Returns `true` if the CQE reports a received message (successfully).
    #[inline]
    pub const fn is_responder(self) -> bool {
        matches!(self, Self::ResponderWriteImm | Self::ResponderSend | Self::ResponderSendImm | Self::ResponderSendInv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cqe_opcode_survives_the_round_trip() {
        for bits in 0..16 {
            assert_eq!(CqeOpcode::from_bits(bits).bits(), bits);
        }
        assert_eq!(CqeOpcode::from_bits(0xf), CqeOpcode::Invalid);
        assert_eq!(CqeOpcode::from_bits(7), CqeOpcode::Unknown(7));
    }

    #[test]
    fn messages_have_opcodes_1_to_4() {
        for bits in 0..16 {
            assert_eq!(CqeOpcode::from_bits(bits).is_responder(), (1..=4).contains(&bits));
        }
    }

    #[test]
    fn any_byte_is_a_wqe_opcode() {
        assert_eq!(WqeOpcode::new(0xc3).get(), 0xc3);
        assert_eq!(WqeOpcode::TAG_MATCHING.get(), 0x28);
        assert_eq!(WqeOpcode::TAG_MATCHING.name(), Some("TAG_MATCHING"));
        assert_eq!(WqeOpcode::named("RDMA_READ"), Some(WqeOpcode::RDMA_READ));
        assert_eq!(WqeOpcode::new(0xc3).name(), None);
        for byte in 0..=255 {
            let opcode = WqeOpcode::new(byte);
            assert!(opcode.name().is_none_or(|name| WqeOpcode::named(name) == Some(opcode)));
        }
    }
}
