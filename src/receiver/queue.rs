//! A queue of a receiver: an SRQ or a receive queue, driven directly or through libibverbs.

use std::sync::Arc;

use mlx5_ring::completion::Cqe;
use mlx5_ring::ordered::OrderedReceiveQueue;
use mlx5_ring::receive::{self, Completion, ReceiveRing};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::slots::Slot;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::data::DataSegment;
use rdma_core_sys::Mlx5dv;

use super::slot_context::SlotContext;
use super::verbs_queue::{QueueObject, VerbsQueue};
use crate::mlx5::{self, Storage};
use crate::path::NotDirect;
use crate::post_failure::PostFailure;
use crate::qp::Qp;
use crate::srq::{Srq, SrqConfig};

/// A queue that receives are posted to.
// The enum has a tag of its own, and none inside a field: each message reads it twice.
#[repr(u8)]
pub(crate) enum RecvQueue {
    /// A shared receive queue, driven directly, whose receives wait for older ones.
    Ordered(DirectSrq<OrderedReceiveQueue<SlotContext>>),
    /// A shared receive queue without patience, driven directly.
    Srq(DirectSrq),
    /// The receive queue of a queue pair, driven directly.
    Rq(DirectRq),
    /// Either of them, through libibverbs.
    Verbs(VerbsQueue),
    /// Destroyed; another queue may take its place.
    Closed,
}

/// A shared receive queue and what its ring stands on.
pub(crate) struct DirectSrq<Q = SharedReceiveQueue<SlotContext>> {
    pub(crate) ring: Q,
    pub(crate) object: Arc<Srq>,
    /// [`fill`](crate::Receiver::fill) has put a buffer into the slot that stays unposted: the queue goes on to hold
    /// one more than can be posted.
    pub(crate) keeps_spare: bool,
    _slots: Storage<Slot<SlotContext>>,
}

impl DirectSrq {
    /// Takes over an SRQ.
    ///
    /// # Safety
    /// Nothing was posted to the SRQ, and no other code posts to it.
    pub(crate) unsafe fn new(mlx5dv: &Mlx5dv, object: Arc<Srq>) -> Result<Self, NotDirect> {
        // SAFETY: no other code posts to the caller's SRQ, which the value keeps.
        let (ring, _slots) = unsafe { mlx5::shared_receive_queue(object.layout(mlx5dv)?, SharedReceiveQueue::new) }?;
        Ok(Self { ring, object, keeps_spare: false, _slots })
    }
}

impl DirectSrq<OrderedReceiveQueue<SlotContext>> {
    /// Takes over an SRQ, in which at most `patience` receives wait for an older one.
    ///
    /// # Safety
    /// Nothing was posted to the SRQ, and no other code posts to it.
    unsafe fn ordered(mlx5dv: &Mlx5dv, object: Arc<Srq>, patience: u32) -> Result<Self, NotDirect> {
        // SAFETY: no other code posts to the caller's SRQ, which the value keeps.
        let (ring, _slots) = unsafe { mlx5::shared_receive_queue(object.layout(mlx5dv)?, OrderedReceiveQueue::new) }?;
        Ok(Self { ring: ring.with_patience(patience), object, keeps_spare: false, _slots })
    }
}

/// The receive queue of a queue pair and what its ring stands on.
pub(crate) struct DirectRq {
    pub(crate) ring: ReceiveQueue<SlotContext>,
    pub(crate) object: Arc<Qp>,
    _slots: Storage<Slot<SlotContext>>,
}

/// Evaluates one expression on the ring of a direct queue, another on a verbs queue, a third on a closed one.
macro_rules! on_queue {
    ($queue:expr, $ring:ident => $direct:expr, $verbs:ident => $through_verbs:expr, $closed:expr) => {
        match $queue {
            RecvQueue::Ordered(DirectSrq { ring: $ring, .. }) => $direct,
            RecvQueue::Srq(DirectSrq { ring: $ring, .. }) => $direct,
            RecvQueue::Rq(DirectRq { ring: $ring, .. }) => $direct,
            RecvQueue::Verbs($verbs) => $through_verbs,
            RecvQueue::Closed => $closed,
        }
    };
}

impl RecvQueue {
    /// Takes over a queue, which is that with this index in its receiver.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no other code posts to it.
    pub(super) unsafe fn new(
        mlx5dv: Option<&Mlx5dv>,
        object: QueueObject,
        index: u32,
        size: &SrqConfig,
    ) -> Result<Self, NotDirect> {
        match (mlx5dv, object) {
            (Some(mlx5dv), QueueObject::Srq(srq)) => {
                // SAFETY: nothing was posted to the caller's SRQ, and no other code posts to it.
                unsafe {
                    match size.patience {
                        0 => DirectSrq::new(mlx5dv, srq).map(Self::Srq),
                        patience => DirectSrq::ordered(mlx5dv, srq, patience).map(Self::Ordered),
                    }
                }
            }
            (Some(mlx5dv), QueueObject::Rq(object)) => {
                // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
                let (ring, _slots) = unsafe { mlx5::receive_queue(mlx5dv, object.as_raw()) }?;
                Ok(Self::Rq(DirectRq { ring, object, _slots }))
            }
            (None, object) => Ok(Self::Verbs(VerbsQueue::new(object, index, size.max_wr, size.max_sge))),
        }
    }

    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// Returns the SRQ that this is.
    pub(crate) const fn srq(&self) -> Option<&Arc<Srq>> {
        match self {
            Self::Ordered(srq) => Some(&srq.object),
            Self::Srq(srq) => Some(&srq.object),
            Self::Verbs(verbs) => match verbs.object() {
                QueueObject::Srq(srq) => Some(srq),
                QueueObject::Rq(_) => None,
            },
            Self::Rq(_) | Self::Closed => None,
        }
    }

    /// Returns the queue pair whose own receive queue this is.
    pub(crate) const fn qp(&self) -> Option<&Arc<Qp>> {
        match self {
            Self::Rq(rq) => Some(&rq.object),
            Self::Verbs(verbs) => match verbs.object() {
                QueueObject::Rq(qp) => Some(qp),
                QueueObject::Srq(_) => None,
            },
            Self::Ordered(_) | Self::Srq(_) | Self::Closed => None,
        }
    }

    /// Returns the number of receives that the queue can have outstanding.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            Self::Ordered(srq) => srq.ring.slots().count() - 1,
            Self::Srq(srq) => srq.ring.slots().count() - 1,
            Self::Rq(rq) => rq.ring.slots().count(),
            Self::Verbs(verbs) => verbs.capacity(),
            Self::Closed => 0,
        }
    }

    /// Returns the number of receives that can be posted now.
    pub(crate) fn free_slots(&self) -> u32 {
        match self {
            // One more goes into the slot that stays unposted, if that is to have a buffer and has none.
            Self::Ordered(srq) if srq.keeps_spare && !srq.ring.is_loaded() => {
                (srq.ring.free_slots() + 1).min(self.capacity())
            }
            Self::Srq(srq) if srq.keeps_spare && !srq.ring.is_loaded() => {
                (srq.ring.free_slots() + 1).min(self.capacity())
            }
            _ => self.capacity() - self.outstanding(),
        }
    }

    /// Returns the number of receives that are with the device, or have completed and were not given back.
    pub(crate) fn outstanding(&self) -> u32 {
        let free = on_queue!(self, ring => ring.free_slots(), verbs => verbs.free_slots(), 0);
        self.capacity() - free
    }

    /// Returns the number of buffers that one receive can be scattered over.
    pub(crate) fn max_sge(&self) -> u32 {
        on_queue!(self, ring => ring.max_sge(), verbs => verbs.max_sge(), 0)
    }

    /// Completes the WQE that `cqe` names.
    ///
    /// # Safety
    /// `cqe` is of this queue, and what is posted to it are buffers of its receiver.
    #[inline(always)]
    pub(super) unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Completion {
        let stray = Completion::Stray;
        // SAFETY: the caller's `cqe` is of this queue, to which its receiver posts its own buffers.
        on_queue!(self, ring => unsafe { receive::complete(ring, cqe) }, _verbs => stray, stray)
    }

    /// Returns what was posted into a slot.
    ///
    /// # Safety
    /// `slot` is held.
    #[inline(always)]
    pub(super) unsafe fn context(&self, slot: u32) -> SlotContext {
        let nothing = SlotContext::from_wr_id(0);
        // SAFETY: the caller's `slot` is held.
        on_queue!(self, ring => unsafe { ring.data(slot) }, verbs => verbs.context(slot), nothing)
    }

    /// Lends a slot: it is given back with its buffer when the batch ends, unless
    /// [`release_lent`](Self::release_lent) takes the buffer out before.
    ///
    /// # Safety
    /// `slot` is held, and no code uses its buffer when something is lent, posted or rung.
    #[inline(always)]
    pub(super) unsafe fn lend(&mut self, slot: u32) {
        // SAFETY: the caller's `slot` is held, and no code uses its buffer when something is lent, posted or rung.
        on_queue!(self, ring => unsafe { ring.lend_held(slot) }, verbs => verbs.recycle(slot), ());
    }

    /// Takes the buffer out of the slot that was lent last.
    ///
    /// # Safety
    /// `slot` was lent, and nothing was posted, lent or rung since.
    #[inline(always)]
    pub(super) unsafe fn release_lent(&mut self, slot: u32) {
        // SAFETY: the caller's `slot` was lent, and nothing was posted, lent or rung since.
        on_queue!(self, ring => unsafe { ring.release_lent(slot) }, verbs => verbs.release_lent(slot), ());
    }

    /// Gives a slot back without its buffer.
    ///
    /// # Safety
    /// `slot` is held, and no code uses the buffers of slots that were lent.
    #[inline(always)]
    pub(super) unsafe fn release(&mut self, slot: u32) {
        on_queue!(
            self,
            ring => {
                ring.give_back();
                // SAFETY: the caller's `slot` is held.
                unsafe { ring.release(slot) }
            },
            verbs => verbs.release(slot),
            ()
        );
    }

    /// Describes another buffer in a slot.
    ///
    /// # Safety
    /// `slot` is held or lent, and the buffer is the queue's from now on.
    #[inline(always)]
    pub(super) unsafe fn rewrite(&mut self, slot: u32, context: SlotContext, segment: DataSegment) {
        on_queue!(
            self,
            // SAFETY: the caller's `slot` is held or lent, and the buffer is the queue's from now on.
            ring => unsafe { ring.rewrite(slot, context, segment) },
            verbs => verbs.rewrite(slot, context),
            ()
        );
    }

    /// Posts one receive of several buffers; [`ring_doorbell`](Self::ring_doorbell) hands it over.
    ///
    /// # Safety
    /// The buffers are of the receiver's domain, no more than [`max_sge`](Self::max_sge), and the queue's from now on.
    pub(super) unsafe fn post(&mut self, context: SlotContext) -> Result<(), PostFailure> {
        // SAFETY: the buffers were not made again.
        let sges: Vec<_> = unsafe { context.sges() }.collect();
        let posted = on_queue!(
            self,
            // SAFETY: the caller's buffers are of the receiver's domain, and the queue's from now on.
            ring => unsafe { ring.post(context, &sges) }.map(drop),
            verbs => verbs.post(context),
            return Err(PostFailure::NoQueue)
        );
        posted.map_err(|_| PostFailure::Full)
    }

    /// Hands everything that was posted and given back to the device. Returns `true` if receives wait for an older
    /// one. Buffers that a failed queue pair does not take go back to their pools, as they do when it is destroyed.
    #[inline(always)]
    pub(super) fn end_batch(&mut self) -> bool {
        on_queue!(
            self,
            ring => {
                ring.give_back();
                ring.ring_doorbell();
            },
            verbs => verbs.end_batch(),
            ()
        );
        matches!(self, Self::Ordered(srq) if srq.ring.is_waiting())
    }

    /// Returns the number of receives that wait for an older one to come back before they go to the device.
    pub(crate) fn waiting(&self) -> u32 {
        if let Self::Ordered(srq) = self { srq.ring.waiting() } else { 0 }
    }

    /// Hands everything that was posted to the device. On the verbs path, what the driver does not take goes to
    /// `rejected`.
    #[inline(always)]
    pub(super) fn ring_doorbell(&mut self, rejected: impl FnMut(SlotContext)) -> Result<(), PostFailure> {
        on_queue!(
            self,
            ring => {
                ring.give_back();
                ring.ring_doorbell();
            },
            verbs => return verbs.post_chain(rejected).1.map_err(|errno| match errno {
                libc::ENOMEM => PostFailure::Full,
                errno => PostFailure::Verbs(errno),
            }),
            ()
        );
        Ok(())
    }

    /// Calls `each` with what is posted, or held.
    pub(super) fn each(&self, each: impl FnMut(SlotContext)) {
        on_queue!(self, ring => ring.slots().each(each), verbs => verbs.each(each), ());
    }

    /// Takes every receive back that is not held: the device has let go of the queue, or no code posts to it any more.
    pub(super) fn take_back(&mut self, each: impl FnMut(SlotContext)) {
        match self {
            Self::Ordered(srq) => srq.ring.drain(each),
            Self::Srq(srq) => srq.ring.drain(each),
            Self::Rq(rq) => rq.ring.reset(each),
            Self::Verbs(verbs) => verbs.take_back(each),
            Self::Closed => {}
        }
    }

    /// Takes every receive back whose buffers the device may still write, until the queue is destroyed.
    pub(super) fn defer(&mut self) {
        let mut posted = Vec::new();
        self.take_back(|context| posted.push(context));
        let deferred = self.srq().map(|srq| srq.deferred()).or(self.qp().map(|qp| qp.deferred()));
        if let Some(deferred) = deferred {
            // SAFETY: [slot-owns], taken back just now.
            posted.into_iter().for_each(|context| unsafe {
                context.into_buffers(0, |buffer| deferred.keep(buffer));
            });
        }
    }
}
