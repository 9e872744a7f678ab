//! Where a queue pair receives.

use crate::ids::SrqId;

/// Where a queue pair receives: the SRQ of a receiver (an [`SrqId`]), or a receive queue of its own (an [`RqConfig`]).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{CqConfig, QpConfig, QueuePair, ReceiveFrom, Receiver, RqConfig, SrqConfig};
///
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(256))?;
/// let srq = receiver.create_srq(&SrqConfig::new(64))?;
/// let shared: ReceiveFrom = srq.into();
/// let own: ReceiveFrom = RqConfig::new(64).into();
/// let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, shared).build()?;
/// assert!(qp.receive_queue().is_none());
/// let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own).build()?;
/// assert!(qp.receive_queue().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum ReceiveFrom {
    /// The shared receive queue.
    Srq(SrqId),
    /// A receive queue of this size.
    Own(RqConfig),
}

/// Size of the receive queue of a queue pair.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig};
///
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(128))?;
/// let qp = QueuePair::builder(&QpConfig::rc())
///     .receive(&mut receiver, RqConfig::new(128).max_sge(2))
///     .build()?;
/// let queue = qp.receive_queue().expect("a queue of its own");
/// assert_eq!(receiver.capacity(queue), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RqConfig {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl RqConfig {
    /// Describes a queue of `max_wr` outstanding receives of one buffer each. The driver may round up; on the direct
    /// path an mlx5 queue has a power of two of slots, with at least 64 bytes in all: `RqConfig::new(1)` creates four.
    /// [`Receiver::capacity`](crate::Receiver::capacity) returns how many can be posted.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1 }
    }

    /// Sets the number of buffers that one receive can have, 1 by default.
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }
}

impl From<SrqId> for ReceiveFrom {
    fn from(srq: SrqId) -> Self {
        Self::Srq(srq)
    }
}

impl From<RqConfig> for ReceiveFrom {
    fn from(config: RqConfig) -> Self {
        Self::Own(config)
    }
}
