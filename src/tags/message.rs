//! Messages with their header in one buffer.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::header::{EAGER, TagHeader};
use crate::memory::Buffer;

/// A buffer of which the first 16 bytes are kept for the header of the message. Dereferences to the payload.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::tags::TaggedBuffer;
///
/// # let pool = doorbell::BufferPool::new(&pd, 1, 64)?;
/// let mut message = TaggedBuffer::new(pool.take().expect("a new pool is full")).expect("16 bytes");
/// assert_eq!(message.capacity(), 64 - 16);
/// message.set_len(5);
/// message.copy_from_slice(b"hello");
/// assert_eq!(message.into_buffer().len(), 16 + 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaggedBuffer(Buffer);

impl TaggedBuffer {
    /// Takes a buffer, with an empty payload.
    ///
    /// # Errors
    /// The buffer, when it has no room for a header.
    pub fn new(mut buffer: Buffer) -> Result<Self, Buffer> {
        if buffer.capacity() < EAGER {
            return Err(buffer);
        }
        buffer.set_len(EAGER);
        Ok(Self(buffer))
    }

    /// A message that has arrived whole, header included.
    pub(super) fn arrived(buffer: Buffer) -> Self {
        debug_assert!(buffer.len() >= EAGER);
        Self(buffer)
    }

    /// Bytes of payload there is room for.
    pub fn capacity(&self) -> usize {
        self.0.capacity() - EAGER
    }

    /// Sets how many bytes of payload there are.
    ///
    /// # Panics
    /// When they are more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "payload of {len} bytes in {}", self.capacity());
        self.0.set_len(EAGER + len);
    }

    /// Writes the header: what [`Posting::send`](crate::Posting::send) then sends is a message for a
    /// tag-matching SRQ. A header of a rendezvous cannot be meant: it becomes that of an eager message.
    pub fn into_message(mut self, header: &TagHeader) -> Buffer {
        let header = match *header {
            TagHeader::Rendezvous { tag, context, .. } | TagHeader::Fin { tag, context, .. } => {
                TagHeader::Eager { tag, context }
            }
            header => header,
        };
        self.0[..EAGER].copy_from_slice(&header.to_bytes());
        self.0
    }

    /// The buffer, which holds the payload behind 16 bytes.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

impl Deref for TaggedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[EAGER..]
    }
}

impl DerefMut for TaggedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[EAGER..]
    }
}

impl fmt::Debug for TaggedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaggedBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}
