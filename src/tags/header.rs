//! Headers of messages: `struct ibv_tmh` and `struct ibv_rvh` of `infiniband/tm_types.h`.

use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};

/// Bytes in front of the payload of an eager message.
pub(super) const EAGER: usize = Tmh::SIZE;
/// Bytes of the message that offers a rendezvous, and of the one that ends it.
pub(super) const RENDEZVOUS: usize = Tmh::SIZE + Rvh::SIZE;

/// The memory of a sender that a receiver reads in a rendezvous (`struct ibv_rvh`).
///
/// ```
/// # use doorbell::PoolConfig;
/// use doorbell::tags::{OfferedMemory, TagHeader};
///
/// // The memory that the reader of a rendezvous reads, from the offer.
/// fn offered(message: &[u8]) -> Option<OfferedMemory> {
///     match TagHeader::parse(message)? {
///         TagHeader::Rendezvous { memory, .. } => Some(memory),
///         _ => None,
///     }
/// }
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(1, 1024).readable(true))?;
/// # let mut buffer = pool.take().expect("a new pool is full");
/// # buffer.set_len(1000);
/// # let message = doorbell::tags::Offers::new().offer(buffer, 7, 0, ())?;
/// # assert_eq!(offered(&message).map(|memory| memory.len), Some(1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OfferedMemory {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of the memory region.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The header of a message.
///
/// ```
/// use doorbell::tags::TagHeader;
///
/// let header = TagHeader::Eager { tag: 0x1234, context: 9 };
/// // On the wire it is in front of the payload.
/// let mut message = header.to_bytes().to_vec();
/// message.extend(b"hello");
/// assert_eq!(TagHeader::parse(&message), Some(header));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagHeader {
    /// The message has no tag (`IBV_TMH_NO_TAG`).
    NoTag,
    /// The payload follows (`IBV_TMH_EAGER`).
    Eager {
        /// Tag to match.
        tag: u64,
        /// Opaque to the device, for the receiver.
        context: u32,
    },
    /// The receiver reads the payload (`IBV_TMH_RNDV`).
    Rendezvous {
        /// Tag to match.
        tag: u64,
        /// Opaque to the device, for the receiver.
        context: u32,
        /// Where the payload is.
        memory: OfferedMemory,
    },
    /// The receiver has read the payload (`IBV_TMH_FIN`).
    Fin {
        /// Tag of the offer.
        tag: u64,
        /// Context of the offer.
        context: u32,
        /// The memory that was offered.
        memory: OfferedMemory,
    },
}

impl TagHeader {
    /// Reads the header of a message, or returns `None` if the message is too short or the opcode unknown.
    ///
    /// ```
    /// use doorbell::tags::TagHeader;
    ///
    /// let mut message = [0; 20];
    /// message[0] = 3;
    /// message[15] = 7;
    /// assert_eq!(TagHeader::parse(&message), Some(TagHeader::Eager { tag: 7, context: 0 }));
    /// assert_eq!(TagHeader::parse(&message[..15]), None);
    /// ```
    pub fn parse(message: &[u8]) -> Option<Self> {
        let tmh = Tmh::from_bytes(message.first_chunk()?);
        let (tag, context) = (tmh.tag.get(), tmh.app_ctx.get());
        let memory = || {
            let rvh = Rvh::from_bytes(message.get(Tmh::SIZE..)?.first_chunk()?);
            Some(OfferedMemory { addr: rvh.va.get(), rkey: rvh.rkey.get(), len: rvh.len.get() })
        };
        match TmhOpcode::from_byte(tmh.opcode) {
            TmhOpcode::NoTag => Some(Self::NoTag),
            TmhOpcode::Eager => Some(Self::Eager { tag, context }),
            TmhOpcode::Rendezvous => Some(Self::Rendezvous { tag, context, memory: memory()? }),
            TmhOpcode::Fin => Some(Self::Fin { tag, context, memory: memory()? }),
            TmhOpcode::Unknown(_) => None,
        }
    }

    fn tmh(&self) -> Tmh {
        let (opcode, tag, context) = match *self {
            Self::NoTag => (TmhOpcode::NoTag, 0, 0),
            Self::Eager { tag, context } => (TmhOpcode::Eager, tag, context),
            Self::Rendezvous { tag, context, .. } => (TmhOpcode::Rendezvous, tag, context),
            Self::Fin { tag, context, .. } => (TmhOpcode::Fin, tag, context),
        };
        Tmh { opcode: opcode.byte(), app_ctx: context.into(), tag: tag.into(), ..Tmh::zeroed() }
    }

    /// Returns the first 16 bytes of the message.
    pub fn to_bytes(&self) -> [u8; 16] {
        self.tmh().to_bytes()
    }
}

/// The message that offers a rendezvous, or ends it.
pub(super) fn rendezvous(header: &TagHeader, memory: OfferedMemory) -> [u8; RENDEZVOUS] {
    let rvh = Rvh { va: memory.addr.into(), rkey: memory.rkey.into(), len: memory.len.into() };
    let mut message = [0; RENDEZVOUS];
    message[..Tmh::SIZE].copy_from_slice(&header.to_bytes());
    message[Tmh::SIZE..].copy_from_slice(&rvh.to_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: OfferedMemory = OfferedMemory { addr: 0x1000, rkey: 9, len: 65536 };

    #[test]
    fn headers_byte_by_byte() {
        let fin = TagHeader::Fin { tag: 0x1234, context: 7, memory: MEMORY };
        let bytes = rendezvous(&fin, MEMORY);
        #[rustfmt::skip]
        let expected = [
            2, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x12, 0x34,
            0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 9, 0, 1, 0, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(TagHeader::parse(&bytes), Some(fin));
        let eager = TagHeader::Eager { tag: 5, context: 1 };
        assert_eq!(TagHeader::parse(&eager.to_bytes()), Some(eager));
        assert_eq!(TagHeader::parse(&TagHeader::NoTag.to_bytes()), Some(TagHeader::NoTag));
    }

    #[test]
    fn an_invalid_header_is_reported() {
        let offer = TagHeader::Rendezvous { tag: 1, context: 2, memory: MEMORY };
        let bytes = rendezvous(&offer, MEMORY);
        assert_eq!(TagHeader::parse(&bytes), Some(offer));
        assert_eq!(TagHeader::parse(&bytes[..31]), None, "a rendezvous without its second header");
        assert_eq!(TagHeader::parse(&[4; 64]), None, "an opcode that does not exist");
        assert_eq!(TagHeader::parse(&[]), None);
    }
}
