//! Verbs objects made elsewhere, and the rings themselves.

use std::sync::Arc;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use rdma_core_sys as sys;

use super::id::{RqId, SrqId};
use super::queue::RecvQueue;
use super::slot_context::SlotContext;
use super::srq::Srq;
use super::{Poller, Receiver, ReceiverConfig};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};
use crate::sender::Sender;

impl Receiver {
    /// Creates a receiver on a CQ of the program; size and completion vector in `config` are ignored. The program
    /// destroys the CQ after the receiver.
    ///
    /// The CQ is for receives only: the queue pairs send on another CQ, with a completion channel of its own.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::rdma_core_sys as sys;
    /// use doorbell::{QpConfig, Receiver, ReceiverConfig};
    ///
    /// // SAFETY: live objects of one device, destroyed after the receiver; no other code uses them.
    /// unsafe {
    ///     let context = pd.context().as_raw();
    ///     let cq = sys::ibv_create_cq(context, 63, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    ///     let send_cq = sys::ibv_create_cq(context, 8, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    ///     let mut init = sys::ibv_srq_init_attr::default();
    ///     (init.attr.max_wr, init.attr.max_sge) = (15, 1);
    ///     let srq = sys::ibv_create_srq(pd.as_raw(), &mut init);
    ///     let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq: cq, srq, ..Default::default() };
    ///     init.qp_type = sys::IBV_QPT_RC;
    ///     (init.cap.max_send_wr, init.cap.max_send_sge) = (4, 1);
    ///     let qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
    ///
    ///     let mut receiver = Receiver::from_raw_cq(&pd, cq, &ReceiverConfig::new())?;
    ///     let shared = receiver.attach_raw_srq(srq, 15, 1)?;
    ///     let handle = receiver.attach_raw_qp(qp, &QpConfig::rc().srq(shared))?;
    ///     println!("QP {:#x} receives through doorbell", handle.qp_num());
    ///
    ///     drop((handle, receiver));
    ///     sys::ibv_destroy_qp(qp);
    ///     sys::ibv_destroy_srq(srq);
    ///     sys::ibv_destroy_cq(send_cq);
    ///     sys::ibv_destroy_cq(cq);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    ///
    /// # Safety
    /// - `cq` belongs to the device of `pd` and outlives the receiver.
    /// - With timestamps in `config`, it is the CQ of an `ibv_cq_ex` that was created with them and with
    ///   `IBV_WC_STANDARD_FLAGS`; with compression, of one that was created with this format and CQEs of 64 bytes.
    /// - Nothing was polled from it. No other code polls, arms or resizes it, not even after the receiver.
    /// - Every receive that completes on it is posted through this receiver, on queues attached to it.
    /// - Its completion channel, if any, lives as long, belongs to no other CQ, and no other code reads from it.
    pub unsafe fn from_raw_cq(
        pd: &ProtectionDomain,
        cq: *mut sys::ibv_cq,
        config: &ReceiverConfig,
    ) -> Result<Self> {
        let mlx5dv = pd.context().choose(config.path)?;
        let form = config.form(pd.context(), mlx5dv)?;
        // SAFETY: the caller's `cq` was created as `config` says and outlives the receiver; no other code polls or arms it.
        unsafe {
            let cq = Cq::from_raw(pd.context(), cq, form, mlx5dv.is_none());
            Self::with_cq(pd, cq, mlx5dv, config)
        }
    }

    /// Attaches an SRQ of the program, for at most `max_wr` receives of `max_sge` buffers each. The program destroys
    /// the SRQ after the receiver. Buffers that are posted then are lost to their pools, because doorbell does not learn when
    /// the SRQ is destroyed; their memory is released with the pool.
    ///
    /// # Errors
    /// The errors of [`create_srq`](Self::create_srq).
    ///
    /// # Safety
    /// - `srq` belongs to the domain of this receiver, was created for at least `max_wr` and `max_sge`, and outlives
    ///   the receiver.
    /// - Nothing was posted to it. No other code posts to it while the receiver exists (on the direct path: ever
    ///   again).
    pub unsafe fn attach_raw_srq(
        &mut self,
        srq: *mut sys::ibv_srq,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SrqId> {
        self.check_cq()?;
        // SAFETY: the caller's `srq` outlives the receiver; nothing was posted to it, and no other code posts to it.
        unsafe {
            let srq = Arc::new(Srq::from_raw(self.pd(), srq));
            self.add_srq(srq, max_wr, max_sge)
        }
    }

    /// Attaches a QP that the program created on the CQ of this receiver. `config` names its SRQ, if any, and how to
    /// connect it; all sizes are those that the QP was created with. A QP in RESET goes to INIT; a QP that the program has
    /// connected stays so. Dropping the handle disconnects the QP, [`destroy_qp`](Self::destroy_qp) resets it, and the
    /// program destroys it after the receiver and the handle.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for transports that [`QpConfig`] does not have, such as raw packets, for another CQ or SRQ, and
    /// for a QP that sends on the same CQ; the errors of [`create_qp`](Self::create_qp).
    ///
    /// # Safety
    /// - `qp` belongs to the domain of this receiver, receives on its CQ and from that SRQ, sends on another CQ that
    ///   no other code polls, and outlives the receiver and the handle.
    /// - Nothing was posted to its queues. No other code posts to them while the receiver or the handle exists (to
    ///   its receive queue on the direct path: ever again).
    pub unsafe fn attach_raw_qp(
        &mut self,
        qp: *mut sys::ibv_qp,
        config: &QpConfig,
    ) -> Result<QueuePair> {
        let send = SendSide::idle(Arc::clone(&self.cq));
        // SAFETY: the caller's `qp` outlives receiver and handle; nothing was posted to its queues, and no sender posts.
        unsafe { self.attach(qp, config, send) }
    }

    /// Attaches a QP that sends on the CQ of `sender`, which posts its sends. All else is as in
    /// [`attach_raw_qp`](Self::attach_raw_qp).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::rdma_core_sys as sys;
    /// use doorbell::{QpConfig, Receiver, ReceiverConfig, Sender, SenderConfig};
    ///
    /// // SAFETY: live objects of one device, destroyed after receiver and sender; no other code uses them.
    /// unsafe {
    ///     let context = pd.context().as_raw();
    ///     let cq = || sys::ibv_create_cq(context, 255, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    ///     let (recv_cq, send_cq) = (cq(), cq());
    ///     let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq, ..Default::default() };
    ///     init.qp_type = sys::IBV_QPT_RC;
    ///     (init.cap.max_send_wr, init.cap.max_send_sge) = (4, 1);
    ///     (init.cap.max_recv_wr, init.cap.max_recv_sge) = (4, 1);
    ///     let qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
    ///
    ///     let mut receiver = Receiver::from_raw_cq(&pd, recv_cq, &ReceiverConfig::new())?;
    ///     let mut sender = Sender::from_raw_cq(&pd, send_cq, &SenderConfig::new())?;
    ///     let config = QpConfig::rc().receives(4, 1);
    ///     let handle = receiver.attach_raw_qp_with_sender(qp, &config, &mut sender)?;
    ///     let queue = handle.send_queue().expect("attached with a sender");
    ///     assert!(sender.capacity(queue) >= 4);
    ///
    ///     drop((handle, receiver, sender));
    ///     sys::ibv_destroy_qp(qp);
    ///     sys::ibv_destroy_cq(send_cq);
    ///     sys::ibv_destroy_cq(recv_cq);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`attach_raw_qp`](Self::attach_raw_qp) and
    /// [`create_qp_with_sender`](Self::create_qp_with_sender).
    ///
    /// # Safety
    /// - The contract of [`attach_raw_qp`](Self::attach_raw_qp), except that the QP sends on the CQ of `sender`. No
    ///   other code posts to its send queue (on the direct path: ever again).
    /// - The QP was created with neither `sq_sig_all` nor `MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE`, or with scatter to CQE
    ///   disabled (`MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`). Its WQEs have no signature. The program destroys it after the
    ///   sender.
    pub unsafe fn attach_raw_qp_with_sender(
        &mut self,
        qp: *mut sys::ibv_qp,
        config: &QpConfig,
        sender: &mut Sender,
    ) -> Result<QueuePair> {
        let send = sender.send_side(self.pd())?;
        // SAFETY: the caller's `qp` sends on the CQ of `sender`, no other code posts to it, and its WQEs have no signature.
        unsafe {
            let mut qp = self.attach(qp, config, send)?;
            let config = qp.config().clone();
            sender.enter(&mut qp, &config)?;
            Ok(qp)
        }
    }

    /// # Safety
    /// As for [`attach_raw_qp`](Self::attach_raw_qp); the QP sends as `send` says.
    unsafe fn attach(
        &mut self,
        qp: *mut sys::ibv_qp,
        config: &QpConfig,
        send: SendSide,
    ) -> Result<QueuePair> {
        self.check_cq()?;
        let srq = config.shared().map(|id| self.srq_object(id)).transpose()?;
        let cq = Arc::clone(&self.cq);
        // SAFETY: the caller's `qp` receives on this CQ and SRQ, sends as `send` says, and outlives the handle.
        let mut qp = unsafe { QueuePair::from_raw(self.pd(), qp, config, send, cq, srq)? };
        let config = &qp.config().clone();
        let cap = *qp.object().cap();
        // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
        unsafe { self.enter(&mut qp, config, cap.max_recv_wr, cap.max_recv_sge) }?;
        Ok(qp)
    }

    /// Returns the rings, or `None` on the verbs path.
    ///
    /// Receives posted through a ring carry [`SlotContext::from_wr_id`] and must be completed there.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(15))?;
    /// # let mut qp = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// # let mut other = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let mut peer_sender = doorbell::Sender::new(&pd, &doorbell::SenderConfig::new())?;
    /// # let config = QpConfig::rc().max_inline(64);
    /// # let mut peer = other.create_qp_with_sender(&config, &mut peer_sender)?;
    /// # qp.connect(&peer.address()?)?;
    /// # peer.connect(&qp.address()?)?;
    /// use doorbell::raw::SlotContext;
    /// use doorbell::Cause;
    /// use doorbell::mlx5_ring::receive::ReceiveRing;
    /// use doorbell::mlx5_ring::sge::Sge;
    /// use doorbell::rdma_core_sys as sys;
    ///
    /// let mut memory = vec![0u8; 4096];
    /// // SAFETY: the memory outlives the region, and no code touches it until the receive has completed.
    /// let mr = unsafe {
    ///     let mr = sys::ibv_reg_mr(
    ///         receiver.pd().as_raw(),
    ///         memory.as_mut_ptr().cast(),
    ///         memory.len(),
    ///         sys::IBV_ACCESS_LOCAL_WRITE,
    ///     );
    ///     let sge = Sge { addr: memory.as_ptr() as u64, length: 4096, lkey: (*mr).lkey };
    ///     if let Some(mut rings) = receiver.as_direct() {
    ///         let (_, ring) = rings.srq(srq)?;
    ///         ring.post(SlotContext::from_wr_id(7), &[sge]).expect("the queue is empty");
    ///         ring.ring_doorbell();
    ///     }
    ///     mr
    /// };
    /// # doorbell_doc::send(&mut peer_sender, &peer, b"hello", None);
    /// let mut batch = receiver.poll();
    /// let completed = batch.next().expect("a message has arrived").unwrap_err();
    /// assert_eq!(completed.cause, Cause::Raw(7));
    /// // SAFETY: nothing is posted any more.
    /// unsafe { sys::ibv_dereg_mr(mr) };
    /// assert_eq!(memory[..5], *b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// - A ring is neither moved nor replaced.
    /// - Slots that hold a buffer of this receiver (from [`post`](Self::post) and similar methods) are neither
    ///   completed, taken nor drained through the ring.
    /// - The contracts of the ring's methods hold; they state how long the memory of a posted receive must live.
    pub unsafe fn as_direct(&mut self) -> Option<DirectQueues<'_>> {
        match &self.poller {
            Poller::Direct(_) => {
                self.end_batch();
                Some(DirectQueues { receiver: self })
            }
            Poller::Verbs(_) => None,
        }
    }
}

/// The rings of a receiver on the direct path, from [`Receiver::as_direct`].
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let (receiver, srq) = (&mut world.receiver, world.srq);
/// use doorbell::mlx5_ring::receive::ReceiveRing;
///
/// // SAFETY: nothing is posted or completed through the ring: it is only asked.
/// if let Some(mut rings) = unsafe { receiver.as_direct() } {
///     let (cq, ring) = rings.srq(srq)?;
///     println!("{} entries, {} slots", cq.capacity(), ring.slots().count());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DirectQueues<'a> {
    receiver: &'a mut Receiver,
}

impl DirectQueues<'_> {
    /// Returns the completion queue and the ring of a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist.
    pub fn srq(
        &mut self,
        id: SrqId,
    ) -> Result<(&mut CompletionQueue, &mut SharedReceiveQueue<SlotContext>)> {
        self.receiver.find(id.0).ok_or(Error::Gone { what: "SRQ" })?;
        let Receiver { poller, queues, .. } = &mut *self.receiver;
        match (poller, &mut queues[id.0.index as usize].queue) {
            (Poller::Direct(direct), RecvQueue::Srq(srq)) => Ok((&mut direct.cq, &mut srq.ring)),
            _ => unreachable!("an SRQ on the direct path is driven directly"),
        }
    }

    /// Returns the completion queue and the ring of a receive queue.
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist.
    pub fn rq(
        &mut self,
        id: RqId,
    ) -> Result<(&mut CompletionQueue, &mut ReceiveQueue<SlotContext>)> {
        self.receiver.find(id.0).ok_or(Error::Gone { what: "receive queue" })?;
        let Receiver { poller, queues, .. } = &mut *self.receiver;
        match (poller, &mut queues[id.0.index as usize].queue) {
            (Poller::Direct(direct), RecvQueue::Rq(rq)) => Ok((&mut direct.cq, &mut rq.ring)),
            _ => unreachable!("a receive queue on the direct path is driven directly"),
        }
    }
}
