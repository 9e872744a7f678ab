//! A send queue of a sender, whatever drives it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5_ring::sq::{self, Flags, Immediate, PostError, Record, SendQueue};
use rdma_core_sys::{self as sys, Mlx5dv};

use super::operation::Transport;
use super::request::{Gathered, WorkRequest};
use super::settling::Windows;
use super::unsent::Unsent;
use super::verbs::VerbsSq;
use crate::ids::SqId;
use crate::mlx5::{self, Storage};
use crate::not_sent::NotSent;
use crate::path::NotDirect;
use crate::qp::Qp;

/// A send queue and what its requests are checked against.
pub(super) struct Entry {
    pub(super) ring: SendRing,
    pub(super) qp: Arc<Qp>,
    pub(super) gathered: Gathered,
    pub(super) limits: Limits,
    pub(super) silent: Silent,
    pub(super) id: SqId,
    /// The queue pair was made for memory windows.
    pub(super) has_windows: bool,
    /// Binds and revocations of windows that are outstanding.
    pub(super) windows: Windows,
    /// Flushed requests of a DC initiator, until the program takes them.
    pub(super) unsent: Vec<Unsent>,
    /// Many frames go into one WQE.
    pub(super) multi_packet: bool,
    /// When a request was first refused because the queue was full, and where its oldest request was then.
    pub(super) full: Option<(u32, Instant)>,
}

impl Entry {
    /// Takes note that a request failed, and with it the queue pair. A request from before a reset says nothing of the
    /// state after it.
    pub(super) fn fail(&self, status: sys::ibv_wc_status) {
        self.qp.note_failure(status);
        if !self.qp.sends_ended() {
            self.qp.mark_failed();
        }
    }

    /// Says why the ring refused a request of so many bytes.
    #[cold]
    pub(super) fn refusal(&mut self, error: PostError, len: usize) -> NotSent {
        self.with_time(self.limits.refusal(error, len))
    }

    /// Adds to an error that says that the queue is full how long that has been so. Only an error costs a look at the
    /// clock.
    #[cold]
    pub(super) fn with_time(&mut self, mut error: NotSent) -> NotSent {
        if let NotSent::Full { waited } = &mut error {
            let (now, oldest) = (Instant::now(), self.ring.retired());
            let known = self.full.filter(|known| known.0 == oldest);
            let (_, since) = *self.full.insert(known.unwrap_or((oldest, now)));
            *waited = now - since;
        }
        error
    }

    /// Returns `true` if the device completes nothing more of what is outstanding.
    pub(super) fn is_over(&self) -> bool {
        self.qp.sends_ended() || self.qp.is_lost()
    }
}

/// Limits against which the requests of a queue are checked.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of the longest message.
    pub(super) bytes: usize,
    /// Bytes of the longest message that is copied, which is no longer than `bytes`.
    pub(super) inline: usize,
    /// A SEND or WRITE of fewer bytes, which are copied, is within all limits.
    pub(super) copied: usize,
    /// A frame of fewer bytes, which are copied, is within all limits but the shortest.
    pub(super) copied_frame: usize,
    /// A SEND or WRITE to a DC target of fewer bytes, which are copied, is within all limits.
    pub(super) copied_to_target: usize,
    /// Most buffers.
    pub(super) buffers: usize,
    pub(super) transport: Transport,
}

impl Limits {
    fn refusal(&self, error: PostError, len: usize) -> NotSent {
        match error {
            PostError::Full => NotSent::Full { waited: Duration::ZERO },
            PostError::TooLong => NotSent::TooManyBuffers { max: self.buffers },
            PostError::InlineTooLong => NotSent::InlineTooLong { len, max: self.inline },
            PostError::SgeTooLong => NotSent::TooLong { len, max: 0x7fff_ffff },
        }
    }
}

/// Basic blocks that hold nothing but unsignaled requests without buffers, posted one after the other. Running indices,
/// up to the last such request of the queue.
#[derive(Clone, Copy, Default)]
pub(super) struct Silent {
    start: u32,
    end: u32,
}

impl Silent {
    /// Takes note of such a request.
    #[inline(always)]
    pub(super) const fn add(&mut self, start: u32, end: u32) {
        if self.end != start {
            self.start = start;
        }
        self.end = end;
    }

    /// Returns `true` if a run is of nothing but such requests. Its last request is such a one: so these blocks are no
    /// older than the run, however often their counts have wrapped.
    #[inline(always)]
    pub(super) const fn contains(&self, run: &sq::Run<WorkRequest>) -> bool {
        run.returned().wrapping_sub(self.start) < self.end.wrapping_sub(self.start)
    }
}

/// The send queue of a queue pair and what its ring stands on.
pub(super) struct DirectSq {
    pub(super) ring: SendQueue<WorkRequest>,
    _records: Storage<Record<WorkRequest>>,
    _object: Arc<Qp>,
}

impl DirectSq {
    /// Takes over a send queue.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no other code posts to it; its register is as *register* says, see
    /// [`mlx5_ring::sq`].
    pub(super) unsafe fn new(
        mlx5dv: &Mlx5dv,
        qp: Arc<Qp>,
        config: sq::Config,
        max_unsignaled: u32,
    ) -> Result<Self, NotDirect> {
        // SAFETY: no other code posts to the caller's queue, which the value keeps, and its register is as *register*
        // says.
        let (ring, _records) = unsafe { mlx5::send_ring(qp.send_queue(mlx5dv)?, config, max_unsignaled) }?;
        Ok(Self { ring, _records, _object: qp })
    }

    /// Returns this queue with at most `blocks` blocks outstanding.
    pub(super) fn with_max_outstanding(self, blocks: u32) -> Self {
        Self { ring: self.ring.with_max_outstanding(blocks), ..self }
    }
}

/// Who posts.
pub(super) enum SendRing {
    Direct(DirectSq),
    Verbs(VerbsSq),
}

impl SendRing {
    /// Requests that can be outstanding at most.
    pub(super) fn capacity(&self) -> u32 {
        match self {
            Self::Direct(direct) => direct.ring.capacity(),
            Self::Verbs(verbs) => verbs.capacity(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Direct(direct) => direct.ring.is_empty(),
            Self::Verbs(verbs) => verbs.is_empty(),
        }
    }

    /// Returns the running count of what is retired.
    fn retired(&self) -> u32 {
        match self {
            Self::Direct(direct) => direct.ring.retired(),
            Self::Verbs(verbs) => verbs.retired(),
        }
    }

    /// Returns `true` if a request is outstanding whose completion is returned, also if it succeeds.
    pub(super) fn awaits_completion(&self) -> bool {
        let mut requests = self.run_of_all();
        // SAFETY: the queue exists, and frees nothing meanwhile.
        while let Some(request) = unsafe { requests.next() } {
            if !request.is_unsignaled() {
                return true;
            }
        }
        false
    }

    /// Returns all requests that are outstanding.
    pub(super) fn run_of_all(&self) -> sq::Run<WorkRequest> {
        match self {
            Self::Direct(direct) => direct.ring.run_of_all(),
            Self::Verbs(verbs) => verbs.run_of_all(),
        }
    }

    /// Has the requests that `run` has returned make room.
    ///
    /// # Safety
    /// The run is of this queue, and no newer one has made room.
    #[inline(always)]
    pub(super) unsafe fn free_returned(&mut self, run: &sq::Run<WorkRequest>) {
        match self {
            // SAFETY: the caller's run is of this queue, and no newer one has made room.
            Self::Direct(direct) => unsafe { direct.ring.free_returned(run) },
            Self::Verbs(verbs) => verbs.free(run.returned()),
        }
    }

    /// Rings for the requests of a posting that was forgotten. Has the device of a queue pair in ERROR report the last
    /// request, and with it everything that is outstanding. Returns `false` if the queue is full, of requests that the
    /// device reports: then call this again.
    #[cold]
    pub(super) fn drain(&mut self, is_in_error: bool) -> bool {
        let Self::Direct(DirectSq { ring, .. }) = self else { return true };
        drop(ring.posting());
        if !is_in_error || ring.is_covered() {
            return true;
        }
        // The device flushes requests that it has not executed. It reports no success of those that it has executed.
        let (payload, signaled) = (sq::Payload::default(), Flags::SIGNALED);
        // SAFETY: [memory] none. [ready] in ERROR: it is flushed.
        unsafe { ring.posting_singly().send(payload, Immediate::None, signaled, WorkRequest::INTERNAL) }.is_ok()
    }

    /// Starts an empty queue again.
    ///
    /// # Safety
    /// The queue pair was reset and has not been ready to send since, and the CQ has nothing of it.
    pub(super) unsafe fn reset(&mut self) {
        if let Self::Direct(direct) = self {
            // SAFETY: the caller's queue pair was reset and not made ready since, and the CQ has nothing of it.
            unsafe { direct.ring.reset(|_| {}) }
        }
    }
}
