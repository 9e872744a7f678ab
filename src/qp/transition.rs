//! The attributes that take a queue pair from state to state, by transport.

use rdma_core_sys as sys;

use super::address::{QpAddress, Route};
use super::config::QpConfig;
use crate::attributes::DeviceAttr;
use crate::mtu::Mtu;

/// Outstanding RDMA READs and atomics in each direction: as many as mlx5 adapters take.
const RD_ATOMIC: u32 = 16;

/// Returns the RDMA READs and atomics in each direction on a device that takes at most `limit`.
fn rd_atomic(limit: u32) -> u8 {
    limit.clamp(1, RD_ATOMIC) as u8
}

/// Packets may cross any number of routers.
const HOP_LIMIT: u8 = 255;

/// RESET to INIT.
pub(super) fn init(config: &QpConfig) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let attr = sys::ibv_qp_attr {
        qp_state: sys::IBV_QPS_INIT,
        pkey_index: config.pkey_index,
        port_num: config.port,
        // The keys of memory regions also decide what may be accessed.
        qp_access_flags: if config.remote_read { sys::IBV_ACCESS_REMOTE_READ } else { 0 }
            | if config.remote_write { sys::IBV_ACCESS_REMOTE_WRITE } else { 0 }
            | if config.remote_atomic { sys::IBV_ACCESS_REMOTE_ATOMIC } else { 0 },
        qkey: config.qkey,
        ..Default::default()
    };
    if config.qp_type == sys::IBV_QPT_RAW_PACKET {
        return (attr, sys::IBV_QP_STATE | sys::IBV_QP_PORT);
    }
    let of_transport = match config.qp_type {
        sys::IBV_QPT_UD => sys::IBV_QP_QKEY,
        // A DC initiator has no memory that peers access.
        sys::IBV_QPT_DRIVER => 0,
        _ => sys::IBV_QP_ACCESS_FLAGS,
    };
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | of_transport;
    (attr, mask)
}

/// INIT to RTR.
pub(super) fn rtr(
    config: &QpConfig,
    route: Route,
    mtu: Mtu,
    peer: &QpAddress,
    device: &DeviceAttr,
) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let attr = sys::ibv_qp_attr {
        qp_state: sys::IBV_QPS_RTR,
        ah_attr: path(config, route, peer),
        path_mtu: mtu.as_raw(),
        dest_qp_num: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: rd_atomic(device.max_qp_rd_atom),
        min_rnr_timer: config.min_rnr_timer,
        ..Default::default()
    };
    let mask = sys::IBV_QP_STATE
        | sys::IBV_QP_AV
        | sys::IBV_QP_PATH_MTU
        | sys::IBV_QP_DEST_QPN
        | sys::IBV_QP_RQ_PSN
        | sys::IBV_QP_MAX_DEST_RD_ATOMIC
        | sys::IBV_QP_MIN_RNR_TIMER;
    (attr, mask)
}

/// INIT to RTR, of a DC initiator: the requests name the path.
pub(super) fn initiator_rtr(mtu: Mtu) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RTR, path_mtu: mtu.as_raw(), ..Default::default() };
    (attr, sys::IBV_QP_STATE | sys::IBV_QP_PATH_MTU)
}

/// RESET to INIT, of a DC target.
pub(super) fn target_init(config: &QpConfig) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let (attr, mask) = init(config);
    (attr, mask | sys::IBV_QP_ACCESS_FLAGS)
}

/// INIT to RTR, of a DC target. The path has no destination: only source, hop limit and priorities count.
pub(super) fn target_rtr(config: &QpConfig, source: Route, mtu: Mtu) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let nobody = QpAddress { lid: 0, gid: [0; 16], qpn: 0, psn: 0, mtu };
    let attr = sys::ibv_qp_attr {
        qp_state: sys::IBV_QPS_RTR,
        ah_attr: path(config, source, &nobody),
        path_mtu: mtu.as_raw(),
        min_rnr_timer: config.min_rnr_timer,
        ..Default::default()
    };
    (attr, sys::IBV_QP_STATE | sys::IBV_QP_AV | sys::IBV_QP_PATH_MTU | sys::IBV_QP_MIN_RNR_TIMER)
}

/// How packets find `peer`.
pub(super) fn path(config: &QpConfig, route: Route, peer: &QpAddress) -> sys::ibv_ah_attr {
    let mut attr =
        sys::ibv_ah_attr { port_num: config.port, dlid: peer.lid, sl: config.service_level, ..Default::default() };
    if let Route::Global { sgid_index } = route {
        attr.is_global = 1;
        attr.grh.dgid.raw = peer.gid;
        attr.grh.sgid_index = sgid_index;
        attr.grh.hop_limit = HOP_LIMIT;
        attr.grh.traffic_class = config.traffic_class;
    }
    attr
}

/// RTR to RTS, for datagrams.
pub(super) fn datagram_rts(psn: u32) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let attr = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RTS, sq_psn: psn, ..Default::default() };
    (attr, sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN)
}

/// RTR to RTS.
pub(super) fn rts(config: &QpConfig, psn: u32, device: &DeviceAttr) -> (sys::ibv_qp_attr, sys::ibv_qp_attr_mask) {
    let attr = sys::ibv_qp_attr {
        qp_state: sys::IBV_QPS_RTS,
        sq_psn: psn,
        max_rd_atomic: rd_atomic(device.max_qp_init_rd_atom),
        timeout: config.timeout,
        retry_cnt: config.retry_cnt,
        rnr_retry: config.rnr_retry,
        ..Default::default()
    };
    let mask = sys::IBV_QP_STATE
        | sys::IBV_QP_SQ_PSN
        | sys::IBV_QP_MAX_QP_RD_ATOMIC
        | sys::IBV_QP_TIMEOUT
        | sys::IBV_QP_RETRY_CNT
        | sys::IBV_QP_RNR_RETRY;
    (attr, mask)
}
