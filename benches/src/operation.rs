//! Operations: what is measured, and on which objects.

use crate::adapter::{Form, Order};
use crate::world::Shape;

/// Slots of a queue, unless stated otherwise.
pub const SLOTS: u32 = 1024;

/// The measured work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Take messages and keep the buffers.
    Poll,
    /// Post buffers.
    Post,
    /// Take messages and post the buffer of each again.
    Cycle,
    /// Look for messages when there are none.
    Nothing,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The work.
    pub what: What,
    /// On which objects.
    pub shape: Shape,
    /// In which order receives complete.
    pub order: Order,
    /// Form of the CQEs of doorbell. Instead of compressed ones libmlx5, which does not read them, gets plain ones.
    pub form: Form,
    /// Completions, or receives, per call.
    pub batch: u32,
}

impl Operation {
    /// Messages, or receives, of one round.
    pub const fn count(&self) -> u32 {
        let receives = self.shape.queues * self.shape.receives();
        match self.what {
            // Receives may wait for older ones to complete.
            What::Cycle if matches!(self.order, Order::AtOnce(_)) => receives / 2 / self.batch * self.batch,
            // Buffers that are given back are posted at the end of a batch only.
            What::Cycle => receives / self.batch * self.batch,
            What::Poll | What::Post => receives,
            What::Nothing => 1000,
        }
    }
}
