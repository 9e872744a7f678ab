//! `ibv_wr_*`: each call writes to the send queue, and the end of the batch posts what was written or takes it back.
//!
//! `ibv_wr_start` locks the queue until `ibv_wr_complete` or `ibv_wr_abort`, as in libmlx5. Who polls needs no lock of
//! the queue, so a thread may poll meanwhile, also that of the batch.

use core::ffi::{c_int, c_void};
use core::hint::unreachable_unchecked;
use core::sync::atomic::Ordering;
use core::{iter, mem, slice};

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Immediate, KeyChange, Operation, Pieces, PostError, Remote};
use mlx5_wire::inline::INLINE_SEG;
use mlx5_wire::opcode::WqeOpcode;
use rdma_core_sys::{
    IBV_MW_TYPE_2, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QPT_UD, ibv_ah, ibv_data_buf,
    ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge,
};

use crate::changes;
use crate::context;
use crate::log::DOORBELL;
use crate::objects::{Qp, Request, SendSide, Sends};
use crate::send::{self, errno};
use crate::sge::sges;

/// Returns `true` if all these operations are covered.
pub(crate) fn covers(send_ops_flags: u64) -> bool {
    let covered = IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    send_ops_flags & !u64::from(covered) == 0
}

/// Puts the library's functions in the place of libmlx5's, as far as the queue pair has them. It has a record with a
/// send queue.
pub(crate) fn replace(qp: &mut ibv_qp_ex) {
    macro_rules! replace {
        ($($name:ident),*) => { $(qp.$name = qp.$name.and(Some($name));)* };
    }
    replace!(wr_start, wr_complete, wr_abort, wr_send, wr_send_imm, wr_send_inv, wr_rdma_write);
    replace!(wr_rdma_write_imm, wr_rdma_read, wr_atomic_cmp_swp, wr_atomic_fetch_add);
    replace!(wr_set_ud_addr, wr_set_sge, wr_set_sge_list, wr_set_inline_data);
    replace!(wr_set_inline_data_list, wr_bind_mw, wr_local_inv);
    if qp.qp_base.qp_type == IBV_QPT_UD {
        qp.wr_send = qp.wr_send.and(Some(wr_send_datagram));
        qp.wr_send_imm = qp.wr_send_imm.and(Some(wr_send_datagram_imm));
        qp.wr_set_sge = qp.wr_set_sge.and(Some(wr_set_datagram_sge));
    }
}

/// Returns the record and the send queue of a queue pair whose functions were replaced.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn record_of<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Qp, &'a Sends)> {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let record = context::qp(&raw mut (*qp).qp_base)?;
        Some((record, sends_of(record)))
    }
}

/// As [`record_of`], if the record has a place.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn placed<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Qp, &'a Sends)> {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let record = Qp::find(&raw mut (*qp).qp_base)?;
        Some((record, sends_of(record)))
    }
}

/// Returns the send queue of a record.
///
/// # Safety
/// The functions of its queue pair were replaced.
#[inline(always)]
const unsafe fn sends_of(record: &Qp) -> &Sends {
    match &record.send {
        Some(sends) => sends,
        // SAFETY: those of a queue pair without a send queue are not replaced. `Option::unwrap_unchecked` costs three
        // instructions.
        None => unsafe { unreachable_unchecked() },
    }
}

/// Returns the send queue of a queue pair.
///
/// # Safety
/// [verbs] The program is in a batch, so this thread holds the lock.
#[inline(always)]
unsafe fn side_of<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut SendSide> {
    // SAFETY: [verbs] this thread holds the lock.
    unsafe { Some(record_of(qp)?.1.side.held()) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs]
    if let Some((_, sends)) = unsafe { record_of(qp) } {
        let mut side = sends.side.lock();
        sends.is_building.store(true, Ordering::Relaxed);
        side.start_batch(sends);
        // Until the batch ends.
        mem::forget(side);
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
    unsafe {
        if let Some((_, sends)) = record_of(qp) {
            sends.end_batch();
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
    unsafe {
        let Some((_, sends)) = record_of(qp) else { return libc::EINVAL };
        let error = sends.side.held().post_batch(sends);
        sends.end_batch();
        error
    }
}

impl Sends {
    /// Ends a batch; what was not posted is taken back.
    ///
    /// # Safety
    /// The lock was taken for a batch, and no code has a reference to the queue.
    #[inline(always)]
    pub(crate) unsafe fn end_batch(&self) {
        self.is_building.store(false, Ordering::Relaxed);
        // SAFETY: the lock was taken for the batch, and no code has a reference to the queue.
        unsafe { self.side.unlock() }
    }
}

impl SendSide {
    #[inline(always)]
    fn start_batch(&mut self, sends: &Sends) {
        self.find_room(sends);
        self.batch = self.queue.batch();
        (self.built, self.error) = (self.posted, 0);
        self.fence_built(self.is_fenced);
    }

    /// Posts the requests of a batch, or none of them; returns the errno.
    ///
    /// # Safety
    /// [verbs]; `sends` has this queue, and the program is in a batch.
    #[inline(always)]
    unsafe fn post_batch(&mut self, sends: &Sends) -> c_int {
        if !self.can_send {
            return libc::EINVAL;
        }
        if self.error != 0 {
            return self.error;
        }
        // SAFETY: [verbs] the program keeps [memory]; [ready]. Nothing else was posted since the start of the batch.
        let posting = unsafe { self.queue.commit(&self.batch) };
        sends.progress.note_posted(posting.posted());
        drop(posting);
        DOORBELL.add_posts(self.built.wrapping_sub(self.posted));
        (self.posted, self.is_fenced) = (self.built, self.is_built_fenced);
        0
    }

    /// Takes note of whether the last request of a batch changes a key. The next one finds no room then, until it looks
    /// again.
    #[inline(always)]
    fn fence_built(&mut self, is_fenced: bool) {
        self.is_built_fenced = is_fenced;
        if is_fenced {
            self.full_at = self.built;
        }
    }

    /// Returns `true` if a batch that seems to have no room for a request has some.
    fn finds_room(&mut self, sends: &Sends, is_supported: bool) -> bool {
        if self.error != 0 {
            return false;
        }
        self.find_room(sends);
        if self.built == self.full_at {
            self.refuse(libc::ENOMEM);
        } else if !is_supported {
            self.refuse(libc::EOPNOTSUPP);
        }
        self.error == 0
    }

    /// Refuses a request of a batch, and so the batch: the first errno is that of `ibv_wr_complete`.
    #[cold]
    fn refuse(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
        // No request begins, and none takes a payload.
        self.full_at = self.built;
        self.batch.refuse();
    }

    /// Has registered memory be the payload of the last request.
    ///
    /// # Safety
    /// [verbs] The program is in a batch, and has begun a request.
    #[inline(never)]
    unsafe fn set_sges(&mut self, list: &[Sge]) {
        match *list {
            _ if self.error != 0 => {}
            _ if list.len() > self.limits.sges as usize => self.refuse(libc::ENOMEM),
            [sge] if self.is_atomic() && sge.length != 0 => {
                // An atomic writes eight bytes, whatever its entry says.
                // SAFETY: [verbs] the program has begun a request, an atomic.
                unsafe { self.queue.set_sge(&mut self.batch, Sge { length: 8, ..sge }) }
            }
            _ if self.is_atomic() => self.refuse(libc::EINVAL),
            _ => {
                // SAFETY: [verbs] the program has begun a request.
                let set = unsafe { self.queue.set_sges(&mut self.batch, list) };
                self.note(set);
            }
        }
    }

    /// Returns `true` if the last request, which is no atomic, takes an entry of this length.
    #[inline(always)]
    fn takes_sge(&self, length: u32) -> bool {
        // A batch that is refused has an opcode above all others.
        self.batch.opcode().get() <= WqeOpcode::RDMA_READ.get() && (1..INLINE_SEG).contains(&length)
    }

    /// Returns `true` if the last request is an atomic.
    #[inline(always)]
    fn is_atomic(&self) -> bool {
        [WqeOpcode::ATOMIC_CS, WqeOpcode::ATOMIC_FA].contains(&self.batch.opcode())
    }

    /// Has copied bytes be the payload of the last request, which brings none.
    ///
    /// # Safety
    /// As for [`set_sges`](Self::set_sges); the pieces are `len` bytes, or the queue does not take as many.
    #[inline(always)]
    unsafe fn set_inline(&mut self, pieces: impl Pieces, len: usize) {
        if self.error != 0 {
            return;
        }
        if len > self.limits.inline as usize {
            return self.refuse(libc::ENOMEM);
        }
        if self.batch.opcode().get() >= WqeOpcode::RDMA_READ.get() && len > 0 {
            return self.refuse(libc::EINVAL);
        }
        // SAFETY: [verbs] the program has begun a request; the caller's pieces.
        let set = unsafe { self.queue.set_inline(&mut self.batch, pieces, len as u32) };
        self.note(set);
    }

    #[inline(always)]
    fn note(&mut self, set: Result<(), PostError>) {
        if let Err(why) = set {
            self.refuse(errno(why));
        }
    }
}

/// Begins a request, for which there is room, and which waits for a change of a key before it if `is_fenced`.
///
/// # Safety
/// [verbs] The program is in a batch of `qp`, which has this record and this send queue.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, record: &Qp, side: &mut SendSide, operation: Operation, is_fenced: bool) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe {
        let request = Request { wr_id: (*qp).wr_id, number: side.built };
        let flags = send::flags_of((*qp).wr_flags, record.signal_all).behind(is_fenced);
        match side.queue.begin(&mut side.batch, operation, flags, request) {
            Ok(()) => side.built = side.built.wrapping_add(1),
            Err(why) => side.refuse(errno(why)),
        }
    }
}

/// Declares functions that begin a request. What they call in a seldom case is the last that they do, so that they save
/// no registers.
macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            #[cold]
            unsafe extern "C" fn find_room(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
                // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
                unsafe {
                    let Some((record, sends)) = record_of(qp) else { return };
                    let side = sends.side.held();
                    if side.finds_room(sends, !is_atomic(&$operation) || side.limits.has_atomics) {
                        let is_fenced = mem::take(&mut side.is_built_fenced);
                        begin(qp, record, side, $operation, is_fenced);
                    }
                }
            }
            // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
            unsafe {
                if let Some((record, sends)) = placed(qp) {
                    let side = sends.side.held();
                    if side.built != side.full_at && (!is_atomic(&$operation) || side.limits.has_atomics) {
                        return begin(qp, record, side, $operation, false);
                    }
                }
                find_room(qp $(, $argument)*)
            }
        }
    )*};
}

#[inline(always)]
const fn is_atomic(operation: &Operation) -> bool {
    matches!(operation, Operation::FetchAdd(..) | Operation::CompareSwap(..))
}

operations! {
    wr_send() = Operation::Send(Immediate::None);
    wr_send_imm(imm: u32) = Operation::Send(Immediate::Data(u32::from_be(imm)));
    wr_send_inv(rkey: u32) = Operation::Send(Immediate::Invalidate(rkey));
    wr_send_datagram() = Operation::Datagram(None);
    wr_send_datagram_imm(imm: u32) = Operation::Datagram(Some(u32::from_be(imm)));
    wr_rdma_write(rkey: u32, addr: u64) = Operation::Write(Remote { addr, rkey }, None);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =
        Operation::Write(Remote { addr, rkey }, Some(u32::from_be(imm)));
    wr_rdma_read(rkey: u32, addr: u64) = Operation::Read(Remote { addr, rkey });
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = Operation::FetchAdd(Remote { addr, rkey }, add);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =
        Operation::CompareSwap(Remote { addr, rkey }, [compare, swap]);
}

/// Adds a change of a key to a batch: a bind if `is_bind`.
///
/// # Safety
/// [verbs] The program is in a batch of `qp`.
unsafe fn change(qp: *mut ibv_qp_ex, is_bind: bool, change: impl FnOnce(u32) -> Result<KeyChange, c_int>) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it keeps [memory].
    unsafe {
        let Some((record, sends)) = record_of(qp) else { return };
        let side = sends.side.held();
        if !side.finds_room(sends, true) {
            return;
        }
        let change = match change(record.qpn) {
            Ok(change) => change,
            Err(error) => return side.refuse(error),
        };
        let request = Request { wr_id: (*qp).wr_id, number: side.built };
        let flags = send::flags_of((*qp).wr_flags, record.signal_all).behind(side.is_built_fenced);
        let start = side.batch.end();
        match side.queue.change(&mut side.batch, &change, flags, request) {
            Ok(()) => {
                sends.changes.note(start, is_bind);
                side.built = side.built.wrapping_add(1);
                side.fence_built(true);
            }
            Err(why) => side.refuse(errno(why)),
        }
    }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: [verbs] the program is in a batch; the window and the region exist. The window is of type 2.
    unsafe { change(qp, true, |qpn| changes::bind(IBV_MW_TYPE_2, qpn, (*mw).rkey, rkey, &*info)) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe { change(qp, false, |_| Ok(KeyChange::invalidate(rkey, 0))) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    #[cold]
    unsafe extern "C" fn other(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
        // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a datagram; the
        // address handle.
        unsafe {
            let Some((record, sends)) = record_of(qp) else { return };
            let side = sends.side.held();
            match send::address_vector(record, ah) {
                _ if side.error != 0 => {}
                Some(vector) => side.queue.set_address(&side.batch, vector, qpn, qkey),
                None => side.refuse(libc::EINVAL),
            }
        }
    }
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a datagram; the
    // address handle.
    unsafe {
        if let Some((record, sends)) = placed(qp) {
            let side = sends.side.held();
            if side.error == 0 {
                if let Some(vector) = send::known_address_vector(record, ah) {
                    return side.queue.set_address(&side.batch, vector, qpn, qkey);
                }
            }
        }
        other(qp, ah, qpn, qkey);
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request.
    unsafe {
        if let Some((_, sends)) = placed(qp) {
            let side = sends.side.held();
            if side.takes_sge(length) {
                return side.queue.set_sge(&mut side.batch, Sge { addr, length, lkey });
            }
        }
        wr_set_any_sge(qp, lkey, addr, length);
    }
}

/// `wr_set_sge` of a UD queue pair.
unsafe extern "C" fn wr_set_datagram_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request.
    unsafe {
        if let Some((_, sends)) = placed(qp) {
            let side = sends.side.held();
            if side.takes_sge(length) {
                let set = side.queue.set_datagram_sge(&mut side.batch, Sge { addr, length, lkey });
                return side.note(set);
            }
        }
        wr_set_any_sge(qp, lkey, addr, length);
    }
}

/// `wr_set_sge`, whatever the request and the entry are.
#[cold]
unsafe extern "C" fn wr_set_any_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request.
    unsafe {
        if let Some(side) = side_of(qp) {
            side.set_sges(&[Sge { addr, length, lkey }]);
        }
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request; the list
    // can be read.
    unsafe {
        if let Some(side) = side_of(qp) {
            side.set_sges(sges(list, count.try_into().unwrap_or(c_int::MAX)));
        }
    }
}

/// Returns inline data.
///
/// # Safety
/// The memory can be read during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(addr: *mut c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the data can be read.
    unsafe { slice::from_raw_parts(addr.cast(), length) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request; the data
    // can be read.
    unsafe {
        if let Some(side) = side_of(qp) {
            side.set_inline(iter::once(bytes(addr, length)), length);
        }
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock, and it has begun a request; the list
    // and the data can be read.
    unsafe {
        if let Some(side) = side_of(qp) {
            let pieces = (0..count).map(|piece| &*list.add(piece));
            let len = pieces.clone().fold(0_usize, |len, piece| len.saturating_add(piece.length));
            side.set_inline(pieces.map(|piece| bytes(piece.addr, piece.length)), len);
        }
    }
}
