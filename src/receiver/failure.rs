//! Receives that failed.

use crate::memory::Buffer;
use crate::status::WcStatus;

/// A receive that failed, or a completion that makes no sense.
///
/// The buffer of a failed receive goes back to an SRQ, which lives on when one of its QPs fails. From the
/// receive queue of a QP it comes back here: the QP takes no more receives before it is reset.
///
/// ```
/// # use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig};
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
/// # let pool = BufferPool::new(&pd, 4, 64)?;
/// # let qp = receiver.create_qp(&QpConfig::rc().receives(4, 1))?;
/// # receiver.fill(qp.receive_queue().expect("a queue of its own"), &pool)?;
/// use doorbell::{Cause, WcStatus};
///
/// // A connection that ends: what is posted to its own queue comes back.
/// qp.to_error()?;
/// let mut back = 0;
/// while back < 4 {
///     let mut batch = receiver.poll();
///     while let Some(next) = batch.next() {
///         let failure = next.expect_err("nothing was sent");
///         assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
///         back += failure.buffers.len();
///     }
/// }
/// assert_eq!(pool.available(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("receive on QP {qp_num:#x}: {cause}")]
pub struct Failure {
    /// Number of the QP.
    pub qp_num: u32,
    /// What went wrong.
    pub cause: Cause,
    /// Cause in the device's own terms, 0 if it gave none.
    pub vendor_err: u32,
    /// The buffers of the receive, unless its queue keeps them.
    pub buffers: Vec<Buffer>,
}

/// What went wrong with a receive.
///
/// ```
/// use doorbell::{Cause, WcStatus};
///
/// fn is_the_end_of_a_connection(cause: Cause) -> bool {
///     match cause {
///         // A flushed receive says nothing but that the queue pair is in the error state.
///         Cause::Status(WcStatus::WR_FLUSH_ERR) => true,
///         Cause::Status(status) => panic!("the device reports {status}"),
///         other => panic!("{other}"),
///     }
/// }
/// # assert!(is_the_end_of_a_connection(Cause::Status(WcStatus::WR_FLUSH_ERR)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The device reported this status.
    #[error("{0}")]
    Status(WcStatus),
    /// The completion names a receive that is not posted, or has an impossible form. It was skipped; the
    /// device, its driver or the memory is at fault.
    #[error(
        "the completion names a receive that is not posted: the device, its driver or the memory is faulty"
    )]
    Stray,
    /// The device did not find the memory of the receive, which is registered on demand (ODP). The QP has not
    /// failed, and its peer sends the message again. Memory of pools is pinned, so this can only be memory
    /// that was posted through [`Receiver::as_direct`](crate::Receiver::as_direct): pin it.
    #[error(
        "page fault in memory that is registered on demand: register the memory of receives without IBV_ACCESS_ON_DEMAND"
    )]
    PageFault,
    /// The completion is not that of a receive. It was skipped; something other than receives completes on
    /// the CQ.
    #[error("the completion is not one of a receive: let only receives complete on this CQ")]
    NotAReceive,
    /// The device was removed, and the receive never completed: see
    /// [`Receiver::reclaim`](crate::Receiver::reclaim).
    #[error("the device was removed before the receive completed")]
    DeviceRemoved,
    /// The receive was posted through [`Receiver::as_direct`](crate::Receiver::as_direct) with this `wr_id` and must be completed
    /// there. It was successful; its slot is free.
    #[error(
        "the receive was posted through Receiver::as_direct (wr_id {0:#x}), and must complete there"
    )]
    Raw(u64),
}
