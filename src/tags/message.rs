//! Messages with their header in one buffer.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::error::TagFailure;
use super::header::{EAGER, TagHeader};
use crate::memory::Buffer;
use crate::refused::Refused;

/// A buffer whose first 16 bytes are reserved for the header. It dereferences to the payload.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::tags::TaggedBuffer;
///
/// # let pool = doorbell::BufferPool::new(&pd, &doorbell::PoolConfig::new(1, 64))?;
/// let mut message = TaggedBuffer::new(pool.take().expect("a new pool is full")).expect("16 bytes");
/// assert_eq!(message.capacity(), 64 - 16);
/// message.extend_from_slice(b"hello");
/// assert_eq!(*message, *b"hello");
/// assert_eq!(message.into_buffer().len(), 16 + 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TaggedBuffer(Buffer);

impl TaggedBuffer {
    /// Reserves the first 16 bytes of a buffer for the header, with an empty payload.
    ///
    /// # Errors
    /// [`Refused`] with [`TagFailure::TooSmall`] if the buffer is smaller than the header.
    pub fn new(mut buffer: Buffer) -> Result<Self, Refused<Buffer, TagFailure>> {
        if buffer.capacity() < EAGER {
            return Err(Refused { payload: buffer, reason: TagFailure::TooSmall { min: EAGER } });
        }
        buffer.set_len(EAGER);
        Ok(Self(buffer))
    }

    /// A message that has arrived whole, header included.
    pub(super) fn arrived(buffer: Buffer) -> Self {
        debug_assert!(buffer.len() >= EAGER);
        Self(buffer)
    }

    /// Returns how many bytes of payload fit.
    pub fn capacity(&self) -> usize {
        self.0.capacity() - EAGER
    }

    /// Sets the length of the payload in bytes.
    ///
    /// # Panics
    /// If `len` is greater than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "payload of {len} bytes in {}", self.capacity());
        self.0.set_len(EAGER + len);
    }

    /// Appends bytes to the payload.
    ///
    /// # Panics
    /// If the buffer has no room for them.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes the header. [`Posting::send`](crate::Posting::send) then sends the buffer as a message for a
    /// tag-matching SRQ. A header of a rendezvous becomes that of an eager message.
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

    /// Returns the buffer, with the payload after 16 bytes.
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
