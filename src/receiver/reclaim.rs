//! Taking receives back from a device that is gone.

use super::failure::{Cause, Failure};
use super::{Poller, Receiver};
use crate::error::{Error, Result};

impl Receiver {
    /// Takes back every posted receive after the device was removed. Each is a [`Failure`] with
    /// [`Cause::DeviceRemoved`] and its buffers. Receives of an SRQ have QP number 0.
    ///
    /// The end of the device's [events](crate::Context::events) shows that it was removed and no longer accesses
    /// memory. Poll first: buffers of messages that arrived and were not polled are returned too, without their
    /// lengths.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, device, .. } = doorbell_doc::World::new();
    /// # device.remove();
    /// // For example in a thread of its own: it ends when the device is gone.
    /// for event in receiver.pd().context().events()? {
    ///     println!("{:?}", event?);
    /// }
    /// while let Some(message) = receiver.poll().next() {
    ///     println!("the last messages: {message:?}");
    /// }
    /// for failure in receiver.reclaim()? {
    ///     println!("{failure}: {} buffers", failure.buffers.len());
    /// }
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] while the device may still write the posted memory.
    pub fn reclaim(&mut self) -> Result<Vec<Failure>> {
        if !self.pd.context().is_removed() {
            return Err(Error::Unsupported {
                operation: "reclaim",
                when: "before the device was removed: read its events until they end, or destroy the queues",
            });
        }
        self.end_batch();
        match &mut self.poller {
            Poller::Direct(direct) => _ = direct.cq.purge(|_| true),
            Poller::Verbs(cq) => cq.retain(|_| false),
        }
        let Self { queues, owners, .. } = self;
        let mut failures = Vec::new();
        for entry in queues {
            let qp_num = entry.queue.qp().map_or(0, |qp| qp.qp_num());
            entry.queue.take_back(|context| {
                let mut failure = Failure::of(qp_num, Cause::DeviceRemoved);
                owners.leave(context, 0, |buffer| failure.buffers.push(buffer));
                failures.push(failure);
            });
        }
        Ok(failures)
    }
}
