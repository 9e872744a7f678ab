//! Names of the queues of a receiver.

/// A shared receive queue of one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub(crate) QueueId);

impl SrqId {
    /// An SRQ that is no receiver's.
    pub(crate) const FOREIGN: Self = Self(QueueId { receiver: u32::MAX, index: 0 });
}

/// The receive queue of one QP of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RqId(pub(crate) QueueId);

/// Any queue of one receiver that receives can be posted to.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let own = world.receiver.create_qp(&doorbell::QpConfig::rc().receives(8, 1))?;
/// # let (receiver, srq) = (&world.receiver, world.srq);
/// # let rq = own.receive_queue().expect("a queue of its own");
/// use doorbell::QueueId;
///
/// // What is posted to, a shared queue or that of one queue pair.
/// let queues: [QueueId; 2] = [srq.into(), rq.into()];
/// for queue in queues {
///     println!("{} of {} receives are vacant", receiver.vacant(queue), receiver.capacity(queue));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId {
    /// Tells receivers apart, so that an index of another one is an error and not a wrong queue.
    pub(crate) receiver: u32,
    pub(crate) index: u32,
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
