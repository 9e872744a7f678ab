//! `ibv_wr_*`: a batch that is built call by call.
//!
//! The builder of an operation opens a WQE. The WQE is closed when its payload and, for a datagram, its address are there, in any
//! order; the doorbell rings with `ibv_wr_complete`.

use core::ffi::{c_int, c_void};
use core::mem::{self, MaybeUninit};
use core::ptr;
use core::slice;
use std::sync::PoisonError;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Mark, Open, Payload, PostError, Remote, SendQueue};
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};
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
use crate::objects::{Path, Qp, Request, SendLimits, SendSide, Transport};
use crate::receive::sges;
use crate::send::{errno, flags_of};

/// A batch that is being built.
pub(crate) struct Draft {
    /// Where the batch begins.
    start: Option<(Mark, u32)>,
    /// The first error of the batch.
    error: c_int,
    /// Parts that the open WQE lacks, [`CLOSED`] or [`FAILED`]; 0 if another WQE can be opened.
    lacks: u8,
    wqe: MaybeUninit<Open>,
    wr_id: u64,
    /// Room for inline data of any number of pieces.
    bytes: Vec<u8>,
}

const PAYLOAD: u8 = 1;
const ADDRESS: u8 = 2;
/// No batch is open.
const CLOSED: u8 = 4;
/// The batch has an error: no WQE is open from then on.
const FAILED: u8 = 8;

impl Draft {
    /// For requests of at most so many inline bytes.
    pub(crate) fn new(inline: u32) -> Self {
        Self {
            start: None,
            error: 0,
            lacks: CLOSED,
            wqe: MaybeUninit::uninit(),
            wr_id: 0,
            bytes: Vec::with_capacity(inline as usize),
        }
    }

    /// Keeps the first error of a batch.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
        if self.lacks != CLOSED {
            self.lacks = FAILED;
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
/// memory windows or functions that were not kept, as those of `mlx5dv_create_qp`.
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
}

/// Puts the library's functions in the place of the rest of libmlx5's. Before a batch is begun by [`wr_start`], which decides,
/// they are libmlx5's: a call outside of a batch finds the queue that they post to.
///
/// # Safety
/// [record-lives] doorbell drives the queue pair.
pub(crate) unsafe fn take_over(record: &Qp) {
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    if original.is_none() || record.send.lock().is_none() {
        return;
    }
    // SAFETY: the caller's contract; libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
    let qp = unsafe { &mut *record.ibv.cast::<ibv_qp_ex>() };
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
    let is_datagram = record.transport == Transport::Ud;
    let set_sge: unsafe extern "C" fn(_, _, _, _) =
        if is_datagram { wr_set_sge_of_datagram } else { wr_set_sge };
    qp.wr_set_sge = qp.wr_set_sge.and(Some(set_sge));
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
        if record.status.path() == Path::Doorbell && record.send.lock().is_some() {
            qp.wr_complete = Some(wr_complete);
        }
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
        (draft.error, draft.lacks) = (0, 0);
        // Until the batch ends. Meanwhile this thread may poll the CQ.
        guard.keep();
    }
}

/// Returns what posts the batch.
///
/// # Safety
/// [verbs] The program is in a batch that `wr_start` has begun: this thread holds the lock, and doorbell drives the queue
/// pair, whose functions are never given back.
#[inline(always)]
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut SendSide) {
    // SAFETY: [record-lives] the record that `replace` has put there, and the caller's contract.
    unsafe {
        let record = &**find::place_in_qp(qp);
        (record, record.send.held().as_mut().unwrap_unchecked())
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
    let (record, side) = unsafe { batch(qp) };
    let error = match side.draft.lacks {
        // This thread holds no lock.
        CLOSED => return libc::EINVAL,
        0 if side.is_ready => 0,
        FAILED if side.is_ready => side.draft.error,
        _ => libc::EINVAL,
    };
    side.draft.lacks = CLOSED;
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

/// Begins a request, whose WQE `open` opens.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    open: impl FnOnce(&Qp, &mut SendSide, Flags) -> Result<Open, c_int>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let (record, side) = batch(qp);
        if side.draft.lacks != 0 {
            return side.draft.fail(libc::EINVAL);
        }
        if side.posted.wrapping_sub(side.retired) >= side.limits.requests {
            return side.draft.fail(libc::ENOMEM);
        }
        match open(record, side, flags_of((*qp).wr_flags, record.signal_all)) {
            Ok(wqe) => {
                let draft = &mut side.draft;
                draft.wqe.write(wqe);
                draft.wr_id = (*qp).wr_id;
                let is_datagram = record.transport == Transport::Ud;
                draft.lacks = if is_datagram { PAYLOAD | ADDRESS } else { PAYLOAD };
            }
            Err(error) => side.draft.fail(error),
        }
    }
}

impl SendSide {
    #[inline(always)]
    fn open_send(&mut self, qp: &Qp, immediate: Immediate, flags: Flags) -> Result<Open, c_int> {
        let open = if qp.transport == Transport::Ud {
            self.queue.open_datagram(immediate, flags)
        } else {
            self.queue.open_send(immediate, flags)
        };
        open.map_err(errno)
    }

    fn open_atomic(
        &mut self,
        open: impl FnOnce(&mut SendQueue<Request>) -> Result<Open, PostError>,
    ) -> Result<Open, c_int> {
        if self.has_atomics { open(&mut self.queue).map_err(errno) } else { Err(libc::EOPNOTSUPP) }
    }
}

/// Declares functions that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = |$qp:ident, $side:ident, $flags:ident| $open:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: [verbs] the program is in a batch.
            unsafe { begin(qp, |$qp, $side, $flags| $open) }
        }
    )*};
}

operations! {
    wr_send() = |qp, side, flags| side.open_send(qp, Immediate::None, flags);
    wr_send_imm(imm: u32) =
        |qp, side, flags| side.open_send(qp, Immediate::Data(u32::from_be(imm)), flags);
    wr_send_inv(rkey: u32) =
        |qp, side, flags| side.open_send(qp, Immediate::Invalidate(rkey), flags);
    wr_rdma_write(rkey: u32, addr: u64) = |_qp, side, flags| {
        side.queue.open_write(Remote { addr, rkey }, None, flags).map_err(errno)
    };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = |_qp, side, flags| {
        let imm = Some(u32::from_be(imm));
        side.queue.open_write(Remote { addr, rkey }, imm, flags).map_err(errno)
    };
    wr_rdma_read(rkey: u32, addr: u64) =
        |_qp, side, flags| side.queue.open_read(Remote { addr, rkey }, flags).map_err(errno);
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = |_qp, side, flags| {
        side.open_atomic(|queue| queue.open_fetch_add(Remote { addr, rkey }, add, flags))
    };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = |_qp, side, flags| {
        let operands = [compare, swap];
        side.open_atomic(|queue| queue.open_compare_swap(Remote { addr, rkey }, operands, flags))
    };
}

/// Adds a part, which `put` writes, to the open WQE, and closes the WQE if it was the last one.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn add(
    qp: *mut ibv_qp_ex,
    part: u8,
    put: impl FnOnce(&mut SendQueue<Request>, &mut Open, &SendLimits) -> Result<(), c_int>,
) {
    // SAFETY: the caller's contract.
    let (_, side) = unsafe { batch(qp) };
    if side.draft.lacks & part == 0 {
        return side.draft.fail(libc::EINVAL);
    }
    // SAFETY: a WQE that lacks a part is open.
    let wqe = unsafe { side.draft.wqe.assume_init_mut() };
    if let Err(error) = put(&mut side.queue, wqe, &side.limits) {
        return side.draft.fail(error);
    }
    side.draft.lacks &= !part;
    if side.draft.lacks == 0 {
        // SAFETY: [ready]: the doorbell waits for `wr_complete`, which looks. Nothing else is posted in a batch.
        unsafe { side.close_wqe() };
    }
}

impl SendSide {
    /// Closes the open WQE.
    ///
    /// # Safety
    /// It lacks nothing; *ready*.
    #[inline(never)]
    unsafe fn close_wqe(&mut self) {
        let data = Request { wr_id: self.draft.wr_id, number: self.posted };
        // SAFETY: the caller's contract.
        unsafe { self.queue.close(self.draft.wqe.assume_init_ref(), data) };
        self.posted = self.posted.wrapping_add(1);
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: [verbs] the program is in a batch, and the address handle is one of libmlx5; a WQE that lacks an address is that
    // of a datagram.
    unsafe {
        let (_, side) = batch(qp);
        // The first part of most datagrams.
        match av::known(ah) {
            Some(av) if side.draft.lacks == PAYLOAD | ADDRESS => {
                let wqe = side.draft.wqe.assume_init_ref();
                side.queue.put_address(wqe, &av.read_unaligned().to(qpn, qkey));
                side.draft.lacks = PAYLOAD;
            }
            _ => add_address(qp, ah, qpn, qkey),
        }
    }
}

/// Adds an address to any WQE.
///
/// # Safety
/// [verbs] The program is in a batch, and the address handle is one of libmlx5.
#[inline(never)]
unsafe extern "C" fn add_address(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's contract; a WQE that lacks an address is that of a datagram.
    unsafe {
        add(qp, ADDRESS, |queue, wqe, _| {
            let av = av::of(ah).ok_or(libc::EINVAL)?;
            queue.put_address(wqe, &av.read_unaligned().to(qpn, qkey));
            Ok(())
        });
    }
}

/// Declares functions that add one SGE, with a short way to close a WQE that lacks nothing else.
macro_rules! set_sge {
    ($($name:ident: $fits:ident, $close:ident;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
            let sge = Sge { addr, length, lkey };
            // SAFETY: [verbs] the program is in a batch; [memory] is what it keeps. A WQE that lacks a part is open.
            unsafe {
                let (_, side) = batch(qp);
                let draft = &mut side.draft;
                // The last part of most WQEs.
                if draft.lacks == PAYLOAD && (1..INLINE_SEG).contains(&length) {
                    let wqe = draft.wqe.assume_init_ref();
                    if wqe.$fits() {
                        let data = Request { wr_id: draft.wr_id, number: side.posted };
                        side.queue.$close(wqe, sge, data);
                        side.posted = side.posted.wrapping_add(1);
                        draft.lacks = 0;
                        return;
                    }
                }
                add_sge(qp, lkey, addr, length);
            }
        }
    )*};
}

set_sge! {
    wr_set_sge: is_short, close_with;
    wr_set_sge_of_datagram: has_next_block, close_with_next;
}

/// Adds one SGE to any WQE.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(never)]
unsafe extern "C" fn add_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's contract.
    unsafe { add_list(qp, &[Sge { addr, length, lkey }]) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: [verbs] the program is in a batch; [memory] is what it keeps.
    unsafe { add_list(qp, sges(list, count.try_into().unwrap_or(c_int::MAX))) };
}

/// Adds registered memory.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn add_list(qp: *mut ibv_qp_ex, list: &[Sge]) {
    // SAFETY: the caller's contract; [memory] is what the program keeps.
    unsafe {
        add(qp, PAYLOAD, |queue, wqe, limits| {
            if list.len() > limits.sges as usize {
                return Err(libc::ENOMEM);
            }
            let put = if wqe.is_atomic() {
                let [sge] = list else { return Err(libc::EINVAL) };
                queue.put(wqe, Payload::gather(&[Sge { length: 8, ..*sge }]))
            } else {
                queue.put(wqe, Payload::gather(list))
            };
            put.map_err(errno)
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read during the call. A WQE that lacks a part is open.
    unsafe {
        let (_, side) = batch(qp);
        let draft = &mut side.draft;
        // The last part of most WQEs.
        if draft.lacks == PAYLOAD && length != 0 && length <= side.limits.inline as usize {
            let wqe = draft.wqe.assume_init_ref();
            if length + InlineHeader::SIZE <= wqe.room_in_block() && !wqe.is_read() {
                let data = Request { wr_id: draft.wr_id, number: side.posted };
                side.queue.close_with_inline(wqe, bytes(addr, length), data);
                side.posted = side.posted.wrapping_add(1);
                draft.lacks = 0;
                return;
            }
        }
        add_piece(qp, addr, length);
    }
}

/// Adds inline data of one piece to any WQE.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(never)]
unsafe extern "C" fn add_piece(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's contract.
    unsafe { add_inline(qp, bytes(addr, length)) };
}

/// Adds inline data.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn add_inline(qp: *mut ibv_qp_ex, bytes: &[u8]) {
    // SAFETY: the caller's contract; inline bytes are copied.
    unsafe {
        add(qp, PAYLOAD, |queue, wqe, limits| {
            if bytes.len() > limits.inline as usize {
                return Err(libc::ENOMEM);
            }
            if wqe.is_read() {
                return Err(libc::EINVAL);
            }
            queue.put(wqe, Payload::inline(&[bytes])).map_err(errno)
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read during the call.
    unsafe {
        let (_, side) = batch(qp);
        let list = if count == 0 { &[] } else { slice::from_raw_parts(list, count) };
        let len = list.iter().fold(0_usize, |len, piece| len.saturating_add(piece.length));
        if len > side.limits.inline as usize {
            return side.draft.fail(libc::ENOMEM);
        }
        // They are made one piece, for there may be any number of them.
        let mut all = mem::take(&mut side.draft.bytes);
        all.clear();
        list.iter().for_each(|piece| all.extend_from_slice(bytes(piece.addr, piece.length)));
        add_inline(qp, &all);
        batch(qp).1.draft.bytes = all;
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

#[cfg(test)]
mod tests;
