//! Matching by the library: the device only receives.

use super::config::TagMatchingConfig;
use super::engine::{Arrived, BATCH};
use crate::cq::Cq;
use crate::error::Result;
use crate::memory::BufferPool;
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};
use crate::receiver::{Cause, Receiver, ReceiverConfig, SrqConfig, SrqId};

pub(super) struct SoftwareTags {
    receiver: Receiver,
    srq: SrqId,
}

impl SoftwareTags {
    pub(super) fn new(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Self> {
        let receiving = ReceiverConfig::new().cq_capacity(config.receives()).path(config.path);
        let mut receiver = Receiver::new(pd, &receiving)?;
        let srq = receiver.create_srq(&SrqConfig::new(config.slots))?;
        Ok(Self { receiver, srq })
    }

    pub(super) const fn path(&self) -> Path {
        self.receiver.path()
    }

    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        let room = BATCH.saturating_sub(arrived.len()) as u32;
        let mut batch = self.receiver.poll_up_to(room);
        while let Some(next) = batch.next() {
            arrived.push(match next {
                Ok(message) => {
                    let qp_num = message.qp_num();
                    Arrived::Message { buffer: message.take(), counted: false, qp_num }
                }
                Err(failure) => {
                    let Cause::Status(status) = failure.cause else { continue };
                    Arrived::Failed { status, qp_num: failure.qp_num }
                }
            });
        }
    }

    pub(super) fn refill(&mut self, pool: &BufferPool) -> u32 {
        let free_slots = self.receiver.free_slots(self.srq) as usize;
        let buffers = std::iter::from_fn(|| pool.take()).take(free_slots);
        // Buffers that are not posted go back to the pool.
        match self.receiver.post(self.srq, buffers) {
            Ok(posted) => posted as u32,
            Err(error) => error.posted as u32,
        }
    }

    pub(super) fn arm(&mut self, events: u32) -> Result<()> {
        self.receiver.arm_cq(events, false).map(drop)
    }

    pub(super) fn cq_object(&self) -> &Cq {
        self.receiver.cq()
    }

    pub(super) fn posted(&self) -> u32 {
        self.receiver.capacity(self.srq) - self.receiver.free_slots(self.srq)
    }

    pub(super) fn create_qp(&mut self, config: &QpConfig, send: SendSide) -> Result<QueuePair> {
        self.receiver.make_qp(&config.clone().srq(self.srq), send)
    }

    pub(super) fn destroy_qp(&mut self, qp: QueuePair) {
        // If the device refuses, the queue pair is leaked with a warning.
        let _ = self.receiver.destroy_qp(qp);
    }
}
