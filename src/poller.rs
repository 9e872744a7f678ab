//! Who polls a CQ.

use std::sync::Arc;

use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::cq::CompletionQueue;
use rdma_core_sys::Mlx5dv;

use crate::cq::Cq;
use crate::error::Result;
use crate::mlx5;
use crate::receiver::VerbsCq;

/// Who polls a CQ.
#[repr(u8)]
pub(crate) enum Poller {
    Direct(DirectCq),
    Verbs(VerbsCq),
}

/// A CQ that is driven directly.
pub(crate) struct DirectCq {
    pub(crate) mlx5dv: &'static Mlx5dv,
    pub(crate) cq: CompletionQueue,
    pub(crate) doorbell: CqDoorbell,
}

impl Poller {
    /// Drives a CQ with these functions, or through verbs.
    ///
    /// # Safety
    /// Nothing was polled from the CQ, and no other code polls, arms or resizes it.
    pub(crate) unsafe fn new(cq: &Arc<Cq>, mlx5dv: Option<&'static Mlx5dv>) -> Result<Self> {
        let Some(mlx5dv) = mlx5dv else {
            return Ok(Self::Verbs(VerbsCq::new(Arc::clone(cq))));
        };
        // SAFETY: nothing was polled from the caller's CQ, and no other code polls, arms or resizes it.
        let rings = unsafe { mlx5::completion_queue(mlx5dv, cq) };
        let (ring, doorbell) = rings.map_err(|error| cq.context().not_direct(error))?;
        Ok(Self::Direct(DirectCq { mlx5dv, cq: ring, doorbell }))
    }

    /// Asks for an event at the next completion, or the next solicited one. `events` were taken from the channel since
    /// the last call.
    pub(crate) fn arm(&mut self, cq: &Cq, events: u32, solicited_only: bool) -> Result<()> {
        match self {
            Self::Direct(direct) => direct.arm(events, solicited_only),
            Self::Verbs(_) => cq.arm(solicited_only)?,
        }
        Ok(())
    }

    /// Returns `true` if there is a completion that was not taken.
    pub(crate) fn has_arrived(&mut self) -> bool {
        match self {
            Self::Direct(direct) => !direct.cq.is_empty(),
            Self::Verbs(cq) => cq.has_arrived(),
        }
    }
}

impl DirectCq {
    /// See [`Poller::arm`].
    pub(crate) fn arm(&mut self, events: u32, solicited_only: bool) {
        (0..events).for_each(|_| self.doorbell.event());
        self.doorbell.arm(self.cq.consumer_index(), solicited_only);
    }
}
