//! Work of a receiver after events of the device.

use rdma_core_sys as sys;

use super::super::Receiver;
use crate::device_event::{DeviceEvent, ObjectName};
use crate::error::{Error, Result};
use crate::ids::SrqId;
use crate::memory::Memory;
use crate::qp_state::QpState;

impl<M: Memory> Receiver<M> {
    /// Makes the device report [`DeviceEvent::SrqLimitReached`] once the SRQ has fewer than `limit` receives; 0
    /// disables it. With [`handle_event`](Self::handle_event), a sleeping program refills in time.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (receiver, srq, pool) = (&mut world.receiver, world.srq, &world.pool);
    /// let mut events = receiver.pd().context().events()?;
    /// receiver.keep_filled(srq, pool)?;
    /// receiver.arm_srq_limit(srq, 8)?;
    /// // In a loop that also waits for messages:
    /// while let Some(event) = events.try_next()? {
    ///     receiver.handle_event(&event)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the queue cannot hold `limit` receives; [`Error::Gone`]; [`Error::Foreign`];
    /// [`Error::Verbs`].
    pub fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        Error::check_range("limit", limit.into(), 0, self.capacity(srq).into())?;
        self.set_srq_limit(srq, limit)?;
        let kept = self.kept(srq.0);
        (kept.srq_limit, kept.limit_reached) = ((limit > 0).then_some(limit), false);
        Ok(())
    }

    pub(super) fn set_srq_limit(&self, srq: SrqId, limit: u32) -> Result<()> {
        let object = self.srq_object(srq)?;
        let mut attr = sys::ibv_srq_attr { srq_limit: limit, ..Default::default() };
        // SAFETY: a live SRQ and an initialised structure.
        let errno = unsafe { sys::ibv_modify_srq(object.as_raw(), &mut attr, sys::IBV_SRQ_LIMIT as i32) };
        if errno != 0 {
            return Err(Error::returned("ibv_modify_srq", self.pd.context().name(), errno));
        }
        Ok(())
    }

    /// Handles an event of the device. Returns `true` if the event concerned this receiver or one of its queues.
    ///
    /// - SRQ limit reached: refills the SRQ, and arms the limit again once it has enough receives. If the pool is
    ///   empty, a later refill does so.
    /// - Device removed: nothing yet, see [`reclaim`](Self::reclaim).
    /// - CQ failed: [`arm`](crate::Completions::arm), [`wait`](crate::Completions::wait) and the functions that create
    ///   or attach queues return [`Error::CqFailed`](crate::Error::CqFailed) from then on. Messages that have arrived
    ///   can be polled.
    /// - Queue pair failed without a completion: [`poll`](Self::poll) returns its receives, and later ones, flushed.
    ///   doorbell asks the driver for the state first, and ignores the event if the queue pair was reset since.
    /// - Last WQE reached: nothing to do. [`destroy_qp`](Self::destroy_qp) and [`drain_qp`](Self::drain_qp) wait for it
    ///   themselves.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let receiver = &mut world.receiver;
    /// let mut events = receiver.pd().context().events()?;
    /// # world.device.fail_qp(world.qp.qp_num());
    /// # let receiver = &mut world.receiver;
    /// while let Some(event) = events.next_within(std::time::Duration::from_millis(100))? {
    ///     let ours = receiver.handle_event(&event)?;
    ///     println!("{event:?}{}", if ours { ", of a queue of this receiver" } else { "" });
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None. If the driver refuses to arm the limit of an SRQ, the next refill tries again.
    pub fn handle_event(&mut self, event: &DeviceEvent) -> Result<bool> {
        match *event {
            DeviceEvent::SrqLimitReached { srq } => {
                let Some(id) = self.find_srq(srq) else {
                    return Ok(false);
                };
                self.kept(id.0).limit_reached = true;
                self.keep_queues(true);
                Ok(true)
            }
            DeviceEvent::QpFatal { qp_num }
            | DeviceEvent::QpRequestError { qp_num }
            | DeviceEvent::QpAccessError { qp_num } => Ok(self.qp_failed(qp_num)),
            DeviceEvent::LastWqeReached { qp_num } => Ok(self.qps.qp_of(qp_num).is_some()),
            DeviceEvent::DeviceFatal => Ok(true),
            DeviceEvent::CqError { cq } => {
                let ours = cq == ObjectName::of(self.cq.object.as_raw());
                self.cq_failed |= ours;
                Ok(ours)
            }
            DeviceEvent::SrqError { srq } => Ok(self.find_srq(srq).is_some()),
            _ => Ok(false),
        }
    }

    fn find_srq(&self, name: ObjectName) -> Option<SrqId> {
        self.ids()
            .map(SrqId)
            .find(|&id| self.srq_object(id).is_ok_and(|object| ObjectName::of(object.as_raw()) == name))
    }

    /// Takes note that a queue pair that completes here failed; returns `false` if there is none of this number.
    fn qp_failed(&mut self, qp_num: u32) -> bool {
        let Some(qp) = self.qps.qp_of(qp_num) else { return false };
        // An event waits to be read: the QP may have been reset since, or another one has its number.
        if qp.known_state() != QpState::Error && qp.has_failed() {
            qp.mark_failed();
            if !qp.has_srq() {
                qp.flush_late_receives();
            }
        }
        true
    }
}
