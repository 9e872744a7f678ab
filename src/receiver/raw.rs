//! Verbs objects made elsewhere, and the rings themselves.

use std::sync::Arc;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::ordered::OrderedReceiveQueue;
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use rdma_core_sys as sys;

use super::Receiver;
use super::queue::RecvQueue;
use super::slot_context::SlotContext;
use crate::cq::{CqConfig, CqCore, Poller};
use crate::error::{Error, Result};
use crate::ids::{RqId, SrqId};
use crate::pd::ProtectionDomain;
use crate::srq::{Srq, SrqConfig};

impl Receiver {
    /// Creates a receiver on a CQ of the program; capacity and completion vector in `config` do not apply. The program
    /// destroys the CQ after the receiver. [`QueuePairBuilder::attach`](crate::QueuePairBuilder::attach) adds queue
    /// pairs.
    ///
    /// The CQ is for receives only: the queue pairs send on another CQ, with a completion channel of its own.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::raw::rdma_core_sys as sys;
    /// use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, SrqConfig};
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
    ///     let mut receiver = Receiver::from_raw_cq(&pd, cq, &CqConfig::new(63))?;
    ///     let shared = receiver.attach_srq(srq, &SrqConfig::new(15))?;
    ///     let handle =
    ///         QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, shared).attach(qp)?;
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
    pub unsafe fn from_raw_cq(pd: &ProtectionDomain, cq: *mut sys::ibv_cq, config: &CqConfig) -> Result<Self> {
        // SAFETY: the caller's `cq` was created as `config` says and outlives the receiver; no other code polls or arms
        // it.
        Ok(Self::on(pd, unsafe { CqCore::from_raw(pd.context(), cq, config) }?))
    }

    /// Attaches an SRQ of the program, for at most as many receives and buffers as `config` says. The program destroys
    /// the SRQ after the receiver. Buffers that are posted then are lost to their pools, because doorbell does not
    /// learn when the SRQ is destroyed; their memory is released with the pool.
    ///
    /// # Errors
    /// The errors of [`create_srq`](Self::create_srq).
    ///
    /// # Safety
    /// - `srq` belongs to the domain of this receiver, was created for at least the sizes of `config`, and outlives the
    ///   receiver.
    /// - Nothing was posted to it. No other code posts to it while the receiver exists (on the direct path: ever
    ///   again).
    pub unsafe fn attach_srq(&mut self, srq: *mut sys::ibv_srq, config: &SrqConfig) -> Result<SrqId> {
        self.check_cq()?;
        // SAFETY: the caller's `srq` outlives the receiver; nothing was posted to it, and no other code posts to it.
        unsafe {
            let srq = Arc::new(Srq::from_raw(self.pd(), srq));
            self.add_srq(srq, config)
        }
    }

    /// Returns the rings, or `None` on the verbs path.
    ///
    /// Receives posted through a ring carry [`SlotContext::from_wr_id`] and must be completed there.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, SrqConfig};
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(16))?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(15).patience(0))?;
    /// # let config = QpConfig::rc().max_inline(64);
    /// # let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).build()?;
    /// # let mut peer_sender = doorbell::Sender::new(&pd, &CqConfig::new(512))?;
    /// # let mut peer = QueuePair::builder(&config).send(&mut peer_sender).build()?;
    /// # qp.connect(&peer.address()?)?;
    /// # peer.connect(&qp.address()?)?;
    /// use doorbell::raw::SlotContext;
    /// use doorbell::Cause;
    /// use doorbell::raw::mlx5_ring::receive::ReceiveRing;
    /// use doorbell::raw::mlx5_ring::sge::Sge;
    /// use doorbell::raw::rdma_core_sys as sys;
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
        match &self.cq.poller {
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
/// # let receiver = &mut world.receiver;
/// use doorbell::SrqConfig;
/// use doorbell::raw::mlx5_ring::receive::ReceiveRing;
///
/// let srq = receiver.create_srq(&SrqConfig::new(15).patience(0))?;
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
    /// Returns the completion queue and the ring of a shared receive queue, whose receives do not wait.
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist. [`Error::Unsupported`] if it has [patience](SrqConfig::patience).
    pub fn srq(&mut self, id: SrqId) -> Result<(&mut CompletionQueue, &mut SharedReceiveQueue<SlotContext>)> {
        self.receiver.find(id.0).ok_or(Error::Gone { what: "SRQ" })?;
        let Receiver { cq, queues, .. } = &mut *self.receiver;
        match (&mut cq.poller, &mut queues[id.0.index as usize].queue) {
            (Poller::Direct(direct), RecvQueue::Srq(srq)) => Ok((&mut direct.cq, &mut srq.ring)),
            (_, RecvQueue::Ordered(_)) => Err(Error::Unsupported {
                operation: "DirectQueues::srq",
                when: "on an SRQ whose receives wait: use DirectQueues::ordered_srq, or SrqConfig::patience(0)",
            }),
            _ => unreachable!("an SRQ on the direct path is driven directly"),
        }
    }

    /// Returns the completion queue and the ring of a shared receive queue, whose receives wait for older ones.
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist. [`Error::Unsupported`] without [patience](SrqConfig::patience).
    pub fn ordered_srq(&mut self, id: SrqId) -> Result<(&mut CompletionQueue, &mut OrderedReceiveQueue<SlotContext>)> {
        self.receiver.find(id.0).ok_or(Error::Gone { what: "SRQ" })?;
        let Receiver { cq, queues, .. } = &mut *self.receiver;
        match (&mut cq.poller, &mut queues[id.0.index as usize].queue) {
            (Poller::Direct(direct), RecvQueue::Ordered(srq)) => Ok((&mut direct.cq, &mut srq.ring)),
            (_, RecvQueue::Srq(_)) => Err(Error::Unsupported {
                operation: "DirectQueues::ordered_srq",
                when: "on an SRQ without patience: use DirectQueues::srq",
            }),
            _ => unreachable!("an SRQ on the direct path is driven directly"),
        }
    }

    /// Returns the completion queue and the ring of a receive queue.
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist.
    pub fn rq(&mut self, id: RqId) -> Result<(&mut CompletionQueue, &mut ReceiveQueue<SlotContext>)> {
        self.receiver.find(id.0).ok_or(Error::Gone { what: "receive queue" })?;
        let Receiver { cq, queues, .. } = &mut *self.receiver;
        match (&mut cq.poller, &mut queues[id.0.index as usize].queue) {
            (Poller::Direct(direct), RecvQueue::Rq(rq)) => Ok((&mut direct.cq, &mut rq.ring)),
            _ => unreachable!("a receive queue on the direct path is driven directly"),
        }
    }
}
