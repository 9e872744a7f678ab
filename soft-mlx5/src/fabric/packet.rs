//! Packets as they travel between devices.
//!
//! A frame is an InfiniBand local route header followed by a RoCE v2 packet without its Ethernet
//! header: IPv6 (the same 40 bytes as a GRH), UDP, transport headers, payload, padding, ICRC. On
//! either link layer the local route header says which ports talk; a GRH counts as present when its
//! next-header field says so. Every length is a multiple of four. Packets of RoCE v1 differ in that field, and those
//! over IPv4 have mapped addresses: [`super::ethernet`] says how they look to others.
//!
//! An Ethernet frame, too, has a local route header before it, with its length in bytes.

use super::address::GidType;
use super::headers::{Aeth, AtomicEth, Bth, DcHeader, Deth, Header, Reth};
use super::icrc::Crc;
use super::opcode::{Operation, Service};

const LRH: usize = 0;
const IP: usize = 8;
const UDP: usize = 48;
const BTH: usize = 56;
const TRANSPORT: usize = 68;
const ICRC_SIZE: usize = 4;
// An atomic of a dynamic connection.
const LONGEST_EXTENSION: usize = AtomicEth::SIZE + DcHeader::SIZE;

/// Largest payload of a packet: the largest path MTU.
pub const MAX_MTU: usize = 4096;
/// Smallest Ethernet frame, without its check sequence.
pub const MIN_ETHERNET: usize = 60;
/// Largest Ethernet frame, without its check sequence: an MTU of 9978, and two VLAN tags.
pub const MAX_ETHERNET: usize = 10_000;
/// Largest frame.
pub const MAX_FRAME: usize = IP + MAX_ETHERNET + ICRC_SIZE;
const MAX_PACKET: usize = TRANSPORT + LONGEST_EXTENSION + MAX_MTU + ICRC_SIZE;
const _: () = assert!(MAX_PACKET <= MAX_FRAME);
/// Smallest frame.
pub const MIN_FRAME: usize = TRANSPORT + ICRC_SIZE;

/// UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
/// Next header of RoCE v2.
pub const UDP_PROTOCOL: u8 = 17;
/// Next header of a GRH: a base transport header follows (`IB_NEXT_HDR` in libibverbs).
pub const BASE_TRANSPORT: u8 = 0x1b;
const LNH_ETHERNET: u8 = 0;
const LNH_LOCAL: u8 = 2;
const LNH_GLOBAL: u8 = 3;

/// Source and destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// LID of the sender.
    pub slid: u16,
    /// LID of the receiver.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// A GRH is part of the packet.
    pub global: bool,
    /// Type and GID of the sender.
    pub sgid: (GidType, [u8; 16]),
    /// GID of the receiver.
    pub dgid: [u8; 16],
    /// Flow label of the GRH.
    pub flow_label: u32,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
}

/// Reason why bytes are not a packet. Such bytes are dropped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The packet is shorter or longer than any packet, or not as long as its headers say.
    Length,
    /// The packet is not an InfiniBand packet of version 0 over IPv6 and UDP.
    Version,
    /// No service defines the opcode.
    Opcode,
    /// The ICRC does not fit the bytes.
    Icrc,
}

/// Storage of one packet; reused, never cleared.
#[derive(Debug, Clone)]
pub struct Frame {
    bytes: Box<[u8; MAX_FRAME]>,
    len: usize,
    origin: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Self { bytes: Box::new([0; MAX_FRAME]), len: 0, origin: 0 }
    }
}

impl Frame {
    /// Returns the packet's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Takes over bytes that arrived.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), ParseError> {
        let room = self.bytes.get_mut(..bytes.len()).ok_or(ParseError::Length)?;
        room.copy_from_slice(bytes);
        (self.len, self.origin) = (bytes.len(), 0);
        Ok(())
    }

    /// Takes over an Ethernet frame of at most [`MAX_ETHERNET`] bytes; `origin` is the transport domain that it comes
    /// from, 0 for another device.
    pub fn wrap_ethernet(&mut self, slid: u16, dlid: u16, ethernet: &[u8], origin: u32) {
        let bytes = &mut self.bytes[..];
        bytes[..IP].fill(0);
        bytes[LRH + 1] = LNH_ETHERNET;
        bytes[LRH + 2..LRH + 4].copy_from_slice(&dlid.to_be_bytes());
        bytes[LRH + 4..LRH + 6].copy_from_slice(&(ethernet.len() as u16).to_be_bytes());
        bytes[LRH + 6..LRH + 8].copy_from_slice(&slid.to_be_bytes());
        let end = IP + ethernet.len();
        bytes[IP..end].copy_from_slice(ethernet);
        bytes[end..end + ICRC_SIZE].fill(0);
        (self.len, self.origin) = (end + ICRC_SIZE, origin);
    }

    /// Returns `true` if it is an Ethernet frame, and no packet of a transport.
    pub fn is_ethernet(&self) -> bool {
        self.bytes[LRH + 1] & 3 == LNH_ETHERNET
    }

    /// Returns the Ethernet frame without its check sequence.
    pub fn ethernet(&self) -> Option<&[u8]> {
        let end = self.len.checked_sub(ICRC_SIZE)?;
        self.bytes.get(IP..end).filter(|_| self.is_ethernet())
    }

    /// Returns the transport domain of this device that an Ethernet frame comes from, 0 for another device.
    pub fn origin(&self) -> u32 {
        self.origin
    }

    /// Copies another frame, such as a packet that the link doubles.
    pub fn copy_from(&mut self, other: &Self) {
        self.bytes[..other.len].copy_from_slice(other.bytes());
        (self.len, self.origin) = (other.len, other.origin);
    }

    /// Begins a packet: route and base header.
    pub fn begin(&mut self, route: &Route, bth: &Bth) {
        let bytes = &mut self.bytes[..];
        bytes[LRH] = 0;
        bytes[LRH + 1] = route.sl << 4 | if route.global { LNH_GLOBAL } else { LNH_LOCAL };
        bytes[LRH + 2..LRH + 4].copy_from_slice(&route.dlid.to_be_bytes());
        bytes[LRH + 6..LRH + 8].copy_from_slice(&route.slid.to_be_bytes());
        let flow = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
        bytes[IP..IP + 4].copy_from_slice(&flow.to_be_bytes());
        let (gid_type, sgid) = route.sgid;
        bytes[IP + 6] = if gid_type == GidType::RoceV1 { BASE_TRANSPORT } else { UDP_PROTOCOL };
        bytes[IP + 7] = route.hop_limit;
        bytes[IP + 8..IP + 24].copy_from_slice(&sgid);
        bytes[IP + 24..IP + 40].copy_from_slice(&route.dgid);
        // The source port tells flows apart; both directions of a connection need not agree.
        let source_port = 0xc000 | (bth.dest_qpn & 0x3fff) as u16;
        bytes[UDP..UDP + 2].copy_from_slice(&source_port.to_be_bytes());
        bytes[UDP + 2..UDP + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        bytes[UDP + 6..UDP + 8].fill(0);
        bth.emit(&mut bytes[BTH..]);
        self.len = TRANSPORT;
    }

    /// Appends an extended header.
    pub fn push(&mut self, header: &impl Header) {
        self.len += emit_at(&mut self.bytes[self.len..], header);
    }

    /// Appends room for `len` bytes of payload, at most [`MAX_MTU`].
    pub fn payload_mut(&mut self, len: usize) -> &mut [u8] {
        let at = self.len;
        self.len += len;
        &mut self.bytes[at..at + len]
    }

    /// Ends the packet: padding, lengths, and room for the ICRC.
    pub fn finish(&mut self) {
        let pad = self.len.wrapping_neg() & 3;
        self.bytes[self.len..self.len + pad + ICRC_SIZE].fill(0);
        self.len += pad + ICRC_SIZE;
        let len = self.len;
        let bytes = &mut self.bytes[..];
        bytes[LRH + 4..LRH + 6].copy_from_slice(&((len / 4) as u16).to_be_bytes());
        let udp_len = ((len - UDP) as u16).to_be_bytes();
        bytes[IP + 4..IP + 6].copy_from_slice(&udp_len);
        bytes[UDP + 4..UDP + 6].copy_from_slice(&udp_len);
        bytes[BTH + 1] = bytes[BTH + 1] & !0x30 | (pad as u8) << 4;
    }

    /// Puts the ICRC in place; needed only where the packet leaves the device.
    pub fn seal(&mut self) {
        let at = self.len - ICRC_SIZE;
        let crc = icrc_of(&self.bytes[..at]);
        self.bytes[at..at + ICRC_SIZE].copy_from_slice(&crc);
    }

    /// Returns the packet without its local route header, as it follows an Ethernet header.
    pub fn ip_packet(&self) -> &[u8] {
        &self.bytes[IP..self.len]
    }

    /// Returns `true` if it is for a group: a multicast packet, or a frame to a group of stations.
    pub fn is_multicast(&self) -> bool {
        match self.ethernet() {
            Some(frame) => frame.first().is_some_and(|byte| byte & 1 == 1),
            None => self.bytes[BTH + 5..BTH + 8] == [0xff; 3],
        }
    }

    /// Returns the bytes of it on a link. A packet of InfiniBand has no UDP header there, and often no GRH.
    pub fn wire_len(&self) -> usize {
        match self.bytes[LRH + 1] & 3 {
            LNH_ETHERNET => self.len - IP,
            LNH_LOCAL => self.len - (BTH - IP),
            _ => self.len - (BTH - UDP),
        }
    }

    /// Returns the LID of the sender.
    pub fn slid(&self) -> u16 {
        u16::from_be_bytes([self.bytes[LRH + 6], self.bytes[LRH + 7]])
    }

    /// Returns the LID of the receiver.
    pub fn dlid(&self) -> u16 {
        u16::from_be_bytes([self.bytes[LRH + 2], self.bytes[LRH + 3]])
    }
}

fn emit_at<H: Header>(bytes: &mut [u8], header: &H) -> usize {
    header.emit(bytes);
    H::SIZE
}

fn icrc_of(covered: &[u8]) -> [u8; 4] {
    if covered[LRH + 1] & 3 == LNH_ETHERNET { Crc::new().add(covered).finish() } else { icrc(covered) }
}

fn icrc(covered: &[u8]) -> [u8; 4] {
    // Fields that routers change count as ones: the local route header (8 bytes in front), traffic class,
    // flow label, hop limit, UDP checksum and the reserved byte of the base header.
    let mut front = [0xff; 8 + TRANSPORT - IP];
    front[8..].copy_from_slice(&covered[IP..TRANSPORT]);
    front[8] |= 0x0f;
    front[9..12].fill(0xff);
    front[8 + 7] = 0xff;
    front[8 + UDP + 6 - IP..8 + UDP + 8 - IP].fill(0xff);
    front[8 + BTH + 4 - IP] = 0xff;
    Crc::new().add(&front).add(&covered[TRANSPORT..]).finish()
}

/// Returns the length of the first frame in `bytes`, which may hold several.
pub fn frame_len(bytes: &[u8]) -> Result<usize, ParseError> {
    let header: &[u8; IP] = bytes.first_chunk().ok_or(ParseError::Length)?;
    let length = u16::from_be_bytes([header[LRH + 4], header[LRH + 5]]);
    let (len, sizes) = match header[LRH + 1] & 3 {
        LNH_ETHERNET => {
            let sizes = IP + MIN_ETHERNET + ICRC_SIZE..=MAX_FRAME;
            (IP + usize::from(length) + ICRC_SIZE, sizes)
        }
        _ => (4 * usize::from(length & 0x7ff), MIN_FRAME..=MAX_PACKET),
    };
    let fits = sizes.contains(&len) && len <= bytes.len();
    fits.then_some(len).ok_or(ParseError::Length)
}

/// Checks the ICRC of a whole frame.
pub fn check_icrc(frame: &[u8]) -> Result<(), ParseError> {
    if frame.len() < MIN_FRAME {
        return Err(ParseError::Length);
    }
    let (covered, crc) = frame.split_at(frame.len() - ICRC_SIZE);
    (icrc_of(covered) == crc).then_some(()).ok_or(ParseError::Icrc)
}

/// A parsed packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// LID of the sender.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// A GRH is part of the packet.
    pub global: bool,
    /// The 40 bytes of GRH, or IPv6 header.
    pub grh: &'a [u8; 40],
    /// Base header.
    pub bth: Bth,
    /// Service of the QP it is for.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
    /// RDMA header.
    pub reth: Reth,
    /// Atomic header.
    pub atomic: AtomicEth,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// Original value of an atomic.
    pub original: u64,
    /// Datagram header.
    pub deth: Deth,
    /// Header of a dynamic connection.
    pub dc: DcHeader,
    /// Immediate data or key to invalidate.
    pub immediate: u32,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a whole frame, without checking its ICRC.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        if frame_len(frame)? != frame.len() {
            return Err(ParseError::Length);
        }
        let lnh = frame[LRH + 1] & 3;
        let versions = frame[LRH] & 0xf == 0
            && lnh >= LNH_LOCAL
            && frame[IP] >> 4 == 6
            && matches!(frame[IP + 6], UDP_PROTOCOL | BASE_TRANSPORT)
            && frame[UDP + 2..UDP + 4] == ROCE_PORT.to_be_bytes();
        let bth = Bth::parse(&frame[BTH..]);
        if !versions || bth.version != 0 {
            return Err(ParseError::Version);
        }
        let udp_len = ((frame.len() - UDP) as u16).to_be_bytes();
        if frame[IP + 4..IP + 6] != udp_len || frame[UDP + 4..UDP + 6] != udp_len {
            return Err(ParseError::Length);
        }
        let (service, operation) = Operation::decode(bth.opcode).ok_or(ParseError::Opcode)?;
        let mut rest = &frame[TRANSPORT..frame.len() - ICRC_SIZE];
        let mut packet = Self {
            slid: u16::from_be_bytes([frame[LRH + 6], frame[LRH + 7]]),
            sl: frame[LRH + 1] >> 4,
            global: lnh == LNH_GLOBAL,
            grh: frame[IP..UDP].first_chunk().ok_or(ParseError::Length)?,
            bth,
            service,
            operation,
            reth: Reth::default(),
            atomic: AtomicEth::default(),
            aeth: None,
            original: 0,
            deth: Deth::default(),
            dc: DcHeader::default(),
            immediate: 0,
            payload: &[],
        };
        if service == Service::Ud {
            packet.deth = take(&mut rest)?;
        }
        if service == Service::Dc {
            packet.dc = take(&mut rest)?;
        }
        if operation.has_reth() {
            packet.reth = take(&mut rest)?;
        }
        if operation.has_atomic_eth() {
            packet.atomic = take(&mut rest)?;
        }
        if operation.has_aeth() {
            packet.aeth = Some(take(&mut rest)?);
        }
        if operation == Operation::AtomicAcknowledge {
            packet.original = take(&mut rest)?;
        }
        if operation.has_immediate() || operation.has_ieth() {
            packet.immediate = take(&mut rest)?;
        }
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(ParseError::Length)?;
        if len > MAX_MTU {
            return Err(ParseError::Length);
        }
        packet.payload = &rest[..len];
        Ok(packet)
    }
}

fn take<H: Header>(rest: &mut &[u8]) -> Result<H, ParseError> {
    let (header, tail) = rest.split_at_checked(H::SIZE).ok_or(ParseError::Length)?;
    *rest = tail;
    Ok(H::parse(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::address;
    use crate::fabric::headers::{NakCode, Syndrome};

    fn route() -> Route {
        Route {
            slid: 3,
            dlid: 5,
            sl: 2,
            global: true,
            sgid: (GidType::RoceV2, address::gid(3)),
            dgid: address::gid(5),
            flow_label: 0x12345,
            traffic_class: 0x20,
            hop_limit: 64,
        }
    }

    fn write_imm(payload: &[u8]) -> Frame {
        let mut frame = Frame::default();
        let opcode = Operation::WriteOnlyImm.encode(Service::Rc);
        frame.begin(&route(), &Bth { opcode, pkey: 0xffff, dest_qpn: 0x77, psn: 9, ..Bth::default() });
        frame.push(&Reth { va: 0x1000, rkey: 5, length: payload.len() as u32 });
        frame.push(&0xdead_beef_u32);
        frame.payload_mut(payload.len()).copy_from_slice(payload);
        frame.finish();
        frame.seal();
        frame
    }

    #[test]
    fn what_is_built_is_understood() {
        for len in [0, 1, 2, 3, 4, 5, 1000, MAX_MTU] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let frame = write_imm(&payload);
            assert_eq!(frame.bytes().len() % 4, 0);
            assert_eq!(frame_len(frame.bytes()), Ok(frame.bytes().len()));
            assert_eq!(check_icrc(frame.bytes()), Ok(()));
            let packet = Packet::parse(frame.bytes()).unwrap();
            assert_eq!((packet.slid, packet.sl, packet.global), (3, 2, true));
            assert_eq!(frame.dlid(), 5);
            assert_eq!((packet.bth.dest_qpn, packet.bth.psn), (0x77, 9));
            assert_eq!(packet.reth, Reth { va: 0x1000, rkey: 5, length: len as u32 });
            assert_eq!(packet.immediate, 0xdead_beef);
            assert_eq!(packet.payload, payload);
        }
    }

    #[test]
    fn acknowledge_without_payload() {
        let mut frame = Frame::default();
        let opcode = Operation::Acknowledge.encode(Service::Rc);
        frame.begin(&route(), &Bth { opcode, ..Bth::default() });
        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: 4 };
        frame.push(&aeth);
        frame.finish();
        let packet = Packet::parse(frame.bytes()).unwrap();
        assert_eq!(packet.aeth, Some(aeth));
        assert!(packet.payload.is_empty());
    }

    // Made by another program: zlib's CRC-32 over the fields as the RoCE v2 annex lists them.
    const LITERAL: &str = "\
        00230005001900036201234500341140\
        fe8000000000000000db00fffe000003\
        fe8000000000000000db00fffe000005\
        c07712b7003400000b50ffff00000077\
        00000009000000000000100000000005\
        00000007deadbeef7061796c6f616400\
        a6ffe814";

    #[test]
    fn literal_bytes() {
        let frame = write_imm(b"payload");
        let hex: String = frame.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, LITERAL);
    }

    #[test]
    fn icrc_ignores_what_routers_change() {
        let mut frame = write_imm(b"payload");
        let crc = frame.bytes()[frame.bytes().len() - 4..].to_vec();
        for (at, bit) in [(IP, 0x02), (IP + 1, 0x80), (IP + 3, 1), (IP + 7, 1), (UDP + 6, 1)] {
            frame.bytes[at] ^= bit;
            assert_eq!(check_icrc(frame.bytes()), Ok(()), "byte {at}");
        }
        frame.seal();
        assert_eq!(frame.bytes()[frame.bytes().len() - 4..], crc);
    }

    #[test]
    fn icrc_sees_every_other_bit() {
        let frame = write_imm(b"payload");
        for at in (IP + 4..frame.bytes().len()).filter(|at| ![IP + 7, 54, 55, 60].contains(at)) {
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged.bytes[at] ^= 1 << bit;
                assert_eq!(check_icrc(damaged.bytes()), Err(ParseError::Icrc), "byte {at}");
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        let frame = write_imm(b"some payload");
        let whole = frame.bytes();
        for len in 0..whole.len() {
            assert_eq!(Packet::parse(&whole[..len]).err(), Some(ParseError::Length));
        }
        // Every value of every header byte, one at a time.
        for at in 0..TRANSPORT {
            for value in 0..=255 {
                let mut damaged = frame.clone();
                damaged.bytes[at] = value;
                let _ = Packet::parse(damaged.bytes());
                let _ = frame_len(damaged.bytes());
            }
        }
    }

    #[test]
    fn padding_larger_than_what_follows_the_headers() {
        let mut frame = Frame::default();
        let opcode = Operation::SendOnly.encode(Service::Rc);
        frame.begin(&route(), &Bth { opcode, ..Bth::default() });
        frame.finish();
        frame.bytes[BTH + 1] |= 0x30;
        assert_eq!(Packet::parse(frame.bytes()).err(), Some(ParseError::Length));
    }
}
