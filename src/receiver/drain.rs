//! Disconnecting without losing a message.

use std::time::{Duration, Instant};

use super::Receiver;
use crate::error::{Error, Result};
use crate::events::{AsyncEvents, Patience};
use crate::qp::{QpEnd, QueuePair};

impl Receiver {
    /// Disconnects a QP without losing messages that have arrived. The steps of a graceful end:
    ///
    /// 1. `drain_qp` moves the QP to the error state. If the QP uses an SRQ, it waits for the event
    ///    [`LastWqeReached`](crate::AsyncEvent::LastWqeReached), after which the QP takes no more receives. It leaves
    ///    other events for the next reader of `events`.
    /// 2. The program polls until no completion is left: messages first, then flushed receives.
    /// 3. [`destroy_qp`](Self::destroy_qp) destroys the QP, or [`reset_qp`](Self::reset_qp) prepares it for the next
    ///    connection.
    ///
    /// Without `drain_qp`, [`destroy_qp`](Self::destroy_qp) and [`reset_qp`](Self::reset_qp) also wait, and drop messages
    /// that were not polled.
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
    /// # Errors
    /// [`Error::TimedOut`] if the event does not arrive within `patience`: the QP is in the error state and can be
    /// destroyed safely, but receives that it took from the SRQ may be lost. [`Error::Foreign`] for a QP of another
    /// receiver or events of another device; [`Error::Verbs`].
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
