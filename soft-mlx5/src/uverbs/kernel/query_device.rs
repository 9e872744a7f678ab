//! QUERY_DEVICE in its two lengths.

use super::abi::uverbs::{ExQueryDevice, ExQueryDeviceResp, OdpCaps, QueryDeviceResp, Respond, RssCaps, TmCaps};
use super::abi::{Abi, mlx5};
use super::errno::EINVAL;
use super::udata::Request;
use super::{Call, clock_pages};
use crate::commands::capabilities::LOG_STREAMS;
use crate::commands::limits;
use crate::engine::CORE_CLOCK_KHZ;
use crate::fabric::LinkLayer;
use crate::objects::Result;
use crate::objects::rss::field;

const CAP_CHANGE_PHY_PORT: u32 = 1 << 5;
const CAP_PORT_ACTIVE_EVENT: u32 = 1 << 10;
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
const CAP_MEM_WINDOW: u32 = 1 << 17;
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
const CAP_RAW_IP_CSUM: u32 = 1 << 26;
const CAP_MANAGED_FLOW_STEERING: u32 = 1 << 29;
const CAP_EX_RAW_SCATTER_FCS: u64 = 1 << 34;
const FRAME_CAPS: u32 = CAP_RAW_IP_CSUM | CAP_MANAGED_FLOW_STEERING;
const RAW_CVLAN_STRIPPING: u32 = 1 << 0;
const RAW_SCATTER_FCS: u32 = 1 << 1;
const RAW_IP_CSUM: u32 = 1 << 2;
const RAW_CAPS: u32 = RAW_CVLAN_STRIPPING | RAW_SCATTER_FCS | RAW_IP_CSUM;
/// Queue pairs of type `IBV_QPT_RAW_PACKET`, as a set.
const RAW_PACKET: u32 = 1 << 8;
const TOEPLITZ: u8 = 1;
/// Tunnels that the device looks into (`MLX5_IB_TUNNELED_OFFLOADS_GRE`).
const TUNNELS: u32 = 1 << 1;
/// WQEs of many frames, and their enhanced form (`MLX5_IB_ALLOW_MPW`, `MLX5_IB_SUPPORT_EMPW`).
const MULTI_PACKET_SENDS: u32 = 1 << 1 | 1 << 2;
pub const DEVICE_CAPS: u32 = CAP_CHANGE_PHY_PORT
    | CAP_PORT_ACTIVE_EVENT
    | CAP_SYS_IMAGE_GUID
    | CAP_RC_RNR_NAK_GEN
    | CAP_MEM_WINDOW
    | CAP_MEM_MGT_EXTENSIONS
    | CAP_MEM_WINDOW_TYPE_2B;

const TM_CAP_RC: u32 = 1 << 0;
const ATOMIC_WITHIN_DEVICE: u32 = 1;

/// Mini-CQE arrays of a compressed session, and their formats: hash and checksum.
pub const CQE_COMPRESSION_MAX: u32 = 64;
pub const CQE_COMPRESSION_FORMATS: u32 = 1 | 2;
const CQE_128B_COMPRESSION: u32 = 1;

/// Runs QUERY_DEVICE.
pub fn query(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let _: Respond = request.core.input.request()?;
    request.core.output.respond(&base(call))
}

/// Runs the extended QUERY_DEVICE, with the properties of mlx5.
pub fn query_ex(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let query: ExQueryDevice = request.core.input.request()?;
    if query.comp_mask != 0 || query.reserved != 0 {
        return Err(EINVAL);
    }
    let base = base(call);
    // Frames need Ethernet.
    let frames = call.core.link == LinkLayer::Ethernet;
    let driver = &request.driver.output;
    if driver.len > 0 {
        driver.put(&mlx5::QueryDeviceResp {
            response_length: driver.len.min(mlx5::QueryDeviceResp::SIZE) as u32,
            cqe_comp_max_num: CQE_COMPRESSION_MAX,
            cqe_comp_formats: CQE_COMPRESSION_FORMATS,
            flags: CQE_128B_COMPRESSION,
            dci_streams: [LOG_STREAMS; 2],
            ..if frames { of_frames() } else { mlx5::QueryDeviceResp::default() }
        })?;
    }
    let core = &request.core.output;
    core.respond(&ExQueryDeviceResp {
        base,
        response_length: core.len.min(ExQueryDeviceResp::SIZE) as u32,
        odp_caps: OdpCaps::default(),
        timestamp_mask: clock_pages::MASK,
        hca_core_clock: CORE_CLOCK_KHZ.into(),
        device_cap_flags_ex: u64::from(base.device_cap_flags) | if frames { CAP_EX_RAW_SCATTER_FCS } else { 0 },
        rss_caps: if frames { RSS_CAPS } else { RssCaps::default() },
        max_wq_type_rq: if frames { limits::MAX_WQ } else { 0 },
        raw_packet_caps: if frames { RAW_CAPS } else { 0 },
        tm_caps: TmCaps {
            max_rndv_hdr_size: limits::MAX_RENDEZVOUS_HEADER,
            max_num_tags: limits::MAX_TAGS,
            flags: TM_CAP_RC,
            max_ops: limits::MAX_TAG_OPS,
            max_sge: 1,
            reserved: 0,
        },
        max_dm_size: limits::MAX_DM_SIZE,
        ..ExQueryDeviceResp::default()
    })
}

const RSS_CAPS: RssCaps = RssCaps {
    supported_qpts: RAW_PACKET,
    max_rwq_indirection_tables: limits::MAX_INDIRECTION_TABLES,
    max_rwq_indirection_table_size: 1 << limits::LOG_INDIRECTION,
    reserved: 0,
};

fn of_frames() -> mlx5::QueryDeviceResp {
    let [stride, strides] = [limits::LOG_STRIDE, limits::LOG_STRIDES];
    mlx5::QueryDeviceResp {
        rx_hash_fields_mask: field::ALL,
        rx_hash_function: TOEPLITZ,
        striding_rq: [*stride.start(), *stride.end(), *strides.start(), *strides.end(), RAW_PACKET],
        tunnel_offloads: TUNNELS,
        multi_packet_send_wqes: MULTI_PACKET_SENDS,
        ..mlx5::QueryDeviceResp::default()
    }
}

fn base(call: &mut Call) -> QueryDeviceResp {
    let frames = call.core.link == LinkLayer::Ethernet;
    let guid = call.nic().port().guid.to_be_bytes();
    let [major, minor, sub] = limits::FW_VERSION.map(u64::from);
    QueryDeviceResp {
        fw_ver: major << 32 | minor << 16 | sub,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: limits::VENDOR_ID,
        vendor_part_id: limits::PART_ID,
        max_qp: limits::MAX_QP,
        max_qp_wr: limits::MAX_QP_WR,
        device_cap_flags: DEVICE_CAPS | if frames { FRAME_CAPS } else { 0 },
        max_raw_ethy_qp: if frames { limits::MAX_QP } else { 0 },
        max_sge: limits::MAX_SGE,
        max_sge_rd: limits::MAX_SGE,
        max_cq: limits::MAX_CQ,
        max_cqe: limits::MAX_CQ_SLOTS - 1,
        max_mr: limits::MAX_MR,
        max_mw: limits::MAX_MR,
        max_pd: limits::MAX_PD,
        max_qp_rd_atom: limits::MAX_RD_ATOMIC.into(),
        max_res_rd_atom: limits::MAX_QP * u32::from(limits::MAX_RD_ATOMIC),
        max_qp_init_rd_atom: limits::MAX_RD_ATOMIC.into(),
        atomic_cap: ATOMIC_WITHIN_DEVICE,
        max_mcast_grp: limits::MAX_MCAST_GROUPS,
        max_mcast_qp_attach: limits::MAX_MCAST_QPS,
        max_total_mcast_qp_attach: limits::MAX_MCAST_GROUPS * limits::MAX_MCAST_QPS,
        max_ah: limits::MAX_AH,
        max_srq: limits::MAX_SRQ,
        max_srq_wr: limits::MAX_SRQ_SLOTS - 1,
        max_srq_sge: limits::MAX_SRQ_SGE,
        max_pkeys: limits::PKEYS,
        local_ca_ack_delay: 16,
        phys_port_cnt: 1,
        ..QueryDeviceResp::default()
    }
}
