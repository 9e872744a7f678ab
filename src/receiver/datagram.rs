//! Received datagrams: 40 bytes of header, then the payload.

use super::message::Message;
use crate::message_source::{DatagramSource, MessageSource};
use crate::post_failure::GRH_SIZE;
use crate::wc_flags::WcFlags;

/// Header and payload of a datagram, from [`Message::datagram`].
///
/// ```
/// # let mut world = doorbell_doc::World::datagrams();
/// # world.send(b"hello");
/// # let (receiver, sender, qp) = (&mut world.receiver, &mut world.sender, &world.qp);
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a datagram has arrived")?;
/// let datagram = message.datagram().expect("the queue pair is one for datagrams");
/// assert_eq!(datagram.payload(), b"hello");
/// let source = datagram.sender();
/// println!("from QP {:#x}, GID {:?}", source.qp_num(), source.gid());
/// drop(batch);
/// // An answer.
/// let to = qp.reply_to(&source)?;
/// let queue = qp.send_queue().expect("made with a sender");
/// sender.post(queue)?.send_to(&to, b"good morning", None)?;
/// # doorbell_doc::finish(sender, queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'m> {
    bytes: &'m [u8],
    source: MessageSource,
    has_grh: bool,
}

impl Message<'_> {
    /// Returns header and payload of a message from a datagram queue pair, or `None` for other queue pairs. In a
    /// scattered message the payload ends with the first buffer.
    ///
    /// The first buffer of a receive for datagrams must hold at least the [GRH](GRH_SIZE).
    pub fn datagram(&self) -> Option<Datagram<'_>> {
        if !self.receiver.qps.is_datagram(self.qp_num()) {
            return None;
        }
        let has_grh = self.flags().contains(WcFlags::GRH);
        // A datagram is never inside a CQE.
        Some(Datagram { bytes: self, source: self.source()?, has_grh })
    }
}

impl<'m> Datagram<'m> {
    /// Returns the bytes that the peer sent.
    pub fn payload(&self) -> &'m [u8] {
        self.bytes.get(GRH_SIZE..).unwrap_or_default()
    }

    /// Returns the GRH as received (InfiniBand specification, 8.3), or `None` if the datagram has none and those
    /// bytes are undefined. On RoCE v2 over IPv4 the last 20 bytes are the IP header.
    pub fn grh(&self) -> Option<&'m [u8; GRH_SIZE]> {
        if self.has_grh { self.bytes.first_chunk() } else { None }
    }

    /// Returns the source fields of the completion.
    pub const fn source(&self) -> MessageSource {
        self.source
    }

    /// Returns the sender, for a reply at any later time.
    pub fn sender(&self) -> DatagramSource {
        DatagramSource { source: self.source, grh: self.grh().copied() }
    }
}
