//! Disconnecting without losing a message.

use std::time::{Duration, Instant};

use super::Receiver;
use crate::error::{Error, Result};
use crate::events::{AsyncEvents, Patience};
use crate::qp::{QpEnd, QueuePair};

impl Receiver {
    /// Disconnects a QP so that no message that has arrived is lost, the first half of a graceful end:
    ///
    /// 1. `drain_qp` takes it to the error state. A QP on an SRQ may still be about to take receives: the
    ///    event [`LastWqeReached`](crate::AsyncEvent::LastWqeReached) says that it does not, and is waited for, whoever
    ///    reads it. Other events are kept for who reads `events` next.
    /// 2. The program polls until nothing comes: messages, then flushed receives.
    /// 3. [`destroy_qp`](Self::destroy_qp) ends it, or [`reset_qp`](Self::reset_qp) makes it new, to be
    ///    connected again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let doorbell_doc::World { mut receiver, qp, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// let mut events = receiver.pd().context().events()?;
    /// receiver.drain_qp(&qp, &mut events, Duration::from_secs(1))?;
    /// let mut batch = receiver.poll();
    /// while let Some(next) = batch.next() {
    ///     println!("{next:?}");
    /// }
    /// drop(batch);
    /// receiver.destroy_qp(qp)?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// [`destroy_qp`](Self::destroy_qp) and [`reset_qp`](Self::reset_qp) alone wait, too, and drop the messages that
    /// were not polled.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the event does not come within `patience`: the QP is in the error state, and
    /// destroying it is as safe as after the event, but what it had taken from the SRQ may be dropped.
    /// [`Error::Foreign`] for a QP of another receiver or events of another device; [`Error::Verbs`].
    pub fn drain_qp(
        &mut self,
        qp: &QueuePair,
        events: &mut AsyncEvents,
        patience: Duration,
    ) -> Result<()> {
        self.queue_of(qp)?;
        if !events.context().is_same(self.pd.context()) {
            return Err(Error::Foreign { what: "the reader of events", domain: "device" });
        }
        let deadline = Instant::now().checked_add(patience);
        match qp.stop_receiving(Patience::Until(deadline))? {
            QpEnd::LastWqeMissing => Err(Error::TimedOut {
                operation: "drain_qp",
                subject: format!("QP {:#x} (event LAST_WQE_REACHED)", qp.qp_num()),
            }),
            _ => Ok(()),
        }
    }
}
