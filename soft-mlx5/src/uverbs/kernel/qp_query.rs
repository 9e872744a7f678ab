//! QUERY_QP.

use super::Call;
use super::abi::uverbs::{QueryQp, QueryQpResp};
use super::errno::EINVAL;
use super::qp::Qp;
use super::qp_modify::depth;
use super::qp_state::mask;
use super::udata::Request;
use crate::objects::{QpState, Result};

/// Attributes that a target of dynamic connections has, once it listens.
const OF_TARGET: u32 =
    mask::STATE | mask::ACCESS_FLAGS | mask::PORT | mask::MIN_RNR_TIMER | mask::AV | mask::PATH_MTU | mask::PKEY_INDEX;

/// Runs QUERY_QP: the attributes as set, and the state that the device has changed since.
pub fn write_query(call: &mut Call, request: &Request) -> Result<()> {
    let core: QueryQp = request.core.input.request()?;
    let Qp { qpn, is_target, .. } = *call.get::<Qp>(core.qp_handle)?;
    let status = call.nic().query_qp(qpn)?;
    if is_target && (status.state != QpState::Rtr || core.attr_mask & !OF_TARGET != 0) {
        return Err(EINVAL);
    }
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
