//! Queue pair, the control object.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::config::QpConfig;
use super::multicast::MulticastGroup;
use super::state::{QpEnd, QpState};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::events::Patience;
use crate::pd::ProtectionDomain;
use crate::receiver::{DeferredFree, Srq};
use crate::sender::ThreadDomain;
use crate::trace::trace_event;

/// A queue pair of libibverbs and all that has to outlive it.
pub(crate) struct Qp {
    qp: *mut sys::ibv_qp,
    /// The state as this process knows it: `ibv_qp_state`.
    state: AtomicU32,
    /// It can have taken receives since it was in RESET.
    receives: AtomicBool,
    /// Its [`QueuePair`](super::QueuePair) exists.
    has_handle: AtomicBool,
    /// A reset ended what its sender had posted, and the sender has not taken that back yet.
    sends_ended: AtomicBool,
    cap: sys::ibv_qp_cap,
    parts: ManuallyDrop<Parts>,
    /// Multicast groups that it has joined.
    groups: Mutex<Vec<MulticastGroup>>,
    destroys: bool,
}

/// What a queue pair refers to.
struct Parts {
    pd: ProtectionDomain,
    send_cq: Arc<Cq>,
    /// The register of its send queue, if a sender has one of its own.
    _register: Option<Arc<ThreadDomain>>,
    /// A sender posts to it, and not its handle.
    has_sender: bool,
    _recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    deferred: DeferredFree,
}

impl Parts {
    fn new(
        pd: &ProtectionDomain,
        send: SendSide,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq>>,
    ) -> ManuallyDrop<Self> {
        let SendSide { cq: send_cq, register: _register, has_sender, .. } = send;
        ManuallyDrop::new(Self {
            pd: pd.clone(),
            send_cq,
            _register,
            has_sender,
            _recv_cq: recv_cq,
            srq,
            deferred: DeferredFree::default(),
        })
    }
}

/// Where the sends of a queue pair go.
pub(crate) struct SendSide {
    /// What they complete on.
    pub(crate) cq: Arc<Cq>,
    /// A register of the sender's own.
    pub(crate) register: Option<Arc<ThreadDomain>>,
    /// They are posted through a sender, which drives the queue with these functions, or through verbs.
    pub(crate) mlx5dv: Option<&'static Mlx5dv>,
    pub(crate) has_sender: bool,
}

impl SendSide {
    /// Sends that the queue pair posts itself, through verbs.
    fn own(cq: Cq) -> Self {
        Self { cq: Arc::new(cq), register: None, mlx5dv: None, has_sender: false }
    }
}

// SAFETY: verbs calls on a queue pair are thread-safe (ibverbs(7)); who posts to its queues is the
// business of `QueuePair` and of the receiver, each of which has one owner.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair in the RESET state.
    pub(super) fn create(
        pd: &ProtectionDomain,
        config: &QpConfig,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq>>,
        mlx5dv: Option<&'static Mlx5dv>,
        send: Option<SendSide>,
    ) -> Result<Self> {
        let context = pd.context();
        config.check(context.attr())?;
        if !recv_cq.context().is_same(context) {
            return Err(Error::Foreign { what: "the completion queue", domain: "device" });
        }
        let send = match send {
            Some(send) => send,
            None => {
                let entries = config.max_send_wr.max(1);
                SendSide::own(Cq::create_beside(&recv_cq, entries, config.sends_wake)?)
            }
        };
        Self::create_with(pd, config, send, recv_cq, srq, mlx5dv)
    }

    /// A queue pair in the RESET state whose sends complete where its receives do.
    pub(super) fn create_on(
        pd: &ProtectionDomain,
        config: &QpConfig,
        cq: Arc<Cq>,
        srq: Arc<Srq>,
    ) -> Result<Self> {
        config.check(pd.context().attr())?;
        // SAFETY: the CQ is alive as long as the queue pair, which holds it as that of its receives.
        let send_cq = unsafe { Cq::from_raw(pd.context(), cq.as_raw(), true) };
        Self::create_with(pd, config, SendSide::own(send_cq), cq, Some(srq), None)
    }

    fn create_with(
        pd: &ProtectionDomain,
        config: &QpConfig,
        send: SendSide,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq>>,
        mlx5dv: Option<&'static Mlx5dv>,
    ) -> Result<Self> {
        let context = pd.context();
        let mut init = sys::ibv_qp_init_attr_ex {
            send_cq: send.cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_raw()),
            qp_type: config.qp_type,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD,
            pd: send.register.as_ref().map_or(pd.as_raw(), |register| register.as_raw()),
            ..Default::default()
        };
        if send.mlx5dv.is_some() {
            // Otherwise libmlx5 makes room for memory windows in each WQE: four times the memory.
            init.comp_mask |= sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = operations(config.qp_type).into();
        }
        init.cap.max_recv_wr = config.max_recv_wr();
        init.cap.max_recv_sge = config.max_recv_sge();
        init.cap.max_send_wr = config.max_send_wr;
        init.cap.max_send_sge = config.max_send_sge;
        init.cap.max_inline_data = config.max_inline;

        let (qp, operation) = match mlx5dv.or(send.mlx5dv) {
            Some(mlx5dv) => {
                let mut mlx5 = sys::mlx5dv_qp_init_attr {
                    comp_mask: sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
                    // Payload inside a CQE stands where source QP and SLID would be, and has to be
                    // copied to where it was to be received. The device can do that itself.
                    create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
                    ..Default::default()
                };
                // SAFETY: live objects of one device and initialised structures.
                let qp = unsafe { (mlx5dv.create_qp)(context.as_raw(), &mut init, &mut mlx5) };
                (qp, "mlx5dv_create_qp")
            }
            None => {
                // SAFETY: as above.
                let qp = unsafe { sys::ibv_create_qp_ex(context.as_raw(), &mut init) };
                (qp, "ibv_create_qp")
            }
        };
        if qp.is_null() {
            return Err(Error::last_os(operation, context.name()));
        }
        let parts = Parts::new(pd, send, recv_cq, srq);
        let this = Self {
            qp,
            state: AtomicU32::new(sys::IBV_QPS_RESET),
            receives: AtomicBool::new(false),
            has_handle: AtomicBool::new(true),
            sends_ended: AtomicBool::new(false),
            cap: init.cap,
            parts,
            groups: Mutex::default(),
            destroys: true,
        };
        this.enter_events();
        Ok(this)
    }

    /// A queue pair that the caller made and will destroy. Also returns its attributes.
    ///
    /// # Safety
    /// `qp` belongs to `pd`, receives on `recv_cq` and `srq`, and lives for as long as the value.
    pub(super) unsafe fn from_raw(
        pd: &ProtectionDomain,
        qp: *mut sys::ibv_qp,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq>>,
    ) -> Result<(Self, sys::ibv_qp_attr)> {
        let context = pd.context();
        // SAFETY: a live queue pair has a live send CQ, of the same device.
        let send_cq = unsafe { Cq::from_raw(context, (*qp).send_cq, true) };
        let parts = Parts::new(pd, SendSide::own(send_cq), recv_cq, srq);
        let mut this = Self {
            qp,
            state: AtomicU32::new(sys::IBV_QPS_UNKNOWN),
            receives: AtomicBool::new(true),
            has_handle: AtomicBool::new(true),
            sends_ended: AtomicBool::new(false),
            cap: Default::default(),
            parts,
            groups: Mutex::default(),
            destroys: false,
        };
        let mask = sys::IBV_QP_STATE | sys::IBV_QP_CAP | sys::IBV_QP_PORT | sys::IBV_QP_SQ_PSN;
        let (attr, init) = this.query(mask)?;
        this.cap = init.cap;
        this.enter_events();
        Ok((this, attr))
    }

    fn enter_events(&self) {
        if self.has_srq() {
            self.pd().context().event_file().enter_srq_qp(self.qp_num());
        }
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_qp {
        self.qp
    }

    pub(crate) fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number never changes.
        unsafe { (*self.qp).qp_num }
    }

    /// Its transport.
    pub(crate) fn qp_type(&self) -> sys::ibv_qp_type {
        // SAFETY: the queue pair is alive, and its type never changes.
        unsafe { (*self.qp).qp_type }
    }

    /// Sizes as the driver made them.
    pub(crate) const fn cap(&self) -> &sys::ibv_qp_cap {
        &self.cap
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.parts.pd
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<MulticastGroup>> {
        self.groups.lock().expect("nothing panics while holding it")
    }

    pub(super) fn send_cq(&self) -> &Cq {
        &self.parts.send_cq
    }

    /// Where buffers wait that the queue pair may still use when nobody can take them any more.
    pub(crate) fn deferred(&self) -> &DeferredFree {
        &self.parts.deferred
    }

    /// Whether it takes receives from an SRQ.
    pub(crate) fn has_srq(&self) -> bool {
        self.parts.srq.is_some()
    }

    /// Whether this process made the queue pair, so that it may also end it.
    pub(crate) fn is_ours(&self) -> bool {
        self.destroys && self.pd().context().owner().is_this_process()
    }

    /// Returns `true` if this process knows it to be in RTS.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Relaxed) == sys::IBV_QPS_RTS
    }

    /// Returns `true` until its [`QueuePair`](super::QueuePair) is dropped.
    pub(crate) fn has_handle(&self) -> bool {
        self.has_handle.load(Ordering::Relaxed)
    }

    /// Its [`QueuePair`](super::QueuePair) is dropped.
    pub(super) fn drop_handle(&self) {
        self.has_handle.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if a sender posts to it.
    pub(crate) fn has_sender(&self) -> bool {
        self.parts.has_sender
    }

    /// Returns `true` if a reset ended sends that the sender has not taken back: until then the queue pair must not
    /// send again, for the sender may be about to ring for what it posted before.
    pub(crate) fn sends_ended(&self) -> bool {
        self.sends_ended.load(Ordering::Acquire)
    }

    /// The sender has taken back what a reset ended, or will post nothing any more.
    pub(crate) fn take_back_sends(&self) {
        self.sends_ended.store(false, Ordering::Release);
    }

    /// The state as this process knows it: what it asked for, or that a completion reported failure.
    #[inline]
    pub(crate) fn known_state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed))
    }

    /// Whether it is in ERROR, as the driver reports it. Of a device that does not answer any more nothing else is
    /// to be expected.
    pub(crate) fn has_failed(&self) -> bool {
        self.ask(sys::IBV_QP_STATE).map_or(true, |(attr, _)| attr.qp_state == sys::IBV_QPS_ERR)
    }

    /// A completion or an event said that the queue pair failed.
    pub(crate) fn mark_failed(&self) {
        self.state.store(sys::IBV_QPS_ERR, Ordering::Relaxed);
    }

    /// Has the receives flushed that were posted since the queue pair failed. Other devices do so by
    /// themselves; Soft-RoCE looks at them when it is told of the failure.
    pub(crate) fn flush_late_receives(&self) {
        // It has failed already: nothing depends on the answer.
        let _ = self.modify_state(QpState::Error);
    }

    /// Changes attributes; when the state is among them it is known from then on.
    pub(super) fn modify(
        &self,
        attr: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<()> {
        // SAFETY: a live queue pair and an initialised structure.
        let errno = unsafe { sys::ibv_modify_qp(self.qp, attr, mask as i32) };
        if errno != 0 {
            return Err(Error::returned("ibv_modify_qp", self.pd().context().name(), errno));
        }
        if mask & sys::IBV_QP_STATE != 0 {
            self.state.store(attr.qp_state, Ordering::Relaxed);
            match attr.qp_state {
                sys::IBV_QPS_RESET => {
                    self.receives.store(false, Ordering::Relaxed);
                    if self.parts.has_sender {
                        self.sends_ended.store(true, Ordering::Release);
                        self.parts.send_cq.note_reset();
                    }
                    if self.has_srq() {
                        let context = self.pd().context();
                        context.event_file().forget_last_wqe(context, self.qp_num())?;
                    }
                }
                sys::IBV_QPS_RTR => self.receives.store(true, Ordering::Relaxed),
                _ => {}
            }
            trace_event!(qp_num = self.qp_num(), state = %self.known_state(), "state of a queue pair changed");
        }
        Ok(())
    }

    /// Changes nothing but the state.
    pub(super) fn modify_state(&self, state: QpState) -> Result<()> {
        let mut attr = sys::ibv_qp_attr { qp_state: state.as_raw(), ..Default::default() };
        self.modify(&mut attr, sys::IBV_QP_STATE)
    }

    /// Takes it to ERROR, and waits until the device takes nothing more for it from its SRQ: then all that it had
    /// taken is on the CQ.
    pub(crate) fn stop_receiving(&self, patience: Patience) -> Result<QpEnd> {
        if self.known_state() == QpState::Reset {
            return Ok(QpEnd::Complete);
        }
        let context = self.pd().context();
        let reports =
            self.has_srq() && self.receives.load(Ordering::Relaxed) && context.reports_last_wqe();
        self.modify_state(QpState::Error)?;
        if !reports || context.event_file().wait_last_wqe(context, self.qp_num(), patience)? {
            return Ok(QpEnd::Complete);
        }
        trace_event!(qp_num = self.qp_num(), "a queue pair does not report its last WQE");
        Ok(QpEnd::LastWqeMissing)
    }

    /// Asks the driver; the state is always among the answers, and known from then on.
    pub(super) fn query(
        &self,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
        let answer = self.ask(mask)?;
        self.state.store(answer.0.qp_state, Ordering::Relaxed);
        Ok(answer)
    }

    /// Asks the driver, beside a thread that may be connecting the queue pair: what it knows of the state is newer.
    fn ask(
        &self,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
        let mut attr = sys::ibv_qp_attr::default();
        let mut init = sys::ibv_qp_init_attr::default();
        let mask = mask | sys::IBV_QP_STATE;
        // SAFETY: a live queue pair and writable structures.
        let errno = unsafe { sys::ibv_query_qp(self.qp, &mut attr, mask as i32, &mut init) };
        if errno != 0 {
            return Err(Error::returned("ibv_query_qp", self.pd().context().name(), errno));
        }
        Ok((attr, init))
    }
}

/// The operations of a sender on a queue pair of this transport.
const fn operations(qp_type: sys::ibv_qp_type) -> sys::ibv_qp_create_send_ops_flags {
    let datagrams = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagrams
        | sys::IBV_QP_EX_WITH_SEND_WITH_INV
        | sys::IBV_QP_EX_WITH_RDMA_WRITE
        | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match qp_type {
        sys::IBV_QPT_UD => datagrams,
        sys::IBV_QPT_UC => unreliable,
        _ => {
            unreliable
                | sys::IBV_QP_EX_WITH_RDMA_READ
                | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // What stays here stays for ever: the device may still use it.
        if !self.parts.pd.context().owner().is_this_process() {
            return;
        }
        self.leave_all();
        // Before another queue pair can have its number.
        self.pd().context().event_file().leave_qp(self.qp_num());
        if self.destroys {
            // SAFETY: created by us, destroyed once; nobody posts any more.
            let errno = unsafe { sys::ibv_destroy_qp(self.qp) };
            if !self.parts.pd.context().destroyed("ibv_destroy_qp", errno) {
                return;
            }
            self.parts.deferred.release();
        } else {
            self.parts.deferred.abandon();
        }
        // SAFETY: dropped once. A queue pair of the caller's is kept alive by the caller, with its CQs.
        unsafe { ManuallyDrop::drop(&mut self.parts) }
    }
}
