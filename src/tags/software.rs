//! Matching by the library: the device only receives.

use super::arrival::{Arrived, BATCH};
use super::config::TagMatchingConfig;
use crate::cq::CqCore;
use crate::error::Result;
use crate::ids::SrqId;
use crate::memory::BufferPool;
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};
use crate::receive_from::ReceiveFrom;
use crate::receiver::{Cause, Receiver};
use crate::srq::SrqConfig;

pub(super) struct SoftwareTags {
    receiver: Receiver,
    srq: SrqId,
}

impl SoftwareTags {
    pub(super) fn new(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Self> {
        let mut receiver = Receiver::new(pd, &config.cq_of(config.receives()))?;
        let srq = receiver.create_srq(&SrqConfig::new(config.max_wr))?;
        Ok(Self { receiver, srq })
    }

    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        let room = BATCH.saturating_sub(arrived.len()) as u32;
        let mut batch = self.receiver.poll_up_to(room);
        while let Some(next) = batch.next() {
            arrived.push(match next {
                Ok(message) => {
                    let qp_num = message.qp_num();
                    // Each receive has one buffer.
                    let Ok(buffer) = message.take() else { continue };
                    Arrived::Message { buffer, counted: false, qp_num }
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
        self.receiver.arm_after(events).map(drop)
    }

    pub(super) const fn core(&self) -> &CqCore {
        self.receiver.core()
    }

    pub(super) fn posted(&self) -> u32 {
        self.receiver.capacity(self.srq) - self.receiver.free_slots(self.srq)
    }

    pub(super) fn create_qp(&mut self, pd: &ProtectionDomain, config: &QpConfig, send: SendSide) -> Result<QueuePair> {
        let from = ReceiveFrom::Srq(self.srq);
        let receive = self.receiver.receive_side(from)?;
        let mut qp = QueuePair::create(pd, config, receive, send)?;
        // SAFETY: a fresh queue pair that no other code knows.
        unsafe { self.receiver.enter(&mut qp, from) }?;
        Ok(qp)
    }

    pub(super) fn destroy_qp(&mut self, qp: QueuePair) {
        // If the device refuses, the queue pair is leaked with a warning.
        let _ = self.receiver.destroy_qp(qp);
    }
}
