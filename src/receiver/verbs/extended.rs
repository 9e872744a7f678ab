//! Polling an extended CQ.

use std::collections::VecDeque;
use std::ptr;

use rdma_core_sys as sys;

use super::poll::{POLLED, Wc};
use crate::cq::Timestamps;

/// Takes completions, as many as one call of `ibv_poll_cq` would; returns how many.
///
/// # Safety
/// `cq` is alive, no other code polls it, and it was created with the standard fields and these timestamps.
pub(super) unsafe fn fetch(
    cq: *mut sys::ibv_cq_ex,
    timestamps: Timestamps,
    waiting: &mut VecDeque<Wc>,
) -> usize {
    let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the caller's `cq` is alive, and no other code polls it. After an error nothing was taken: the CQ is empty, or
    // it is broken, which an asynchronous event reports.
    if unsafe { sys::ibv_start_poll(cq, ptr::from_mut(&mut attr)) } != 0 {
        return 0;
    }
    let mut taken = 0;
    loop {
        // SAFETY: a batch has started, and there is a completion.
        waiting.push_back(unsafe { current(cq, timestamps) });
        taken += 1;
        // SAFETY: a batch has started.
        if taken == POLLED || unsafe { sys::ibv_next_poll(cq) } != 0 {
            break;
        }
    }
    // SAFETY: a batch has started.
    unsafe { sys::ibv_end_poll(cq) };
    taken
}

/// # Safety
/// `cq` is in a batch and has a completion; the rest as for [`fetch`].
unsafe fn current(cq: *mut sys::ibv_cq_ex, timestamps: Timestamps) -> Wc {
    // SAFETY: the caller's `cq` is in a batch, has a completion, and was created with these fields.
    unsafe {
        let mut wc = sys::ibv_wc {
            wr_id: (*cq).wr_id,
            status: (*cq).status,
            qp_num: sys::ibv_wc_read_qp_num(cq),
            ..Default::default()
        };
        if wc.status != sys::IBV_WC_SUCCESS {
            wc.vendor_err = sys::ibv_wc_read_vendor_err(cq);
            return Wc { wc, timestamp: None };
        }
        wc.opcode = sys::ibv_wc_read_opcode(cq);
        wc.byte_len = sys::ibv_wc_read_byte_len(cq);
        wc.wc_flags = sys::ibv_wc_read_wc_flags(cq);
        if wc.wc_flags & sys::IBV_WC_WITH_INV != 0 {
            wc.__bindgen_anon_1.invalidated_rkey = sys::ibv_wc_read_invalidated_rkey(cq);
        } else if wc.wc_flags & sys::IBV_WC_WITH_IMM != 0 {
            wc.__bindgen_anon_1.imm_data = sys::ibv_wc_read_imm_data(cq);
        }
        wc.src_qp = sys::ibv_wc_read_src_qp(cq);
        wc.slid = sys::ibv_wc_read_slid(cq) as u16;
        wc.sl = sys::ibv_wc_read_sl(cq);
        wc.dlid_path_bits = sys::ibv_wc_read_dlid_path_bits(cq);
        let timestamp = match timestamps {
            Timestamps::Ticks => sys::ibv_wc_read_completion_ts(cq),
            // libmlx5 gives it as the CQE has it, in spite of the name.
            Timestamps::RealTime => sys::ibv_wc_read_completion_wallclock_ns(cq),
        };
        Wc { wc, timestamp: Some(timestamp) }
    }
}
