//! Requests of a DC initiator that were flushed behind another one, as they were posted.
//!
//! The WQE of a request stays in the ring until the request was returned, so nothing is kept beside it: the request is
//! read back from there.

use std::{fmt, mem};

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Remote, SendQueue};
use mlx5_wire::ctrl::{ControlSegment, FENCE, FENCE_MASK, SOLICITED, UNIT};
use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::InlineHeader;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};

use super::operation::Operation;
use super::payload::{Payload, refused, sealed};
use super::request::{self, Gathered, WorkRequest};
use crate::memory::Buffer;
use crate::not_sent::NotSent;
use crate::pd::{DomainId, ProtectionDomain};
use crate::qp::DcPeer;
use crate::refused::Refused;

/// A request of a [DC initiator](crate::DcInitiator) that was flushed behind another one, from
/// [`Sender::take_unsent`](crate::Sender::take_unsent). It has all that is needed to
/// [post it again](crate::Posting::post_again): target, operation, payload, token.
///
/// A request to another target than that of the request that failed was not sent. One to the same target may have been:
/// its acknowledgement can be lost. So the library posts nothing again by itself.
///
/// ```
/// # let mut world = doorbell_doc::Dynamic::new();
/// # let peer = world.peer.clone();
/// # let doorbell_doc::Dynamic { sender, initiator, .. } = &mut world;
/// # use doorbell::Completions;
/// # initiator.to_error()?;
/// # assert!(sender.send_dc(&*initiator, &peer, b"not sent").is_err());
/// for request in sender.take_unsent(&*initiator) {
///     println!("request {} to {:?}: {:?}", request.token(), request.peer(), request.copied());
///     // Gives it up.
///     let _buffers = request.into_buffers();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Unsent(pub(super) Box<Parts>);

/// Parts of such a request.
pub(super) struct Parts {
    pub(super) peer: DcPeer,
    pub(super) token: u64,
    pub(super) operation: Operation<'static>,
    pub(super) flags: Flags,
    pub(super) kept: Kept,
}

impl Unsent {
    /// Returns the target.
    pub const fn peer(&self) -> &DcPeer {
        &self.0.peer
    }

    /// Returns the number set with [`Request::token`](crate::Request::token), or 0.
    pub const fn token(&self) -> u64 {
        self.0.token
    }

    /// Returns the bytes that the request had copied, or `None` if it has buffers.
    pub fn copied(&self) -> Option<&[u8]> {
        self.0.kept.copied.as_deref()
    }

    /// Gives up the request, and returns its buffers in order. Opaque buffers return to their pool.
    pub fn into_buffers(self) -> Vec<Buffer> {
        let mut buffers = self.0.kept.buffers;
        buffers.retain(|buffer| !buffer.is_opaque());
        buffers
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsent").field("peer", self.peer()).field("token", &self.token()).finish_non_exhaustive()
    }
}

/// The payload of such a request. The buffers are those of the SGEs, and nobody changes them meanwhile.
pub struct Kept {
    /// Bytes that were copied to the WQE.
    copied: Option<Vec<u8>>,
    sges: Vec<Sge>,
    buffers: Vec<Buffer>,
}

refused! { () Kept }

impl sealed::Payload for Kept {
    type Sges = Vec<Sge>;

    fn sges(&self) -> Vec<Sge> {
        self.sges.clone()
    }

    fn inline(&self) -> Option<&[u8]> {
        self.copied.as_deref()
    }

    fn bytes(&self) -> usize {
        let gathered: usize = self.sges.iter().map(|sge| sge.length as usize).sum();
        self.copied.as_ref().map_or(gathered, Vec::len)
    }

    fn is_of(&self, domain: DomainId) -> bool {
        self.buffers.iter().all(|buffer| buffer.pool().pd().id() == domain)
    }

    fn request(&self, token: u64) -> WorkRequest {
        let count = self.buffers.len() as u32;
        match self.buffers.first() {
            None => WorkRequest::from_wr_id(token),
            Some(first) if first.is_opaque() => WorkRequest::gathered(token, count),
            Some(first) => WorkRequest::of(token, first, first.len() as u32, count - 1),
        }
    }

    fn own(self, gathered: &mut Gathered) {
        for (index, buffer) in self.buffers.into_iter().enumerate() {
            match index == 0 && !buffer.is_opaque() {
                true => request::own(buffer),
                false => gathered.push(buffer),
            }
        }
    }
}

/// A request without its token and its buffers.
pub(super) struct Described {
    peer: DcPeer,
    operation: Operation<'static>,
    flags: Flags,
    copied: Option<Vec<u8>>,
    sges: Vec<Sge>,
}

impl Described {
    /// Gives the buffers to the request.
    pub(super) fn with(self, token: u64, buffers: &mut Vec<Buffer>) -> Unsent {
        let Self { peer, operation, flags, copied, sges } = self;
        let kept = Kept { copied, sges, buffers: mem::take(buffers) };
        Unsent(Box::new(Parts { peer, token, operation, flags, kept }))
    }
}

/// Reads the request of a DC initiator whose WQE starts at running index `start`, and is outstanding.
#[cold]
pub(super) fn describe(ring: &SendQueue<WorkRequest>, start: u32, pd: &ProtectionDomain) -> Option<Described> {
    let unit = |number: u8| ring.unit(start, number);
    let ctrl = ControlSegment::from_bytes(&unit(0));
    let mut address = [0; DatagramSegment::SIZE];
    for (number, place) in (1..).zip(address.chunks_exact_mut(UNIT)) {
        place.copy_from_slice(&unit(number));
    }
    let peer = DcPeer::new(DatagramSegment::from_bytes(&address), pd.clone());
    let remote = RemoteAddressSegment::from_bytes(&unit(4));
    let remote = Remote { addr: remote.raddr.get(), rkey: remote.rkey.get() };
    let operands = AtomicSegment::from_bytes(&unit(5));
    let imm = ctrl.imm.get();
    let (operation, payload) = match ctrl.opcode() {
        WqeOpcode::SEND => (Operation::Send(Immediate::None), 4),
        WqeOpcode::SEND_IMM => (Operation::Send(Immediate::Data(imm)), 4),
        WqeOpcode::SEND_INVAL => (Operation::Send(Immediate::Invalidate(imm)), 4),
        WqeOpcode::RDMA_WRITE => (Operation::Write(remote, None), 5),
        WqeOpcode::RDMA_WRITE_IMM => (Operation::Write(remote, Some(imm)), 5),
        WqeOpcode::RDMA_READ => (Operation::Read(remote), 5),
        WqeOpcode::ATOMIC_FA => (Operation::FetchAdd(remote, operands.swap_add.get()), 6),
        WqeOpcode::ATOMIC_CS => (Operation::CompareSwap(remote, [operands.compare.get(), operands.swap_add.get()]), 6),
        _ => return None,
    };
    let mut flags = Flags::NONE;
    if ctrl.fm_ce_se & SOLICITED != 0 {
        flags = flags | Flags::SOLICITED;
    }
    if ctrl.fm_ce_se & FENCE_MASK == FENCE {
        flags = flags | Flags::FENCE;
    }
    let segments = (payload..ctrl.ds()).map(unit);
    let header = segments.clone().next().and_then(|first| first.first_chunk().copied());
    let inline = header.and_then(|header| InlineHeader::from_bytes(&header).count());
    let (mut copied, mut sges) = (None, Vec::new());
    match inline {
        Some(len) => {
            let bytes = segments.flatten().skip(InlineHeader::SIZE).take(len as usize);
            copied = Some(bytes.collect());
        }
        None => sges.extend(segments.map(|segment| {
            let DataSegment { byte_count, lkey, addr } = DataSegment::from_bytes(&segment);
            Sge { addr: addr.get(), length: byte_count.get(), lkey: lkey.get() }
        })),
    }
    Some(Described { peer, operation, flags, copied, sges })
}
