//! The tag list as libibverbs and the stock libmlx5 drive it.

use rdma_core_sys as sys;

use super::request::{Request, What};
use super::twin::Twin;
use crate::verbs;

/// Posts list operations with one call. Returns how many were taken, and the handle of each append.
pub fn post(twin: &Twin, requests: &[Request]) -> (usize, Result<(), i32>, Vec<u32>) {
    let mut sges: Vec<_> = requests.iter().map(Request::sge).collect();
    let mut wrs: Vec<_> = requests.iter().zip(&mut sges).map(|(r, sge)| wr(r, sge)).collect();
    // SAFETY: the SRQ is alive, the list can be read, and the memory that it names is read only while the
    // device rests.
    let post = |first, bad: &mut _| unsafe { sys::ibv_post_srq_ops(twin.srq, first, bad) };
    let (taken, errno) = verbs::post_list(&mut wrs, |wr| &mut wr.next, post);
    let handles = wrs[..taken].iter().map(|wr| wr.tm.handle).collect();
    (taken, if errno == 0 { Ok(()) } else { Err(errno) }, handles)
}

fn wr(request: &Request, sge: &mut sys::ibv_sge) -> sys::ibv_ops_wr {
    let signaled = if request.signaled { sys::IBV_OPS_SIGNALED } else { 0 };
    let counted = if request.count.is_some() { sys::IBV_OPS_TM_SYNC } else { 0 };
    let mut wr = sys::ibv_ops_wr { wr_id: request.id, flags: (signaled | counted) as i32, ..Default::default() };
    wr.tm.unexpected_cnt = request.count.unwrap_or(0);
    match request.what {
        What::Add { tag, mask, .. } => {
            wr.opcode = sys::IBV_WR_TAG_ADD;
            let add = &mut wr.tm.add;
            (add.recv_wr_id, add.tag, add.mask) = (request.id, tag, mask);
            (add.sg_list, add.num_sge) = (sge, 1);
        }
        What::Del { entry, .. } => {
            wr.opcode = sys::IBV_WR_TAG_DEL;
            wr.tm.handle = entry;
        }
        What::Sync => wr.opcode = sys::IBV_WR_TAG_SYNC,
    }
    wr
}

/// Takes at most `budget` completions. Returns the valid fields of each.
pub fn poll(twin: &Twin, budget: u32) -> Vec<Vec<(&'static str, u64)>> {
    let cq = twin.cq;
    let mut completions = Vec::new();
    let mut attr = sys::ibv_poll_cq_attr::default();
    // SAFETY: the CQ is alive, and no other code polls it.
    if unsafe { sys::ibv_start_poll(cq, &mut attr) } != 0 {
        return completions;
    }
    loop {
        // SAFETY: in a batch of a CQ that was created with all fields that are read.
        completions.push(unsafe { fields(cq) });
        // SAFETY: in a batch.
        if completions.len() as u32 >= budget || unsafe { sys::ibv_next_poll(cq) } != 0 {
            break;
        }
    }
    // SAFETY: in a batch.
    unsafe { sys::ibv_end_poll(cq) }
    completions
}

/// # Safety
/// The CQ is in a batch.
unsafe fn fields(cq: *mut sys::ibv_cq_ex) -> Vec<(&'static str, u64)> {
    // SAFETY: the CQ is in a batch.
    unsafe {
        let status = (*cq).status;
        let mut fields = vec![("wr_id", (*cq).wr_id), ("status", status.into())];
        let executed = [sys::IBV_WC_SUCCESS, sys::IBV_WC_TM_ERR, sys::IBV_WC_TM_RNDV_INCOMPLETE];
        if !executed.contains(&status) {
            fields.push(("vendor_err", sys::ibv_wc_read_vendor_err(cq).into()));
            fields.push(("qp_num", sys::ibv_wc_read_qp_num(cq).into()));
            return fields;
        }
        let (opcode, flags) = (sys::ibv_wc_read_opcode(cq), sys::ibv_wc_read_wc_flags(cq));
        fields.extend([("opcode", opcode.into()), ("wc_flags", flags.into())]);
        if [sys::IBV_WC_TM_RECV, sys::IBV_WC_TM_NO_TAG, sys::IBV_WC_RECV].contains(&opcode) {
            fields.push(("byte_len", sys::ibv_wc_read_byte_len(cq).into()));
            fields.push(("qp_num", sys::ibv_wc_read_qp_num(cq).into()));
        }
        if flags & sys::IBV_WC_TM_MATCH != 0 {
            let mut info = sys::ibv_wc_tm_info::default();
            sys::ibv_wc_read_tm_info(cq, &mut info);
            fields.extend([("tag", info.tag), ("priv", info.priv_.into())]);
        }
        fields
    }
}
