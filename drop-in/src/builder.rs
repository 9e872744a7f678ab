//! `ibv_wr_*`: a batch is a list of requests, which the end of the batch posts as `ibv_post_send` does.
//!
//! `ibv_wr_start` locks the list until `ibv_wr_complete` or `ibv_wr_abort`. It locks no queue, so a thread may poll
//! meanwhile.

use core::ffi::{c_int, c_void};
use core::mem::{self, zeroed};
use core::ptr;
use core::slice;

use rdma_core_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use rdma_core_sys::{
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma, ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_3 as Datagram,
};

use crate::context::{self, Context};
use crate::objects::{Batch, Qp, SendSide};
use crate::send;

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

/// Puts the library's functions in the place of libmlx5's, as far as the queue pair has them.
pub(crate) fn replace(qp: &mut ibv_qp_ex) {
    macro_rules! replace {
        ($($name:ident),*) => { $(qp.$name = qp.$name.and(Some($name));)* };
    }
    replace!(wr_start, wr_complete, wr_abort, wr_send, wr_send_imm, wr_send_inv, wr_rdma_write);
    replace!(wr_rdma_write_imm, wr_rdma_read, wr_atomic_cmp_swp, wr_atomic_fetch_add);
    replace!(wr_set_ud_addr, wr_set_sge, wr_set_sge_list, wr_set_inline_data);
    replace!(wr_set_inline_data_list);
}

/// Returns the context and the record of a queue pair whose functions were replaced.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn record_of<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Context, &'a Qp)> {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).qp_base.context);
        Some((context, context.qps.get((*qp).qp_base.qp_num)?))
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs]
    if let Some((_, record)) = unsafe { record_of(qp) } {
        let mut batch = record.batch.lock();
        batch.clear();
        // Until the batch ends.
        mem::forget(batch);
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
    unsafe {
        if let Some((_, record)) = record_of(qp) {
            record.batch.unlock();
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: [verbs] the program is in a batch, so this thread holds the lock.
    unsafe {
        let Some((context, record)) = record_of(qp) else { return libc::EINVAL };
        let batch = record.batch.held();
        let error = match &mut *record.send.lock() {
            Some(side) => side.post_batch(context, record, batch),
            None => libc::EINVAL,
        };
        record.batch.unlock();
        error
    }
}

impl SendSide {
    /// Posts the requests of a batch, or none of them; returns the errno.
    ///
    /// # Safety
    /// [verbs]; this is the send queue of `qp`.
    unsafe fn post_batch(&mut self, context: &Context, qp: &Qp, batch: &mut Batch) -> c_int {
        if !self.can_send {
            return libc::EINVAL;
        }
        let list = batch.link();
        let mut room = self.room();
        for request in &batch.requests {
            // SAFETY: [verbs]
            let error = unsafe { send::check(qp, &self.limits, request, room) };
            if error != 0 {
                return error;
            }
            room -= 1;
        }
        // SAFETY: [verbs]; the list is that of the batch.
        unsafe { self.post_list::<true>(context, qp, list, &mut ptr::null_mut()) }
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
    }

    /// Makes the list that `ibv_post_send` takes; returns the first request.
    fn link(&mut self) -> *mut ibv_send_wr {
        let bytes = self.bytes.as_ptr() as u64;
        let mut next = ptr::null_mut();
        for request in self.requests.iter_mut().rev() {
            let first = request.sg_list.addr();
            let list = &mut self.sges[first..first + request.num_sge as usize];
            if request.send_flags & IBV_SEND_INLINE != 0 {
                list.iter_mut().for_each(|sge| sge.addr += bytes);
            }
            (request.sg_list, request.next) = (list.as_mut_ptr(), next);
            next = request;
        }
        next
    }

    /// Has the SGEs from index `first` on be the payload of the last request.
    fn set_payload(&mut self, first: usize, flags: u32) {
        let count = self.sges.len() - first;
        if let Some(request) = self.requests.last_mut() {
            request.sg_list = ptr::without_provenance_mut(first);
            request.num_sge = c_int::try_from(count).unwrap_or(c_int::MAX);
            request.send_flags |= flags;
        }
    }

    /// Has inline data be the payload of the last request. What is more than the queue takes is not read: `check`
    /// refuses the request.
    ///
    /// # Safety
    /// Each piece can be read.
    unsafe fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a ibv_data_buf>) {
        let (start, mut len) = (self.bytes.len(), 0_usize);
        for piece in pieces.filter(|piece| piece.length > 0) {
            len = len.saturating_add(piece.length);
            if len <= self.inline_limit {
                // SAFETY: the piece can be read.
                let bytes = unsafe { slice::from_raw_parts(piece.addr.cast(), piece.length) };
                self.bytes.extend_from_slice(bytes);
            }
        }
        let (first, length) = (self.sges.len(), u32::try_from(len).unwrap_or(u32::MAX));
        self.sges.push(ibv_sge { addr: start as u64, length, lkey: 0 });
        self.set_payload(first, IBV_SEND_INLINE);
    }
}

/// Returns the batch of a queue pair.
///
/// # Safety
/// [verbs] The program is in a batch, so this thread holds the lock.
#[inline(always)]
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Batch> {
    // SAFETY: [verbs] this thread holds the lock.
    unsafe { Some(record_of(qp)?.1.batch.held()) }
}

/// Begins a request; `set` sets what the operation has.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, set: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: [verbs]; integers and pointers, which may be 0.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        batch.requests.push(zeroed());
        let Some(request) = batch.requests.last_mut() else { return };
        (request.wr_id, request.opcode) = ((*qp).wr_id, opcode);
        request.send_flags = (*qp).wr_flags & !IBV_SEND_INLINE;
        set(request);
    }
}

/// Declares functions that begin a request.
macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $opcode:ident, $set:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: [verbs] the program is in a batch.
            unsafe { begin(qp, $opcode, $set) }
        }
    )*};
}

fn set_remote(wr: &mut ibv_send_wr, rkey: u32, remote_addr: u64) {
    wr.wr.rdma = Rdma { remote_addr, rkey };
}

operations! {
    wr_send() = IBV_WR_SEND, |_| {};
    wr_send_imm(imm: u32) = IBV_WR_SEND_WITH_IMM, |wr| wr.__bindgen_anon_1.imm_data = imm;
    wr_send_inv(rkey: u32) =
        IBV_WR_SEND_WITH_INV, |wr| wr.__bindgen_anon_1.invalidate_rkey = rkey;
    wr_rdma_write(rkey: u32, addr: u64) = IBV_WR_RDMA_WRITE, |wr| set_remote(wr, rkey, addr);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
        set_remote(wr, rkey, addr);
        wr.__bindgen_anon_1.imm_data = imm;
    };
    wr_rdma_read(rkey: u32, addr: u64) = IBV_WR_RDMA_READ, |wr| set_remote(wr, rkey, addr);
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| {
        wr.wr.atomic = Atomic { remote_addr: addr, compare_add: add, swap: 0, rkey };
    };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =
        IBV_WR_ATOMIC_CMP_AND_SWP, |wr| {
            wr.wr.atomic = Atomic { remote_addr: addr, compare_add: compare, swap, rkey };
        };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: [verbs] the program is in a batch.
    if let Some(request) = unsafe { batch(qp) }.and_then(|batch| batch.requests.last_mut()) {
        request.wr.ud = Datagram { ah, remote_qpn: qpn, remote_qkey: qkey };
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: [verbs] the program is in a batch.
    if let Some(batch) = unsafe { batch(qp) } {
        let first = batch.sges.len();
        batch.sges.push(ibv_sge { addr, length, lkey });
        batch.set_payload(first, 0);
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: [verbs] the program is in a batch, and the list can be read.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        let first = batch.sges.len();
        if count > 0 {
            batch.sges.extend_from_slice(slice::from_raw_parts(list, count));
        }
        batch.set_payload(first, 0);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read.
    unsafe {
        if let Some(batch) = batch(qp) {
            batch.set_inline([ibv_data_buf { addr, length }].iter());
        }
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: [verbs] the program is in a batch, and the data can be read.
    unsafe {
        if let Some(batch) = batch(qp) {
            batch.set_inline((0..count).map(|piece| &*list.add(piece)));
        }
    }
}
