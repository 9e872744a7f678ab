//! The record of each verbs object that doorbell drives or may drive.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::completion::Cqe;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::slots::Slot;
use mlx5_ring::sq::{Batch, Progress, Record, SendQueue};
use mlx5_ring::srq::SharedReceiveQueue;
use rdma_core_sys::{ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_type, ibv_srq};

use crate::changes::Changes;
use crate::lock::Lock;
use crate::places::Places;
use crate::table;

static QPS: Places<Qp> = Places::new();
static CQS: Places<Cq> = Places::new();

/// The library that posts to an object and polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Path {
    /// Not decided: the CQ or SRQ has no queue pair, and nothing was posted to it.
    Undecided,
    /// doorbell.
    Doorbell,
    /// libmlx5.
    Libmlx5,
}

/// The path of a CQ or an SRQ, which changes under the lock of its ring and only once.
pub(crate) struct Status(AtomicU8);

impl Status {
    pub(crate) const fn undecided() -> Self {
        Self(AtomicU8::new(Path::Undecided as u8))
    }

    #[inline(always)]
    pub(crate) fn path(&self) -> Path {
        match self.0.load(Ordering::Acquire) {
            0 => Path::Undecided,
            1 => Path::Doorbell,
            _ => Path::Libmlx5,
        }
    }

    pub(crate) fn set(&self, path: Path) {
        self.0.store(path as u8, Ordering::Release);
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) ibv: *mut ibv_cq,
    pub(crate) status: Status,
    /// The ring that polls it, if doorbell drives it.
    pub(crate) side: Lock<Option<CqSide>>,
    /// Arms it, if doorbell drives it. Apart from the ring, because a program may arm a CQ during an extended poll.
    pub(crate) doorbell: Lock<Option<CqDoorbell>>,
    /// The consumer index of the last poll.
    pub(crate) consumer_index: AtomicU32,
    /// The functions that libmlx5 gave an extended CQ.
    pub(crate) original: Option<Box<ibv_cq_ex>>,
    /// How many queue pairs doorbell drives that complete on it.
    pub(crate) users: AtomicU32,
}

/// The ring of a CQ.
pub(crate) struct CqSide {
    pub(crate) ring: CompletionQueue,
    /// The current CQE of an extended poll, which is given back at its end.
    pub(crate) current: Option<Cqe<'static>>,
}

// SAFETY: any thread that holds the lock may use the ring and its CQEs.
unsafe impl Send for CqSide {}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) ibv: *mut ibv_srq,
    pub(crate) status: Status,
    /// The ring, if doorbell drives it.
    pub(crate) side: Lock<Option<SrqSide>>,
    /// How many queue pairs doorbell drives that have it.
    pub(crate) users: AtomicU32,
}

/// A queue pair that doorbell drives.
pub(crate) struct Qp {
    pub(crate) ibv: *mut ibv_qp,
    pub(crate) qpn: u32,
    pub(crate) transport: ibv_qp_type,
    pub(crate) signal_all: bool,
    /// Whether it has a send queue and was created for `ibv_wr_*`.
    pub(crate) has_builder: bool,
    pub(crate) send_cq: NonNull<Cq>,
    pub(crate) recv_cq: NonNull<Cq>,
    pub(crate) srq: Option<NonNull<Srq>>,
    /// Bytes from an address handle to its address vector, which is a part of it; 0 before `init_obj` has said where
    /// one is.
    pub(crate) av_offset: AtomicUsize,
    /// The send queue, if it has one.
    pub(crate) send: Option<Sends>,
    /// The receive queue, if it has one.
    pub(crate) receive: Lock<Option<RqSide>>,
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
pub(crate) type RqSide = ReceiveSide<ReceiveQueue<u64>>;
/// The queue of an SRQ.
pub(crate) type SrqSide = ReceiveSide<SharedReceiveQueue<u64>>;

/// The request of a send WQE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    /// Running number of the request.
    pub(crate) number: u32,
}

/// Limits of the requests that libmlx5 accepts on a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) requests: u32,
    pub(crate) sges: u32,
    pub(crate) inline: u32,
    pub(crate) has_atomics: bool,
}

/// A send queue.
pub(crate) struct Sends {
    /// Posts. A batch of `ibv_wr_*` holds it from its start to its end.
    pub(crate) side: Lock<SendSide>,
    /// Whether a batch of `ibv_wr_*` holds it.
    pub(crate) is_building: AtomicBool,
    /// Takes CQEs, without the lock.
    pub(crate) progress: Progress<Request>,
    /// Running count of requests that are over.
    pub(crate) retired: AtomicU32,
    /// Kind of each change of a key.
    pub(crate) changes: Changes,
}

/// The side of a send queue that posts.
pub(crate) struct SendSide {
    pub(crate) queue: SendQueue<Request>,
    pub(crate) limits: SendLimits,
    /// Whether the queue pair has been in RTS since RESET.
    pub(crate) can_send: bool,
    /// Whether the last request changed a key: the next one waits for it. It finds no room at first, so that no other
    /// request looks at this.
    pub(crate) is_fenced: bool,
    /// Running count of requests that were posted.
    pub(crate) posted: u32,
    /// Running count of requests at which the queue is full.
    pub(crate) full_at: u32,
    /// The batch of `ibv_wr_*`, the running count of requests up to its end, whether the last one changed a key, and
    /// why the batch is refused: an errno, or 0.
    pub(crate) batch: Batch,
    pub(crate) built: u32,
    pub(crate) is_built_fenced: bool,
    pub(crate) error: c_int,
    /// The memory that the queue points to.
    pub(crate) _records: Box<[MaybeUninit<Record<Request>>]>,
}

impl table::Record for Qp {
    fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)> {
        Some((&QPS, self.ibv.cast()))
    }
}

impl table::Record for Cq {
    fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)> {
        Some((&CQS, self.ibv.cast()))
    }
}

impl table::Record for Srq {
    fn place(&self) -> Option<(&'static Places<Self>, *mut c_void)> {
        None
    }
}

impl Qp {
    /// Returns the record of a queue pair that has a place.
    ///
    /// # Safety
    /// [verbs], [record-lives]
    #[inline(always)]
    pub(crate) unsafe fn find<'a>(qp: *mut ibv_qp) -> Option<&'a Self> {
        // SAFETY: [record-lives]
        unsafe { QPS.get(qp.cast()) }
    }

    #[inline(always)]
    pub(crate) fn srq(&self) -> Option<&Srq> {
        // SAFETY: [record-lives] an SRQ outlives its queue pairs.
        self.srq.map(|srq| unsafe { srq.as_ref() })
    }

    /// Returns the CQs, each once.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Cq> {
        let other = (self.recv_cq != self.send_cq).then_some(self.recv_cq);
        // SAFETY: [record-lives] a CQ outlives its queue pairs.
        [Some(self.send_cq), other].into_iter().flatten().map(|cq| unsafe { cq.as_ref() })
    }

    /// Returns the counts of queue pairs of its CQs and its SRQ.
    pub(crate) fn users(&self) -> impl Iterator<Item = &AtomicU32> {
        self.cqs().map(|cq| &cq.users).chain(self.srq().map(|srq| &srq.users))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.users().for_each(|users| _ = users.fetch_sub(1, Ordering::Relaxed));
    }
}

impl Cq {
    /// Returns the record of a CQ that has a place.
    ///
    /// # Safety
    /// [verbs], [record-lives]
    #[inline(always)]
    pub(crate) unsafe fn find<'a>(cq: *mut ibv_cq) -> Option<&'a Self> {
        // SAFETY: [record-lives]
        unsafe { CQS.get(cq.cast()) }
    }
}

impl CqSide {
    /// Gives the CQEs that were taken back to the device.
    #[inline(always)]
    pub(crate) fn publish(&mut self, record: &Cq) {
        self.ring.publish();
        record.consumer_index.store(self.ring.consumer_index(), Ordering::Relaxed);
    }
}
