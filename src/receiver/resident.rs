//! Which memory a posted WQE describes.

use std::ptr::NonNull;
use std::sync::Arc;

use mlx5_ring::sge::Sge;
use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

use super::failure::Failure;
use super::parked::Parked;
use super::qps::Qps;
use crate::clock::TimestampClock;
use crate::memory::{Pool, RecvBuffer};
use crate::pd::ProtectionDomain;

/// What a slot remembers of the receive that was posted into it: 16 bytes, so that a message needs one
/// line of it.
///
/// ```
/// use doorbell::Resident;
///
/// // A receive that is posted through the ring itself says what it is by its `wr_id`.
/// assert_eq!(Resident::from_wr_id(7).wr_id(), 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// First byte of the buffer, or the caller's `wr_id`.
    addr: u64,
    kind: Kind,
}

/// What receives into buffers of one pool have in common, in one word, which is written with one store.
#[derive(Clone, Copy, Debug)]
struct Kind(u64);

impl Kind {
    #[inline(always)]
    const fn new(bound: u32, owner: u32) -> Self {
        Self(bound as u64 | (owner as u64) << 32)
    }

    /// One more than the bytes that the device may write to a receive of one buffer; 0 for all others.
    #[inline(always)]
    const fn bound(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    const fn owner(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A message as its batch lends it.
#[derive(Clone, Copy)]
pub(super) struct Lent {
    pub(super) resident: Resident,
    /// The first buffer, and how many bytes of the message are in it.
    pub(super) start: NonNull<u8>,
    pub(super) first: usize,
    /// Bytes of the message, fewer than 2^32.
    pub(super) len: usize,
}

/// `owner` of a receive whose memory is the caller's business.
const FOREIGN: u32 = u32::MAX;
/// Bit of `owner` for a receive of several buffers; the rest is the number of its list.
const LIST: u32 = 1 << 31;

/// Who owns the memory of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// One buffer of the pool with this number.
    Pool(u32),
    /// The list of buffers with this number.
    List(u32),
    /// The caller, who posted it through [`as_direct`](crate::Receiver::as_direct).
    Foreign,
}

impl Resident {
    /// For a receive that is posted through the ring itself, with memory of the caller's. Such a receive
    /// must also be completed through the ring.
    pub const fn from_wr_id(wr_id: u64) -> Self {
        Self { addr: wr_id, kind: Kind::new(0, FOREIGN) }
    }

    /// What [`from_wr_id`](Self::from_wr_id) was given.
    pub const fn wr_id(&self) -> u64 {
        self.addr
    }

    pub(crate) fn owner(&self) -> Owner {
        match self.kind.owner() {
            FOREIGN => Owner::Foreign,
            owner if owner & LIST != 0 => Owner::List(owner & !LIST),
            owner => Owner::Pool(owner),
        }
    }

    /// The same with another buffer of the pool.
    #[inline(always)]
    pub(super) fn at(&mut self, addr: u64) {
        self.addr = addr;
    }

    /// Whether it is of one buffer of a pool.
    #[inline(always)]
    pub(super) const fn is_single(&self) -> bool {
        self.kind.owner() & LIST == 0
    }

    /// A message of `len` bytes that needs no further look: it fits, and is in one buffer of a pool.
    #[inline(always)]
    pub(super) fn lend(self, len: u32) -> Option<Lent> {
        if len >= self.kind.bound() {
            return None;
        }
        let len = len as usize;
        Some(Lent { resident: self, start: self.start(), first: len, len })
    }

    /// The first byte of the only buffer.
    #[inline(always)]
    fn start(&self) -> NonNull<u8> {
        let addr = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        debug_assert_ne!(self.kind.owner() & LIST, LIST);
        // SAFETY: a receive of one buffer has its address, which is not null.
        unsafe { NonNull::new_unchecked(addr) }
    }

    /// Bytes of the only buffer.
    const fn capacity(&self) -> u32 {
        self.kind.bound().saturating_sub(1)
    }
}

/// A buffer as a queue holds it: by number, without a reference count of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: NonNull<u8>,
    pub(crate) capacity: u32,
    pub(crate) pool: u32,
}

impl Piece {
    /// The buffer of a receive that has one.
    #[inline(always)]
    fn of(resident: &Resident) -> Self {
        Self { addr: resident.start(), capacity: resident.capacity(), pool: resident.kind.owner() }
    }
}

// SAFETY: an address within a pool that the same books keep alive.
unsafe impl Send for Piece {}

/// A pool that buffers in the queues came from.
pub(super) struct KnownPool {
    pool: Arc<Pool>,
    /// References to the pool beside that one, which buffers brought along. Each buffer that leaves takes one of
    /// them, so that no message touches the count, which other threads have in their caches, too.
    references: usize,
    receives: Receives,
}

/// What all receives into buffers of one pool have in common.
#[derive(Clone, Copy)]
struct Receives {
    /// What a slot remembers of a buffer, but for the address; and its data segment.
    resident: Resident,
    segment: DataSegment,
}

impl Receives {
    /// How a buffer of the pool is posted.
    #[inline(always)]
    fn of(&self, buffer: &RecvBuffer) -> (Resident, DataSegment) {
        let addr = buffer.addr().as_ptr().expose_provenance() as u64;
        let segment = DataSegment { addr: Be64::new(addr), ..self.segment };
        (Resident { addr, ..self.resident }, segment)
    }
}

impl KnownPool {
    fn new(pool: &Arc<Pool>, number: u32) -> Self {
        let size = pool.buffer_size();
        Self {
            pool: Arc::clone(pool),
            references: 0,
            receives: Receives {
                resident: Resident { addr: 0, kind: Kind::new(size + 1, number) },
                segment: DataSegment::new(0, size, pool.lkey()),
            },
        }
    }

    /// Whether a buffer is of this pool.
    #[inline(always)]
    pub(super) fn has(&self, buffer: &RecvBuffer) -> bool {
        Arc::ptr_eq(&self.pool, buffer.pool())
    }

    /// How a buffer of this pool is posted.
    #[inline(always)]
    pub(super) fn receive(&self, buffer: &RecvBuffer) -> (Resident, DataSegment) {
        self.receives.of(buffer)
    }

    /// Keeps a buffer of this pool, which is in a queue from now on.
    #[inline(always)]
    pub(super) fn keep(&mut self, buffer: RecvBuffer) -> Resident {
        let (resident, _) = self.receive(&buffer);
        self.keeping().keep(buffer);
        resident
    }

    /// Starts to keep buffers of this pool.
    #[inline(always)]
    pub(super) fn keeping(&mut self) -> Keeping<'_> {
        Keeping { of: Arc::as_ptr(&self.pool), receives: self.receives, count: 0, pool: self }
    }

    /// A reference for a buffer that leaves.
    #[inline(always)]
    fn reference(&mut self) -> Arc<Pool> {
        match self.references.checked_sub(1) {
            Some(left) => self.references = left,
            None => self.bring(),
        }
        // SAFETY: one that was forgotten, and is counted as such no more.
        unsafe { Arc::from_raw(Arc::as_ptr(&self.pool)) }
    }

    /// Makes a reference as if a buffer had brought it along. It has the C ABI, so that the compiler sees that it is rare
    /// also where it must not unwind past a buffer.
    #[cold]
    #[inline(never)]
    extern "C" fn bring(&self) {
        std::mem::forget(Arc::clone(&self.pool));
    }
}

/// Keeps many buffers of one pool. What it says of the pool stays in registers meanwhile; the books of the pool have
/// the references when it is dropped.
pub(super) struct Keeping<'a> {
    pool: &'a mut KnownPool,
    of: *const Pool,
    receives: Receives,
    count: usize,
}

impl Keeping<'_> {
    /// As [`KnownPool::has`].
    #[inline(always)]
    pub(super) fn has(&self, buffer: &RecvBuffer) -> bool {
        Arc::as_ptr(buffer.pool()) == self.of
    }

    /// As [`KnownPool::receive`].
    #[inline(always)]
    pub(super) fn receive(&self, buffer: &RecvBuffer) -> (Resident, DataSegment) {
        self.receives.of(buffer)
    }

    /// Keeps a buffer of the pool, which is in a queue from now on.
    #[inline(always)]
    pub(super) fn keep(&mut self, buffer: RecvBuffer) {
        let (pool, _) = buffer.into_parts();
        debug_assert_eq!(Arc::as_ptr(&pool), self.of);
        std::mem::forget(pool);
        self.count += 1;
    }
}

impl Drop for Keeping<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.pool.references += self.count;
    }
}

impl Drop for KnownPool {
    fn drop(&mut self) {
        while self.references > 0 {
            drop(self.reference());
        }
    }
}

/// The pools that buffers in the queues came from, the lists of receives of several buffers, and the queue
/// pairs.
pub(crate) struct Books {
    pub(crate) qps: Qps,
    /// The clock of the time that completions have.
    pub(crate) timestamps: Option<TimestampClock>,
    pd: ProtectionDomain,
    pools: Vec<KnownPool>,
    lists: Vec<Vec<Piece>>,
    free_lists: Vec<u32>,
    pub(super) apart: Apart,
}

/// What code out of line tells a batch beside what fits into registers.
pub(super) struct Apart {
    /// The receive of the message that is lent other than through the cursor.
    pub(super) resident: Resident,
    /// The receive that has failed.
    pub(super) failure: Option<Failure>,
}

impl Books {
    pub(crate) fn new(pd: ProtectionDomain, timestamps: Option<TimestampClock>) -> Self {
        Self {
            qps: Qps::default(),
            timestamps,
            pd,
            pools: Vec::new(),
            lists: Vec::new(),
            free_lists: Vec::new(),
            apart: Apart { resident: Resident::from_wr_id(0), failure: None },
        }
    }

    /// The pool of a buffer, if it is of the receiver's domain.
    #[inline(never)]
    pub(super) fn pool_of(&mut self, buffer: &RecvBuffer) -> Option<&mut KnownPool> {
        // Few pools, and in nearly every program one.
        let found = self.pools.iter().position(|known| known.has(buffer));
        let number = match found {
            Some(number) => number,
            None if buffer.pool().pd().is_same(&self.pd) => {
                self.pools.push(KnownPool::new(buffer.pool(), self.pools.len() as u32));
                self.pools.len() - 1
            }
            None => return None,
        };
        Some(&mut self.pools[number])
    }

    /// Enters a buffer that is about to be posted, or gives back one of another domain.
    pub(crate) fn enter(&mut self, buffer: RecvBuffer) -> Result<(Resident, Sge), RecvBuffer> {
        let Some(pool) = self.pool_of(&buffer) else {
            return Err(buffer);
        };
        let resident = pool.keep(buffer);
        let sge = Sge { addr: resident.addr, length: resident.capacity(), lkey: pool.pool.lkey() };
        Ok((resident, sge))
    }

    /// Enters the buffers of one receive, or gives them back when one is of another domain.
    pub(crate) fn enter_list(
        &mut self,
        buffers: Vec<RecvBuffer>,
        sges: &mut Vec<Sge>,
    ) -> Result<Resident, Vec<RecvBuffer>> {
        if !buffers.iter().all(|buffer| self.pool_of(buffer).is_some()) {
            return Err(buffers);
        }
        sges.clear();
        let pieces = buffers
            .into_iter()
            .filter_map(|buffer| self.enter(buffer).ok())
            .map(|(resident, sge)| {
                sges.push(sge);
                Piece::of(&resident)
            })
            .collect();
        let list = match self.free_lists.pop() {
            Some(list) => {
                self.lists[list as usize] = pieces;
                list
            }
            None => {
                self.lists.push(pieces);
                self.lists.len() as u32 - 1
            }
        };
        Ok(Resident { addr: 0, kind: Kind::new(0, LIST | list) })
    }

    /// The buffers of a receive, in order; one that is not a list has one.
    pub(crate) fn pieces(&self, resident: &Resident) -> impl Iterator<Item = Piece> + '_ {
        let (single, list) = match resident.owner() {
            Owner::Pool(_) => (Some(Piece::of(resident)), &[][..]),
            Owner::List(list) => (None, &self.lists[list as usize][..]),
            Owner::Foreign => (None, &[][..]),
        };
        single.into_iter().chain(list.iter().copied())
    }

    /// A message of `len` bytes; `None` of a receive that has no buffer of ours.
    pub(super) fn lend(&self, resident: Resident, len: u32) -> Option<Lent> {
        let first = self.pieces(&resident).next()?;
        let capacity = self.pieces(&resident).map(|piece| u64::from(piece.capacity)).sum();
        // What the device reports is not trusted.
        let len = u64::from(len).min(capacity) as usize;
        let in_first = len.min(first.capacity as usize);
        Some(Lent { resident, start: first.addr, first: in_first, len })
    }

    /// Whether `buffer` is of the pool of `resident`.
    ///
    /// # Safety
    /// The resident is one buffer of a pool, and from these books.
    #[inline(always)]
    pub(super) unsafe fn are_alike(&self, resident: Resident, buffer: &RecvBuffer) -> bool {
        let number = resident.kind.owner() as usize;
        debug_assert!(number < self.pools.len());
        // SAFETY: the caller's contract: so it has the number of a pool, and no pool is ever taken out.
        unsafe { self.pools.get_unchecked(number) }.has(buffer)
    }

    /// How the one buffer of `resident` is posted.
    pub(super) fn segment(&self, resident: &Resident) -> DataSegment {
        let pool = &self.pools[resident.kind.owner() as usize];
        DataSegment { addr: Be64::new(resident.addr), ..pool.receives.segment }
    }

    /// Takes the one buffer of `resident` out, and enters one of another pool in its place; or gives one of another
    /// domain back.
    ///
    /// # Safety
    /// The slot is given back with the other one; `len` bytes fit.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn exchange(
        &mut self,
        resident: Resident,
        len: u32,
        buffer: RecvBuffer,
    ) -> Result<(RecvBuffer, Resident, DataSegment), RecvBuffer> {
        let Some(pool) = self.pool_of(&buffer) else {
            return Err(buffer);
        };
        let (entered, segment) = pool.receive(&buffer);
        pool.keep(buffer);
        // SAFETY: the caller's contract.
        let taken = unsafe { self.buffer(&Piece::of(&resident), len) };
        Ok((taken, entered, segment))
    }

    pub(crate) fn lkey(&self, piece: &Piece) -> u32 {
        self.pools[piece.pool as usize].pool.lkey()
    }

    /// # Safety
    /// The buffer is in no queue any more and nobody else's, and has room for `len` bytes.
    #[inline(always)]
    unsafe fn buffer(&mut self, piece: &Piece, len: u32) -> RecvBuffer {
        let pool = self.pools[piece.pool as usize].reference();
        // SAFETY: the caller's contract; a piece is a buffer of the pool that it names.
        unsafe { RecvBuffer::new(pool, piece.addr, len) }
    }

    /// Takes the buffer of a message out.
    ///
    /// # Safety
    /// It has one, and its slot was given back without.
    #[inline(always)]
    pub(super) unsafe fn take(&mut self, lent: &Lent) -> RecvBuffer {
        let number = lent.resident.kind.owner() as usize;
        debug_assert!(number < self.pools.len());
        // SAFETY: the caller's contract; the length was clamped to the capacity. A receive of one buffer has the number
        // of a pool, and no pool is ever taken out.
        unsafe {
            let pool = self.pools.get_unchecked_mut(number).reference();
            RecvBuffer::new(pool, lent.start, lent.len as u32)
        }
    }

    /// Keeps the buffers of a receive that the device may still write, until `parked` is told.
    pub(crate) fn park(&self, resident: &Resident, parked: &Parked) {
        for piece in self.pieces(resident) {
            parked.park(Arc::clone(&self.pools[piece.pool as usize].pool), piece.addr);
        }
    }

    /// Takes the buffers of a receive out; `len` bytes were received into them.
    pub(crate) fn leave(
        &mut self,
        resident: Resident,
        mut len: u32,
        mut each: impl FnMut(RecvBuffer),
    ) {
        let mut give = |books: &mut Self, piece: &Piece| {
            let part = len.min(piece.capacity);
            len -= part;
            // SAFETY: whoever takes a receive out has it from a slot that was given back without it.
            each(unsafe { books.buffer(piece, part) });
        };
        match resident.owner() {
            Owner::Pool(_) => {
                let piece = Piece::of(&resident);
                give(self, &piece);
            }
            Owner::List(list) => {
                let pieces = std::mem::take(&mut self.lists[list as usize]);
                pieces.iter().for_each(|piece| give(self, piece));
                self.free_lists.push(list);
            }
            Owner::Foreign => {}
        }
    }
}
