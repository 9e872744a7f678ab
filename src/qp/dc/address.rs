//! The address of a DC target, and its forms as bytes and text.

use std::fmt;
use std::str::FromStr;

use rdma_core_sys as sys;

use crate::mtu::Mtu;
use crate::qp::address::{MAX_24_BITS, QpAddress};
use crate::qp::encoding::{AddressError, VERSION, mtu_of_text, number};

/// The address of a DC target, from which an initiator makes a [`DcPeer`](crate::DcPeer).
///
/// A program sends it to its peers as [bytes](Self::to_bytes), as text (`Display` and `FromStr`) or with serde (feature
/// `serde`).
///
/// ```
/// use doorbell::{DcAddress, Mtu};
///
/// let target = DcAddress { lid: 3, gid: [0; 16], number: 0x118, key: 0x1ee7, mtu: Mtu::Mtu4096 };
/// assert_eq!(target.to_string().parse(), Ok(target));
/// assert_eq!(DcAddress::from_bytes(&target.to_bytes()), Ok(target));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DcAddress {
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the port; all zero when packets carry no GRH.
    pub gid: [u8; 16],
    /// Number of the target, 24 bits.
    pub number: u32,
    /// Access key of the target.
    pub key: u64,
    /// Path MTU of the target.
    pub mtu: Mtu,
}

impl DcAddress {
    /// Length of [`to_bytes`](Self::to_bytes) in bytes.
    pub const BYTES: usize = 40;

    /// Returns the address as bytes for messages and files, big-endian: version 1 (16 bits), code of the MTU (8 bits,
    /// 1 for 256 bytes to 5 for 4,096), zero (8), LID (16), zero (16), number of the target (32), zero (32), access key
    /// (64), GID (128).
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2] = self.mtu as u8;
        bytes[4..6].copy_from_slice(&self.lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_be_bytes());
        bytes[24..].copy_from_slice(&self.gid);
        bytes
    }

    /// Returns the address that [`to_bytes`](Self::to_bytes) encoded.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, AddressError> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
        if u16_at(0) != VERSION {
            return Err(AddressError::Version(u16_at(0)));
        }
        let mtu = u32::from(bytes[2]);
        let mtu = Mtu::from_raw(mtu as sys::ibv_mtu).ok_or(AddressError::Mtu(mtu))?;
        let number = u32_at(8);
        if number > MAX_24_BITS {
            return Err(AddressError::TooLarge { what: "number", value: number });
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[24..]);
        Ok(Self { lid: u16_at(4), gid, number, key: u64::from(u32_at(16)) << 32 | u64::from(u32_at(20)), mtu })
    }

    /// Returns the port and the number, as routes and address vectors want them.
    pub(super) const fn as_qp(&self) -> QpAddress {
        QpAddress { lid: self.lid, gid: self.gid, qpn: self.number, psn: 0, mtu: self.mtu }
    }
}

/// `LID:NUMBER:KEY:GID:MTU`, all but the MTU in hexadecimal: a word without spaces, for command lines and
/// configuration.
impl fmt::Display for DcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, gid, number, key, mtu } = self;
        let gid = u128::from_be_bytes(*gid);
        f.pad(&format!("{lid:04x}:{number:06x}:{key:016x}:{gid:032x}:{}", mtu.bytes()))
    }
}

impl FromStr for DcAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parts: Vec<_> = text.trim().split(':').collect();
        let &[lid, of_target, key, gid, mtu] = &parts[..] else {
            return Err(AddressError::Parts(parts.len()));
        };
        Ok(Self {
            mtu: mtu_of_text(mtu)?,
            lid: number(lid, 16, 4).ok_or(AddressError::Number("LID"))? as u16,
            number: number(of_target, 16, 6).ok_or(AddressError::Number("the number of the target"))? as u32,
            key: number(key, 16, 16).ok_or(AddressError::Number("the access key"))? as u64,
            gid: number(gid, 16, 32).ok_or(AddressError::Number("GID"))?.to_be_bytes(),
        })
    }
}

/// As text, the same as `Display` and `FromStr`.
#[cfg(feature = "serde")]
mod with_serde {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::DcAddress;

    impl Serialize for DcAddress {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for DcAddress {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: DcAddress = DcAddress {
        lid: 0x0102,
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0xff, 0xfe, 0x0d, 0x0e, 0x0f],
        number: 0x11_2233,
        key: 0x1122_3344_5566_7788,
        mtu: Mtu::Mtu4096,
    };

    const BYTES: [u8; DcAddress::BYTES] = *b"\x00\x01\x05\x00\x01\x02\x00\x00\
        \x00\x11\x22\x33\x00\x00\x00\x00\
        \x11\x22\x33\x44\x55\x66\x77\x88\
        \xfe\x80\x00\x00\x00\x00\x00\x00\x0a\x0b\x0c\xff\xfe\x0d\x0e\x0f";

    const TEXT: &str = "0102:112233:1122334455667788:fe800000000000000a0b0cfffe0d0e0f:4096";

    #[test]
    fn an_address_is_these_bytes_and_this_text_and_back() {
        assert_eq!(ADDRESS.to_bytes(), BYTES);
        assert_eq!(DcAddress::from_bytes(&BYTES), Ok(ADDRESS));
        assert_eq!(ADDRESS.to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(ADDRESS));
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_reason() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            DcAddress::from_bytes(&bytes)
        };
        assert_eq!(with(1, 2), Err(AddressError::Version(2)));
        assert_eq!(with(2, 6), Err(AddressError::Mtu(6)));
        assert_eq!(with(8, 1), Err(AddressError::TooLarge { what: "number", value: 0x0111_2233 }));
        let parse = |text: &str| text.parse::<DcAddress>();
        assert_eq!(parse(""), Err(AddressError::Parts(1)));
        assert_eq!(parse(&TEXT.replace("0102:", "+102:")), Err(AddressError::Number("LID")));
        assert_eq!(parse(&TEXT.replace("112233:", "0112233:")), Err(AddressError::Number("the number of the target")));
        assert_eq!(parse(&TEXT.replace(":11223344", ":x1223344")), Err(AddressError::Number("the access key")));
        assert_eq!(parse(&TEXT.replace("fe80", "gid0")), Err(AddressError::Number("GID")));
        assert_eq!(parse(&TEXT.replace(":4096", ":1500")), Err(AddressError::Mtu(1500)));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_and_reads_the_text() {
        let json = serde_json::to_string(&ADDRESS).unwrap();
        assert_eq!(json, format!("\"{TEXT}\""));
        assert_eq!(serde_json::from_str::<DcAddress>(&json).unwrap(), ADDRESS);
    }
}
