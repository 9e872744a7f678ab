//! Operations of requests, and how they are written.

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{self, Flags, Immediate, PostError, Remote};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::eth::{INLINE_L2_HEADER, L3_CSUM, L4_CSUM};

use super::payload::Payload;
use super::request::WorkRequest;
use crate::qp::AddressHandle;

/// Transport of a queue, and the requests that it takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// RC: all but datagrams.
    Reliable,
    /// UC: the same, without READs and atomics.
    Unreliable,
    /// UD: datagrams.
    Datagrams,
    /// Raw packets: Ethernet frames.
    Frames,
    /// DC: all that RC has, each to a target that the request names.
    Dynamic,
}

/// Operation of a request.
#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    Send(Immediate),
    SendTo(&'a AddressHandle, Option<u32>),
    /// An Ethernet frame, and whether the device writes its checksums.
    Frame {
        checksums: bool,
    },
    Write(Remote, Option<u32>),
    Read(Remote),
    FetchAdd(Remote, u64),
    /// Compare with the first and store the second.
    CompareSwap(Remote, [u64; 2]),
}

impl Operation<'_> {
    /// Returns `true` if the transport has the operation.
    #[inline(always)]
    pub(super) const fn is_of(self, transport: Transport) -> bool {
        match self {
            Self::SendTo(..) => matches!(transport, Transport::Datagrams),
            Self::Frame { .. } => matches!(transport, Transport::Frames),
            Self::Send(_) | Self::Write(..) => {
                matches!(transport, Transport::Reliable | Transport::Unreliable)
            }
            _ => matches!(transport, Transport::Reliable),
        }
    }
}

/// Writes a WQE of a DC initiator, to the target that `to` names.
///
/// # Safety
/// [memory] and [ready] of [`mlx5_ring::sq`].
#[inline(always)]
pub(super) unsafe fn post_to_target<P: Payload>(
    posting: &mut sq::Posting<'_, WorkRequest>,
    to: &DatagramSegment,
    operation: Operation<'_>,
    payload: &P,
    flags: Flags,
    request: WorkRequest,
) -> Result<(), PostError> {
    let sges = payload.sges();
    let sges = sges.as_ref();
    let inline = payload.inline();
    let bytes = match &inline {
        Some(bytes) => sq::Payload::inline(std::slice::from_ref(bytes)),
        None => sq::Payload::gather(sges),
    };
    // SAFETY: the caller's [memory] and [ready]. READs and atomics are never inline.
    unsafe {
        match operation {
            Operation::Send(immediate) => posting.send_to_target(to, bytes, immediate, flags, request),
            Operation::Write(remote, imm) => posting.write_to_target(to, remote, bytes, imm, flags, request),
            Operation::Read(remote) => posting.read_from_target(to, remote, sges, flags, request),
            Operation::FetchAdd(at, add) => posting.fetch_add_at_target(to, at, add, answer(sges), flags, request),
            Operation::CompareSwap(at, operands) => {
                posting.compare_swap_at_target(to, at, operands, answer(sges), flags, request)
            }
            Operation::SendTo(..) | Operation::Frame { .. } => unreachable!("a DC request has no such operation"),
        }
    }
}

/// Writes a WQE.
///
/// # Safety
/// [memory] and [ready] of [`mlx5_ring::sq`].
#[inline(always)]
pub(super) unsafe fn post<P: Payload>(
    posting: &mut sq::Posting<'_, WorkRequest>,
    operation: Operation<'_>,
    payload: &P,
    flags: Flags,
    request: WorkRequest,
) -> Result<(), PostError> {
    let sges = payload.sges();
    let sges = sges.as_ref();
    let inline = payload.inline();
    let bytes = match &inline {
        Some(bytes) => sq::Payload::inline(std::slice::from_ref(bytes)),
        None => sq::Payload::gather(sges),
    };
    // SAFETY: the caller's [memory] and [ready]; [memory] also covers the header that `split_frame` reads.
    // READs and atomics are never inline.
    unsafe {
        match operation {
            Operation::Send(immediate) => posting.send(bytes, immediate, flags, request),
            Operation::SendTo(to, imm) => posting.send_to(to.segment(), bytes, imm, flags, request),
            Operation::Frame { checksums } => {
                let cs_flags = if checksums { L3_CSUM | L4_CSUM } else { 0 };
                let (header, rest) = split_frame(inline, sges);
                let bytes = match &rest {
                    Rest::Inline(bytes) => sq::Payload::inline(std::slice::from_ref(bytes)),
                    Rest::Gathered(sge) => sq::Payload::gather(std::slice::from_ref(sge)),
                };
                posting.send_frame(&header, cs_flags, bytes, flags, request)
            }
            Operation::Write(to, imm) => posting.write(to, bytes, imm, flags, request),
            Operation::Read(from) => posting.read(from, sges, flags, request),
            Operation::FetchAdd(at, add) => posting.fetch_add(at, add, answer(sges), flags, request),
            Operation::CompareSwap(at, operands) => posting.compare_swap(at, operands, answer(sges), flags, request),
        }
    }
}

/// The bytes after the header of a frame.
enum Rest<'a> {
    Inline(&'a [u8]),
    Gathered(Sge),
}

/// Copies the header of a frame, which is inline or in one SGE, and longer than that.
///
/// # Safety
/// The SGE names memory of this process that no code writes.
#[inline(always)]
unsafe fn split_frame<'a>(inline: Option<&'a [u8]>, sges: &[Sge]) -> ([u8; INLINE_L2_HEADER], Rest<'a>) {
    if let Some((header, rest)) = inline.and_then(|bytes| bytes.split_first_chunk()) {
        return (*header, Rest::Inline(rest));
    }
    let Sge { addr, length, lkey } = answer(sges);
    debug_assert!(length as usize > INLINE_L2_HEADER);
    let start = std::ptr::with_exposed_provenance::<[u8; INLINE_L2_HEADER]>(addr as usize);
    let skip = INLINE_L2_HEADER as u32;
    let rest = Sge { addr: addr + u64::from(skip), length: length - skip, lkey };
    // SAFETY: no code writes the memory of the caller's SGE, which is longer: `Posting::send_frame` has checked it.
    (unsafe { start.read_unaligned() }, Rest::Gathered(rest))
}

/// Returns where the answer of an atomic goes: `fetch` gave it one buffer.
#[inline(always)]
fn answer(sges: &[Sge]) -> Sge {
    sges.first().copied().unwrap_or(Sge { addr: 0, length: 0, lkey: 0 })
}
