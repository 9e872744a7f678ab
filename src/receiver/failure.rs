//! Receives that failed.

use crate::debug_is_display::debug_is_display;
use crate::memory::Buffer;
use crate::status::WcStatus;

/// A failed receive, or an invalid completion.
///
/// An SRQ keeps the buffer of a failed receive, because the SRQ outlives its QPs. The receive queue of a QP returns
/// it in `buffers`, because the QP takes no more receives until it is reset.
///
/// ```
/// # use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig};
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
/// # let pool = BufferPool::new(&pd, &PoolConfig::new(4, 64))?;
/// # let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build()?;
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
///
/// [`WcStatus::WR_FLUSH_ERR`] is a consequence: [`first`](Self::first), the first failed completion of the queue pair,
/// has the cause. It may be one of its [`Sender`](crate::Sender).
#[derive(thiserror::Error)]
#[non_exhaustive]
#[error("receive on QP {qp_num:#x}: {}", WcStatus::explained(.cause, *.first))]
pub struct Failure<B = Buffer> {
    /// Number of the QP; 0 if the receive belongs to no QP.
    pub qp_num: u32,
    /// The cause.
    pub cause: Cause,
    /// The status of the completion that failed the queue pair, if this receive was flushed and that completion was
    /// polled, from the receiver or from the sender. `None` after [`QueuePair::to_error`](crate::QueuePair::to_error).
    pub first: Option<WcStatus>,
    /// The device's own error code; 0 if it reported none.
    pub vendor_err: u32,
    /// The buffers of the receive; empty if the queue keeps them.
    pub buffers: Vec<B>,
}

debug_is_display!(<B> Failure<B>);

impl<B> Failure<B> {
    /// Makes a failure without buffers, for which the device has no code of its own.
    pub(super) const fn of(qp_num: u32, cause: Cause) -> Self {
        Self { qp_num, cause, first: None, vendor_err: 0, buffers: Vec::new() }
    }
}

/// Why a receive failed.
///
/// ```
/// use doorbell::{Cause, WcStatus};
///
/// fn is_the_end_of_a_connection(cause: Cause) -> bool {
///     match cause {
///         // A flushed receive shows only that the queue pair is in the error state.
///         Cause::Status(WcStatus::WR_FLUSH_ERR) => true,
///         Cause::Status(status) => panic!("the device reports {status}"),
///         other => panic!("{other}"),
///     }
/// }
/// # assert!(is_the_end_of_a_connection(Cause::Status(WcStatus::WR_FLUSH_ERR)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The device reported this status.
    #[error("{0}")]
    Status(WcStatus),
    /// The completion names a receive that is not posted, or has an invalid form. doorbell skips it. The device, its
    /// driver or the memory is faulty.
    #[error("the completion names a receive that is not posted: the device, its driver or the memory is faulty")]
    Stray,
    /// The memory of the receive is registered on demand (ODP), and the device did not find its page. The QP works
    /// on, and its peer sends the message again. Memory of pools is pinned, so this receive was posted through
    /// [`Receiver::as_direct`](crate::Receiver::as_direct): pin its memory.
    #[error(
        "page fault in memory that is registered on demand: register the memory of receives without IBV_ACCESS_ON_DEMAND"
    )]
    PageFault,
    /// The completion is not a receive. doorbell skips it. Another program or library posts to this CQ.
    #[error("the completion is not one of a receive: let only receives complete on this CQ")]
    NotAReceive,
    /// The device was removed before the receive completed, see [`Receiver::reclaim`](crate::Receiver::reclaim).
    #[error("the device was removed before the receive completed")]
    DeviceRemoved,
    /// The receive was posted through [`Receiver::as_direct`](crate::Receiver::as_direct) with this `wr_id`, and must
    /// be completed there. It succeeded, and its slot is free.
    #[error("the receive was posted through Receiver::as_direct (wr_id {0:#x}), and must complete there")]
    Raw(u64),
}

debug_is_display!(Cause);
