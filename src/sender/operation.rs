//! What a request does, and how it is written.

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{self, Flags, Immediate, PostError, Remote};

use super::error::NotSent;
use super::payload::Payload;
use super::queue::Transport;
use super::request::WorkRequest;
use super::verbs::VerbsSq;
use crate::qp::AddressHandle;

/// What a request does.
#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    Send(Immediate),
    SendTo(&'a AddressHandle, Option<u32>),
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
            Self::Send(_) | Self::Write(..) => !matches!(transport, Transport::Datagrams),
            _ => matches!(transport, Transport::Reliable),
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
    token: u64,
) -> Result<(), PostError> {
    let request = payload.request(token);
    let sges = payload.sges();
    let sges = sges.as_ref();
    let inline = payload.inline();
    let bytes = match &inline {
        Some(bytes) => sq::Payload::inline(std::slice::from_ref(bytes)),
        None => sq::Payload::gather(sges),
    };
    // SAFETY: the caller's contract. What is not inline has an SGE for a READ, and one for the answer of an atomic.
    unsafe {
        match operation {
            Operation::Send(immediate) => posting.send(bytes, immediate, flags, request),
            Operation::SendTo(to, imm) => posting.send_to(to.segment(), bytes, imm, flags, request),
            Operation::Write(to, imm) => posting.write(to, bytes, imm, flags, request),
            Operation::Read(from) => posting.read(from, sges, flags, request),
            Operation::FetchAdd(at, add) => {
                posting.fetch_add(at, add, answer(sges), flags, request)
            }
            Operation::CompareSwap(at, operands) => {
                posting.compare_swap(at, operands, answer(sges), flags, request)
            }
        }
    }
}

/// Returns where the answer of an atomic goes: `fetch` gave it one buffer.
#[inline(always)]
fn answer(sges: &[Sge]) -> Sge {
    sges.first().copied().unwrap_or(Sge { addr: 0, length: 0, lkey: 0 })
}

/// Posts through verbs.
///
/// # Safety
/// As for [`post`].
#[inline(always)]
pub(super) unsafe fn through_verbs<P: Payload>(
    verbs: &mut VerbsSq,
    operation: Operation<'_>,
    payload: &P,
    flags: Flags,
    token: u64,
) -> Result<(), NotSent> {
    let request = payload.request(token);
    // SAFETY: the caller's contract.
    unsafe {
        match payload.inline() {
            Some(bytes) => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                let sge = Sge { addr, length: bytes.len() as u32, lkey: 0 };
                verbs.post(operation, &[sge], true, flags, request)
            }
            None => verbs.post(operation, payload.sges().as_ref(), false, flags, request),
        }
    }
}
