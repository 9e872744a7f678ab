//! What a slot remembers of the receive that was posted into it.

use std::ptr::NonNull;

/// The owner of a posted receive, kept in its slot: 16 bytes.
///
/// ```
/// use doorbell::raw::SlotContext;
///
/// // A receive that is posted through the ring itself says what it is by its `wr_id`.
/// assert_eq!(SlotContext::from_wr_id(7).wr_id(), 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlotContext {
    /// First byte of the buffer, or the caller's `wr_id`.
    addr: u64,
    owner: OwnerId,
}

/// Who owns the memory of a receive, in one word: the number of the pool, or of a list of buffers, and the size of a
/// buffer.
#[derive(Clone, Copy, Debug)]
struct OwnerId(u64);

/// Owner of a receive whose memory is the caller's business.
const RAW: u32 = u32::MAX;
/// Bit of the owner for a receive of several buffers; the rest is the number of its list.
const LIST: u32 = 1 << 31;

impl OwnerId {
    const fn new(bound: u32, owner: u32) -> Self {
        Self(bound as u64 | (owner as u64) << 32)
    }

    /// One more than the bytes that the device may write to a receive of one buffer; 0 for all others.
    #[inline(always)]
    const fn bound(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    const fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Who owns the memory of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// One buffer of the pool with this number.
    Pool(u32),
    /// The list of buffers with this number.
    List(u32),
    /// The caller, who posted it through [`as_direct`](crate::Receiver::as_direct).
    Raw,
}

impl SlotContext {
    /// Creates the context of a receive that the program posts through the ring, into its own memory. The program
    /// must complete it through the ring.
    pub const fn from_wr_id(wr_id: u64) -> Self {
        Self { addr: wr_id, owner: OwnerId::new(0, RAW) }
    }

    /// Returns the `wr_id` of [`from_wr_id`](Self::from_wr_id).
    pub const fn wr_id(&self) -> u64 {
        self.addr
    }

    /// Makes the context of a receive into one buffer of `size` bytes of a pool.
    pub(super) const fn of_pool(pool: u32, size: u32) -> Self {
        Self { addr: 0, owner: OwnerId::new(size + 1, pool) }
    }

    /// Makes the context of a receive into a list of buffers.
    pub(super) const fn of_list(list: u32) -> Self {
        Self { addr: 0, owner: OwnerId::new(0, LIST | list) }
    }

    /// Returns the same with another buffer of the pool.
    #[inline(always)]
    pub(super) const fn at(self, addr: u64) -> Self {
        Self { addr, ..self }
    }

    pub(crate) const fn owner(&self) -> Owner {
        match self.owner.number() {
            RAW => Owner::Raw,
            list if list & LIST != 0 => Owner::List(list & !LIST),
            pool => Owner::Pool(pool),
        }
    }

    /// Returns the number of the pool of the only buffer. Meaningless unless the owner is a pool.
    #[inline(always)]
    pub(super) const fn pool(&self) -> u32 {
        self.owner.number()
    }

    /// Returns `true` if the receive has one buffer, of a pool.
    #[inline(always)]
    pub(super) const fn is_single(&self) -> bool {
        self.owner.bound() != 0
    }

    /// Returns `true` if a message of `len` bytes is in the only buffer of the receive.
    #[inline(always)]
    pub(super) const fn holds(&self, len: u32) -> bool {
        len < self.owner.bound()
    }

    /// Returns the address of the only buffer, as written to the WQE.
    #[inline(always)]
    pub(super) const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the first byte of the only buffer.
    #[inline(always)]
    pub(super) fn start(&self) -> NonNull<u8> {
        let addr = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        debug_assert!(matches!(self.owner(), Owner::Pool(_)));
        // SAFETY: a receive of one buffer has its address, which is not null.
        unsafe { NonNull::new_unchecked(addr) }
    }

    /// Returns the size of the only buffer in bytes.
    pub(super) const fn capacity(&self) -> u32 {
        self.owner.bound().saturating_sub(1)
    }
}
