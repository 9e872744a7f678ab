//! `ibv_wr_*`: a batch that is built call by call.
//!
//! A request consists of what it does and, in one or two further calls, its payload and the address of a datagram. It is
//! posted to the ring when its last part is there; the doorbell rings with `ibv_wr_complete`.

use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr::{self, NonNull};
use core::slice;
use std::sync::PoisonError;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Immediate, Mark, Payload, Remote};
use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah,
    ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_sge,
};

use crate::av;
use crate::context;
use crate::decide;
use crate::find;
use crate::log::LIBMLX5;
use crate::objects::{Path, Qp, SendSide};
use crate::receive::sges;

/// What a request does.
#[derive(Clone, Copy)]
enum Operation {
    Send(Immediate),
    Write(Remote, Option<u32>),
    Read(Remote),
    FetchAdd(Remote, u64),
    CompareSwap(Remote, [u64; 2]),
}

/// A request without its payload.
#[derive(Clone, Copy)]
struct Begun {
    operation: Operation,
    wr_id: u64,
    flags: u32,
}

/// A payload that came before the address of its datagram.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    Nothing,
    Gather,
    Inline,
}

/// A batch that is being built.
pub(crate) struct Draft {
    /// Where the batch begins.
    start: Option<(Mark, u32)>,
    error: c_int,
    begun: Option<Begun>,
    to: Option<Destination>,
    /// What is kept is in one of these, which have room for any payload.
    kept: Kept,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
struct Destination {
    av: NonNull<DatagramSegment>,
    qpn: u32,
    qkey: u32,
}

impl Draft {
    /// For requests of at most so many SGEs and inline bytes.
    pub(crate) fn new(sges: u32, inline: u32) -> Self {
        Self {
            start: None,
            error: 0,
            begun: None,
            to: None,
            kept: Kept::Nothing,
            sges: Vec::with_capacity(sges as usize),
            bytes: Vec::with_capacity(inline as usize),
        }
    }
}

/// Returns `true` if all these operations are covered.
pub(crate) fn covers(send_ops_flags: u64) -> bool {
    let covered = IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_SEND_WITH_IMM
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    send_ops_flags & !u64::from(covered) == 0
}

/// Returns the functions that libmlx5 gave a queue pair with `ibv_wr_*`. It gives that of memory windows to some that have not
/// asked for it.
///
/// # Safety
/// `qp` is such a queue pair, which was made just now.
pub(crate) unsafe fn functions(qp: *mut ibv_qp, has_windows: bool) -> Box<ibv_qp_ex> {
    // SAFETY: the caller's contract.
    let mut functions = unsafe { Box::new(qp.cast::<ibv_qp_ex>().read()) };
    functions.wr_bind_mw = functions.wr_bind_mw.filter(|_| has_windows);
    functions
}

/// Puts the library's functions in the place of libmlx5's, as far as the queue pair has them, unless it has the builder of
/// memory windows or functions that nobody kept, as those of `mlx5dv_create_qp`.
///
/// # Safety
/// `qp` was made just now, and has a record.
pub(crate) unsafe fn replace(qp: *mut ibv_qp, record: &Qp) {
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    if original.as_ref().is_some_and(|original| original.wr_bind_mw.is_some()) {
        return;
    }
    // SAFETY: a queue pair that was made just now; libmlx5 has room for the functions of `ibv_wr_*` in each.
    let qp = unsafe { &mut *qp.cast::<ibv_qp_ex>() };
    if original.is_none() && qp.wr_start.is_some() {
        return;
    }
    // SAFETY: as above.
    unsafe { find::place_in_qp(qp).write(record) };
    qp.wr_start = Some(wr_start);
    if original.is_none() {
        return;
    }
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = qp.wr_send.and(Some(wr_send));
    qp.wr_send_imm = qp.wr_send_imm.and(Some(wr_send_imm));
    qp.wr_send_inv = qp.wr_send_inv.and(Some(wr_send_inv));
    qp.wr_rdma_write = qp.wr_rdma_write.and(Some(wr_rdma_write));
    qp.wr_rdma_write_imm = qp.wr_rdma_write_imm.and(Some(wr_rdma_write_imm));
    qp.wr_rdma_read = qp.wr_rdma_read.and(Some(wr_rdma_read));
    qp.wr_atomic_cmp_swp = qp.wr_atomic_cmp_swp.and(Some(wr_atomic_cmp_swp));
    qp.wr_atomic_fetch_add = qp.wr_atomic_fetch_add.and(Some(wr_atomic_fetch_add));
    qp.wr_set_ud_addr = qp.wr_set_ud_addr.and(Some(wr_set_ud_addr));
    qp.wr_set_sge = qp.wr_set_sge.and(Some(wr_set_sge));
    qp.wr_set_sge_list = qp.wr_set_sge_list.and(Some(wr_set_sge_list));
    qp.wr_set_inline_data = qp.wr_set_inline_data.and(Some(wr_set_inline_data));
    qp.wr_set_inline_data_list = qp.wr_set_inline_data_list.and(Some(wr_set_inline_data_list));
}

/// Keeps the function that libmlx5 sets when the state of the queue pair changes.
///
/// # Safety
/// [record-lives]
pub(crate) unsafe fn replace_after_modify(record: &Qp) {
    let mut original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(original) = original.as_mut().filter(|_| record.status.path() != Path::Libmlx5) else {
        return;
    };
    // SAFETY: [record-lives] a queue pair with `ibv_wr_*`.
    let qp = unsafe { &mut *record.ibv.cast::<ibv_qp_ex>() };
    if qp.wr_complete.is_some_and(|complete| complete as usize != wr_complete as *const () as usize)
    {
        original.wr_complete = qp.wr_complete;
        qp.wr_complete = Some(wr_complete);
    }
}

/// Gives a queue pair whose record is about to go all functions of libmlx5 back.
pub(crate) fn forget(record: &Qp) {
    restore(record);
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: [record-lives] libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
    unsafe {
        let qp = record.ibv.cast::<ibv_qp_ex>();
        if find::place_in_qp(qp).read() == ptr::from_ref(record) {
            (*qp).wr_bind_mw = original.as_ref().and_then(|original| original.wr_bind_mw);
        }
    }
}

/// Gives a queue pair the functions of libmlx5 back.
pub(crate) fn restore(record: &Qp) {
    // SAFETY: [record-lives].
    if unsafe { find::qp(record.ibv) }.is_none() {
        return;
    }
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: [record-lives] libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
    let qp = unsafe { &mut *record.ibv.cast::<ibv_qp_ex>() };
    qp.wr_start = original.as_ref().and_then(|original| original.wr_start);
    let Some(original) = original.as_ref() else { return };
    qp.wr_complete = original.wr_complete;
    qp.wr_abort = original.wr_abort;
    qp.wr_send = original.wr_send;
    qp.wr_send_imm = original.wr_send_imm;
    qp.wr_send_inv = original.wr_send_inv;
    qp.wr_rdma_write = original.wr_rdma_write;
    qp.wr_rdma_write_imm = original.wr_rdma_write_imm;
    qp.wr_rdma_read = original.wr_rdma_read;
    qp.wr_atomic_cmp_swp = original.wr_atomic_cmp_swp;
    qp.wr_atomic_fetch_add = original.wr_atomic_fetch_add;
    qp.wr_set_ud_addr = original.wr_set_ud_addr;
    qp.wr_set_sge = original.wr_set_sge;
    qp.wr_set_sge_list = original.wr_set_sge_list;
    qp.wr_set_inline_data = original.wr_set_inline_data;
    qp.wr_set_inline_data_list = original.wr_set_inline_data_list;
}

pub(crate) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        // Another thread may just have given the queue pair its functions back.
        let record = &**find::place_in_qp(qp);
        if record.status.path() == Path::Undecided {
            decide::for_qp(context::of((*qp).qp_base.context), record);
        }
        let mut guard = record.send.lock();
        let Some(side) = &mut *guard else {
            drop(guard);
            let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
            let start = original.as_ref().and_then(|original| original.wr_start);
            drop(original);
            // The rest of the batch goes to the functions that were given back.
            LIBMLX5.add_posts(1);
            if let Some(start) = start {
                start(qp);
            }
            return;
        };
        let draft = &mut side.draft;
        draft.start = Some((side.queue.mark(), side.posted));
        (draft.error, draft.begun, draft.to, draft.kept) = (0, None, None, Kept::Nothing);
        // Until the batch ends.
        mem::forget(guard);
    }
}

/// Returns what posts the batch.
///
/// # Safety
/// [verbs] The program is in a batch that `wr_start` has begun: this thread holds the lock, and doorbell drives the queue
/// pair, whose functions are never given back.
#[inline(always)]
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Qp, &'a mut SendSide)> {
    // SAFETY: [record-lives] the record that `replace` has put there, and the caller's contract.
    unsafe {
        let record = &**find::place_in_qp(qp);
        Some((record, record.send.held().as_mut()?))
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: [verbs].
    unsafe { end(qp, false) }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs].
    unsafe { end(qp, true) };
}

/// Ends a batch.
///
/// # Safety
/// [verbs] The program is in a batch.
unsafe fn end(qp: *mut ibv_qp_ex, is_aborted: bool) -> c_int {
    // SAFETY: the caller's contract.
    let Some((record, side)) = (unsafe { batch(qp) }) else { return libc::EINVAL };
    let mut error = side.draft.error;
    if !side.is_ready || side.draft.begun.is_some() {
        error = libc::EINVAL;
    }
    if let Some((mark, posted)) = side.draft.start.take() {
        if is_aborted || error != 0 {
            side.queue.rewind(mark);
            side.posted = posted;
        } else {
            drop(side.queue.posting());
            record.sends.add(side.posted.wrapping_sub(posted).into());
        }
    }
    // SAFETY: this thread holds the lock.
    unsafe { record.send.unlock() };
    error
}

/// Begins a request.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: the caller's contract.
    unsafe {
        let Some((_, side)) = batch(qp) else { return };
        let draft = &mut side.draft;
        let is_atomic = matches!(operation, Operation::FetchAdd(..) | Operation::CompareSwap(..));
        if is_atomic && !side.has_atomics {
            draft.fail(libc::EOPNOTSUPP);
        }
        if side.posted.wrapping_sub(side.retired) >= side.limits.requests {
            draft.fail(libc::ENOMEM);
        }
        if draft.begun.is_some() {
            draft.fail(libc::EINVAL);
        }
        draft.begun = Some(Begun { operation, wr_id: (*qp).wr_id, flags: (*qp).wr_flags });
        (draft.to, draft.kept) = (None, Kept::Nothing);
    }
}

impl Draft {
    /// Keeps the first error of a batch.
    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
    }
}

/// Declares functions that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = $operation:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: [verbs] the program is in a batch.
            unsafe { begin(qp, $operation) }
        }
    )*};
}

operations! {
    wr_send() = Operation::Send(Immediate::None);
    wr_send_imm(imm: u32) = Operation::Send(Immediate::Data(u32::from_be(imm)));
    wr_send_inv(rkey: u32) = Operation::Send(Immediate::Invalidate(rkey));
    wr_rdma_write(rkey: u32, addr: u64) = Operation::Write(Remote { addr, rkey }, None);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =
        Operation::Write(Remote { addr, rkey }, Some(u32::from_be(imm)));
    wr_rdma_read(rkey: u32, addr: u64) = Operation::Read(Remote { addr, rkey });
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) =
        Operation::FetchAdd(Remote { addr, rkey }, add);
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =
        Operation::CompareSwap(Remote { addr, rkey }, [compare, swap]);
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe {
        let Some((record, side)) = batch(qp) else { return };
        match av::of(ah) {
            Some(av) => side.draft.to = Some(Destination { av, qpn, qkey }),
            None => side.draft.fail(libc::EINVAL),
        }
        if side.draft.kept != Kept::Nothing {
            payload::put_kept(side, record);
        }
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe {
        let Some((record, side)) = batch(qp) else { return };
        if side.lacks_address(record) {
            return side.keep(Payload::gather(&[Sge { addr, length, lkey }]), 0);
        }
        side.put(record, Payload::gather(&[Sge { addr, length, lkey }]), 0);
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe {
        let Some((record, side)) = batch(qp) else { return };
        let list = sges(list, count.try_into().unwrap_or(c_int::MAX));
        if side.lacks_address(record) {
            return side.keep(Payload::gather(list), 0);
        }
        side.put(record, Payload::gather(list), 0);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read during the call.
    unsafe {
        let Some((record, side)) = batch(qp) else { return };
        if side.lacks_address(record) {
            return side.keep(Payload::inline(&[bytes(addr, length)]), length);
        }
        side.put(record, Payload::inline(&[bytes(addr, length)]), length);
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read during the call.
    unsafe {
        let Some((record, side)) = batch(qp) else { return };
        let list = if count == 0 { &[] } else { slice::from_raw_parts(list, count) };
        let len = list.iter().fold(0_usize, |len, piece| len.saturating_add(piece.length));
        if len > side.limits.inline as usize {
            side.draft.begun = None;
            return side.draft.fail(libc::ENOMEM);
        }
        // They are made one piece, for there may be any number of them.
        let mut all = mem::take(&mut side.draft.bytes);
        all.clear();
        list.iter().for_each(|piece| all.extend_from_slice(bytes(piece.addr, piece.length)));
        side.draft.bytes = all;
        side.draft.kept = Kept::Inline;
        if !side.lacks_address(record) {
            payload::put_kept(side, record);
        }
    }
}

/// # Safety
/// `length` bytes can be read at `addr` during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts(addr.cast(), length) }
}

mod payload;
#[cfg(test)]
mod tests;
