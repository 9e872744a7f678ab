//! Taking receives back from a device that is gone.

use super::direct::Ring;
use super::failure::{Cause, Failure};
use super::resident::{Books, Resident};
use super::verbs::Object;
use super::{Engine, Receiver};
use crate::error::{Error, Result};

impl Receiver {
    /// After the device was removed: takes back every receive that is posted, each as a [`Failure`] with
    /// [`Cause::DeviceRemoved`] and its buffers. Those of an SRQ belong to no QP, whose number is then 0.
    ///
    /// The device is known to be gone, and with it all its access to memory, when its
    /// [events](crate::Context::events) have come to their end. Poll before: of messages that have arrived and
    /// were not polled, the buffers come back too, and the bytes are not told.
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
        self.recover();
        let mut failures = Vec::new();
        let books = &mut self.books;
        match &mut self.engine {
            Engine::Direct(direct) => {
                direct.cq.purge(|_| true);
                for queue in &mut direct.queues {
                    match queue {
                        Ring::Srq(srq) => srq.ring.drain(|r| failures.push(flag(books, r, 0))),
                        Ring::Rq(rq) => {
                            let qp_num = rq.object.qp_num();
                            rq.ring.reset(|r| failures.push(flag(books, r, qp_num)));
                        }
                        Ring::Gone => {}
                    }
                }
            }
            Engine::Verbs(verbs) => {
                verbs.fetch_all();
                verbs.polled.forget_all();
                for queue in &mut verbs.queues {
                    let qp_num = match &queue.object {
                        Object::Rq(qp) => qp.qp_num(),
                        Object::Srq(_) | Object::Gone => 0,
                    };
                    queue.drain(|r| failures.push(flag(books, r, qp_num)));
                }
            }
        }
        Ok(failures)
    }
}

fn flag(books: &mut Books, resident: Resident, qp_num: u32) -> Failure {
    let mut failure = Failure::of(qp_num, Cause::DeviceRemoved);
    books.leave(resident, 0, |buffer| failure.buffers.push(buffer));
    failure
}
