//! The side that is asked: accepting, and the attributes that the queue pairs of both sides need.

use super::address::gid_index;
use super::commands::Request;
use super::connect::private;
use super::identifier::{Identifier, State};
use super::{Call, HOP_LIMIT};
use crate::fabric::LinkLayer;
use crate::objects::{QpState, Result, Service};
use crate::uverbs::cm::message::{REP_DATA, SIDR_REP_DATA};
use crate::uverbs::cm::{self, Accept, Answer, Path, QpValues, sidr_status};
use crate::uverbs::kernel::abi::Abi;
use crate::uverbs::kernel::abi::rdma_cm::{Accept as Wanted, AhAttr, InitQpAttr, QpAttr};
use crate::uverbs::kernel::errno::{EINVAL, ENOSPC};
use crate::uverbs::kernel::qp_state::mask;

const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;

impl Call<'_> {
    pub(super) fn accept(&mut self, request: &Request) -> Result<()> {
        let wanted: Wanted = request.input.get()?;
        let param = &wanted.conn_param;
        let data = private(param);
        let id = self.id(wanted.id)?;
        let (cm, service, state, qkey) = (id.cm.ok_or(EINVAL)?, id.service, id.state, id.qkey());
        if state != State::Connect {
            return Err(EINVAL);
        }
        let valid = param.valid != 0;
        let cms = &mut self.core.rdma_cm.cm;
        let done = match service {
            Service::Ud if data.len() > SIDR_REP_DATA => return Err(EINVAL),
            Service::Ud => {
                let status = sidr_status::SUCCESS;
                cms.answer(cm, &Answer { status, qpn: param.qp_num, qkey, data })
            }
            // The side that has asked, and says that it is ready.
            _ if cms.state(cm) == Some(cm::State::RepReceived) => cms.ready(cm),
            _ if !valid || data.len() > REP_DATA => return Err(EINVAL),
            _ => cms.accept(
                cm,
                &Accept {
                    qpn: param.qp_num,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    flow_control: param.flow_control != 0,
                    rnr_retry_count: param.rnr_retry_count.min(7),
                    srq: param.srq != 0,
                    data,
                },
            ),
        };
        done.map_err(|_| EINVAL)?;
        if valid {
            self.id(wanted.id)?.uid = wanted.uid;
        }
        Ok(())
    }

    pub(super) fn init_qp_attr(&mut self, request: &Request) -> Result<()> {
        if request.room < QpAttr::SIZE {
            return Err(ENOSPC);
        }
        let wanted: InitQpAttr = request.input.get()?;
        let link = self.core.link;
        let id = self.core.rdma_cm.id(self.file, wanted.id)?;
        if !id.on_device {
            return Err(EINVAL);
        }
        let (cm, ack_timeout) = (id.cm.filter(|_| id.service != Service::Ud), id.ack_timeout);
        let fresh = without_connection(id, wanted.qp_state);
        let cms = &self.core.rdma_cm.cm;
        let connection = cm.and_then(|cm| Some((cms.state(cm)?, cms.qp_values(cm)?)));
        let mut attr = match connection {
            None => fresh?,
            Some((state, values)) => {
                let service = self.id(wanted.id)?.service;
                of_connection(state, &values, wanted.qp_state, service, link)?
            }
        };
        if let Some(timeout) = ack_timeout.filter(|_| attr.qp_attr_mask & mask::TIMEOUT != 0) {
            attr.timeout = timeout;
        }
        request.respond(wanted.response, &attr)
    }
}

// Returns the attributes of a queue pair that is not connected: they lead to INIT.
fn without_connection(id: &Identifier, qp_state: u32) -> Result<QpAttr> {
    let state = mask::STATE | mask::PKEY_INDEX | mask::PORT;
    let ud = id.service == Service::Ud;
    if qp_state > QpState::Err as u32 {
        return Err(EINVAL);
    }
    Ok(QpAttr {
        qp_attr_mask: state | if ud { mask::QKEY } else { mask::ACCESS_FLAGS },
        qp_state,
        qkey: if ud { id.qkey() } else { 0 },
        port_num: 1,
        ..QpAttr::default()
    })
}

fn of_connection(
    state: cm::State,
    values: &QpValues,
    qp_state: u32,
    service: Service,
    link: LinkLayer,
) -> Result<QpAttr> {
    use cm::State::*;
    let reliable = service == Service::Rc;
    let known = matches!(state, ReqReceived | RepReceived | RepSent | Established);
    let reads = if values.responder_resources > 0 { REMOTE_READ | REMOTE_ATOMIC } else { 0 };
    let attr = QpAttr { qp_state, port_num: 1, ..QpAttr::default() };
    match qp_state {
        1 if known || state == ReqSent => Ok(QpAttr {
            qp_attr_mask: mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT,
            qp_access_flags: REMOTE_WRITE | reads,
            ..attr
        }),
        2 if known => Ok(QpAttr {
            qp_attr_mask: mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | if reliable { mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER } else { 0 },
            ah_attr: ah_attr(&values.path, link),
            path_mtu: values.mtu.into(),
            dest_qp_num: values.remote_qpn,
            rq_psn: values.receive_psn,
            max_dest_rd_atomic: values.responder_resources,
            ..attr
        }),
        3 if known => Ok(QpAttr {
            qp_attr_mask: mask::STATE
                | mask::SQ_PSN
                | if reliable { mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC } else { 0 },
            sq_psn: values.send_psn,
            timeout: values.ack_timeout,
            retry_cnt: values.retry_count,
            rnr_retry: values.rnr_retry_count,
            max_rd_atomic: values.initiator_depth,
            ..attr
        }),
        _ => Err(EINVAL),
    }
}

/// Returns the address vector of a path.
pub fn ah_attr(path: &Path, link: LinkLayer) -> AhAttr {
    let ethernet = link == LinkLayer::Ethernet;
    let grh = AhAttr {
        dgid: path.remote_gid,
        flow_label: path.flow_label,
        sgid_index: gid_index(&path.local_gid, link),
        hop_limit: if path.hop_limit == 0 { HOP_LIMIT } else { path.hop_limit },
        traffic_class: path.traffic_class,
        is_global: 1,
        ..AhAttr::default()
    };
    AhAttr {
        dlid: if ethernet { 0 } else { path.remote_lid },
        sl: path.sl,
        port_num: 1,
        ..if ethernet { grh } else { AhAttr::default() }
    }
}
