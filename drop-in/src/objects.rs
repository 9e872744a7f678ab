//! The record of each verbs object.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;
use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::barrier;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::slots::Slot;
use mlx5_ring::sq::{self, Record, SendQueue};
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::be::Be32;
use rdma_core_sys::{ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex, ibv_srq};

use crate::builder::Draft;
use crate::lock::Lock;
use crate::log::{self, Count};
use crate::table::Table;

/// The library that posts to an object and polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Path {
    /// Not decided: nothing was posted to its group.
    Undecided,
    /// doorbell.
    Doorbell,
    /// libmlx5.
    Libmlx5,
}

/// The path of an object, and why it can be no other.
pub(crate) struct Status {
    path: AtomicU8,
    /// The feature that is not covered.
    uncovered: Mutex<Option<&'static str>>,
}

impl Status {
    pub(crate) const fn new(uncovered: Option<&'static str>) -> Self {
        Self { path: AtomicU8::new(Path::Undecided as u8), uncovered: Mutex::new(uncovered) }
    }

    pub(crate) fn path(&self) -> Path {
        match self.path.load(Ordering::Acquire) {
            0 => Path::Undecided,
            1 => Path::Doorbell,
            _ => Path::Libmlx5,
        }
    }

    pub(crate) fn set(&self, path: Path) {
        self.path.store(path as u8, Ordering::Release);
    }

    pub(crate) fn uncovered(&self) -> Option<&'static str> {
        *self.uncovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_uncovered(&self, why: &'static str) {
        *self.uncovered.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) ibv: *mut ibv_cq,
    pub(crate) status: Status,
    /// The ring that polls it, if doorbell drives it.
    pub(crate) side: Lock<Option<CqSide>>,
    /// Apart from the rest, because a program may arm a CQ during an extended poll.
    pub(crate) arm: Lock<Arm>,
    /// The consumer index of the last poll.
    pub(crate) consumer_index: AtomicU32,
    /// How often the CQ was resized: the consumer index that libmlx5 has.
    pub(crate) resized: AtomicU32,
    /// The functions that libmlx5 gave an extended CQ.
    pub(crate) original: Option<Box<ibv_cq_ex>>,
    pub(crate) polls: Count,
}

/// A number that no CQE has.
pub(crate) const NO_QP: Be32 = Be32::new(u32::MAX);

/// The ring of a CQ.
pub(crate) struct CqSide {
    pub(crate) ring: CompletionQueue,
    /// The queue pairs of its context.
    pub(crate) qps: *const Table<Qp>,
    /// The queue pair of the CQE before; dangling if it is gone.
    pub(crate) last: NonNull<Qp>,
    /// Its number, in the order of a CQE, so that a comparison swaps no bytes; [`NO_QP`] if it is gone.
    pub(crate) last_qpn: Be32,
    /// Where the current CQE of an extended poll is; `None` before the first one.
    pub(crate) current: Option<NonNull<u8>>,
}

// SAFETY: any thread that holds the lock may use the records and CQEs that it points to.
unsafe impl Send for CqSide {}

/// The doorbell of a CQ.
pub(crate) struct Arm {
    pub(crate) doorbell: Option<CqDoorbell>,
    /// Events that were taken before doorbell drove the CQ.
    pub(crate) events: u32,
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) ibv: *mut ibv_srq,
    pub(crate) status: Status,
    /// The ring, if doorbell drives it.
    pub(crate) side: Lock<Option<SrqSide>>,
    pub(crate) posts: Count,
}

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
}

/// A queue pair. What a thread that posts writes is on lines of its own.
pub(crate) struct Qp {
    pub(crate) ibv: *mut ibv_qp,
    pub(crate) qpn: u32,
    pub(crate) transport: Transport,
    pub(crate) signal_all: bool,
    pub(crate) send_cq: Option<NonNull<Cq>>,
    pub(crate) recv_cq: Option<NonNull<Cq>>,
    pub(crate) srq: Option<NonNull<Srq>>,
    pub(crate) status: Status,
    /// Whether the queue pair has been in RTS since RESET. It may change during a batch of another thread.
    pub(crate) can_send: AtomicBool,
    /// The send queue, if doorbell drives it, for threads that post.
    pub(crate) send_queue: CachePadded<Lock<Option<SendSide>>>,
    /// The send queue for threads that poll.
    pub(crate) send_completer: SendCompleter,
    /// The receive queue, if doorbell drives it and the queue pair has one, for threads that post.
    pub(crate) receive_queue: CachePadded<Lock<Option<RqSide>>>,
    /// The receive queue for threads that poll.
    pub(crate) receive_completer: OnceLock<rq::Completer<u64>>,
    /// The functions that libmlx5 gave a queue pair with `ibv_wr_*`.
    pub(crate) original: Mutex<Option<Box<ibv_qp_ex>>>,
    pub(crate) sends_posted: CachePadded<Count>,
    pub(crate) receives_posted: CachePadded<Count>,
}

/// A queue of receives; each slot has the caller's `wr_id`.
pub(crate) struct ReceiveSide<Q> {
    pub(crate) queue: Q,
    /// Whether the program may post. A queue pair in RESET is not ready, and an SRQ always is.
    pub(crate) is_ready: bool,
    /// The memory that the queue points to.
    pub(crate) _slots: Box<[Slot<u64>]>,
}

/// The receive queue of a queue pair.
pub(crate) type RqSide = ReceiveSide<ReceiveQueue<u64, true>>;
/// The queue of an SRQ.
pub(crate) type SrqSide = ReceiveSide<SharedReceiveQueue<u64>>;

/// The request of a send WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    /// Running number of the request.
    pub(crate) number: u32,
}

/// Limits of a send queue, as libmlx5 has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) requests: u32,
    pub(crate) sges: u32,
    pub(crate) inline: u32,
}

/// A send queue.
pub(crate) struct SendSide {
    pub(crate) queue: SendQueue<Request>,
    pub(crate) limits: SendLimits,
    pub(crate) has_atomics: bool,
    /// Running count of requests that were posted, and of those that were over when a thread that posts looked last.
    pub(crate) posted: u32,
    pub(crate) retired: u32,
    /// The request that `ibv_wr_*` is building.
    pub(crate) draft: Draft,
    /// The memory that the queue points to.
    pub(crate) _records: Box<[MaybeUninit<Record<Request>>]>,
}

/// A send queue, for threads that poll.
#[derive(Default)]
pub(crate) struct SendCompleter {
    pub(crate) completer: OnceLock<sq::Completer<Request>>,
    pub(crate) progress: sq::Progress,
    /// Running count of requests that are over.
    requests: AtomicU32,
}

impl SendCompleter {
    /// Takes note that this many of all requests are over.
    #[inline(always)]
    pub(crate) fn retire(&self, requests: u32) {
        barrier::hand_over(&self.requests, requests);
    }
}

impl SendSide {
    /// Takes note of the requests that are over.
    #[inline(always)]
    pub(crate) fn look(&mut self, completer: &SendCompleter) {
        // The thread that polls stores the blocks and then the requests. In the other order the blocks cover these requests.
        self.retired = barrier::take_over(&completer.requests);
        // SAFETY: `progress` is that of this queue, as its `completer` asks for.
        unsafe { self.queue.take_back(&completer.progress) };
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        log::DOORBELL.add_posts(self.sends_posted.get() + self.receives_posted.get());
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        log::DOORBELL.add_posts(self.posts.get());
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        log::DOORBELL.add_polls(self.polls.get());
    }
}

impl Cq {
    /// Returns the ring of a CQ that doorbell drives.
    ///
    /// # Safety
    /// doorbell drives the CQ, this thread holds the lock, whose guard was forgotten, and nothing else refers to the ring.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the guard that gives access is gone")]
    pub(crate) unsafe fn held(&self) -> &mut CqSide {
        // SAFETY: this thread holds the lock, nothing else refers to the value, and a CQ that doorbell drives keeps its ring.
        unsafe { self.side.held().as_mut().unwrap_unchecked() }
    }
}

impl Qp {
    #[inline(always)]
    pub(crate) fn srq(&self) -> Option<&Srq> {
        // SAFETY: [record-lives] an SRQ outlives its queue pairs.
        self.srq.map(|srq| unsafe { srq.as_ref() })
    }

    /// Returns the CQs, each once, in the order in which they are locked.
    pub(crate) fn cqs(&self) -> [Option<&Cq>; 2] {
        let mut cqs = [self.send_cq, self.recv_cq];
        cqs.sort();
        if cqs[0] == cqs[1] {
            cqs[0] = None;
        }
        // SAFETY: [record-lives] a CQ outlives its queue pairs.
        cqs.map(|cq| cq.map(|cq| unsafe { cq.as_ref() }))
    }
}
