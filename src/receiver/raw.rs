//! Verbs objects made elsewhere, and the rings themselves.

use std::sync::Arc;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use rdma_core_sys as sys;

use super::direct::Ring;
use super::id::{QueueId, RqId, SrqId};
use super::resident::Resident;
use super::srq::Srq;
use super::{Engine, Receiver};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::qp::{Qp, QpConfig, QueuePair};

impl Receiver {
    /// A receiver on a CQ that was made with libibverbs. The caller destroys it, after the receiver.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    ///
    /// # Safety
    /// - `cq` belongs to the device of `pd` and outlives the receiver.
    /// - Nothing was polled from it, and nobody else polls, arms or resizes it while the receiver exists
    ///   (on the direct path: ever again).
    /// - Every receive that completes on it is posted through this receiver, on queues attached to it.
    /// - Its completion channel, if it has one, lives as long, is that of no other CQ, and nobody else reads
    ///   from it.
    pub unsafe fn from_raw_cq(
        pd: &ProtectionDomain,
        cq: *mut sys::ibv_cq,
        path: Path,
    ) -> Result<Self> {
        let mlx5dv = pd.context().choose(path)?;
        // SAFETY: the caller's contract.
        unsafe {
            let cq = Arc::new(Cq::from_raw(pd.context(), cq));
            Self::with_cq(pd, cq, mlx5dv)
        }
    }

    /// Attaches an SRQ that was made with libibverbs, for at most `max_wr` receives of `max_sge` buffers
    /// each. The caller destroys it, after the receiver.
    ///
    /// # Errors
    /// Those of [`create_srq`](Self::create_srq).
    ///
    /// # Safety
    /// - `srq` belongs to the domain of this receiver, was created for at least `max_wr` and `max_sge`,
    ///   and outlives the receiver.
    /// - Nothing was posted to it, and nobody else posts to it while the receiver exists (on the direct
    ///   path: ever again).
    pub unsafe fn attach_raw_srq(
        &mut self,
        srq: *mut sys::ibv_srq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SrqId> {
        self.check_room(max_wr.into())?;
        // SAFETY: the caller's contract.
        unsafe {
            let srq = Arc::new(Srq::from_raw(self.pd(), srq));
            self.add_srq(srq, max_wr, max_sge)
        }
    }

    /// Attaches a QP that was made with libibverbs on the CQ of this receiver. `config` names the SRQ that it
    /// was created with, if any, and how it is to be connected; its sizes do not matter. The caller
    /// destroys it, after the receiver and the returned handle.
    ///
    /// # Errors
    /// Those of [`create_qp`](Self::create_qp).
    ///
    /// # Safety
    /// - `qp` belongs to the domain of this receiver, receives on its CQ and on that SRQ, sends on another CQ
    ///   that nobody else polls, and outlives the receiver and the handle.
    /// - Nothing was posted to its queues, and nobody else posts to them while the receiver or the handle
    ///   exist (to its receive queue on the direct path: ever again).
    pub unsafe fn attach_raw_qp(
        &mut self,
        qp: *mut sys::ibv_qp,
        config: &QpConfig,
    ) -> Result<QueuePair> {
        let srq = config.shared().map(|id| self.srq_object(id)).transpose()?;
        let cq = Arc::clone(&self.cq);
        // SAFETY: the caller's contract.
        let mut qp = unsafe { QueuePair::from_raw(self.pd(), qp, config, cq, srq)? };
        self.enter(&qp.object());
        match config.shared() {
            Some(id) => self.route(qp.qp_num(), id.0.index),
            None => {
                let object: Arc<Qp> = qp.object();
                let cap = *object.cap();
                // SAFETY: the caller's contract.
                let id = unsafe { self.add_rq(object, cap.max_recv_wr, cap.max_recv_sge) }?;
                qp.set_receive_queue(id);
            }
        }
        Ok(qp)
    }

    /// The rings themselves, for who wants every nanosecond; `None` on the verbs path.
    ///
    /// Receives posted through a ring carry [`Resident::from_wr_id`] and must be completed there too.
    ///
    /// # Safety
    /// - A ring stays where it is: it is neither swapped nor replaced.
    /// - Slots that hold a buffer of this receiver (posted by [`post`](Self::post) and the like) are neither
    ///   completed, taken nor drained through the ring.
    /// - The contracts of the methods used, which say whose the memory of a posted receive is.
    pub unsafe fn as_direct(&mut self) -> Option<Direct<'_>> {
        match &mut self.engine {
            Engine::Direct(_) => Some(Direct { receiver: self }),
            Engine::Verbs(_) => None,
        }
    }
}

/// The rings of a receiver on the direct path.
pub struct Direct<'a> {
    receiver: &'a mut Receiver,
}

/// The ring of one queue.
pub enum DirectQueue<'a> {
    /// A shared receive queue.
    Srq(&'a mut SharedReceiveQueue<Resident>),
    /// A receive queue.
    Rq(&'a mut ReceiveQueue<Resident>),
}

impl Direct<'_> {
    /// The completion queue and the ring of a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is no such queue.
    pub fn srq(
        &mut self,
        id: SrqId,
    ) -> Result<(&mut CompletionQueue, &mut SharedReceiveQueue<Resident>)> {
        match self.queue(id.0)? {
            (cq, DirectQueue::Srq(srq)) => Ok((cq, srq)),
            _ => Err(Error::Gone { what: "SRQ" }),
        }
    }

    /// The completion queue and the ring of a receive queue.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is no such queue.
    pub fn rq(&mut self, id: RqId) -> Result<(&mut CompletionQueue, &mut ReceiveQueue<Resident>)> {
        match self.queue(id.0)? {
            (cq, DirectQueue::Rq(rq)) => Ok((cq, rq)),
            _ => Err(Error::Gone { what: "receive queue" }),
        }
    }

    fn queue(&mut self, id: QueueId) -> Result<(&mut CompletionQueue, DirectQueue<'_>)> {
        let gone = Error::Gone { what: "queue" };
        let Some(index) = self.receiver.check(id) else {
            return Err(gone);
        };
        let Engine::Direct(direct) = &mut self.receiver.engine else {
            return Err(gone);
        };
        match &mut direct.queues[index] {
            Ring::Srq(srq) => Ok((&mut direct.cq, DirectQueue::Srq(&mut srq.ring))),
            Ring::Rq(rq) => Ok((&mut direct.cq, DirectQueue::Rq(&mut rq.ring))),
            Ring::Gone => Err(gone),
        }
    }
}
