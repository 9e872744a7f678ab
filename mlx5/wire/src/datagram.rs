//! Datagram segment: the address vector in a UD send WQE (`struct mlx5_wqe_av`).

use crate::be::{Be16, Be32};

/// Bit of `dqp_dct` that says the vector is the extended one (`MLX5_EXTENDED_UD_AV`).
pub const EXTENDED_UD_AV: u32 = 0x8000_0000;
/// Bit of `grh_gid_fl` that says the GRH fields are valid.
pub const GRH_PRESENT: u32 = 1 << 30;

layout! {
    /// Destination of a datagram.
    pub struct DatagramSegment: 48 {
        /// Queue key.
        0 => qkey: Be32,
        /// Reserved (upper part of a DC key).
        4 => reserved4: [u8; 4],
        /// [`EXTENDED_UD_AV`] and the destination QP number.
        8 => dqp_dct: Be32,
        /// Static rate and service level.
        12 => stat_rate_sl: u8,
        /// Force loopback and multicast path bits.
        13 => fl_mlid: u8,
        /// Destination LID, or UDP source port on RoCE v2.
        14 => rlid: Be16,
        /// Reserved.
        16 => reserved16: [u8; 4],
        /// Destination MAC address (RoCE).
        20 => rmac: [u8; 6],
        /// Traffic class.
        26 => tclass: u8,
        /// Hop limit.
        27 => hop_limit: u8,
        /// [`GRH_PRESENT`], index of the source GID (bits 20..27) and flow label.
        28 => grh_gid_fl: Be32,
        /// Destination GID.
        32 => rgid: [u8; 16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_they_should() {
        let mut bytes = [0; 48];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = i as u8;
        }
        let segment = DatagramSegment::from_bytes(&bytes);
        assert_eq!(GRH_PRESENT, 0x4000_0000);
        assert_eq!(segment.dqp_dct.get(), 0x0809_0a0b);
        assert_eq!(segment.rlid.get(), 0x0e0f);
        assert_eq!(segment.rmac, [20, 21, 22, 23, 24, 25]);
        assert_eq!(segment.rgid[15], 47);
        assert_eq!(segment.to_bytes(), bytes);
    }
}
