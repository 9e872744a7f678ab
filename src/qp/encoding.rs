//! The address of a queue pair as bytes and as text, for programs that exchange it by a way of their own.

use std::fmt;
use std::str::FromStr;

use rdma_core_sys as sys;

use super::address::{MAX_24_BITS, QpAddress};
use crate::mtu::Mtu;

use crate::debug_is_display::debug_is_display;

/// Version of the bytes.
pub(super) const VERSION: u16 = 1;

/// Bytes or text do not contain the address of a queue pair.
///
/// ```
/// use doorbell::{AddressError, QpAddress};
///
/// let error = "0003:000118:004711".parse::<QpAddress>().unwrap_err();
/// assert_eq!(error, AddressError::Parts(3));
/// println!("{error}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The bytes are of another version of the library.
    #[error(
        "the address has version {0}, and this library reads version {VERSION}: use one version of doorbell on both sides"
    )]
    Version(u16),
    /// The MTU is not a valid one.
    #[error("the MTU is {0}: it must be 256, 512, 1024, 2048 or 4096 (codes 1 to 5 in bytes)")]
    Mtu(u32),
    /// A number exceeds 24 bits.
    #[error("{what} is {value:#x}: it must be at most 0xffffff")]
    TooLarge {
        /// `qpn`, `psn` or `number`.
        what: &'static str,
        /// The number that was given.
        value: u32,
    },
    /// The text has a wrong number of parts.
    #[error(
        "the address has {0} parts: it must read LID:QPN:PSN:GID:MTU, as QpAddress prints it, or LID:NUMBER:KEY:GID:MTU, as DcAddress does"
    )]
    Parts(usize),
    /// A part of the text is not a number.
    #[error(
        "{0} of the address is not a number, or has the wrong count of digits: see LID:QPN:PSN:GID:MTU as QpAddress prints it, or LID:NUMBER:KEY:GID:MTU as DcAddress does"
    )]
    Number(&'static str),
}

debug_is_display!(AddressError);

impl QpAddress {
    /// Length of [`to_bytes`](Self::to_bytes) in bytes.
    pub const BYTES: usize = 32;

    /// Returns the address as bytes for messages and files, big-endian: version 1 (16 bits), code of the MTU (8 bits,
    /// 1 for 256 bytes to 5 for 4,096), zero (8), LID (16), zero (16), number of the queue pair (32), first PSN (32),
    /// GID (128).
    ///
    /// ```
    /// # let doorbell_doc::World { qp, device: _device, .. } = doorbell_doc::World::new();
    /// use doorbell::QpAddress;
    ///
    /// let address = qp.address()?;
    /// let bytes: [u8; QpAddress::BYTES] = address.to_bytes();
    /// assert_eq!(QpAddress::from_bytes(&bytes)?, address);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2] = self.mtu as u8;
        bytes[4..6].copy_from_slice(&self.lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.to_be_bytes());
        bytes[16..].copy_from_slice(&self.gid);
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
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..]);
        Self { lid: u16_at(4), gid, qpn: u32_at(8), psn: u32_at(12), mtu }.checked()
    }

    fn checked(self) -> Result<Self, AddressError> {
        for (what, value) in [("qpn", self.qpn), ("psn", self.psn)] {
            if value > MAX_24_BITS {
                return Err(AddressError::TooLarge { what, value });
            }
        }
        Ok(self)
    }
}

/// `LID:QPN:PSN:GID:MTU`, all but the MTU in hexadecimal: a word without spaces, for command lines and configuration.
///
/// ```
/// use doorbell::{Mtu, QpAddress};
///
/// let address = QpAddress { lid: 3, gid: [0; 16], qpn: 0x118, psn: 0x4711, mtu: Mtu::Mtu4096 };
/// let text = address.to_string();
/// assert_eq!(text, "0003:000118:004711:00000000000000000000000000000000:4096");
/// assert_eq!(text.parse(), Ok(address));
/// ```
impl fmt::Display for QpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, gid, qpn, psn, mtu } = self;
        let gid = u128::from_be_bytes(*gid);
        f.pad(&format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}:{}", mtu.bytes()))
    }
}

impl FromStr for QpAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parts: Vec<_> = text.trim().split(':').collect();
        let &[lid, qpn, psn, gid, mtu] = &parts[..] else {
            return Err(AddressError::Parts(parts.len()));
        };
        let mtu = mtu_of_text(mtu)?;
        Ok(Self {
            lid: number(lid, 16, 4).ok_or(AddressError::Number("LID"))? as u16,
            qpn: number(qpn, 16, 6).ok_or(AddressError::Number("QPN"))? as u32,
            psn: number(psn, 16, 6).ok_or(AddressError::Number("PSN"))? as u32,
            gid: number(gid, 16, 32).ok_or(AddressError::Number("GID"))?.to_be_bytes(),
            mtu,
        })
    }
}

/// Returns the MTU that a text says in bytes.
pub(super) fn mtu_of_text(text: &str) -> Result<Mtu, AddressError> {
    let mtu = number(text, 10, 4).ok_or(AddressError::Number("MTU"))? as u32;
    let known = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];
    known.into_iter().find(|known| known.bytes() == mtu).ok_or(AddressError::Mtu(mtu))
}

/// A number of at most so many digits, and nothing else.
pub(super) fn number(text: &str, radix: u32, digits: usize) -> Option<u128> {
    let fits = (1..=digits).contains(&text.len()) && text.chars().all(|c| c.is_digit(radix));
    fits.then(|| u128::from_str_radix(text, radix).ok()).flatten()
}

/// As text, the same as `Display` and `FromStr`.
#[cfg(feature = "serde")]
mod with_serde {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::QpAddress;

    impl Serialize for QpAddress {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for QpAddress {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use super::*;

    pub(crate) const ADDRESS: QpAddress = QpAddress {
        lid: 0x0102,
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0xff, 0xfe, 0x0d, 0x0e, 0x0f],
        qpn: 0x11_2233,
        psn: 0x44_5566,
        mtu: Mtu::Mtu4096,
    };

    const BYTES: [u8; QpAddress::BYTES] = *b"\x00\x01\x05\x00\x01\x02\x00\x00\
        \x00\x11\x22\x33\x00\x44\x55\x66\
        \xfe\x80\x00\x00\x00\x00\x00\x00\x0a\x0b\x0c\xff\xfe\x0d\x0e\x0f";

    const TEXT: &str = "0102:112233:445566:fe800000000000000a0b0cfffe0d0e0f:4096";

    #[test]
    fn an_address_is_these_bytes_and_back() {
        assert_eq!(ADDRESS.to_bytes(), BYTES);
        assert_eq!(QpAddress::from_bytes(&BYTES), Ok(ADDRESS));
    }

    #[test]
    fn invalid_address_bytes_are_refused_with_the_reason() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            QpAddress::from_bytes(&bytes)
        };
        assert_eq!(with(1, 2), Err(AddressError::Version(2)));
        assert_eq!(with(0, 1), Err(AddressError::Version(257)));
        assert_eq!(with(2, 0), Err(AddressError::Mtu(0)));
        assert_eq!(with(2, 6), Err(AddressError::Mtu(6)));
        let value = 0x0111_2233;
        assert_eq!(with(8, 1), Err(AddressError::TooLarge { what: "qpn", value }));
        assert!(matches!(with(12, 1), Err(AddressError::TooLarge { what: "psn", .. })));
    }

    #[test]
    fn an_address_is_this_text_and_back() {
        assert_eq!(ADDRESS.to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(ADDRESS));
        assert_eq!(TEXT.to_uppercase().parse(), Ok(ADDRESS));
        assert_eq!(format!("{ADDRESS:>58}").len(), 58);
        assert_eq!(HashSet::from([ADDRESS, TEXT.parse().unwrap()]).len(), 1);
    }

    #[test]
    fn invalid_address_text_is_refused_with_the_reason() {
        let parse = |text: &str| text.parse::<QpAddress>();
        assert_eq!(parse(""), Err(AddressError::Parts(1)));
        assert_eq!(parse(&TEXT[..TEXT.len() - 5]), Err(AddressError::Parts(4)));
        assert_eq!(parse(&TEXT.replace("0102:", "+102:")), Err(AddressError::Number("LID")));
        assert_eq!(parse(&TEXT.replace("0102:", "10102:")), Err(AddressError::Number("LID")));
        assert_eq!(parse(&TEXT.replace("112233", "0112233")), Err(AddressError::Number("QPN")));
        assert_eq!(parse(&TEXT.replace("445566", "")), Err(AddressError::Number("PSN")));
        assert_eq!(parse(&TEXT.replace("fe80", "gid0")), Err(AddressError::Number("GID")));
        assert_eq!(parse(&TEXT.replace(":4096", ":1500")), Err(AddressError::Mtu(1500)));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_and_reads_the_text() {
        let json = serde_json::to_string(&ADDRESS).unwrap();
        assert_eq!(json, format!("\"{TEXT}\""));
        assert_eq!(serde_json::from_str::<QpAddress>(&json).unwrap(), ADDRESS);
        let refused = serde_json::from_str::<QpAddress>("\"0102\"").unwrap_err();
        assert!(refused.to_string().contains("LID:QPN:PSN:GID:MTU"), "{refused}");
    }
}
