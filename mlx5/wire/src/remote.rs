//! Remote segments: what an RDMA or atomic WQE says about the peer's memory
//! (`struct mlx5_wqe_raddr_seg`, `struct mlx5_wqe_atomic_seg`).

use crate::be::{Be32, Be64};

layout! {
    /// Address and key at the peer.
    pub struct RemoteAddressSegment: 16 {
        /// First byte at the peer.
        0 => raddr: Be64,
        /// Remote key.
        8 => rkey: Be32,
        /// Reserved.
        12 => reserved12: [u8; 4],
    }
}

layout! {
    /// Operands of an atomic.
    pub struct AtomicSegment: 16 {
        /// Value to store or to add.
        0 => swap_add: Be64,
        /// Value to compare with.
        8 => compare: Be64,
    }
}

layout! {
    /// SRQ that an XRC send addresses (`struct mlx5_wqe_xrc_seg` of libmlx5).
    pub struct XrcSegment: 16 {
        /// SRQ number at the peer.
        0 => xrc_srqn: Be32,
        /// Reserved.
        4 => reserved4: [u8; 12],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_remote_address() {
        let bytes = [0, 0, 0x7f, 0, 0, 0, 0x20, 0, 0, 0, 0x18, 0x05, 0, 0, 0, 0];
        let segment = RemoteAddressSegment::from_bytes(&bytes);
        assert_eq!((segment.raddr.get(), segment.rkey.get()), (0x7f00_0000_2000, 0x1805));
        assert_eq!(segment.to_bytes(), bytes);
    }
}
