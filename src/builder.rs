//! Making queue pairs that receive, send, or both.

use rdma_core_sys as sys;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, ReceiveSide, SendSide};
use crate::receive_from::{ReceiveFrom, RqConfig};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::trace::trace_event;

/// Makes a queue pair, from [`QueuePair::builder`].
#[must_use = "build or attach makes the queue pair"]
pub struct QueuePairBuilder<'a> {
    config: QpConfig,
    receive: Option<(&'a mut (dyn Receives + Send), ReceiveFrom)>,
    /// The processor reads the buffers of the receives.
    has_bytes: bool,
    send: Option<&'a mut Sender>,
}

/// A receiver, whatever memory it receives into.
trait Receives {
    fn pd(&self) -> &ProtectionDomain;
    fn receive_side(&mut self, from: ReceiveFrom) -> Result<ReceiveSide>;

    /// # Safety
    /// As for [`Receiver::enter`].
    unsafe fn enter(&mut self, qp: &mut QueuePair, from: ReceiveFrom) -> Result<()>;
}

impl<M: Memory> Receives for Receiver<M> {
    fn pd(&self) -> &ProtectionDomain {
        self.pd()
    }

    fn receive_side(&mut self, from: ReceiveFrom) -> Result<ReceiveSide> {
        self.receive_side(from)
    }

    unsafe fn enter(&mut self, qp: &mut QueuePair, from: ReceiveFrom) -> Result<()> {
        // SAFETY: the caller's queue pair is as this one wants it.
        unsafe { self.enter(qp, from) }
    }
}

impl QueuePair {
    /// Starts to make a queue pair. Name where it receives, where it sends, or both; it belongs to their protection
    /// domain.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender, SrqConfig};
    ///
    /// let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
    /// let mut sender = Sender::new(&pd, &CqConfig::new(256))?;
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    ///
    /// let config = QpConfig::rc().max_send_wr(64);
    /// // Receives from an SRQ and sends; only receives, in a queue of its own; only sends.
    /// let both =
    ///     QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build()?;
    /// let sink =
    ///     QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(128)).build()?;
    /// let source = QueuePair::builder(&config).send(&mut sender).build()?;
    /// assert_eq!(both.receive_queue(), None);
    /// assert_eq!(receiver.capacity(sink.receive_queue().expect("a queue of its own")), 128);
    /// assert_eq!(sender.capacity(&source), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder<'a>(config: &QpConfig) -> QueuePairBuilder<'a> {
        QueuePairBuilder { config: config.clone(), receive: None, has_bytes: true, send: None }
    }
}

impl<'a> QueuePairBuilder<'a> {
    /// Makes the queue pair receive through `receiver`, from its SRQ or into a queue of its own. If the receiver is one
    /// of [opaque memory](crate::opaque), the device puts no payload into the CQEs of the queue pair.
    pub fn receive<M: Memory>(mut self, receiver: &'a mut Receiver<M>, from: impl Into<ReceiveFrom>) -> Self {
        self.receive = Some((receiver, from.into()));
        self.has_bytes = M::HAS_BYTES;
        self
    }

    /// Makes the queue pair send through `sender`. Without it, the send settings of the [`QpConfig`] do not apply.
    pub fn send(mut self, sender: &'a mut Sender) -> Self {
        self.send = Some(sender);
        self
    }

    /// Makes the queue pair. It is in state INIT: post receives before connecting it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if neither a receiver nor a sender was named, or if only one of the two CQs has real-time
    /// timestamps; [`Error::Foreign`] for a sender of another protection domain than the receiver, and for an SRQ of
    /// another receiver;
    /// [`Error::CqTooSmall`] if the CQ of the receiver or of the sender has too few entries; [`Error::NoRoomForHeader`]
    /// for datagrams into an SRQ whose posted buffers are too small for the GRH; [`Error::OutOfRange`];
    /// [`Error::NotDirect`];
    /// [`Error::Verbs`].
    pub fn build(mut self) -> Result<QueuePair> {
        let (pd, receive, send) = self.sides()?;
        let qp = QueuePair::create(&pd, &self.config, receive, send)?;
        trace_event!(
            device = pd.context().name(),
            qp_num = qp.qp_num(),
            receives = self.receive.is_some(),
            sends = self.send.is_some(),
            "queue pair created"
        );
        // SAFETY: a fresh queue pair that no other code knows.
        unsafe { self.enter(qp) }
    }

    /// Takes over a queue pair that the program created on the CQs of the receiver and the sender named here. `config`
    /// says how to connect it; all sizes are those that the queue pair was created with. A queue pair in RESET goes to
    /// INIT; one that the program has connected stays so. Dropping the handle disconnects it,
    /// [`Receiver::destroy_qp`] resets it, and the program destroys it after the receiver, the sender and the handle.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::raw::rdma_core_sys as sys;
    /// use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender};
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
    ///     let mut receiver = Receiver::from_raw_cq(&pd, recv_cq, &CqConfig::new(255))?;
    ///     let mut sender = Sender::from_raw_cq(&pd, send_cq, &CqConfig::new(255))?;
    ///     let handle = QueuePair::builder(&QpConfig::rc())
    ///         .receive(&mut receiver, RqConfig::new(4))
    ///         .send(&mut sender)
    ///         .attach(qp)?;
    ///     assert!(sender.capacity(&handle) >= 4);
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
    /// [`Error::Unsupported`] for transports that [`QpConfig`] does not have, such as raw packets, for another CQ or
    /// SRQ, for a queue pair that sends on the CQ that it receives on (`doorbell.h` of the drop-in, see
    /// `docs/drop-in.md`, takes such a queue pair), and for a receiver of [opaque memory](crate::opaque); the errors of
    /// [`build`](Self::build).
    ///
    /// # Safety
    /// - `qp` belongs to the domain, receives on the CQ of the receiver and from that SRQ, sends on another CQ, that of
    ///   the sender if there is one, and outlives the receiver, the sender and the handle.
    /// - Nothing was posted to its queues. No other code posts to them while the receiver, the sender or the handle
    ///   exists (on the direct path: ever again).
    /// - With a sender, the queue pair was created with neither `sq_sig_all` nor
    ///   `MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE`, or with scatter to CQE disabled
    ///   (`MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE`). Its WQEs have no signature.
    pub unsafe fn attach(mut self, qp: *mut sys::ibv_qp) -> Result<QueuePair> {
        if !self.has_bytes {
            return Err(Error::Unsupported {
                operation: "QueuePairBuilder::attach",
                when: "with a receiver of opaque memory, because the device may put payload into the CQEs of the queue pair: build it here",
            });
        }
        let (pd, receive, send) = self.sides()?;
        // SAFETY: the caller's `qp` receives and sends as these say, and outlives the handle.
        let qp = unsafe { QueuePair::from_raw(&pd, qp, &self.config, receive, send)? };
        self.config = qp.config().clone();
        if let Some((_, ReceiveFrom::Own(own))) = &mut self.receive {
            let cap = *qp.object().cap();
            *own = RqConfig::new(cap.max_recv_wr).max_sge(cap.max_recv_sge);
        }
        // SAFETY: nothing was posted to the caller's queue pair, and no other code posts to it.
        unsafe { self.enter(qp) }
    }

    /// Returns the domain of the queue pair, and where it receives and sends.
    fn sides(&mut self) -> Result<(ProtectionDomain, ReceiveSide, SendSide)> {
        let pd = match (&self.receive, &self.send) {
            (Some((receiver, _)), _) => receiver.pd().clone(),
            (None, Some(sender)) => sender.pd().clone(),
            (None, None) => {
                return Err(Error::Unsupported {
                    operation: "a queue pair",
                    when: "without receiver and sender: call `receive`, `send` or both",
                });
            }
        };
        if self.config.is_dc() {
            return Err(Error::Unsupported {
                operation: "QueuePair::builder",
                when: "with QpConfig::dc: make a DcInitiator to send and a DcTarget to receive",
            });
        }
        self.config.check(pd.context().attr())?;
        let send = match &mut self.send {
            Some(sender) => Some(sender.send_side(&pd)?),
            None => None,
        };
        let receive = match &mut self.receive {
            Some((receiver, from)) => {
                let mut side = receiver.receive_side(*from)?;
                if !self.has_bytes {
                    // On the verbs path, too, libmlx5 is to keep payload out of CQEs, which it would copy.
                    side.mlx5dv = side.mlx5dv.or(pd.context().mlx5dv());
                }
                Some(side)
            }
            None => None,
        };
        let (receive, send) = match (receive, send) {
            (Some(receive), Some(send)) => {
                if receive.cq.is_in_real_time() != send.cq.is_in_real_time() {
                    return Err(Error::Unsupported {
                        operation: "a queue pair",
                        when: "with Timestamps::RealTime in the CqConfig of the receiver or the sender only: set it in both (soft-mlx5 has it with --real-time)",
                    });
                }
                (receive, send)
            }
            (Some(receive), None) => {
                self.config = self.config.clone().idle();
                let send = SendSide::idle(receive.cq.clone());
                (receive, send)
            }
            (None, Some(send)) => (ReceiveSide::idle(send.cq.clone()), send),
            (None, None) => unreachable!("a domain was found above"),
        };
        Ok((pd, receive, send))
    }

    /// Has receiver and sender take their queues in.
    ///
    /// # Safety
    /// Nothing was posted to the queue pair, and no other code posts to it.
    unsafe fn enter(self, mut qp: QueuePair) -> Result<QueuePair> {
        if let Some((receiver, from)) = self.receive {
            // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
            unsafe { receiver.enter(&mut qp, from) }?;
        }
        if let Some(sender) = self.send {
            // SAFETY: nothing was posted to the caller's send queue, and no other code posts to it.
            unsafe { sender.enter(&mut qp, &self.config) }?;
        }
        Ok(qp)
    }
}
