//! Where a message comes from.

use crate::post_failure::GRH_SIZE;

/// The source of a message, from its completion.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a message has arrived")?;
/// let source = message.source().expect("nothing was put over it");
/// println!("QP {:#x}, LID {}, service level {}", source.qp_num, source.lid, source.sl);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageSource {
    /// Number of the sending queue pair.
    pub qp_num: u32,
    /// LID of the sending port; 0 on Ethernet.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// DataPath bits of the destination LID.
    pub dlid_path_bits: u8,
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
    pub(crate) source: MessageSource,
    pub(crate) grh: Option<[u8; GRH_SIZE]>,
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
        let header = [0x45, 0, 0, 0x54, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 192, 0, 2, 9, 192, 0, 2, 1];
        grh[20..].copy_from_slice(&header);
        grh[30..32].copy_from_slice(&[0xb6, 0x8e]);
        grh[32..36].copy_from_slice(&[192, 0, 2, 9]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9];
        assert_eq!(DatagramSource { source, grh: Some(grh) }.gid(), Some(mapped));
        assert_eq!(DatagramSource { source, grh: None }.gid(), None);
    }
}
