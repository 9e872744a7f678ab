//! DataPath MTU.

use rdma_core_sys as sys;

/// Largest payload of a packet on a path (`enum ibv_mtu`).
///
/// ```
/// use doorbell::Mtu;
///
/// assert_eq!(Mtu::Mtu1024.bytes(), 1024);
/// assert!(Mtu::Mtu1024 < Mtu::Mtu4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512,
    /// 1,024 bytes.
    Mtu1024,
    /// 2,048 bytes.
    Mtu2048,
    /// 4,096 bytes.
    Mtu4096,
}

impl Mtu {
    /// The MTU with this value in the headers.
    pub(crate) const fn from_raw(mtu: sys::ibv_mtu) -> Option<Self> {
        Some(match mtu {
            sys::IBV_MTU_256 => Self::Mtu256,
            sys::IBV_MTU_512 => Self::Mtu512,
            sys::IBV_MTU_1024 => Self::Mtu1024,
            sys::IBV_MTU_2048 => Self::Mtu2048,
            sys::IBV_MTU_4096 => Self::Mtu4096,
            _ => return None,
        })
    }

    pub(crate) const fn as_raw(self) -> sys::ibv_mtu {
        self as sys::ibv_mtu
    }

    /// Returns the MTU in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_header() {
        let all = [
            (sys::IBV_MTU_256, 256),
            (sys::IBV_MTU_512, 512),
            (sys::IBV_MTU_1024, 1024),
            (sys::IBV_MTU_2048, 2048),
            (sys::IBV_MTU_4096, 4096),
        ];
        for (raw, bytes) in all {
            let mtu = Mtu::from_raw(raw).unwrap();
            assert_eq!((mtu.as_raw(), mtu.bytes()), (raw, bytes));
        }
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(Mtu::from_raw(6), None);
    }
}
