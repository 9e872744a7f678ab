//! Buffers in memory that the processor does not read or write.

use mlx5_ring::sge::Sge;

use super::backing::Backing;
use super::buffer::Buffer;
use super::config::PoolConfig;
use super::kind::Opaque;
use super::opaque::{OpaqueBacking, OpaqueMemory};
use super::pool::{BufferPool, Registered};
use super::slots::Slots;
use crate::error::{Error, Result};
use crate::pd::DomainId;
use crate::refused::Refused;

impl BufferPool<Opaque> {
    /// Divides memory into buffers: as many of `buffer_size` bytes as fit, and at most `count`, each on its own cache
    /// lines. Nothing zeroes the memory, which stays registered until the last buffer and the last queue that may hold
    /// one are dropped. Peers can read the buffers if the memory permits it
    /// ([`RemoteAccess::READ`](crate::RemoteAccess::READ)).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::opaque::OpaqueMemory;
    /// use doorbell::{BufferPool, RemoteAccess};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let descriptor = doorbell_doc::dma_buf(1 << 20);
    /// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 1 << 20, RemoteAccess::empty())?;
    /// let pool = BufferPool::divide(memory, u32::MAX, 4096)?;
    /// let buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    /// assert_eq!((buffers.len(), pool.available()), (256, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with [`Error::OutOfRange`], which returns the memory, if the count or the size is 0, or not one
    /// buffer fits. It is in a `Box` so that the result stays small.
    pub fn divide(
        memory: OpaqueMemory,
        count: u32,
        buffer_size: u32,
    ) -> Result<Self, Box<Refused<OpaqueMemory, Error>>> {
        let start = memory.start();
        // SAFETY: the bytes of one memory.
        let slots = match unsafe { Slots::cut(start, memory.len(), &PoolConfig::new(count, buffer_size)) } {
            Ok(slots) => slots,
            Err(reason) => return Err(Box::new(Refused { payload: memory, reason })),
        };
        let (mr, is_readable, backing, pd) = memory.into_parts();
        let registered = Registered { mr, slots, pd, is_readable, has_windows: false };
        Ok(registered.into_pool(Backing::Opaque(start, backing)))
    }
}

/// The program's own kernels find the bytes of a buffer in opaque memory at its [`offset`](Self::offset). Requests send
/// it and receive into it as they do with other buffers.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (pd, queue, remote) = (world.pd.clone(), world.queue(), world.remote());
/// # let sender = &mut world.sender;
/// # let descriptor = doorbell_doc::dma_buf(4096);
/// use doorbell::opaque::OpaqueMemory;
/// use doorbell::{BufferPool, RemoteAccess};
///
/// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 4096, RemoteAccess::empty())?;
/// let pool = BufferPool::divide(memory, 4, 1024)?;
/// let mut buffer = pool.take().expect("a new pool is full");
/// buffer.set_len(64);
/// sender.post(queue)?.write(buffer, &remote.slice(0, 64)?)?;
/// # doorbell_doc::finish(sender, queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The processor cannot look into it:
///
/// ```compile_fail,E0608
/// fn first(buffer: &doorbell::Buffer<doorbell::opaque::Opaque>) -> u8 {
///     buffer[0]
/// }
/// ```
///
/// The header of an Ethernet frame is copied into the WQE, so a frame cannot be in such a buffer:
///
/// ```compile_fail
/// # use doorbell::{Buffer, Sender, SqId, opaque::Opaque};
/// # fn send(sender: &mut Sender, queue: SqId, buffer: Buffer<Opaque>) {
/// let _ = sender.post(queue).unwrap().send_frame(buffer, false);
/// # }
/// # let _ = send as fn(_, _, _);
/// ```
impl Buffer<Opaque> {
    /// Returns where the buffer starts, in bytes from the start of its [`OpaqueMemory`].
    pub fn offset(&self) -> usize {
        let Backing::Opaque(start, _) = self.backing() else { unreachable!("[opaque]") };
        self.addr().addr().get() - start.addr().get()
    }

    /// Copies bytes into a buffer of [`OpaqueMemory::on_adapter`], and sets its length. The copy is of words of four
    /// bytes, the last one filled with zeros.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other memory, which the processor does not write; [`Error::OutOfRange`] if the buffer
    /// is smaller; [`Error::Verbs`].
    pub fn store(&mut self, bytes: &[u8]) -> Result<()> {
        let Backing::Opaque(_, OpaqueBacking::Device(memory)) = self.backing() else {
            return Err(Error::Unsupported {
                operation: "Buffer::store",
                when: "for memory that is not the adapter's: write it with the API of its own device",
            });
        };
        let capacity = self.capacity() as u64;
        Error::check_range("bytes for an opaque buffer", bytes.len() as u64, 0, capacity)?;
        memory.store(self.addr().addr().get(), bytes)?;
        self.set_len(bytes.len());
        Ok(())
    }

    /// Returns the bytes in use as an SGE.
    #[inline(always)]
    pub(crate) fn sge(&self) -> Sge {
        Sge { length: self.len() as u32, ..self.receive_sge() }
    }

    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.pool().pd().id()
    }
}
