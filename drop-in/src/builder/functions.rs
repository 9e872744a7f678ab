//! The functions of `ibv_wr_*` in a queue pair: libmlx5's or this library's.

use core::ptr;
use std::sync::PoisonError;

use rdma_core_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, ibv_qp,
    ibv_qp_ex,
};

use super::parts::{
    wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
    wr_set_sge_of_datagram, wr_set_ud_addr,
};
use super::{
    wr_abort, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_complete, wr_rdma_read, wr_rdma_write,
    wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_start,
};
use crate::find;
use crate::objects::{Path, Qp, Transport};

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
/// `qp` is such a queue pair, and no code uses it meanwhile.
pub(crate) unsafe fn of(qp: *mut ibv_qp, has_windows: bool) -> Box<ibv_qp_ex> {
    // SAFETY: `qp` is a queue pair with `ibv_wr_*` that no code uses.
    let mut functions = unsafe { Box::new(qp.cast::<ibv_qp_ex>().read()) };
    functions.wr_bind_mw = functions.wr_bind_mw.filter(|_| has_windows);
    functions
}

/// Puts the library's functions in the place of libmlx5's, as far as the queue pair has them, unless it has the builder of
/// memory windows or functions that were not kept, as those of `mlx5dv_create_qp`.
///
/// # Safety
/// `qp` is a queue pair of libmlx5 that no code uses meanwhile, and `record` is its record.
pub(crate) unsafe fn replace(qp: *mut ibv_qp, record: &Qp) {
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    if original.as_ref().is_some_and(|original| original.wr_bind_mw.is_some()) {
        return;
    }
    // SAFETY: no code uses `qp`; libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
    let qp = unsafe { &mut *qp.cast::<ibv_qp_ex>() };
    if original.is_none() && qp.wr_start.is_some() {
        return;
    }
    // SAFETY: `qp` is a queue pair of libmlx5.
    unsafe { find::place_in_qp(qp).write(record) };
    qp.wr_start = Some(wr_start);
}

/// Puts the library's functions in the place of the rest of libmlx5's. Before the decision, which [`wr_start`] makes at the
/// latest, they are libmlx5's: a call outside of a batch finds the queue that they post to.
///
/// # Safety
/// [record-lives] doorbell drives the queue pair, and this thread holds the lock of its send queue.
pub(crate) unsafe fn take_over(record: &Qp) {
    let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
    if original.is_none() {
        return;
    }
    // SAFETY: [record-lives] libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
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
    // SAFETY: [record-lives] libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
    let qp = unsafe { &mut *record.ibv.cast::<ibv_qp_ex>() };
    if qp.wr_complete.is_some_and(|complete| complete as usize != wr_complete as *const () as usize)
    {
        original.wr_complete = qp.wr_complete;
        // Whether `take_over` has replaced the functions.
        if qp.wr_abort.is_some_and(|abort| abort as usize == wr_abort as *const () as usize) {
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
    // SAFETY: [record-lives] the queue pair exists.
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
