//! Datagram segment: the address vector in a UD send WQE (`struct mlx5_wqe_av`).

use crate::be::{Be16, Be32, Be64};
use crate::layout::Field;

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

impl DatagramSegment {
    /// Numbers of queue pairs have 24 bits.
    const QPN: u32 = 0xff_ffff;

    /// The segment for QP `qpn` at the end of this address vector, with the key `qkey`. The vector is what
    /// `mlx5dv_init_obj` reports for an address handle (`struct mlx5_wqe_av`).
    #[inline]
    pub const fn to(mut self, qpn: u32, qkey: u32) -> Self {
        self.set_destination(qpn, qkey);
        self
    }

    /// As [`to`](Self::to), in place.
    #[inline]
    pub const fn set_destination(&mut self, qpn: u32, qkey: u32) {
        self.qkey = Be32::new(qkey);
        self.reserved4 = [0; 4];
        self.dqp_dct = Be32::new(EXTENDED_UD_AV | qpn & Self::QPN);
    }

    /// The segment for DC target `number` with the access key `key` at the end of this address vector.
    #[inline]
    pub const fn to_target(mut self, number: u32, key: u64) -> Self {
        self.qkey = Be32::new((key >> 32) as u32);
        self.reserved4 = (key as u32).to_be_bytes();
        self.dqp_dct = Be32::new(EXTENDED_UD_AV | number & Self::QPN);
        self
    }

    /// Returns the access key of the DC target that the segment names.
    #[inline]
    pub const fn dc_key(&self) -> u64 {
        (self.qkey.get() as u64) << 32 | u32::from_be_bytes(self.reserved4) as u64
    }

    /// Returns the number of the queue pair or DC target that the segment names.
    #[inline]
    pub const fn destination(&self) -> u32 {
        self.dqp_dct.get() & Self::QPN
    }

    /// An address vector without fields.
    const EMPTY: Self = Self {
        qkey: Be32::new(0),
        reserved4: [0; 4],
        dqp_dct: Be32::new(EXTENDED_UD_AV),
        stat_rate_sl: 0,
        fl_mlid: 0,
        rlid: Be16::new(0),
        reserved16: [0; 4],
        rmac: [0; 6],
        tclass: 0,
        hop_limit: 0,
        grh_gid_fl: Be32::new(0),
        rgid: [0; 16],
    };

    /// An address vector of InfiniBand without a GRH: LID and service level.
    #[inline]
    pub const fn infiniband(dlid: u16, sl: u8) -> Self {
        Self { stat_rate_sl: sl & 0xf, rlid: Be16::new(dlid), ..Self::EMPTY }
    }

    /// This address vector of InfiniBand with a GRH.
    #[inline]
    pub const fn with_grh(self, grh: GlobalRoute) -> Self {
        let flags = Be32::new(GRH_PRESENT | grh.sgid_and_flow());
        Self { grh_gid_fl: flags, ..self.route(grh) }
    }

    /// An address vector of RoCE v2: MAC address and UDP source port, service level and route.
    #[inline]
    pub const fn roce(rmac: [u8; 6], udp_source_port: u16, sl: u8, grh: GlobalRoute) -> Self {
        let path = Self { stat_rate_sl: (sl & 7) << 1, rlid: Be16::new(udp_source_port), rmac, ..Self::EMPTY };
        Self { grh_gid_fl: Be32::new(grh.sgid_and_flow()), ..path.route(grh) }
    }

    const fn route(self, grh: GlobalRoute) -> Self {
        Self { tclass: grh.tclass, hop_limit: grh.hop_limit, rgid: grh.dgid, ..self }
    }

    /// The segment as six words of memory; reserved bytes are zero.
    #[inline(always)]
    pub fn to_words(&self) -> [Be64; 6] {
        let word = |upper: [u8; 4], lower: [u8; 4]| {
            Be64::new(u64::from(u32::from_be_bytes(upper)) << 32 | u64::from(u32::from_be_bytes(lower)))
        };
        let be = |value: Be32| value.get().to_be_bytes();
        let [lid_upper, lid_lower] = self.rlid.get().to_be_bytes();
        let [m0, m1, m2, m3, m4, m5] = self.rmac;
        [
            word(be(self.qkey), self.reserved4),
            word(be(self.dqp_dct), [self.stat_rate_sl, self.fl_mlid, lid_upper, lid_lower]),
            word(self.reserved16, [m0, m1, m2, m3]),
            word([m4, m5, self.tclass, self.hop_limit], be(self.grh_gid_fl)),
            Field::read(&self.rgid[..8]),
            Field::read(&self.rgid[8..]),
        ]
    }
}

/// Route of a datagram, for a GRH (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Flow label, of 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

impl GlobalRoute {
    const fn sgid_and_flow(&self) -> u32 {
        (self.sgid_index as u32) << 20 | self.flow_label & 0xf_ffff
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
        assert_eq!(segment.to_words()[0].get(), 0x0001_0203_0405_0607);
        assert_eq!(segment.to_words()[5].get(), 0x2829_2a2b_2c2d_2e2f);
    }

    const ROUTE: GlobalRoute = GlobalRoute {
        dgid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12],
        sgid_index: 3,
        flow_label: 0xfff5_4321,
        tclass: 0x20,
        hop_limit: 0x40,
    };

    #[test]
    fn an_infiniband_address() {
        let local = DatagramSegment::infiniband(0x1234, 5).to(0xff00_0055, 0x1111_1111);
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&[0x11; 4]);
        bytes[8..16].copy_from_slice(&[0x80, 0, 0, 0x55, 5, 0, 0x12, 0x34]);
        assert_eq!(local.to_bytes(), bytes);
        bytes[26..32].copy_from_slice(&[0x20, 0x40, 0x40, 0x35, 0x43, 0x21]);
        bytes[32..].copy_from_slice(&ROUTE.dgid);
        assert_eq!(local.with_grh(ROUTE).to_bytes(), bytes);
    }

    #[test]
    fn a_dc_target_has_a_key_of_64_bits_in_front_of_its_number() {
        let target = DatagramSegment::infiniband(0x1234, 5).to_target(0xff00_0055, 0x1122_3344_5566_7788);
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        bytes[8..16].copy_from_slice(&[0x80, 0, 0, 0x55, 5, 0, 0x12, 0x34]);
        assert_eq!(target.to_bytes(), bytes);
        assert_eq!((target.destination(), target.dc_key()), (0x55, 0x1122_3344_5566_7788));
    }

    #[test]
    fn a_roce_address_has_no_grh_bit() {
        let av = DatagramSegment::roce([1, 2, 3, 4, 5, 6], 0xc001, 5, ROUTE).to(0x55, 0x1111_1111);
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&[0x11; 4]);
        bytes[8..16].copy_from_slice(&[0x80, 0, 0, 0x55, 0x0a, 0, 0xc0, 0x01]);
        bytes[20..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 0x20, 0x40, 0x00, 0x35, 0x43, 0x21]);
        bytes[32..].copy_from_slice(&ROUTE.dgid);
        assert_eq!(av.to_bytes(), bytes);
    }
}
