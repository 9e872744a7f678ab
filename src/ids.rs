//! Names of the queues of receivers and senders.

/// Identifies a shared receive queue of a receiver.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// use doorbell::{Error, SrqConfig};
///
/// # let doorbell_doc::World { receiver, srq, .. } = &mut world;
/// # let srq = *srq;
/// // A receiver can have several, each with its own size of buffers.
/// let second = receiver.create_srq(&SrqConfig::new(15))?;
/// assert_ne!(second, srq);
/// assert_eq!(receiver.capacity(second), 15);
/// // The name is checked whenever it is used.
/// receiver.destroy_srq(second)?;
/// assert!(matches!(receiver.destroy_srq(second), Err(Error::Gone { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub(crate) QueueId);

/// Identifies the receive queue of a QP of a receiver.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let doorbell_doc::World { peer_receiver, pd, qp, .. } = &mut world;
/// use doorbell::{BufferPool, PoolConfig, QpConfig, QueuePair, RqConfig};
///
/// let own = QueuePair::builder(&QpConfig::rc()).receive(peer_receiver, RqConfig::new(16)).build()?;
/// let queue = own.receive_queue().expect("a queue of its own");
/// let pool = BufferPool::new(pd, &PoolConfig::new(16, 256))?;
/// assert_eq!(peer_receiver.fill(queue, &pool)?, 16);
/// // A queue pair on an SRQ has none to post to.
/// assert!(qp.receive_queue().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RqId(pub(crate) QueueId);

/// Identifies any receive queue of a receiver: an [`SrqId`] or an [`RqId`].
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let own = QueuePair::builder(&doorbell::QpConfig::rc()).receive(&mut world.receiver, RqConfig::new(8)).build()?;
/// # let (receiver, srq) = (&world.receiver, world.srq);
/// # let rq = own.receive_queue().expect("a queue of its own");
/// use doorbell::{QueueId, QueuePair, RqConfig};
///
/// // The queues that are posted to: a shared queue, and that of one queue pair.
/// let queues: [QueueId; 2] = [srq.into(), rq.into()];
/// for queue in queues {
///     println!("{} of {} receives are free", receiver.free_slots(queue), receiver.capacity(queue));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId {
    /// Number of the receiver: an index of another receiver is an error and not a wrong queue.
    pub(crate) receiver: u32,
    pub(crate) index: u32,
    /// Number of the queue among those that had the same index one after the other.
    pub(crate) number: u32,
}

impl From<SrqId> for QueueId {
    fn from(id: SrqId) -> Self {
        id.0
    }
}

impl From<RqId> for QueueId {
    fn from(id: RqId) -> Self {
        id.0
    }
}

/// Identifies the send queue of a QP of a [`Sender`](crate::Sender).
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (sender, qp, other) = (&mut world.sender, &world.qp, &mut world.peer_sender);
/// use doorbell::NotSent;
///
/// let queue = qp.send_queue().expect("made with a sender");
/// assert!(sender.post(queue).is_ok());
/// // The name is checked whenever it is used.
/// assert!(matches!(other.post(queue), Err(NotSent::NoQueue)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqId {
    pub(crate) index: u32,
    /// Number among all queues of the program: the name of another sender's queue is an error and not a wrong queue.
    pub(crate) number: u32,
}

impl SqId {
    /// No queue.
    pub(crate) const NONE: Self = Self { index: u32::MAX, number: u32::MAX };
}
