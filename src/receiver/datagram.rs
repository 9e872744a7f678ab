//! Received datagrams: 40 bytes of header, then the payload.

use super::completion_info::MessageSource;
use super::message::Message;
use crate::wc_flags::WcFlags;

/// Bytes before the payload of each datagram in its buffer, for the GRH (InfiniBand specification, 8.3).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{BufferPool, GRH_SIZE};
///
/// // For datagrams of up to 1,024 bytes.
/// let pool = BufferPool::new(&pd, 64, GRH_SIZE as u32 + 1024)?;
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const GRH_SIZE: usize = 40;

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

/// The sender of a datagram, for [`QueuePair::reply_to`](crate::QueuePair::reply_to).
///
/// ```
/// # let mut world = doorbell_doc::World::datagrams();
/// # world.send(b"are you there?");
/// # let doorbell_doc::World { receiver, sender, qp, .. } = &mut world;
/// // A value that outlives the message and can be kept, one per client.
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a datagram has arrived")?;
/// let source = message.datagram().expect("the queue pair takes datagrams").sender();
/// drop(batch);
/// println!("from queue pair {:#x} of the port with LID {}", source.qp_num(), source.lid());
/// let back = qp.reply_to(&source)?;
/// let queue = qp.send_queue().expect("made with a sender");
/// sender.post(queue)?.send_to(&back, b"I am", None)?;
/// # doorbell_doc::finish(sender, queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    source: MessageSource,
    grh: Option<[u8; GRH_SIZE]>,
}

impl Message<'_, '_> {
    /// Returns header and payload of a message from a datagram queue pair, or `None` for other queue pairs. In a
    /// scattered message the payload ends with the first buffer.
    ///
    /// The first buffer of a receive for datagrams must hold at least the [GRH](GRH_SIZE).
    pub fn datagram(&self) -> Option<Datagram<'_>> {
        if !self.batch.receiver.qps.is_datagram(self.qp_num()) {
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

impl DatagramSource {
    /// Returns the number of the queue pair.
    pub const fn qp_num(&self) -> u32 {
        self.source.qp_num
    }

    /// Returns the LID of the port; 0 on Ethernet.
    pub const fn lid(&self) -> u16 {
        self.source.lid
    }

    /// Returns the GID of the port from the GRH. Over IPv4 it is the IPv4-mapped IPv6 address.
    pub fn gid(&self) -> Option<[u8; 16]> {
        let grh = self.grh?;
        let mut gid = [0; 16];
        // In front of an IPv4 header the bytes are undefined, so the checksum of the header is checked first.
        if grh[0] >> 4 == 6 && !is_ipv4_header(&grh[20..]) {
            gid.copy_from_slice(&grh[8..24]);
        } else {
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(&grh[32..36]);
        }
        Some(gid)
    }
}

/// Returns `true` if these 20 bytes are an IPv4 header without options and with the right checksum.
fn is_ipv4_header(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    bytes[0] == 0x45 && words.sum::<u32>() % 0xffff == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_in_either_header() {
        let source = MessageSource { qp_num: 7, lid: 3, sl: 0, dlid_path_bits: 0 };
        let mut grh = [0xee; GRH_SIZE];
        (grh[0], grh[20]) = (0x60, 0x45);
        grh[8..24].copy_from_slice(&[1; 16]);
        assert_eq!(DatagramSource { source, grh: Some(grh) }.gid(), Some([1; 16]));
        // RFC 791, with whatever was in the buffer in front of it.
        let header =
            [0x45, 0, 0, 0x54, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 192, 0, 2, 9, 192, 0, 2, 1];
        grh[20..].copy_from_slice(&header);
        grh[30..32].copy_from_slice(&[0xb6, 0x8e]);
        grh[32..36].copy_from_slice(&[192, 0, 2, 9]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9];
        assert_eq!(DatagramSource { source, grh: Some(grh) }.gid(), Some(mapped));
        assert_eq!(DatagramSource { source, grh: None }.gid(), None);
    }
}
