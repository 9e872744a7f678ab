//! Buffers in memory that the processor does not read or write.

use std::fmt;

use mlx5_ring::sge::Sge;

use super::backing::Backing;
use super::buffer::Buffer;
use super::config::PoolConfig;
use super::opaque::{OpaqueBacking, OpaqueMemory};
use super::pool::{BufferPool, Registered};
use super::slots::Slots;
use crate::error::{Error, Result};
use crate::pd::{DomainId, ProtectionDomain};
use crate::refused::Refused;

/// Buffers of one size in [`OpaqueMemory`]. Clones share one pool. The memory stays registered until the last buffer
/// and the last queue that may hold one are dropped.
///
/// Nothing zeroes the memory. Peers can read the buffers if the memory permits it
/// ([`RemoteAccess::READ`](crate::RemoteAccess::READ)).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::RemoteAccess;
/// use doorbell::opaque::{OpaqueMemory, OpaquePool};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let descriptor = doorbell_doc::dma_buf(1 << 20);
/// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 1 << 20, RemoteAccess::empty())?;
/// let pool = OpaquePool::new(memory, u32::MAX, 4096)?;
/// let buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
/// assert_eq!((buffers.len(), pool.available()), (256, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OpaquePool(BufferPool);

impl OpaquePool {
    /// Cuts as many buffers of `buffer_size` bytes as fit, and at most `count`, each on its own cache lines.
    ///
    /// # Errors
    /// [`Refused`] with [`Error::OutOfRange`], which returns the memory, if the count or the size is 0, or not one
    /// buffer fits. It is in a `Box` so that the result stays small.
    pub fn new(memory: OpaqueMemory, count: u32, buffer_size: u32) -> Result<Self, Box<Refused<OpaqueMemory, Error>>> {
        let start = memory.start();
        // SAFETY: the bytes of one memory.
        let slots = match unsafe { Slots::cut(start, memory.len(), &PoolConfig::new(count, buffer_size)) } {
            Ok(slots) => slots,
            Err(reason) => return Err(Box::new(Refused { payload: memory, reason })),
        };
        let (mr, is_readable, backing, pd) = memory.into_parts();
        let registered = Registered { mr, slots, pd, is_readable };
        Ok(Self(registered.into_pool(Backing::Opaque(start, backing))))
    }

    /// Takes a free buffer with length 0, or returns `None` if all buffers are in use.
    pub fn take(&self) -> Option<OpaqueBuffer> {
        self.0.take().map(OpaqueBuffer)
    }

    /// Returns the size of a buffer in bytes.
    pub fn buffer_size(&self) -> u32 {
        self.0.buffer_size()
    }

    /// Returns the number of buffers.
    pub fn count(&self) -> u32 {
        self.0.count()
    }

    /// Returns the number of free buffers.
    pub fn available(&self) -> usize {
        self.0.available()
    }

    /// Returns the protection domain of the pool.
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Returns the pool as queues use it, which do not look into buffers.
    pub(crate) const fn pool(&self) -> &BufferPool {
        &self.0
    }
}

impl fmt::Debug for OpaquePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpaquePool")
            .field("count", &self.count())
            .field("buffer_size", &self.buffer_size())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// An owned buffer of an [`OpaquePool`]. No device writes it. Dropping it returns it to the pool.
///
/// Requests send it and receive into it as they do with a [`Buffer`], but there is no way to its bytes. The program's
/// own kernels find them at [`offset`](Self::offset).
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (pd, queue, remote) = (world.pd.clone(), world.queue(), world.remote());
/// # let sender = &mut world.sender;
/// # let descriptor = doorbell_doc::dma_buf(4096);
/// use doorbell::RemoteAccess;
/// use doorbell::opaque::{OpaqueMemory, OpaquePool};
///
/// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 4096, RemoteAccess::empty())?;
/// let pool = OpaquePool::new(memory, 4, 1024)?;
/// let mut buffer = pool.take().expect("a new pool is full");
/// buffer.set_len(64);
/// sender.post(queue)?.write(buffer, &remote.slice(0, 64)?)?;
/// # doorbell_doc::finish(sender, queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The processor cannot look into it:
///
/// ```compile_fail
/// fn first(buffer: &doorbell::opaque::OpaqueBuffer) -> u8 {
///     buffer[0]
/// }
/// ```
///
/// The header of an Ethernet frame is copied into the WQE, so a frame cannot be in such a buffer:
///
/// ```compile_fail
/// # fn send(sender: &mut doorbell::Sender, queue: doorbell::SqId, buffer: doorbell::opaque::OpaqueBuffer) {
/// let _ = sender.post(queue).unwrap().send_frame(buffer, false);
/// # }
/// # let _ = send as fn(_, _, _);
/// ```
pub struct OpaqueBuffer(Buffer);

impl OpaqueBuffer {
    /// Returns the number of bytes in use.
    #[expect(clippy::len_without_is_empty, reason = "there are no bytes to look at")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sets the number of bytes in use, which a request sends.
    ///
    /// # Panics
    /// If `len` is greater than the capacity.
    pub fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    /// Returns where the buffer starts, in bytes from the start of its [`OpaqueMemory`].
    pub fn offset(&self) -> usize {
        let Backing::Opaque(start, _) = self.0.backing() else { unreachable!("[opaque]") };
        self.0.addr().addr().get() - start.addr().get()
    }

    /// Copies bytes into a buffer of [`OpaqueMemory::on_adapter`], and sets its length. The copy is of words of four
    /// bytes, the last one filled with zeros.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other memory, which the processor does not write; [`Error::OutOfRange`] if the buffer
    /// is smaller; [`Error::Verbs`].
    pub fn store(&mut self, bytes: &[u8]) -> Result<()> {
        let Backing::Opaque(_, OpaqueBacking::Device(memory)) = self.0.backing() else {
            return Err(Error::Unsupported {
                operation: "OpaqueBuffer::store",
                when: "for memory that is not the adapter's: write it with the API of its own device",
            });
        };
        let capacity = self.capacity() as u64;
        Error::check_range("bytes for an opaque buffer", bytes.len() as u64, 0, capacity)?;
        memory.store(self.0.addr().addr().get(), bytes)?;
        self.set_len(bytes.len());
        Ok(())
    }

    /// Wraps a buffer of an opaque pool. `[opaque]`: each `Buffer` in here is of such a pool, and no other code gets it
    /// as a `Buffer`.
    #[inline(always)]
    pub(crate) fn of(buffer: Buffer) -> Self {
        debug_assert!(buffer.is_opaque());
        Self(buffer)
    }

    /// Returns the buffer as queues keep it, which do not look into it.
    #[inline(always)]
    pub(crate) fn into_inner(self) -> Buffer {
        self.0
    }

    /// Returns the bytes in use as an SGE.
    #[inline(always)]
    pub(crate) fn sge(&self) -> Sge {
        Sge { length: self.len() as u32, ..self.0.receive_sge() }
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.0.pool().pd().id()
    }
}

impl fmt::Debug for OpaqueBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpaqueBuffer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
