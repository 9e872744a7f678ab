//! Transport headers after UDP: base header and extended headers.

/// Partition key of every packet: the default partition, full member.
pub const PKEY: u16 = 0xffff;
/// Bits of a packet sequence number.
pub const PSN_MASK: u32 = 0xff_ffff;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// A header of fixed size.
pub trait Header: Sized {
    /// Size in bytes.
    const SIZE: usize;
    /// Reads it from the first `SIZE` bytes; the caller has checked the length.
    fn parse(bytes: &[u8]) -> Self;
    /// Writes it to the first `SIZE` bytes.
    fn emit(&self, bytes: &mut [u8]);
}

/// Base transport header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation.
    pub opcode: u8,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// Bytes of padding after the payload.
    pub pad: u8,
    /// Transport version, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// QP that receives the packet.
    pub dest_qpn: u32,
    /// An acknowledgement is asked for.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: u32,
}

impl Header for Bth {
    const SIZE: usize = 12;

    fn parse(bytes: &[u8]) -> Self {
        Self {
            opcode: bytes[0],
            solicited: bytes[1] & 0x80 != 0,
            pad: bytes[1] >> 4 & 3,
            version: bytes[1] & 0xf,
            pkey: be16(bytes, 2),
            dest_qpn: be24(bytes, 5),
            ack_request: bytes[8] & 0x80 != 0,
            psn: be24(bytes, 9),
        }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[0] = self.opcode;
        // Bit 6 says "migrated": a QP without alternate path always sets it.
        bytes[1] = u8::from(self.solicited) << 7 | 1 << 6 | self.pad << 4 | self.version;
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.dest_qpn & 0xff_ffff).to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.psn & PSN_MASK).to_be_bytes());
        bytes[8] = u8::from(self.ack_request) << 7;
    }
}

/// RDMA extended transport header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reth {
    /// First byte at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Header for Reth {
    const SIZE: usize = 16;

    fn parse(bytes: &[u8]) -> Self {
        Self { va: be64(bytes, 0), rkey: be32(bytes, 8), length: be32(bytes, 12) }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
    }
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// The eight bytes at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to store or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

impl Header for AtomicEth {
    const SIZE: usize = 28;

    fn parse(bytes: &[u8]) -> Self {
        Self { va: be64(bytes, 0), rkey: be32(bytes, 8), swap_add: be64(bytes, 12), compare: be64(bytes, 20) }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// Verdict of a responder on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Executed, up to and including the PSN.
    Ack,
    /// No receive WQE: try again after this timer (5-bit code).
    Rnr(u8),
    /// Refused.
    Nak(NakCode),
    /// A value the specification reserves.
    Reserved(u8),
}

/// Reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: send again from the PSN.
    SequenceError = 0,
    /// The request is not legal on this QP.
    InvalidRequest = 1,
    /// A key does not allow the access.
    RemoteAccess = 2,
    /// The responder could not complete the operation.
    RemoteOperational = 3,
}

// The responder counts no credits: QPs of an SRQ cannot count them, and other QPs need not.
const CREDITS_UNLIMITED: u8 = 0x1f;

/// ACK extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// Verdict.
    pub syndrome: Syndrome,
    /// Messages completed at the responder, 24 bits.
    pub msn: u32,
}

impl Header for Aeth {
    const SIZE: usize = 4;

    fn parse(bytes: &[u8]) -> Self {
        let syndrome = match (bytes[0] >> 5, bytes[0] & 0x1f) {
            (0, _) => Syndrome::Ack,
            (1, timer) => Syndrome::Rnr(timer),
            (3, 0) => Syndrome::Nak(NakCode::SequenceError),
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            _ => Syndrome::Reserved(bytes[0]),
        };
        Self { syndrome, msn: be24(bytes, 1) }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&(self.msn & 0xff_ffff).to_be_bytes());
        bytes[0] = match self.syndrome {
            Syndrome::Ack => CREDITS_UNLIMITED,
            Syndrome::Rnr(timer) => 1 << 5 | timer & 0x1f,
            Syndrome::Nak(code) => 3 << 5 | code as u8,
            Syndrome::Reserved(byte) => byte,
        };
    }
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// QP that sent the datagram.
    pub source_qpn: u32,
}

impl Header for Deth {
    const SIZE: usize = 8;

    fn parse(bytes: &[u8]) -> Self {
        Self { qkey: be32(bytes, 0), source_qpn: be24(bytes, 5) }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.source_qpn & 0xff_ffff).to_be_bytes());
    }
}

/// Header of dynamic connections, of this device's own making.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DcHeader {
    /// Access key of the target; 0 in an answer.
    pub key: u64,
    /// Number of the connection. A later connection of the same initiator has a greater one.
    pub session: u64,
    /// Queue pair number of the initiator.
    pub initiator: u32,
}

impl Header for DcHeader {
    const SIZE: usize = 20;

    fn parse(bytes: &[u8]) -> Self {
        Self { key: be64(bytes, 0), session: be64(bytes, 8), initiator: be24(bytes, 17) }
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.key.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_be_bytes());
        bytes[16..20].copy_from_slice(&(self.initiator & 0xff_ffff).to_be_bytes());
    }
}

/// Four bytes on their own: immediate data or the key to invalidate, as they stand on the wire.
impl Header for u32 {
    const SIZE: usize = 4;

    fn parse(bytes: &[u8]) -> Self {
        be32(bytes, 0)
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.to_be_bytes());
    }
}

/// Eight bytes on their own: the original value in the answer to an atomic.
impl Header for u64 {
    const SIZE: usize = 8;

    fn parse(bytes: &[u8]) -> Self {
        be64(bytes, 0)
    }

    fn emit(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<H: Header + PartialEq + std::fmt::Debug>(header: H, bytes: &[u8]) {
        assert_eq!(H::SIZE, bytes.len());
        let mut out = vec![0xee; H::SIZE];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(H::parse(bytes), header);
    }

    #[test]
    fn base_header() {
        check(
            Bth {
                opcode: 0x04,
                solicited: true,
                pad: 3,
                version: 0,
                pkey: 0xffff,
                dest_qpn: 0x12_3456,
                ack_request: true,
                psn: 0xab_cdef,
            },
            &[0x04, 0xf0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef],
        );
    }

    #[test]
    fn extended_headers() {
        check(
            Reth { va: 0x0102_0304_0506_0708, rkey: 0x1122_3344, length: 0x55 },
            &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0x55],
        );
        check(Deth { qkey: 0x1111_1111, source_qpn: 0x45 }, &[0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0x45]);
        check(
            DcHeader { key: 0xbad_c0de, session: 0x1_0000_0002, initiator: 0x45 },
            &[0, 0, 0, 0, 0x0b, 0xad, 0xc0, 0xde, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0x45],
        );
        check(Aeth { syndrome: Syndrome::Ack, msn: 0x10203 }, &[0x1f, 1, 2, 3]);
        check(Aeth { syndrome: Syndrome::Rnr(12), msn: 1 }, &[0x2c, 0, 0, 1]);
        check(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0 }, &[0x62, 0, 0, 0]);
        check(Aeth { syndrome: Syndrome::Reserved(0x64), msn: 0 }, &[0x64, 0, 0, 0]);
    }

    #[test]
    fn atomic_header() {
        let header = AtomicEth { va: 8, rkey: 9, swap_add: 10, compare: 11 };
        let mut bytes = [0; 28];
        header.emit(&mut bytes);
        assert_eq!([bytes[7], bytes[11], bytes[19], bytes[27]], [8, 9, 10, 11]);
        assert_eq!(AtomicEth::parse(&bytes), header);
    }
}
