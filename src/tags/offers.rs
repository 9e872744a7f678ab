//! Buffers of rendezvous that peers read.

use std::collections::BTreeMap;

use mlx5_wire::tmh::Rvh;

use super::error::NotSentTagged;
use super::header::{OfferedMemory, RENDEZVOUS, TagHeader, rendezvous};
use crate::memory::Buffer;
use crate::refused::Refused;

const _: () = assert!(RENDEZVOUS == 16 + Rvh::SIZE);

/// Offered rendezvous that have not ended. Each owns its buffer until the peer has read it and answered with a FIN.
///
/// [`TagMatchingSrq`](super::TagMatchingSrq) contains its own. A program that sends through a plain
/// [`Sender`](crate::Sender) sends the message of [`offer`](Self::offer), and passes what it receives on the same
/// connection to [`finish`](Self::finish). Dropping the value frees the buffers: a peer that reads later reads other
/// data.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::tags::{Offers, TagHeader};
/// # use doorbell::{BufferPool, PoolConfig};
///
/// # let pool = BufferPool::new(&pd, &PoolConfig::new(1, 1024).readable(true))?;
/// let mut offers = Offers::new();
/// let mut buffer = pool.take().expect("a new pool is full");
/// buffer.set_len(1000);
/// let message = offers.offer(buffer, 7, 0, "request 12")?;
/// assert!(matches!(TagHeader::parse(&message), Some(TagHeader::Rendezvous { tag: 7, .. })));
/// // `message` goes to the peer, which reads the buffer and answers.
/// assert_eq!(offers.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Offers<T = ()>(BTreeMap<u64, Offer<T>>);

#[derive(Debug)]
struct Offer<T> {
    header: (u64, u32),
    memory: OfferedMemory,
    buffer: Buffer,
    data: T,
}

impl<T> Offers<T> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns how many rendezvous have not ended.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if all rendezvous have ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps `buffer`, whose bytes are the payload, and returns the message that offers it. `data` comes back with
    /// the buffer.
    ///
    /// # Errors
    /// [`NotSentTagged::NotReadable`] if the pool of the buffer is not [`readable`](crate::PoolConfig::readable).
    pub fn offer(
        &mut self,
        buffer: Buffer,
        tag: u64,
        context: u32,
        data: T,
    ) -> Result<[u8; 32], Refused<Buffer, NotSentTagged>> {
        let Some(rkey) = buffer.pool().rkey() else {
            return Err(Refused { payload: buffer, reason: NotSentTagged::NotReadable });
        };
        let addr = buffer.addr().as_ptr().expose_provenance() as u64;
        let memory = OfferedMemory { addr, rkey, len: buffer.len() as u32 };
        let header = TagHeader::Rendezvous { tag, context, memory };
        self.0.insert(addr, Offer { header: (tag, context), memory, buffer, data });
        Ok(rendezvous(&header, memory))
    }

    /// Returns the buffer and the data of the rendezvous that a FIN ends, or `None` if the header is not a FIN of an
    /// offered rendezvous. Keep one `Offers` for each connection, because only the peer that was offered a buffer may
    /// end its rendezvous.
    pub fn finish(&mut self, header: &TagHeader) -> Option<(Buffer, T)> {
        self.finish_if(header, |_| true)
    }

    /// As [`finish`](Self::finish), if `may_end` returns `true` for the data.
    pub(super) fn finish_if(&mut self, header: &TagHeader, may_end: impl FnOnce(&T) -> bool) -> Option<(Buffer, T)> {
        let TagHeader::Fin { tag, context, memory } = *header else { return None };
        let offer = self.0.get(&memory.addr)?;
        if offer.memory != memory || offer.header != (tag, context) || !may_end(&offer.data) {
            return None;
        }
        self.0.remove(&memory.addr).map(|offer| (offer.buffer, offer.data))
    }

    /// Takes back an offer that was not sent.
    pub(super) fn withdraw(&mut self, message: &[u8; RENDEZVOUS]) -> Option<(Buffer, T)> {
        match TagHeader::parse(message)? {
            TagHeader::Rendezvous { tag, context, memory } => self.finish(&TagHeader::Fin { tag, context, memory }),
            _ => None,
        }
    }

    /// Returns `true` if `which` returns `true` for the data of an offer.
    pub(super) fn any(&self, which: impl Fn(&T) -> bool) -> bool {
        self.0.values().any(|offer| which(&offer.data))
    }

    /// Takes back all offers for whose data `which` returns `true`.
    pub(super) fn withdraw_all(&mut self, which: impl Fn(&T) -> bool) -> Vec<(Buffer, T)> {
        let addrs: Vec<u64> = self.0.iter().filter(|(_, offer)| which(&offer.data)).map(|(addr, _)| *addr).collect();
        let offers = addrs.iter().filter_map(|addr| self.0.remove(addr));
        offers.map(|offer| (offer.buffer, offer.data)).collect()
    }
}
