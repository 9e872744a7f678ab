//! Posting requests with `ibv_wr_*`.

use rdma_core_sys as sys;

use super::plan::Kind;
use super::request::{Destination, Request, Windows};
use crate::verbs::QKEY;

/// Builds a batch, and posts or aborts it; returns the errno. Every other request with an address sets it after the
/// payload.
///
/// # Safety
/// The QP is alive, has these operations, and the memory that the requests name is read only while the device rests.
pub unsafe fn build(
    qp: *mut sys::ibv_qp,
    to: Option<&Destination>,
    windows: Option<&Windows>,
    requests: &[Request],
    is_aborted: bool,
) -> i32 {
    // SAFETY: the QP is alive and has these operations, and the memory that the requests name can be read.
    unsafe {
        let qp = sys::ibv_qp_to_qp_ex(qp);
        sys::ibv_wr_start(qp);
        for request in requests {
            if let (Some(change), Some(windows)) = (&request.change, windows) {
                ((*qp).wr_id, (*qp).wr_flags) = (request.id, request.flags());
                if change.bytes.is_some() {
                    sys::ibv_wr_bind_mw(qp, windows.windows[1], change.keys[1], &change.info(windows));
                } else {
                    sys::ibv_wr_local_inv(qp, change.keys[0]);
                }
                continue;
            }
            begin(qp, request);
            let is_addressed_last = request.id % 2 == 0;
            let address = |is_due: bool| {
                if let Some(Destination { ah, qpn }) = to.filter(|_| is_due) {
                    sys::ibv_wr_set_ud_addr(qp, *ah, *qpn, QKEY);
                }
            };
            address(!is_addressed_last);
            put(qp, request);
            address(is_addressed_last);
        }
        if is_aborted {
            sys::ibv_wr_abort(qp);
            return 0;
        }
        sys::ibv_wr_complete(qp)
    }
}

/// # Safety
/// As [`build`], between `ibv_wr_start` and `ibv_wr_complete`.
unsafe fn begin(qp: *mut sys::ibv_qp_ex, request: &Request) {
    let (addr, rkey) = request.remote;
    // SAFETY: the QP is alive and has these operations, between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe {
        ((*qp).wr_id, (*qp).wr_flags) = (request.id, request.flags());
        match request.kind {
            Kind::Send => sys::ibv_wr_send(qp),
            Kind::SendImmediate(value) => sys::ibv_wr_send_imm(qp, value.to_be()),
            Kind::SendInvalidate(key) => sys::ibv_wr_send_inv(qp, key),
            Kind::Write => sys::ibv_wr_rdma_write(qp, rkey, addr),
            Kind::WriteImmediate(value) => {
                sys::ibv_wr_rdma_write_imm(qp, rkey, addr, value.to_be());
            }
            Kind::Read => sys::ibv_wr_rdma_read(qp, rkey, addr),
            Kind::FetchAdd(add) => sys::ibv_wr_atomic_fetch_add(qp, rkey, addr, add),
            Kind::CompareSwap(compare, swap) => {
                sys::ibv_wr_atomic_cmp_swp(qp, rkey, addr, compare, swap);
            }
            Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => unreachable!("no payload"),
        }
    }
}

/// # Safety
/// As [`begin`].
unsafe fn put(qp: *mut sys::ibv_qp_ex, request: &Request) {
    // SAFETY: "as `begin`": the QP is alive, and a request is being built. The lists can be read during the calls.
    unsafe {
        match &request.sges[..] {
            [one] if request.inline => {
                let addr = std::ptr::with_exposed_provenance_mut(one.addr as usize);
                sys::ibv_wr_set_inline_data(qp, addr, one.length as usize);
            }
            sges if request.inline => {
                let piece = |sge: &sys::ibv_sge| sys::ibv_data_buf {
                    addr: std::ptr::with_exposed_provenance_mut(sge.addr as usize),
                    length: sge.length as usize,
                };
                let pieces: Vec<_> = sges.iter().map(piece).collect();
                sys::ibv_wr_set_inline_data_list(qp, pieces.len(), pieces.as_ptr());
            }
            [one] => sys::ibv_wr_set_sge(qp, one.lkey, one.addr, one.length),
            sges => sys::ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr()),
        }
    }
}
