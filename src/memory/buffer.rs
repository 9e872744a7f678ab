//! A buffer of a pool.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, io, slice};

use mlx5_ring::sge::Sge;
use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

use super::backing::Backing;
use super::inner::Pool;
use super::kind::{Host, Memory};
use super::slots::ALIGNMENT;

/// An owned buffer of a pool. No device writes it. Dropping it returns it to the pool.
///
/// It dereferences to its first [`len`](Self::len) bytes: after a receive, the bytes received.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// let mut kept = Vec::new();
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// while let Some(message) = batch.next() {
///     kept.push(message?.take()?);
/// }
/// drop(batch);
/// // It can go to another thread, and back to its pool from there.
/// let buffer = kept.remove(0);
/// std::thread::spawn(move || assert_eq!(*buffer, *b"hello")).join().expect("no panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer<M: Memory = Host> {
    /// A reference to the pool, from [`Arc::into_raw`].
    pool: NonNull<Pool>,
    start: NonNull<u8>,
    len: usize,
    kind: PhantomData<M>,
}

// SAFETY: the memory is the buffer's alone, and `pool` is an `Arc<Pool>`, which is `Send`.
unsafe impl<M: Memory> Send for Buffer<M> {}
// SAFETY: a shared reference only reads the memory, and `Arc<Pool>` is `Sync`.
unsafe impl<M: Memory> Sync for Buffer<M> {}

impl<M: Memory> Buffer<M> {
    /// # Safety
    /// A buffer of `pool` starts at `start`; from now on it is the value's alone, and at most that buffer's
    /// size is `len`.
    #[inline(always)]
    pub(crate) unsafe fn new(pool: Arc<Pool>, start: NonNull<u8>, len: u32) -> Self {
        debug_assert!(pool.has(start) && len <= pool.buffer_size);
        // SAFETY: an `Arc` is not null.
        let pool = unsafe { NonNull::new_unchecked(Arc::into_raw(pool).cast_mut()) };
        Self { pool, start, len: len as usize, kind: PhantomData }
    }

    /// As [`new`](Self::new), from a pointer to the pool whose reference was forgotten.
    ///
    /// # Safety
    /// As for [`new`](Self::new); the reference is the value's from now on.
    #[inline(always)]
    pub(crate) const unsafe fn from_raw_parts(pool: NonNull<Pool>, start: NonNull<u8>, len: u32) -> Self {
        Self { pool, start, len: len as usize, kind: PhantomData }
    }

    /// Returns the number of bytes in use.
    #[expect(clippy::len_without_is_empty, reason = "is_empty comes from the slice")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the buffer in bytes, without the headroom.
    pub fn capacity(&self) -> usize {
        self.pool().buffer_size as usize
    }

    /// Sets the number of bytes in use. Bytes that become used keep their old content.
    ///
    /// # Panics
    /// If `len` is greater than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} of a buffer of {} bytes", self.capacity());
        self.len = len;
    }

    #[inline(always)]
    pub(crate) const fn pool(&self) -> &Pool {
        // SAFETY: the buffer has a reference to it.
        unsafe { self.pool.as_ref() }
    }

    /// The pool, for [`from_raw_parts`](Self::from_raw_parts).
    #[inline(always)]
    pub(crate) const fn raw_pool(&self) -> NonNull<Pool> {
        self.pool
    }

    /// The first byte.
    #[inline(always)]
    pub(crate) const fn addr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns `true` if the memory up to the next cache line is this buffer's. The last buffer of a pool in memory of
    /// the program may end where that memory does.
    pub(crate) fn is_padded(&self) -> bool {
        matches!(self.backing(), Backing::Pages(_))
    }

    /// Returns `true` if the memory is [opaque](super::Opaque), whatever the type says.
    pub(crate) fn is_opaque(&self) -> bool {
        matches!(self.backing(), Backing::Opaque(..))
    }

    pub(super) fn backing(&self) -> &Backing {
        &self.pool().backing
    }

    /// Returns the data segment of a receive into the buffer.
    #[inline(always)]
    pub(crate) fn receive_segment(&self) -> DataSegment {
        let addr = self.addr().as_ptr().expose_provenance() as u64;
        DataSegment { addr: Be64::new(addr), ..*self.pool().segment() }
    }

    /// Returns the entry of a receive into the buffer.
    #[inline(always)]
    pub(crate) fn receive_sge(&self) -> Sge {
        let addr = self.addr().as_ptr().expose_provenance() as u64;
        Sge { addr, length: self.pool().buffer_size(), lkey: self.pool().lkey() }
    }

    /// Drops the buffer, which does not go back to its pool.
    pub(crate) fn abandon(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the reference of the buffer, which is not dropped.
        drop(unsafe { Arc::from_raw(this.pool.as_ptr()) });
    }

    /// Returns the buffer as one in another kind of memory. `[kind]`: queues and lists keep every buffer as one of the
    /// host, and do not look into it; what the program gets is of the kind that it gave.
    #[inline(always)]
    pub(crate) fn cast<N: Memory>(self) -> Buffer<N> {
        let this = ManuallyDrop::new(self);
        Buffer { pool: this.pool, start: this.start, len: this.len, kind: PhantomData }
    }
}

impl Buffer {
    /// Returns the headroom: bytes before the buffer that the device does not write, see
    /// [`PoolConfig::headroom`](crate::PoolConfig::headroom).
    pub fn headroom(&self) -> &[u8] {
        let bytes = self.pool().headroom as usize;
        // SAFETY: in front of the buffer, inside its stride, initialised since the pool was made, and ours alone.
        unsafe { slice::from_raw_parts(self.front(bytes).as_ptr(), bytes) }
    }

    /// Returns the headroom for writing a header. Its last byte is the one before the message.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{BufferPool, PoolConfig};
    ///
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(16, 256).headroom(16))?;
    /// let mut buffer = pool.take().expect("a new pool is full");
    /// buffer.set_len(5);
    /// buffer.copy_from_slice(b"hello");
    /// buffer.headroom_mut()[8..].copy_from_slice(&5u64.to_be_bytes());
    /// assert_eq!(buffer.with_headroom(8), b"\0\0\0\0\0\0\0\x05hello");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn headroom_mut(&mut self) -> &mut [u8] {
        let bytes = self.pool().headroom as usize;
        // SAFETY: as for `headroom`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.front(bytes).as_ptr(), bytes) }
    }

    /// Returns the last `bytes` of the headroom followed by the bytes in use.
    ///
    /// # Panics
    /// If the headroom has fewer than `bytes` bytes.
    pub fn with_headroom(&self, bytes: usize) -> &[u8] {
        let headroom = self.headroom().len();
        assert!(bytes <= headroom, "{bytes} bytes of a headroom of {headroom}");
        // SAFETY: as for `headroom` and `deref`, of which this is one range.
        unsafe { slice::from_raw_parts(self.front(bytes).as_ptr(), bytes + self.len()) }
    }

    /// The address that is so many bytes of headroom in front of the buffer.
    fn front(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes <= self.pool().headroom as usize);
        // SAFETY: inside the stride of the buffer.
        unsafe { self.addr().sub(bytes) }
    }

    /// Appends `bytes` to the bytes in use.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use std::io::Write;
    ///
    /// use doorbell::{BufferPool, PoolConfig};
    ///
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(1, 64))?;
    /// let mut buffer = pool.take().expect("a new pool is full");
    /// buffer.extend_from_slice(b"answer: ");
    /// // A buffer is also written to; what has no room is an error there.
    /// write!(buffer, "{}", 42)?;
    /// assert_eq!(*buffer, *b"answer: 42");
    /// buffer.clear();
    /// assert!(buffer.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the buffer has no room for them.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len();
        self.set_len(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Sets the number of bytes in use to 0.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The first bytes of the memory that is this buffer's alone: of a buffer with so much room, or a
    /// [padded](Self::is_padded) one.
    pub(crate) fn head<const N: usize>(&self) -> [u8; N] {
        const { assert!(N <= ALIGNMENT) }
        assert!(N <= self.capacity() || self.is_padded());
        // SAFETY: inside the stride of the buffer, initialised since the pool was made, and ours alone.
        unsafe { self.addr().cast().read() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: inside the buffer, initialised since the pool was made, and ours alone.
        unsafe { slice::from_raw_parts(self.addr().as_ptr(), self.len()) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.addr().as_ptr(), self.len()) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Appends to the bytes in use, as far as there is room.
impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.capacity() - self.len());
        self.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<M: Memory> Drop for Buffer<M> {
    /// Inlined, so that it takes the buffer apart and does not take its address: a buffer that the program moves out of
    /// a message stays in registers, also where the move may panic and drop the buffer.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: dropped once.
        give_back(unsafe { Arc::from_raw(self.pool.as_ptr()) }, self.start);
    }
}

#[inline(never)]
fn give_back(pool: Arc<Pool>, start: NonNull<u8>) {
    pool.put(start);
}

impl<M: Memory> fmt::Debug for Buffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
