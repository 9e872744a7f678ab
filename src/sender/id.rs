//! Names of the queues of a sender.

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
