//! QUERY_DEVICE in its two lengths.

use super::abi::Abi;
use super::abi::mlx5;
use super::abi::uverbs::{
    ExQueryDevice, ExQueryDeviceResp, OdpCaps, QueryDeviceResp, Respond, RssCaps, TmCaps,
};
use super::errno::EINVAL;
use super::udata::Request;
use super::{Call, clock_pages, limits};
use crate::nic::CORE_CLOCK_KHZ;
use crate::nic::objects::Result;

const CAP_CHANGE_PHY_PORT: u32 = 1 << 5;
const CAP_PORT_ACTIVE_EVENT: u32 = 1 << 10;
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
const DEVICE_CAPS: u32 =
    CAP_CHANGE_PHY_PORT | CAP_PORT_ACTIVE_EVENT | CAP_SYS_IMAGE_GUID | CAP_RC_RNR_NAK_GEN;

const TM_CAP_RC: u32 = 1 << 0;
const ATOMIC_WITHIN_DEVICE: u32 = 1;

/// Mini-CQE arrays of a compressed session, and their formats: hash and checksum.
pub const CQE_COMPRESSION_MAX: u32 = 64;
pub const CQE_COMPRESSION_FORMATS: u32 = 1 | 2;
const CQE_128B_COMPRESSION: u32 = 1;

/// QUERY_DEVICE.
pub fn query(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let _: Respond = request.core.input.request()?;
    request.core.output.respond(&base(call))
}

/// The extended QUERY_DEVICE, with what only mlx5 has.
pub fn query_ex(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let query: ExQueryDevice = request.core.input.request()?;
    if query.comp_mask != 0 || query.reserved != 0 {
        return Err(EINVAL);
    }
    let base = base(call);
    let driver = &request.driver.output;
    if driver.len > 0 {
        driver.put(&mlx5::QueryDeviceResp {
            response_length: driver.len.min(mlx5::QueryDeviceResp::SIZE) as u32,
            cqe_comp_max_num: CQE_COMPRESSION_MAX,
            cqe_comp_formats: CQE_COMPRESSION_FORMATS,
            flags: CQE_128B_COMPRESSION,
            ..mlx5::QueryDeviceResp::default()
        })?;
    }
    let core = &request.core.output;
    core.respond(&ExQueryDeviceResp {
        base,
        response_length: core.len.min(ExQueryDeviceResp::SIZE) as u32,
        odp_caps: OdpCaps::default(),
        timestamp_mask: clock_pages::MASK,
        hca_core_clock: CORE_CLOCK_KHZ.into(),
        device_cap_flags_ex: DEVICE_CAPS.into(),
        rss_caps: RssCaps::default(),
        tm_caps: TmCaps {
            max_rndv_hdr_size: limits::MAX_RENDEZVOUS_HEADER,
            max_num_tags: limits::MAX_TAGS,
            flags: TM_CAP_RC,
            max_ops: limits::MAX_TAG_OPS,
            max_sge: 1,
            reserved: 0,
        },
        ..ExQueryDeviceResp::default()
    })
}

fn base(call: &mut Call) -> QueryDeviceResp {
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
        device_cap_flags: DEVICE_CAPS,
        max_sge: limits::MAX_SGE,
        max_sge_rd: limits::MAX_SGE,
        max_cq: limits::MAX_CQ,
        max_cqe: limits::MAX_CQ_SLOTS - 1,
        max_mr: limits::MAX_MR,
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
