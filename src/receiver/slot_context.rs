//! The receive that was posted into a slot.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use mlx5_ring::sge::Sge;

use crate::memory::{Bound, Buffer, Host, Memory};

/// The owner of a posted receive, kept in its slot: 16 bytes.
///
/// ```
/// use doorbell::raw::SlotContext;
///
/// // A receive that is posted through the ring itself says what it is by its `wr_id`.
/// assert_eq!(SlotContext::from_wr_id(7).wr_id(), 7);
/// ```
// `[slot-owns]`: a receive that a receiver posted owns its buffers: their memory, and a reference to the pool of each.
// `into_buffer` and the other functions that take them out make `Buffer`s of them, once, after the slot was given back
// without them. A message that is lent does not touch the count of references, which other threads have in their
// caches.
#[derive(Clone, Copy, Debug)]
pub struct SlotContext {
    /// First byte of the only buffer, or the caller's `wr_id`.
    addr: u64,
    /// Start of the pool of the only buffer, of the [`List`] of several, or of [`RAW`].
    owner: NonNull<Bound>,
}

// SAFETY: it has pointers to what `Buffer`s refer to, which are `Send` and `Sync`.
unsafe impl Send for SlotContext {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for SlotContext {}

/// Owner of a receive into memory of the caller's.
static RAW: Bound = Bound::NONE;

/// The buffers of a receive that has several.
#[repr(C)]
struct List {
    bound: Bound,
    buffers: Vec<Buffer>,
}

impl SlotContext {
    /// Creates the context of a receive that the program posts through the ring, into its own memory. The program
    /// must complete it through the ring.
    pub const fn from_wr_id(wr_id: u64) -> Self {
        // SAFETY: not null.
        Self { addr: wr_id, owner: unsafe { NonNull::new_unchecked((&raw const RAW).cast_mut()) } }
    }

    /// Returns the `wr_id` of [`from_wr_id`](Self::from_wr_id).
    pub const fn wr_id(&self) -> u64 {
        self.addr
    }

    /// Makes the context of a receive into one buffer. Forget the buffer when it was posted.
    #[inline(always)]
    pub(crate) fn of<M: Memory>(buffer: &Buffer<M>) -> Self {
        let addr = buffer.addr().as_ptr().expose_provenance() as u64;
        Self { addr, owner: buffer.raw_pool().cast() }
    }

    /// Makes the context of a receive into several buffers.
    pub(super) fn of_list(buffers: Vec<Buffer>) -> Self {
        let list = Box::leak(Box::new(List { bound: Bound::NONE, buffers }));
        debug_assert_eq!(list.bound.get(), 0);
        Self { addr: 0, owner: NonNull::from(list).cast() }
    }

    /// Returns `true` if the memory of the receive is the caller's, who posted it through
    /// [`as_direct`](crate::Receiver::as_direct).
    pub(super) fn is_raw(&self) -> bool {
        std::ptr::eq(self.owner.as_ptr(), &RAW)
    }

    /// # Safety
    /// [slot-owns]: the buffers were not made again.
    #[inline(always)]
    const unsafe fn bound(&self) -> u32 {
        // SAFETY: the receive keeps its owner alive; `RAW` is static.
        unsafe { self.owner.as_ref() }.get()
    }

    /// Returns `true` if the receive has one buffer.
    ///
    /// # Safety
    /// [slot-owns]: the buffers were not made again.
    #[inline(always)]
    pub(super) const unsafe fn is_single(&self) -> bool {
        // SAFETY: [slot-owns]: the caller's receive still owns its buffers.
        unsafe { self.bound() != 0 }
    }

    /// Returns `true` if a message of `len` bytes is in the only buffer of the receive.
    ///
    /// # Safety
    /// [slot-owns]: the buffers were not made again.
    #[inline(always)]
    pub(super) const unsafe fn holds(&self, len: u32) -> bool {
        // SAFETY: [slot-owns]: the caller's receive still owns its buffers.
        len < unsafe { self.bound() }
    }

    /// Returns the first byte of the only buffer.
    ///
    /// # Safety
    /// The receive has one buffer.
    #[inline(always)]
    pub(super) unsafe fn start(&self) -> NonNull<u8> {
        // SAFETY: the address of a buffer, which is not null.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(self.addr as usize)) }
    }

    /// Returns the buffers of a receive, as the device sees them: none for a receive that the caller posted.
    ///
    /// # Safety
    /// [slot-owns]: the buffers were not made again, and are not while the iterator is used.
    pub(crate) unsafe fn sges(&self) -> impl Iterator<Item = Sge> + '_ {
        // SAFETY: [slot-owns]: the caller's receive still owns its buffers, and the copy of a single one is not
        // dropped. A receive with neither one buffer nor memory of the caller's has a list.
        let (only, list) = unsafe {
            match self.is_single() {
                true => (Some(ManuallyDrop::new(self.into_buffer::<Host>(0)).receive_sge()), &[][..]),
                false if self.is_raw() => (None, &[][..]),
                false => (None, &self.owner.cast::<List>().as_ref().buffers[..]),
            }
        };
        only.into_iter().chain(list.iter().map(Buffer::receive_sge))
    }

    /// Makes the only buffer again, of which `len` bytes were received.
    ///
    /// # Safety
    /// [slot-owns]: the receive has one buffer, which has room for `len` bytes, and its slot was given back without it.
    #[inline(always)]
    pub(crate) unsafe fn into_buffer<M: Memory>(self, len: u32) -> Buffer<M> {
        // SAFETY: the pool and the start of the buffer that `of` had.
        unsafe { Buffer::from_raw_parts(self.owner.cast(), self.start(), len) }
    }

    /// Makes the buffers of a list again, as they were when it was posted.
    ///
    /// # Safety
    /// [slot-owns]: the receive does not have one buffer, and its slot was given back without them.
    pub(super) unsafe fn into_list(self) -> Vec<Buffer> {
        if self.is_raw() {
            return Vec::new();
        }
        // SAFETY: leaked by `of_list`, and taken once: the caller gave the slot back without the list.
        unsafe { Box::from_raw(self.owner.cast::<List>().as_ptr()) }.buffers
    }

    /// Makes the buffers again, into which `len` bytes were received, as far as they have room.
    ///
    /// # Safety
    /// [slot-owns]: the slot was given back without them.
    pub(crate) unsafe fn into_buffers(self, len: u32, mut each: impl FnMut(Buffer)) {
        let mut left = len as usize;
        let mut received = |mut buffer: Buffer| {
            buffer.set_len(left.min(buffer.capacity()));
            left -= buffer.len();
            each(buffer);
        };
        // SAFETY: [slot-owns]: the caller gave the slot back without the buffers.
        unsafe {
            if self.is_single() {
                received(self.into_buffer(0));
            } else {
                self.into_list().into_iter().for_each(received);
            }
        }
    }
}
