//! The poller of a CQ: its ring, or libibverbs.

use std::sync::Arc;

use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::cq::CompletionQueue;
use rdma_core_sys::Mlx5dv;

use super::object::{Cq, Form};
use super::verbs::VerbsCq;
use crate::error::Result;
use crate::mlx5;

/// The poller of a CQ.
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
    pub(super) unsafe fn new(cq: &Arc<Cq>, mlx5dv: Option<&'static Mlx5dv>) -> Result<Self> {
        let Some(mlx5dv) = mlx5dv else {
            return Ok(Self::Verbs(VerbsCq::new(Arc::clone(cq))));
        };
        let format = match cq.form() {
            Form::Compressed(format) => Some(format),
            _ => None,
        };
        // SAFETY: nothing was polled from the caller's CQ, and no other code polls, arms or resizes it.
        let rings = unsafe { mlx5::completion_queue(mlx5dv, cq.as_raw(), format) };
        let (ring, doorbell) = rings.map_err(|error| cq.context().not_direct(error))?;
        Ok(Self::Direct(DirectCq { mlx5dv, cq: ring, doorbell }))
    }

    /// Asks for an event at the next completion, or the next solicited one. `events` were taken from the channel since
    /// the last call.
    pub(super) fn arm(&mut self, cq: &Cq, events: u32, solicited_only: bool) -> Result<()> {
        match self {
            Self::Direct(direct) => {
                (0..events).for_each(|_| direct.doorbell.event());
                direct.doorbell.arm(direct.cq.consumer_index(), solicited_only);
                Ok(())
            }
            Self::Verbs(_) => cq.arm(solicited_only),
        }
    }

    /// Returns `true` if there is a completion that was not taken.
    pub(crate) fn has_arrived(&mut self) -> bool {
        match self {
            Self::Direct(direct) => !direct.cq.is_empty(),
            Self::Verbs(cq) => cq.has_arrived(),
        }
    }

    /// Publishes the consumer index: the room on the CQ is the device's again.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        if let Self::Direct(direct) = self {
            direct.cq.publish();
        }
    }

    /// Returns `true` if completions were taken whose room on the CQ is not the device's again.
    #[inline(always)]
    pub(crate) const fn has_unpublished(&self) -> bool {
        match self {
            Self::Direct(direct) => direct.cq.unpublished() > 0,
            Self::Verbs(_) => false,
        }
    }

    /// Returns the number of completions that were taken, modulo 2^32.
    pub(crate) const fn taken(&self) -> u32 {
        match self {
            Self::Direct(direct) => direct.cq.consumer_index(),
            Self::Verbs(cq) => cq.taken(),
        }
    }
}
