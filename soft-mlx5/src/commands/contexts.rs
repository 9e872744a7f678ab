//! Contexts of the objects that the kernel makes for verbs, so that commands find them as an adapter has them.

use mlx5_wire::firmware::cq::CqContext;
use mlx5_wire::firmware::dct::DctContext;
use mlx5_wire::firmware::qp::{AddressPath, QpContext, rq_type, service};
use mlx5_wire::firmware::srq::{RmpContext, XrqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind, state};

use super::Commands;
use super::objects::{Id, Kind};
use super::qp::{give_rights, in_reset};
use crate::fabric::address;
use crate::objects::{AddressVector, CqAttr, DcAttr, QpAttr, QpModify, QpState, Service, SrqAttr, SrqKind};

/// State of path migration: migrated.
const MIGRATED: u8 = 3;
const TAG_MATCHING: u8 = 1;
const RENDEZVOUS: u8 = 1;

impl CqAttr {
    /// Returns the context of a CQ whose events come through this event queue.
    pub(crate) fn context(&self, eqn: u32) -> CqContext {
        CqContext {
            cqe_size: u8::from(self.cqe_size > 64),
            overrun_ignore: self.ignore_overrun,
            compression: self.compression.is_some(),
            mini_cqe_format: self.compression.map_or(0, |format| format.trailing_zeros() as u8),
            log_size: self.cqe_count.ilog2() as u8,
            uar_page: self.uar,
            eqn: eqn as u8,
            dbr_addr: self.dbrec,
            ..CqContext::ZERO
        }
    }
}

impl SrqAttr {
    /// Returns the context of an SRQ, and of one for tag matching.
    pub(crate) fn context(&self) -> Vec<u8> {
        let queue = WorkQueue {
            kind: kind::LINKED_LIST,
            lwm: self.limit as u16,
            pd: self.pd.0,
            dbr_addr: self.dbrec,
            log_stride: self.wqe_shift as u8,
            log_size: self.wqe_count.ilog2() as u8,
            ..WorkQueue::ZERO
        };
        match self.kind {
            SrqKind::TagMatching { cq, max_tags, .. } => XrqContext {
                topology: TAG_MATCHING,
                offload: RENDEZVOUS,
                user_index: self.user_index,
                cqn: cq.0,
                log_list_size: (max_tags + 1).next_power_of_two().ilog2() as u8,
                queue,
                ..XrqContext::ZERO
            }
            .to_bytes()
            .to_vec(),
            _ => RmpContext { state: state::RDY, queue, ..RmpContext::ZERO }.to_bytes().to_vec(),
        }
    }
}

impl QpAttr {
    /// Returns the context of a queue pair in Reset, or of a target of dynamic connections.
    pub(crate) fn context(&self) -> Vec<u8> {
        match self.dc {
            DcAttr::Target { key } => self.context_of_target(key).to_bytes().to_vec(),
            _ => self.context_of_queues().to_bytes().to_vec(),
        }
    }

    fn context_of_target(&self, dc_access_key: u64) -> DctContext {
        DctContext {
            user_index: self.user_index,
            cqn: self.recv_cq.0,
            srqn_xrqn: self.srq.map_or(0, |srq| srq.0),
            pd: self.pd.0,
            dc_access_key,
            ..DctContext::ZERO
        }
    }

    fn context_of_queues(&self) -> QpContext {
        let errored = match self.dc {
            DcAttr::Initiator { streams_in_error } => streams_in_error.map_or(0, |count| count.ilog2() as u8),
            _ => 0,
        };
        let no_sq = self.sq.count == 0;
        QpContext {
            service: match self.service {
                Service::Uc => service::UC,
                Service::Ud => service::UD,
                Service::Dc => service::DCI,
                Service::Rc | Service::Raw => service::RC,
            },
            pm_state: MIGRATED,
            pd: self.pd.0,
            log_rq_size: self.rq.count.checked_ilog2().unwrap_or(0) as u8,
            log_rq_stride: self.rq.shift.saturating_sub(4) as u8,
            no_sq,
            log_sq_size: self.sq.count.checked_ilog2().unwrap_or(0) as u8,
            uar_page: if no_sq { 0 } else { self.register.page },
            user_index: self.user_index,
            cqn_snd: self.send_cq.0,
            log_num_dci_errored_streams: errored,
            cqn_rcv: self.recv_cq.0,
            dbr_addr: self.dbrec,
            rq_type: match self.srq {
                Some(_) => rq_type::SRQ,
                None if self.rq.count == 0 => rq_type::NONE,
                None => rq_type::OWN,
            },
            srqn: self.srq.map_or(0, |srq| srq.0),
            scatter_requester: if self.scatter_to_cqe_sq { 0x11 } else { 0 },
            scatter_responder: u8::from(self.scatter_to_cqe_rq),
            ..QpContext::ZERO
        }
    }
}

/// Returns the path of an address vector. On Ethernet the kernel gives the MAC address of the peer, too.
fn path_of(av: &AddressVector, before: AddressPath) -> AddressPath {
    let path = AddressPath { rlid: av.dlid, sl: av.sl, mlid: av.src_path_bits, ..before };
    let Some(grh) = av.grh else { return AddressPath { grh: false, ..path } };
    let mac = address::lid_of_gid(&grh.dgid).filter(|_| av.dlid == 0).map(address::mac);
    let [a, b, c, d, e, f] = mac.unwrap_or_default();
    AddressPath {
        grh: true,
        src_addr_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        tclass: grh.traffic_class,
        flow_label: grh.flow_label,
        rgid: grh.dgid,
        rmac: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
        ..path
    }
}

/// Writes the values that a change gives into the fields of a context.
macro_rules! keep {
    ($change:ident: $($given:ident => $place:expr, $value:expr;)*) => {$(
        if let Some($given) = $change.$given {
            $place = $value;
        }
    )*};
}

fn keep_in_queues(now: &mut QpContext, change: &QpModify) {
    if change.state == Some(QpState::Reset) {
        *now = in_reset(now);
        return;
    }
    if let Some(access) = change.access {
        give_rights(access, &mut now.rwe, &mut now.rre, &mut now.rae);
    }
    keep! { change:
        pkey_index => now.path.pkey_index, pkey_index;
        port => now.path.port, port;
        qkey => now.q_key, qkey;
        av => now.path, path_of(&av, now.path);
        path_mtu => now.mtu, (path_mtu / 128).ilog2() as u8;
        dest_qpn => now.remote_qpn, dest_qpn;
        rq_psn => now.next_rcv_psn, rq_psn;
        sq_psn => now.next_send_psn, sq_psn;
        max_dest_rd_atomic => now.log_rra_max, max_dest_rd_atomic.ilog2() as u8;
        max_rd_atomic => now.log_sra_max, max_rd_atomic.ilog2() as u8;
        min_rnr_timer => now.min_rnr_nak, min_rnr_timer;
        timeout => now.path.ack_timeout, timeout;
        retry_cnt => now.retry_count, retry_cnt;
        rnr_retry => now.rnr_retry, rnr_retry;
    }
}

fn keep_in_target(now: &mut DctContext, change: &QpModify) {
    if let Some(access) = change.access {
        give_rights(access, &mut now.rwe, &mut now.rre, &mut now.rae);
    }
    keep! { change:
        pkey_index => now.pkey_index, pkey_index;
        port => now.port, port;
        path_mtu => now.mtu, (path_mtu / 128).ilog2() as u8;
        min_rnr_timer => now.min_rnr_nak, min_rnr_timer;
    }
    if let Some(grh) = change.av.and_then(|av| av.grh) {
        (now.my_addr_index, now.hop_limit) = (grh.sgid_index, grh.hop_limit);
        (now.tclass, now.flow_label) = (grh.traffic_class, grh.flow_label);
    }
}

impl Commands {
    /// Enters a change that the kernel has made of a queue pair, or of a target, into its context.
    pub(crate) fn keep_change(&mut self, qpn: u32, change: &QpModify) {
        if let Ok(entry) = self.objects.find_mut(Id(Kind::Qp, qpn), 0) {
            if let Some(bytes) = entry.context.first_chunk_mut() {
                let mut now = QpContext::from_bytes(bytes);
                keep_in_queues(&mut now, change);
                now.put(bytes);
            }
        } else if let Ok(entry) = self.objects.find_mut(Id(Kind::Dct, qpn), 0) {
            if let Some(bytes) = entry.context.first_chunk_mut() {
                let mut now = DctContext::from_bytes(bytes);
                keep_in_target(&mut now, change);
                now.put(bytes);
            }
        }
    }
}
