//! A CQ made elsewhere, and the rings themselves.

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::sq::SendQueue;
use rdma_core_sys as sys;

use super::Sender;
use super::queue::SendRing;
use super::request::WorkRequest;
use crate::cq::{CqConfig, CqCore, Poller};
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::pd::ProtectionDomain;

impl Sender {
    /// Creates a sender on a CQ of the program; capacity and completion vector in `config` do not apply. The program
    /// destroys the CQ after the sender. [`QueuePairBuilder::attach`](crate::QueuePairBuilder::attach) adds queue
    /// pairs.
    ///
    /// The CQ needs as many entries as the send queues have [capacity](Self::capacity): the `max_send_wr` that
    /// `ibv_create_qp` returned. On the direct path this counts basic blocks of 64 bytes, of which a request with long
    /// inline data or several buffers takes more than one.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    ///
    /// # Safety
    /// - `cq` belongs to the device of `pd` and outlives the sender.
    /// - With timestamps in `config`, it is the CQ of an `ibv_cq_ex` that was created with them and with
    ///   `IBV_WC_STANDARD_FLAGS`.
    /// - Nothing was polled from it. No other code polls, arms or resizes it while the sender exists (on the direct
    ///   path: ever again).
    /// - Only sends of queue pairs of this sender complete on it.
    /// - Its completion channel, if any, lives as long, belongs to no other CQ, and no other code reads from it.
    pub unsafe fn from_raw_cq(pd: &ProtectionDomain, cq: *mut sys::ibv_cq, config: &CqConfig) -> Result<Self> {
        config.uncompressed("for a Sender")?;
        // SAFETY: nothing was polled from the caller's `cq`, which outlives the sender; no other code polls or arms it.
        Ok(Self::on(pd, unsafe { CqCore::from_raw(pd.context(), cq, config) }?))
    }

    /// Returns the CQ and the ring of a send queue, or `None` on the verbs path.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// use doorbell::raw::WorkRequest;
    /// use doorbell::raw::mlx5_ring::sq::{Flags, Immediate, Payload};
    ///
    /// // SAFETY: inline bytes are copied, and the queue pair is connected.
    /// unsafe {
    ///     if let Some((_, ring)) = sender.as_direct(queue)? {
    ///         let request = WorkRequest::from_wr_id(7);
    ///         let payload = Payload::inline(&[b"hello"]);
    ///         ring.posting()
    ///             .send(payload, Immediate::None, Flags::SIGNALED, request)
    ///             .expect("the queue is empty");
    ///     }
    /// }
    /// // It completes here like any other.
    /// let mut token = None;
    /// while token.is_none() {
    ///     token = sender.next().transpose()?.map(|done| done.token);
    /// }
    /// assert_eq!(token, Some(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist.
    ///
    /// # Safety
    /// - Ring and CQ are neither moved nor replaced.
    /// - Requests that [`post`](Self::post) posted are neither completed nor reset through the ring, and their CQEs
    ///   are not taken from the CQ.
    /// - Before the ring completes or resets a request, a batch with budget left has returned `None`.
    /// - The contracts of the ring's methods hold; they state how long the memory of a posted request must live.
    pub unsafe fn as_direct(
        &mut self,
        queue: impl Into<SqId>,
    ) -> Result<Option<(&mut CompletionQueue, &mut SendQueue<WorkRequest>)>> {
        let queue = queue.into();
        let entry = self.queues.get_mut(queue.index as usize).and_then(Option::as_deref_mut);
        let Some(entry) = entry.filter(|entry| entry.id == queue) else {
            return Err(Error::Gone { what: "send queue" });
        };
        Ok(match (&mut self.cq.poller, &mut entry.ring) {
            (Poller::Direct(direct), SendRing::Direct(sq)) => Some((&mut direct.cq, &mut sq.ring)),
            _ => None,
        })
    }
}
