//! A send WQE as the device reads it: a copy, laid out straight where the ring wrapped.

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment, FENCE, FENCE_MASK, SOLICITED};
use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};
use mlx5_wire::tm::TagMatchingSegment;
use mlx5_wire::umr::UmrControl;

use super::mkey::{LOCAL_READ, MkeyTable, Region};
use super::scatter::ZERO_MEANS;
use super::{Pdn, Service};

/// Most bytes of a WQE: `ds` has six bits.
pub const MAX_WQE: usize = 63 * UNIT;
/// Largest message (`max_msg_sz`).
pub const MAX_MESSAGE: u64 = 1 << 30;

const UNIT: usize = 16;
/// Bit of the first byte of a segment that holds bytes.
const INLINE: u8 = 0x80;

/// Error in a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WqeError {
    /// The opcode is not one of this service, or segments are missing.
    Malformed,
    /// The message is larger than a message may be.
    Length,
    /// A local key does not allow the access.
    Protection,
}

/// Operation of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Nop,
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap, fetch and add.
    Atomic,
    /// Change of a memory key.
    Umr,
}

/// Trailer of the last packet of a SEND or WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trailer {
    /// Nothing.
    None,
    /// Immediate data.
    Immediate,
    /// A key that the receiver invalidates.
    Invalidate,
}

impl Kind {
    /// Returns the kind and trailer of an opcode on a service, or `None` if the service has no such operation.
    pub fn of(opcode: WqeOpcode, service: Service) -> Option<(Self, Trailer)> {
        if matches!(opcode, WqeOpcode::TSO | WqeOpcode::ENHANCED_MPSW) {
            // One SEND of many frames.
            return (service == Service::Raw).then_some((Self::Send, Trailer::None));
        }
        let (kind, trailer, reliable, connected) = match opcode {
            WqeOpcode::NOP => (Self::Nop, Trailer::None, false, false),
            WqeOpcode::SEND => (Self::Send, Trailer::None, false, false),
            WqeOpcode::SEND_IMM => (Self::Send, Trailer::Immediate, false, false),
            WqeOpcode::SEND_INVAL => (Self::Send, Trailer::Invalidate, true, true),
            WqeOpcode::RDMA_WRITE => (Self::Write, Trailer::None, false, true),
            WqeOpcode::RDMA_WRITE_IMM => (Self::Write, Trailer::Immediate, false, true),
            WqeOpcode::RDMA_READ => (Self::Read, Trailer::None, true, true),
            WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => (Self::Atomic, Trailer::None, true, true),
            WqeOpcode::UMR => (Self::Umr, Trailer::None, false, true),
            _ => return None,
        };
        let served = match service {
            Service::Rc | Service::Dc => true,
            Service::Uc => !reliable,
            Service::Ud => !connected,
            Service::Raw => !connected && trailer == Trailer::None,
        };
        served.then_some((kind, trailer))
    }

    /// Returns `true` if the responder answers with data.
    pub fn is_read_like(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

/// Flags of a control segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// Returns `true` if a CQE is asked for.
    pub fn signaled(self) -> bool {
        self.0 & CQ_UPDATE != 0
    }

    /// Returns `true` if the receiver's CQE is solicited.
    pub fn solicited(self) -> bool {
        self.0 & SOLICITED != 0
    }

    /// Returns `true` if the WQE starts after all earlier reads and atomics: fence (UCX, the kernel), strong ordering,
    /// and both fences (libmlx5). The small fence alone waits for local operations, which end within their turn here.
    pub fn fenced(self) -> bool {
        const READ_FENCE: u8 = 2 << 5;
        const STRONG_ORDERING: u8 = 3 << 5;
        matches!(self.0 & FENCE_MASK, READ_FENCE | STRONG_ORDERING | FENCE)
    }
}

/// A send WQE.
#[derive(Debug)]
pub struct SendWqe {
    bytes: [u8; MAX_WQE],
    len: usize,
    ctrl: ControlSegment,
    // Bytes of the address of the destination, behind the control segment.
    address: usize,
}

/// A piece of the data part.
enum Piece {
    // Offset in the WQE, length.
    Inline(usize, usize),
    Memory(DataSegment),
}

impl Default for SendWqe {
    fn default() -> Self {
        Self { bytes: [0; MAX_WQE], len: 0, ctrl: ControlSegment::zeroed(), address: 0 }
    }
}

impl SendWqe {
    /// Offset of the context in a change of a memory key.
    pub const MKEY_CONTEXT: usize = UNIT + UmrControl::SIZE;
    /// Offset of the list in a change of a memory key.
    pub const TRANSLATION: usize = Self::MKEY_CONTEXT + size_of::<[u8; 64]>();

    /// Fills the WQE of a queue of this service: `read` copies `ds` units of it, control segment included.
    pub fn load<E>(
        &mut self,
        ctrl: ControlSegment,
        service: Service,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.ctrl = ctrl;
        self.len = usize::from(ctrl.ds()) * UNIT;
        read(&mut self.bytes[..self.len])?;
        self.address = self.address_len(service);
        Ok(())
    }

    /// Returns the length of the address between the control segment and the others.
    fn address_len(&self, service: Service) -> usize {
        match (service, Kind::of(self.ctrl.opcode(), service)) {
            (Service::Ud, _) => DatagramSegment::SIZE,
            (Service::Dc, Some((Kind::Send | Kind::Write | Kind::Read | Kind::Atomic, _))) => {
                // An address without a GRH on InfiniBand may be compact.
                let extended = self.bytes[..self.len].get(UNIT + 8).is_some_and(|byte| byte >> 7 == 1);
                if extended { DatagramSegment::SIZE } else { UNIT }
            }
            _ => 0,
        }
    }

    /// Reverses the segments after the control segment, unless one holds bytes: a [defect](super::defects).
    pub fn reverse_segments(&mut self) {
        let segments = &mut self.bytes[UNIT.min(self.len)..self.len];
        if segments.chunks(UNIT).any(|segment| segment[0] & INLINE != 0) {
            return;
        }
        segments.reverse();
        segments.chunks_mut(UNIT).for_each(<[u8]>::reverse);
    }

    /// Forgets the bytes from `at` on: a [defect](super::defects).
    pub fn clear_from(&mut self, at: usize) {
        self.bytes[at.min(self.len)..self.len].fill(0);
    }

    /// Returns the control segment.
    pub fn ctrl(&self) -> &ControlSegment {
        &self.ctrl
    }

    /// Returns the whole WQE.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns a digest, which two different WQEs share only by chance.
    pub fn digest(&self) -> u64 {
        // FNV-1a, a word at a time.
        self.bytes[..self.len].chunks_exact(8).fold(0xcbf2_9ce4_8422_2325, |digest, word| {
            let word = word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    fn segment<const N: usize>(&self, at: usize) -> Result<&[u8; N], WqeError> {
        let bytes = self.bytes[..self.len].get(at..at + N);
        bytes.and_then(|bytes| bytes.first_chunk()).ok_or(WqeError::Malformed)
    }

    /// Returns the remote address segment.
    pub fn remote(&self) -> Result<RemoteAddressSegment, WqeError> {
        self.segment(UNIT + self.address).map(RemoteAddressSegment::from_bytes)
    }

    /// Returns the atomic segment.
    pub fn atomic(&self) -> Result<AtomicSegment, WqeError> {
        self.segment(2 * UNIT + self.address).map(AtomicSegment::from_bytes)
    }

    /// Returns the first segment of a change of a memory key.
    pub fn umr_control(&self) -> Result<UmrControl, WqeError> {
        self.segment(UNIT).map(UmrControl::from_bytes)
    }

    /// Returns the address of the destination; a compact one names no GID and no MAC address.
    pub fn datagram(&self) -> Result<DatagramSegment, WqeError> {
        if self.address == UNIT {
            let mut bytes = [0; DatagramSegment::SIZE];
            bytes[..UNIT].copy_from_slice(self.segment::<UNIT>(UNIT)?);
            return Ok(DatagramSegment::from_bytes(&bytes));
        }
        self.segment(UNIT).map(DatagramSegment::from_bytes)
    }

    /// Returns the list operation.
    pub fn tag_matching(&self) -> Result<TagMatchingSegment, WqeError> {
        self.segment(UNIT).map(TagMatchingSegment::from_bytes)
    }

    /// Returns the bytes from `at` on.
    pub fn tail(&self, at: usize) -> &[u8] {
        self.bytes[..self.len].get(at..).unwrap_or_default()
    }

    /// Returns the offset of the data part.
    pub fn data_offset(&self, kind: Kind) -> usize {
        UNIT + self.address
            + match kind {
                Kind::Nop | Kind::Send | Kind::Umr => 0,
                Kind::Write | Kind::Read => UNIT,
                Kind::Atomic => 2 * UNIT,
            }
    }

    fn piece(&self, at: usize) -> Result<Option<(Piece, usize)>, WqeError> {
        if at >= self.len {
            return Ok(None);
        }
        if let Some(count) = InlineHeader::from_bytes(self.segment(at)?).count() {
            let from = at + InlineHeader::SIZE;
            let count = count as usize;
            if count > self.len - from {
                return Err(WqeError::Malformed);
            }
            return Ok(Some((Piece::Inline(from, count), (from + count).next_multiple_of(UNIT))));
        }
        let mut segment = DataSegment::from_bytes(self.segment(at)?);
        if segment.byte_count.get() == 0 {
            segment.byte_count = ZERO_MEANS.into();
        }
        Ok(Some((Piece::Memory(segment), at + UNIT)))
    }

    /// Returns the number of bytes of the data part that begins at `at`.
    pub fn length(&self, mut at: usize) -> Result<u32, WqeError> {
        let mut total = 0;
        while let Some((len, next)) = self.segment_length(at)? {
            total += u64::from(len);
            at = next;
        }
        if total <= MAX_MESSAGE { Ok(total as u32) } else { Err(WqeError::Length) }
    }

    /// Returns the number of bytes of the segment at `at`, and where the next one begins; `None` behind the last one.
    pub fn segment_length(&self, at: usize) -> Result<Option<(u32, usize)>, WqeError> {
        let piece = self.piece(at)?;
        Ok(piece.map(|(piece, next)| match piece {
            Piece::Inline(_, len) => (len as u32, next),
            Piece::Memory(segment) => (segment.byte_count.get(), next),
        }))
    }

    /// Returns the first data segment whose length is 0, for the strict rules.
    pub fn zero_length(&self, mut at: usize) -> Option<&[u8]> {
        while let Ok(Some((piece, next))) = self.piece(at) {
            if matches!(piece, Piece::Memory(_)) && self.bytes[at..at + 4] == [0; 4] {
                return Some(&self.bytes[at..at + UNIT]);
            }
            at = next;
        }
        None
    }

    /// Returns the first segment that a program meant as a data segment of 2 GiB or more, for the strict rules. Bit 31
    /// of its length marks it as an inline segment, but no program writes one without bytes, beyond the end of the WQE,
    /// or for an answer. A few bytes, whose segment names memory of this length, are not meant as data either.
    pub fn too_long(&self, mut at: usize, kind: Kind, keys: &MkeyTable, pd: Pdn) -> Option<&[u8]> {
        while let Ok(bytes) = self.segment(at) {
            let segment = DataSegment::from_bytes(bytes);
            let length = segment.byte_count.get() as usize;
            let from = at + InlineHeader::SIZE;
            at += UNIT;
            if length & INLINE_SEG as usize == 0 {
                continue;
            }
            let count = length & !(INLINE_SEG as usize);
            let names_memory = || {
                let region = keys.check(segment.lkey.get(), pd, segment.addr.get(), length, LOCAL_READ);
                matches!(region, Ok(Region::Memory(..) | Region::Pieces(_)))
            };
            let is_short = count < UNIT - InlineHeader::SIZE;
            if kind.is_read_like() || count == 0 || count > self.len - from || is_short && names_memory() {
                return Some(bytes);
            }
            at = (from + count).next_multiple_of(UNIT);
        }
        None
    }

    /// Copies bytes `offset..` of the message, whose data part begins at `at`, to `dst`.
    pub fn gather(
        &self,
        mut at: usize,
        offset: u64,
        dst: &mut [u8],
        keys: &MkeyTable,
        pd: Pdn,
    ) -> Result<(), WqeError> {
        let mut skip = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let Some((piece, next)) = self.piece(at)? else { return Err(WqeError::Malformed) };
            let len = match &piece {
                Piece::Inline(_, len) => *len as u64,
                Piece::Memory(segment) => u64::from(segment.byte_count.get()),
            };
            at = next;
            if skip >= len {
                skip -= len;
                continue;
            }
            let (now, later) = rest.split_at_mut(rest.len().min((len - skip) as usize));
            match piece {
                Piece::Inline(from, _) => {
                    let from = from + skip as usize;
                    now.copy_from_slice(&self.bytes[from..from + now.len()]);
                }
                Piece::Memory(segment) => {
                    let addr = segment.addr.get().wrapping_add(skip);
                    keys.check(segment.lkey.get(), pd, addr, now.len(), LOCAL_READ)
                        .and_then(|region| region.read(now))
                        .map_err(|_| WqeError::Protection)?;
                }
            }
            rest = later;
            skip = 0;
        }
        Ok(())
    }

    /// Returns the bytes of the data part at `at`, if the WQE contains them.
    pub fn inline_data(&self, at: usize) -> Option<&[u8]> {
        match self.piece(at) {
            Ok(Some((Piece::Inline(from, len), _))) => self.bytes.get(from..from + len),
            _ => None,
        }
    }

    /// Returns the data segments from `at` on, for the answer to a READ or atomic.
    pub fn segments(&self, at: usize) -> impl Iterator<Item = DataSegment> + '_ {
        let bytes = self.bytes[..self.len].get(at..).unwrap_or_default();
        bytes.chunks_exact(UNIT).map(|bytes| {
            let mut array = [0; UNIT];
            array.copy_from_slice(bytes);
            let mut segment = DataSegment::from_bytes(&array);
            if segment.byte_count.get() == 0 {
                segment.byte_count = ZERO_MEANS.into();
            }
            segment
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::MkeyAttr;
    use crate::objects::memory::Unmapped;

    const PD: Pdn = Pdn(1);

    fn wqe(units: &[[u8; 16]]) -> SendWqe {
        let mut wqe = SendWqe::default();
        let ctrl = ControlSegment::new(0x0a, 0, 1, units.len() as u8 + 1, 0);
        wqe.load(ctrl, Service::Rc, |bytes| {
            for (to, from) in bytes[UNIT..].chunks_exact_mut(UNIT).zip(units) {
                to.copy_from_slice(from);
            }
            Ok::<_, Unmapped>(())
        })
        .unwrap();
        wqe
    }

    fn inline(len: u32) -> [u8; 16] {
        let mut unit = [0xab; 16];
        unit[..4].copy_from_slice(&InlineHeader::new(len).to_bytes());
        unit
    }

    #[test]
    fn gather_from_inline_and_memory() {
        let memory = *b"0123456789";
        let mut keys = MkeyTable::new(1);
        let va = memory.as_ptr() as u64;
        let key = keys.create(MkeyAttr { pd: PD, va, iova: 0, length: 10, access: 0 }).unwrap().0;
        let wqe = wqe(&[inline(3), DataSegment::new(2, 4, key).to_bytes(), DataSegment::new(9, 1, key).to_bytes()]);
        assert_eq!(wqe.length(UNIT), Ok(8));
        let whole = b"\xab\xab\xab23459";
        for from in 0..8 {
            for to in from..=8 {
                let mut dst = vec![0; to - from];
                assert_eq!(wqe.gather(UNIT, from as u64, &mut dst, &keys, PD), Ok(()));
                assert_eq!(dst, whole[from..to]);
            }
        }
        let mut dst = [0; 2];
        assert_eq!(wqe.gather(UNIT, 7, &mut dst, &keys, PD), Err(WqeError::Malformed));
        assert_eq!(wqe.gather(UNIT, 3, &mut dst, &keys, Pdn(2)), Err(WqeError::Protection));
    }

    #[test]
    fn lengths_that_cannot_be() {
        assert_eq!(wqe(&[inline(13)]).length(UNIT), Err(WqeError::Malformed));
        assert_eq!(wqe(&[inline(12)]).length(UNIT), Ok(12));
        assert_eq!(wqe(&[inline(u32::MAX >> 1)]).length(UNIT), Err(WqeError::Malformed));
        let half = DataSegment::new(0, 1 << 29, 1).to_bytes();
        assert_eq!(wqe(&[half, half]).length(UNIT), Ok(1 << 30));
        let zero = DataSegment::new(0, 0, 1).to_bytes();
        assert_eq!(wqe(&[zero]).length(UNIT), Err(WqeError::Length));
        assert_eq!(wqe(&[half, zero]).zero_length(UNIT), Some(&zero[..]));
        assert_eq!(wqe(&[half]).zero_length(UNIT), None);
        assert_eq!(wqe(&[]).length(UNIT), Ok(0));
        assert!(wqe(&[]).remote().is_err());
    }

    #[test]
    fn operations_by_service() {
        use Service::{Rc, Uc, Ud};
        for (opcode, services) in [
            (WqeOpcode::SEND, &[Rc, Uc, Ud][..]),
            (WqeOpcode::RDMA_WRITE, &[Rc, Uc]),
            (WqeOpcode::RDMA_READ, &[Rc]),
            (WqeOpcode::SEND_INVAL, &[Rc]),
            (WqeOpcode::UMR, &[Rc, Uc]),
            (WqeOpcode::TSO, &[]),
            (WqeOpcode::ENHANCED_MPSW, &[]),
            (WqeOpcode::TAG_MATCHING, &[]),
        ] {
            for service in [Rc, Uc, Ud] {
                assert_eq!(Kind::of(opcode, service).is_some(), services.contains(&service));
            }
        }
    }
}
