//! Taking receives back from a device that is gone.

use super::failure::{Cause, Failure};
use super::{Poller, Receiver};
use crate::error::{Error, Result};

impl Receiver {
    /// After the device was removed: takes back every receive that is posted, each as a [`Failure`] with
    /// [`Cause::DeviceRemoved`] and its buffers. Those of an SRQ belong to no QP, whose number is then 0.
    ///
    /// The device is known to be gone, and with it all its access to memory, when its
    /// [events](crate::Context::events) have come to their end. Poll before: of messages that have arrived and
    /// were not polled, the buffers come back too, and their lengths are lost.
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
    /// [`Error::Unsupported`] while the device may still write what is posted.
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
