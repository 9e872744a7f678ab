//! The parts of a WQE after its operation: address, SGEs and inline data.

use core::ffi::{c_int, c_void};
use core::iter;
use core::mem;
use core::slice;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Open, Payload, Pieces, SendQueue};
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};
use rdma_core_sys::{ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge};

use super::{ADDRESS, PAYLOAD, batch};
use crate::av;
use crate::objects::{Request, SendLimits, SendSide};
use crate::receive::sges;
use crate::send::{errno, result_of_atomic};

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
    // SAFETY: [verbs] the program is in a batch.
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
        // SAFETY: the WQE lacks nothing; [ready]. Nothing else is posted in a batch.
        unsafe { side.close_wqe() };
    }
}

impl SendSide {
    /// Closes the open WQE.
    ///
    /// # Safety
    /// It lacks nothing, and nothing was posted since it was opened; [ready].
    #[inline(never)]
    unsafe fn close_wqe(&mut self) {
        let data = Request { wr_id: self.draft.wr_id, number: self.posted };
        // SAFETY: the WQE lacks nothing, and nothing was posted since it was opened; [ready].
        unsafe { self.queue.close(self.draft.wqe.assume_init_ref(), data) };
        self.posted = self.posted.wrapping_add(1);
    }
}

pub(super) unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: [verbs] the program is in a batch, and the address handle is one of libmlx5. A WQE that lacks an address is that
    // of a datagram, because libmlx5 gives UD queue pairs no other operation.
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
    // SAFETY: [verbs] the program is in a batch, and `ah` is an address handle of libmlx5. A WQE that lacks an address is that
    // of a datagram, because libmlx5 gives UD queue pairs no other operation.
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
    ($($name:ident: $close:ident, |$queue:ident, $wqe:ident| $fits:expr;)*) => {$(
        pub(super) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
            let sge = Sge { addr, length, lkey };
            // SAFETY: [verbs] the program is in a batch and keeps [memory]; [ready]. A WQE that lacks a part is open.
            unsafe {
                let (_, side) = batch(qp);
                let draft = &mut side.draft;
                // The last part of most WQEs.
                if draft.lacks == PAYLOAD && (1..INLINE_SEG).contains(&length) {
                    let ($queue, $wqe) = (&mut side.queue, draft.wqe.assume_init_ref());
                    if $fits {
                        let data = Request { wr_id: draft.wr_id, number: side.posted };
                        $queue.$close($wqe, sge, data);
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
    wr_set_sge: close_with, |queue, wqe| wqe.is_short();
    // With its address a datagram fills its first block.
    wr_set_sge_of_datagram: close_with_next, |queue, wqe| queue.free_blocks() > 1;
}

/// Adds one SGE to any WQE.
///
/// # Safety
/// [verbs] The program is in a batch and keeps [memory].
#[inline(never)]
unsafe extern "C" fn add_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch and keeps [memory].
    unsafe { add_list(qp, &[Sge { addr, length, lkey }]) };
}

pub(super) unsafe extern "C" fn wr_set_sge_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: [verbs] the program is in a batch and keeps [memory]; the list can be read; [ready]. A WQE that lacks a part is
    // open.
    unsafe {
        let (_, side) = batch(qp);
        let draft = &mut side.draft;
        // The last part of most WQEs.
        if draft.lacks != PAYLOAD || draft.wqe.assume_init_ref().is_atomic() {
            add_list(qp, sges(list, count.try_into().unwrap_or(c_int::MAX)));
        } else if count == 0 {
            draft.lacks = 0;
            side.close_wqe();
        } else {
            close_with_list(qp, count, list);
        }
    }
}

/// Adds registered memory to a WQE that lacks nothing else and is not an atomic.
///
/// # Safety
/// As [`add_list`]; the list can be read, and such a WQE is open.
#[inline(never)]
unsafe extern "C" fn close_with_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: [verbs] the program is in a batch and keeps [memory]; [ready].
    unsafe {
        let (_, side) = batch(qp);
        let draft = &mut side.draft;
        let list = sges(list, count.try_into().unwrap_or(c_int::MAX));
        if list.len() <= side.limits.sges as usize {
            let data = Request { wr_id: draft.wr_id, number: side.posted };
            if side.queue.close_with_sges(draft.wqe.assume_init_ref(), list, data) {
                side.posted = side.posted.wrapping_add(1);
                draft.lacks = 0;
                return;
            }
        }
        add_list(qp, list);
    }
}

/// Adds registered memory.
///
/// # Safety
/// [verbs] The program is in a batch and keeps [memory].
#[inline(never)]
unsafe fn add_list(qp: *mut ibv_qp_ex, list: &[Sge]) {
    // SAFETY: [verbs] the program is in a batch and keeps [memory].
    unsafe {
        add(qp, PAYLOAD, |queue, wqe, limits| {
            if list.len() > limits.sges as usize {
                return Err(libc::ENOMEM);
            }
            let put = if wqe.is_atomic() {
                queue.put(wqe, Payload::gather(&[result_of_atomic(list)?]))
            } else {
                queue.put(wqe, Payload::gather(list))
            };
            put.map_err(errno)
        });
    }
}

pub(super) unsafe extern "C" fn wr_set_inline_data(
    qp: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read; [ready]. A WQE that lacks a part is open.
    unsafe {
        let (_, side) = batch(qp);
        // Refused data is not read.
        if length > side.limits.inline as usize {
            return side.draft.fail(libc::ENOMEM);
        }
        if !side.close_with_inline(length, iter::once(bytes(addr, length))) {
            add_piece(qp, addr, length);
        }
    }
}

impl SendSide {
    /// Closes the open WQE with the `len` inline bytes that `pieces` have together. Returns `false`, and has no effect, if it lacks
    /// another part, or they do not fit into its first block.
    ///
    /// # Safety
    /// [verbs] The program is in a batch; [ready]. The queue pair takes as many inline bytes.
    #[inline(always)]
    unsafe fn close_with_inline(&mut self, len: usize, pieces: impl Pieces) -> bool {
        let Self { draft, queue, .. } = self;
        if draft.lacks != PAYLOAD || len == 0 {
            return false;
        }
        // SAFETY: a WQE that lacks a part is open; [ready].
        unsafe {
            let wqe = draft.wqe.assume_init_ref();
            if len + InlineHeader::SIZE > wqe.room_in_block() || wqe.is_read() {
                return false;
            }
            let data = Request { wr_id: draft.wr_id, number: self.posted };
            queue.close_with_inline(wqe, len, pieces, data);
        }
        self.posted = self.posted.wrapping_add(1);
        draft.lacks = 0;
        true
    }
}

/// Adds inline data of one piece to any WQE.
///
/// # Safety
/// [verbs] The program is in a batch, and the data can be read.
#[inline(never)]
unsafe extern "C" fn add_piece(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read.
    unsafe { add_inline(qp, bytes(addr, length)) };
}

/// Adds inline data.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn add_inline(qp: *mut ibv_qp_ex, bytes: &[u8]) {
    // SAFETY: [verbs] the program is in a batch; inline bytes are copied.
    unsafe {
        add(qp, PAYLOAD, |queue, wqe, limits| {
            if bytes.len() > limits.inline as usize {
                return Err(libc::ENOMEM);
            }
            let put = match (wqe.is_read(), bytes) {
                (false, _) => queue.put(wqe, Payload::inline(&[bytes])),
                (true, []) if !wqe.is_atomic() => queue.put(wqe, Payload::gather(&[])),
                (true, _) => return Err(libc::EINVAL),
            };
            put.map_err(errno)
        });
    }
}

pub(super) unsafe extern "C" fn wr_set_inline_data_list(
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
        if side.close_with_inline(len, list.iter().map(|piece| bytes(piece.addr, piece.length))) {
            return;
        }
        // The pieces are joined, because there may be any number of them.
        let mut all = mem::take(&mut side.draft.bytes);
        all.clear();
        list.iter().for_each(|piece| all.extend_from_slice(bytes(piece.addr, piece.length)));
        add_inline(qp, &all);
        batch(qp).1.draft.bytes = all;
    }
}

/// Returns a piece of inline data.
///
/// # Safety
/// `length` bytes can be read at `addr` during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: `length` bytes can be read at `addr`.
    unsafe { slice::from_raw_parts(addr.cast(), length) }
}
