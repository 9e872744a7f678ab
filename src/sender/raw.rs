//! A CQ made elsewhere, and the rings themselves.

use std::sync::Arc;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::sq::SendQueue;
use rdma_core_sys as sys;

use super::queue::SendRing;
use super::{Sender, SenderConfig, SqId, WorkRequest};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::poller::Poller;

impl Sender {
    /// A sender on a CQ that was made with libibverbs; what `config` says of the CQ itself does not matter. The caller
    /// destroys it, after the sender. Queue pairs come to it by
    /// [`Receiver::attach_raw_qp_with_sender`](crate::Receiver::attach_raw_qp_with_sender). The CQ has to hold as many
    /// entries as their send queues have [capacity](Self::capacity), which on the direct path counts basic blocks of 64
    /// bytes: libmlx5 makes several for each request that it was asked for.
    ///
    /// # Errors
    /// [`Error::NotDirect`] when [`Path::Direct`](crate::Path::Direct) is asked for and impossible.
    ///
    /// # Safety
    /// - `cq` belongs to the device of `pd` and outlives the sender.
    /// - Nothing was polled from it, and nobody else polls, arms or resizes it while the sender exists (on the direct
    ///   path: ever again).
    /// - Only sends of queue pairs of this sender complete on it.
    /// - Its completion channel, if it has one, lives as long, is that of no other CQ, and nobody else reads from it.
    pub unsafe fn from_raw_cq(
        pd: &ProtectionDomain,
        cq: *mut sys::ibv_cq,
        config: &SenderConfig,
    ) -> Result<Self> {
        let mlx5dv = pd.context().choose(config.path)?;
        // SAFETY: the caller's contract.
        unsafe {
            let cq = Arc::new(Cq::from_raw(pd.context(), cq, mlx5dv.is_none()));
            Self::with_cq(pd, config, cq, mlx5dv)
        }
    }

    /// The CQ and the ring of a send queue, for who wants every nanosecond; `None` on the verbs path.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Sends::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// use doorbell::raw::WorkRequest;
    /// use mlx5_ring::sq::{Flags, Immediate, Payload};
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
    ///     token = sender.poll().next().map(|done| done.token);
    /// }
    /// assert_eq!(token, Some(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`] when there is no such queue.
    ///
    /// # Safety
    /// - Ring and CQ stay where they are: they are neither swapped nor replaced.
    /// - Requests that [`post`](Self::post) has posted are neither completed nor reset through the ring, and no CQE of
    ///   theirs is taken from the CQ.
    /// - The contracts of the methods used, which say whose the memory of a posted request is.
    pub unsafe fn as_direct(
        &mut self,
        queue: SqId,
    ) -> Result<Option<(&mut CompletionQueue, &mut SendQueue<WorkRequest>)>> {
        let entry = self.queues.get_mut(queue.index as usize).and_then(Option::as_deref_mut);
        let Some(entry) = entry.filter(|entry| entry.id == queue) else {
            return Err(Error::Gone { what: "send queue" });
        };
        Ok(match (&mut self.poller, &mut entry.ring) {
            (Poller::Direct(direct), SendRing::Direct(sq)) => Some((&mut direct.cq, &mut sq.ring)),
            _ => None,
        })
    }
}
