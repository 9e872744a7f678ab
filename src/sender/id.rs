//! Names of the queues of a sender.

/// The send queue of one QP of a [`Sender`](crate::Sender).
///
/// ```
/// # let mut world = doorbell_doc::Sends::new();
/// # let (sender, qp, other) = (&mut world.sender, &world.qp, &mut world.other_sender);
/// use doorbell::NotSent;
///
/// let queue = qp.send_queue().expect("made with a sender");
/// assert!(sender.post(queue).is_ok());
/// // The name is checked whenever it is used.
/// assert!(matches!(other.post(queue), Err(NotSent::NoQueue)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqId {
    /// Tells senders apart, so that an index of another one is an error and not a wrong queue.
    pub(crate) sender: u32,
    pub(crate) index: u32,
    /// Tells queues apart that had the same index one after the other.
    pub(crate) number: u32,
}

impl SqId {
    /// A send queue that is no sender's.
    pub(crate) const FOREIGN: Self = Self { sender: u32::MAX, index: 0, number: 0 };
}
