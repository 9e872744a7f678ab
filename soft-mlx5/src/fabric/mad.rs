//! Management datagrams: 256 bytes that begin with a common header, sent from QP 0 or 1 to QP 0 or 1.

/// Bytes of every management datagram.
pub const SIZE: usize = 256;
/// Bytes of the common header.
pub const HEADER: usize = 24;
/// Queue pair of the subnet management agents, of which a packet needs no Q_Key.
pub const SMI_QPN: u32 = 0;
/// Queue pair of all other agents.
pub const GSI_QPN: u32 = 1;
/// Q_Key of [`GSI_QPN`].
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Class of communication management.
pub const CLASS_CM: u8 = 0x07;

/// A whole datagram.
pub type Mad = [u8; SIZE];

/// Common header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: u8,
    /// Status; 0 in requests.
    pub status: u16,
    /// Number that a request and its answer share.
    pub transaction: u64,
    /// Attribute.
    pub attribute: u16,
    /// Modifier of the attribute.
    pub modifier: u32,
}

const BASE_VERSION: u8 = 1;

impl Header {
    /// Reads the header; returns `None` for an unknown base version.
    pub fn parse(mad: &Mad) -> Option<Self> {
        if mad[0] != BASE_VERSION {
            return None;
        }
        let be = |from: usize, to: usize| mad[from..to].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        Some(Self {
            class: mad[1],
            class_version: mad[2],
            method: mad[3],
            status: be(4, 6) as u16,
            transaction: be(8, 16),
            attribute: be(16, 18) as u16,
            modifier: be(20, 24) as u32,
        })
    }

    /// Writes the header.
    pub fn emit(&self, mad: &mut Mad) {
        mad[..4].copy_from_slice(&[BASE_VERSION, self.class, self.class_version, self.method]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[6..8].fill(0);
        mad[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        mad[18..20].fill(0);
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
    }
}

/// A management datagram that arrived, and its path.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// Queue pair of the receiver, 0 or 1.
    pub qpn: u32,
    /// Queue pair that sent it.
    pub source_qpn: u32,
    /// LID of the sender.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Partition key.
    pub pkey: u16,
    /// GRH or IPv6 header, if the packet had one.
    pub grh: Option<[u8; 40]>,
    /// The datagram.
    pub mad: Mad,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_header() {
        let header = Header {
            class: CLASS_CM,
            class_version: 2,
            method: 3,
            status: 0x102,
            transaction: 0x1122_3344_5566_7788,
            attribute: 0x10,
            modifier: 9,
        };
        let mut mad = [0xee; SIZE];
        header.emit(&mut mad);
        let bytes = [1, 7, 2, 3, 1, 2, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x10, 0, 0, 0, 0, 0, 9];
        assert_eq!(mad[..HEADER], bytes);
        assert_eq!(Header::parse(&mad), Some(header));
        mad[0] = 0x80;
        assert_eq!(Header::parse(&mad), None);
    }
}
