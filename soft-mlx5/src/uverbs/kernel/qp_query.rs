//! QUERY_QP.

use super::Call;
use super::abi::uverbs::{QueryQp, QueryQpResp};
use super::qp::Qp;
use super::qp_modify::depth;
use super::udata::Request;
use crate::objects::Result;

/// Runs QUERY_QP: the attributes as set, and the state that the device has changed since.
pub fn write_query(call: &mut Call, request: &Request) -> Result<()> {
    let core: QueryQp = request.core.input.request()?;
    let qpn = call.get::<Qp>(core.qp_handle)?.qpn;
    let status = call.nic().query_qp(qpn)?;
    let qp = call.get::<Qp>(core.qp_handle)?;
    let attr = qp.attr;
    let answer = QueryQpResp {
        dest: attr.dest,
        cap: qp.cap,
        qkey: attr.qkey,
        rq_psn: status.rq_psn,
        sq_psn: status.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access,
        pkey_index: attr.pkey_index,
        qp_state: status.state as u8,
        cur_qp_state: status.state as u8,
        path_mtu: attr.path_mtu,
        sq_draining: status.sq_draining.into(),
        max_rd_atomic: depth(attr.max_rd_atomic),
        max_dest_rd_atomic: depth(attr.max_dest_rd_atomic),
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_sig_all: qp.signal_all.into(),
        ..QueryQpResp::default()
    };
    request.core.output.respond(&answer)
}
