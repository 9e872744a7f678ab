//! Queue pair, the control object.

mod command;
mod create;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mlx5_ring::sq;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use self::command::CommandQp;
use super::group::MulticastGroup;
use crate::context::Patience;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::memory::DeferredFree;
use crate::mlx5;
use crate::path::NotDirect;
use crate::pd::ProtectionDomain;
use crate::qp_state::{QpEnd, QpState};
use crate::srq::Srq;
use crate::status::WcStatus;
use crate::thread_domain::ThreadDomain;
use crate::trace::trace_event;

/// A queue pair of libibverbs or of a command, and all that must outlive it.
pub(crate) struct Qp {
    handle: Handle,
    /// The state as this process knows it: `ibv_qp_state`.
    state: AtomicU32,
    /// The queue pair can have taken receives since it was in RESET.
    receives: AtomicBool,
    /// The [`QueuePair`](super::QueuePair) exists.
    has_handle: AtomicBool,
    /// A sender posts to it.
    has_sender: AtomicBool,
    /// A reset ended what its sender had posted, and the sender has not taken that back yet.
    sends_ended: AtomicBool,
    /// Status of the first completion that was not flushed and failed it (`ibv_wc_status`); 0 if none is known.
    first_failure: AtomicU32,
    cap: sys::ibv_qp_cap,
    parts: ManuallyDrop<Parts>,
    /// Multicast groups that it has joined.
    groups: Mutex<Vec<MulticastGroup>>,
    destroys: bool,
}

/// A queue pair by its maker: libibverbs, or a command of the firmware.
enum Handle {
    Verbs(*mut sys::ibv_qp),
    Command(CommandQp),
}

/// Objects that a queue pair refers to.
struct Parts {
    pd: ProtectionDomain,
    send_cq: Arc<Cq>,
    /// The register of its send queue, if a sender has one of its own.
    _register: Option<Arc<ThreadDomain>>,
    _recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    deferred: DeferredFree,
}

/// Where a queue pair receives.
pub(crate) struct ReceiveSide {
    /// The CQ on which its receives complete.
    pub(crate) cq: Arc<Cq>,
    /// The shared receive queue, or none if the queue pair has a receive queue of its own.
    pub(crate) srq: Option<Arc<Srq>>,
    /// Receives of its own receive queue, and the most buffers of one.
    pub(crate) own: (u32, u32),
    /// The receives are posted through this library of libmlx5, or through verbs.
    pub(crate) mlx5dv: Option<&'static Mlx5dv>,
}

/// Where the sends of a queue pair go.
pub(crate) struct SendSide {
    /// The CQ on which they complete.
    pub(crate) cq: Arc<Cq>,
    /// A register of the sender's own.
    pub(crate) register: Option<Arc<ThreadDomain>>,
    /// They are posted through a sender, which drives the queue with these functions, or through verbs.
    pub(crate) mlx5dv: Option<&'static Mlx5dv>,
    pub(crate) has_sender: bool,
}

// SAFETY: verbs calls on a queue pair are thread-safe (ibverbs(7)); who posts to its queues is the
// business of `QueuePair` and of the receiver, each of which has one owner.
unsafe impl Send for Qp {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Qp {}

impl Qp {
    fn enter_events(&self) {
        if self.has_srq() && !self.is_dc_target() && matches!(self.handle, Handle::Verbs(_)) {
            self.pd().context().event_file().enter_srq_qp(self.qp_num());
        }
    }

    /// Returns the queue pair of libibverbs; null if a command made the queue pair.
    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_qp {
        match self.handle {
            Handle::Verbs(qp) => qp,
            Handle::Command(_) => std::ptr::null_mut(),
        }
    }

    pub(crate) fn qp_num(&self) -> u32 {
        match &self.handle {
            // SAFETY: the queue pair is alive, and its number never changes.
            Handle::Verbs(qp) => unsafe { (**qp).qp_num },
            Handle::Command(qp) => qp.number(),
        }
    }

    /// Its transport.
    pub(crate) fn qp_type(&self) -> sys::ibv_qp_type {
        match &self.handle {
            // SAFETY: the queue pair is alive, and its type never changes.
            Handle::Verbs(qp) => unsafe { (**qp).qp_type },
            Handle::Command(_) => sys::IBV_QPT_RC,
        }
    }

    /// Returns `true` for a DC target. It has no error state, and reports no last WQE: its destruction drains it.
    pub(crate) fn is_dc_target(&self) -> bool {
        self.has_srq() && self.qp_type() == sys::IBV_QPT_DRIVER
    }

    /// Returns where the send queue is.
    pub(crate) fn send_queue(&self, mlx5dv: &Mlx5dv) -> Result<sq::Layout, NotDirect> {
        match &self.handle {
            Handle::Verbs(qp) => mlx5::send_queue(mlx5dv, *qp, self.qp_num()),
            Handle::Command(qp) => Ok(qp.send_queue()),
        }
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

    /// Where buffers wait that the queue pair may still use when they have no owner any more.
    pub(crate) fn deferred(&self) -> &DeferredFree {
        &self.parts.deferred
    }

    /// Ends one membership; returns `errno`.
    pub(super) fn detach(&self, group: &MulticastGroup) -> i32 {
        // SAFETY: a live queue pair and a GID.
        unsafe { sys::ibv_detach_mcast(self.as_raw(), &group.raw(), group.lid) }
    }

    /// Ends all memberships, because a member cannot be destroyed. If a membership does not end, the destroy function
    /// fails and says so.
    fn leave_all(&self) {
        self.groups().retain(|group| self.detach(group) != 0);
    }

    /// Returns `true` if it takes receives from an SRQ.
    pub(crate) fn has_srq(&self) -> bool {
        self.parts.srq.is_some()
    }

    /// Returns `true` if this process made the queue pair, so that it may also end it.
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

    /// Notes that its [`QueuePair`](super::QueuePair) was dropped.
    pub(super) fn drop_handle(&self) {
        self.has_handle.store(false, Ordering::Relaxed);
        self.note_ended();
    }

    /// Has its sender look at what is outstanding.
    fn note_ended(&self) {
        if self.has_sender.load(Ordering::Acquire) {
            self.parts.send_cq.note_ended();
        }
    }

    /// Returns `true` if the library made it, and destroys it.
    pub(crate) const fn is_made_here(&self) -> bool {
        self.destroys
    }

    /// Returns `true` if a reset ended sends that the sender has not taken back: until then the queue pair must not
    /// send again, for the sender may be about to ring for what it posted before.
    pub(crate) fn sends_ended(&self) -> bool {
        self.sends_ended.load(Ordering::Acquire)
    }

    /// Notes that its sender was dropped, which has taken back what was posted.
    pub(crate) fn drop_sender(&self) {
        self.has_sender.store(false, Ordering::Release);
        self.take_back_sends();
    }

    /// The sender has taken back what a reset ended.
    pub(crate) fn take_back_sends(&self) {
        self.sends_ended.store(false, Ordering::Release);
    }

    /// The state as this process knows it: what it asked for, or that a completion reported failure.
    #[inline]
    pub(crate) fn known_state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed))
    }

    /// Returns `true` if it is in ERROR, as the driver reports it, or if the device does not answer any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.ask(sys::IBV_QP_STATE).map_or(true, |(attr, _)| attr.qp_state == sys::IBV_QPS_ERR)
    }

    /// Returns `true` if its sender posts nothing more, and the device completes only what it was rung for.
    pub(crate) fn flushes_sends(&self) -> bool {
        (!self.has_handle() || self.known_state() == QpState::Error) && !self.sends_ended()
    }

    /// Returns `true` if the device completes nothing more: it was removed, and the handle was dropped since.
    pub(crate) fn is_lost(&self) -> bool {
        !self.has_handle() && self.pd().context().is_removed()
    }

    /// A completion or an event reported that the queue pair failed.
    pub(crate) fn mark_failed(&self) {
        if self.state.swap(sys::IBV_QPS_ERR, Ordering::Relaxed) != sys::IBV_QPS_ERR {
            self.note_ended();
        }
    }

    /// Keeps the status of the first failed completion. A flushed completion has no cause of its own.
    pub(crate) fn note_failure(&self, status: sys::ibv_wc_status) {
        if status != sys::IBV_WC_WR_FLUSH_ERR {
            let (order, none) = (Ordering::Relaxed, sys::IBV_WC_SUCCESS);
            let _ = self.first_failure.compare_exchange(none, status, order, order);
        }
    }

    /// Returns the status of the completion that failed it, if its sender or its receiver has polled that one.
    pub(crate) fn first_failure(&self) -> Option<WcStatus> {
        match self.first_failure.load(Ordering::Relaxed) {
            sys::IBV_WC_SUCCESS => None,
            status => Some(WcStatus::from_raw(status)),
        }
    }

    /// Has the receives flushed that were posted since the queue pair failed. Other devices do so by
    /// themselves; Soft-RoCE looks at them when it learns of the failure.
    pub(crate) fn flush_late_receives(&self) {
        // The queue pair has failed already: nothing depends on the answer.
        let _ = self.modify_state(QpState::Error);
    }

    /// Changes attributes; when the state is among them it is known from then on.
    pub(super) fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> Result<()> {
        match &self.handle {
            Handle::Verbs(qp) => {
                // SAFETY: a live queue pair and an initialised structure.
                let errno = unsafe { sys::ibv_modify_qp(*qp, attr, mask as i32) };
                if errno != 0 {
                    return Err(Error::returned("ibv_modify_qp", self.pd().context().name(), errno));
                }
            }
            Handle::Command(qp) => qp.modify(self.pd(), attr)?,
        }
        if mask & sys::IBV_QP_STATE != 0 {
            self.state.store(attr.qp_state, Ordering::Relaxed);
            match attr.qp_state {
                sys::IBV_QPS_RESET => {
                    self.receives.store(false, Ordering::Relaxed);
                    if self.has_sender.load(Ordering::Acquire) {
                        self.sends_ended.store(true, Ordering::Release);
                        self.note_ended();
                    }
                    let context = self.pd().context();
                    match &self.handle {
                        Handle::Command(qp) => qp.object().firmware().events().forget(self.qp_num())?,
                        Handle::Verbs(_) if self.has_srq() => {
                            context.event_file().forget_last_wqe(context, self.qp_num())?;
                        }
                        Handle::Verbs(_) => {}
                    }
                }
                sys::IBV_QPS_RTR => {
                    self.receives.store(true, Ordering::Relaxed);
                    self.first_failure.store(sys::IBV_WC_SUCCESS, Ordering::Relaxed);
                }
                sys::IBV_QPS_ERR => self.note_ended(),
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
        let owes = self.has_srq() && self.receives.load(Ordering::Relaxed);
        self.modify_state(QpState::Error)?;
        let number = self.qp_num();
        let reported = || match &self.handle {
            Handle::Verbs(_) => context.event_file().wait_last_wqe(context, number, patience),
            Handle::Command(qp) => qp.object().firmware().events().wait_last_wqe(number, patience),
        };
        if !owes || reported()? {
            return Ok(QpEnd::Complete);
        }
        trace_event!(qp_num = self.qp_num(), "a queue pair does not report its last WQE");
        Ok(QpEnd::LastWqeMissing)
    }

    /// Asks the driver; the state is always among the answers, and known from then on.
    pub(super) fn query(&self, mask: sys::ibv_qp_attr_mask) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
        let answer = self.ask(mask)?;
        self.state.store(answer.0.qp_state, Ordering::Relaxed);
        Ok(answer)
    }

    /// Asks the driver, and leaves the known state alone: another thread may be connecting the queue pair, and knows
    /// better.
    fn ask(&self, mask: sys::ibv_qp_attr_mask) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
        let mut attr = sys::ibv_qp_attr::default();
        let mut init = sys::ibv_qp_init_attr::default();
        let qp = match &self.handle {
            Handle::Verbs(qp) => *qp,
            Handle::Command(qp) => {
                attr.qp_state = qp.state()?;
                return Ok((attr, init));
            }
        };
        let mask = mask | sys::IBV_QP_STATE;
        // SAFETY: a live queue pair and writable structures.
        let errno = unsafe { sys::ibv_query_qp(qp, &mut attr, mask as i32, &mut init) };
        if errno != 0 {
            return Err(Error::returned("ibv_query_qp", self.pd().context().name(), errno));
        }
        Ok((attr, init))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // A forked child leaks these objects: they are its parent's.
        if !self.parts.pd.context().owner().is_this_process() {
            return;
        }
        self.leave_all();
        // Before another queue pair can have its number.
        self.pd().context().event_file().leave_qp(self.qp_num());
        if self.destroys {
            let destroyed = match &mut self.handle {
                Handle::Verbs(qp) => {
                    // SAFETY: created by us, destroyed once; no code posts any more.
                    let errno = unsafe { sys::ibv_destroy_qp(*qp) };
                    self.parts.pd.context().destroyed("ibv_destroy_qp", errno)
                }
                Handle::Command(qp) => qp.destroy(),
            };
            if !destroyed {
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
