//! The capabilities of the device, which drivers of both sides read: [`kernel`](crate::uverbs::kernel) derives the
//! limits of verbs from them, [`firmware`](crate::commands) returns them to drivers.

use mlx5_wire::firmware::capabilities::{Atomic, DeviceMemory, Ethernet, FlowTable, FlowTables, General, Roce};

use crate::engine::CORE_CLOCK_KHZ;
use crate::fabric::LinkLayer;

/// PCI vendor in the form of an IEEE company id.
pub const VENDOR_ID: u32 = 0x02c9;
/// Firmware version, major, minor and sub-minor.
pub const FW_VERSION: [u16; 3] = [16, 35, 2000];

/// UDP port of RoCE v2.
const ROCE_UDP_PORT: u16 = 4791;
/// Lowest UDP source port of RoCE v2.
const MIN_SOURCE_PORT: u16 = 0xc000;

/// Entries of the GID table of a port of Ethernet.
const ROCE_ADDRESSES: u16 = 255;
/// Entries of the GID table of a port by its link layer: Ethernet, InfiniBand.
pub const GIDS_ETHERNET: u32 = ROCE_ADDRESSES as u32;
pub const GIDS_INFINIBAND: u32 = 8 << GENERAL.gid_table_size;
/// Entries of the table of partition keys; only the first holds a key.
pub const PKEYS: u16 = 128 << GENERAL.pkey_table_size;
/// The default partition, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// General capabilities of a device with a port of InfiniBand.
pub const GENERAL: General = General {
    log_max_srq_sz: 15,
    log_max_qp_sz: 15,
    log_max_qp: 18,
    log_max_srq: 23,
    log_max_cq_sz: 22,
    log_max_cq: 24,
    log_max_eq_sz: 16,
    log_max_mkey: 24,
    log_max_eq: 6,
    fixed_buffer_size: true,
    umr_extended_translation_offset: true,
    // The kernel's consumers of verbs register so many pages at once.
    log_max_klm_list_size: 16,
    log_max_ra_req_qp: 4,
    log_max_ra_res_qp: 4,
    gid_table_size: 0,
    vport_counters: true,
    pkey_table_size: 0,
    ib_virt: true,
    mcam_reg: true,
    num_ports: 1,
    log_max_msg: 30,
    cqe_version: 1,
    atomic: true,
    cq_resize: true,
    imaicl: true,
    // The driver of Linux makes an XRC SRQ for its own use and fails without.
    xrc: true,
    ud: true,
    uc: true,
    rc: true,
    uar_sz: 3,
    umem_uid_0: true,
    log_pg_sz: 12,
    max_wqe_sz_sq: 1024,
    max_wqe_sz_rq: 512,
    max_qp_mcg: 240,
    log_max_mcg: 21,
    log_max_pd: 16,
    log_max_xrcd: 10,
    log_max_rmp: 23,
    log_max_wq_sz: 15,
    log_max_uctx: 9,
    log_max_umem: 16,
    max_num_eqs: 64,
    device_frequency_khz: CORE_CLOCK_KHZ,
    ..General::ZERO
};

/// General capabilities of a device with a port of Ethernet.
pub const GENERAL_ETHERNET: General = General {
    ib_virt: false,
    nic_flow_table: true,
    port_type: 1,
    eth_net_offloads: true,
    roce: true,
    cq_moderation: true,
    max_qp_cnt: 255,
    // Each context of a process has a domain.
    log_max_transport_domain: 16,
    log_max_rq: 18,
    log_max_sq: 18,
    log_max_tir: 20,
    log_max_tis: 16,
    log_max_rqt: 20,
    log_max_rqt_size: 11,
    log_max_vlan_list: 9,
    log_max_current_mc_list: 9,
    log_max_current_uc_list: 9,
    ..GENERAL
};

/// Returns the general capabilities.
pub const fn general(layer: LinkLayer) -> General {
    match layer {
        LinkLayer::InfiniBand => GENERAL,
        LinkLayer::Ethernet => GENERAL_ETHERNET,
    }
}

/// Returns the general capabilities that programs find: with tag matching and dynamic connections, which no driver of a
/// machine was seen to use.
pub const fn of_process(layer: LinkLayer) -> General {
    General {
        tag_matching: true,
        rndv_offload_rc: true,
        log_tag_matching_list_sz: LOG_TAGS,
        log_max_xrq: 20,
        dct: true,
        log_max_ra_req_dc: GENERAL.log_max_ra_req_qp,
        log_max_ra_res_dc: GENERAL.log_max_ra_res_qp,
        max_wqe_sz_sq_dc: GENERAL.max_wqe_sz_sq,
        log_max_dci_stream_channels: LOG_STREAMS,
        log_max_dci_errored_streams: LOG_STREAMS,
        qpc_extension: true,
        general_obj_types: 1 << PATH_MAPPING,
        ..general(layer)
    }
}

/// log2 of the streams of an initiator of dynamic connections, and of those in error that it survives.
pub const LOG_STREAMS: u8 = 5;
/// General object that says which path a queue pair uses (`MLX5_OBJ_TYPE_AV_QP_MAPPING`).
pub const PATH_MAPPING: u16 = 0x3a;

/// log2 of the entries of a tag list, one of which is always free.
pub const LOG_TAGS: u8 = 7;

/// Offloads of Ethernet.
pub const ETHERNET: Ethernet = Ethernet {
    csum_cap: true,
    vlan_cap: true,
    self_lb_en_modifiable: true,
    max_lso_cap: 16,
    wqe_inline_mode: 2,
    rss_ind_tbl_cap: GENERAL_ETHERNET.log_max_rqt_size,
};

/// Atomics.
pub const ATOMIC: Atomic = Atomic { req_8b_endianness_mode: 1, operations: 3, size_qp: 8, size_dc: 8 };

/// Memory of the adapter, which verbs allocate (`ibv_alloc_dm`).
pub const DEVICE_MEMORY: DeviceMemory =
    DeviceMemory { memic: true, log_min_size: 6, log_max_alignment: 6, max_size: 1 << 18, operations: 0 };

/// RoCE.
pub const ROCE: Roce = Roce {
    l3_type: 6,
    version: 5,
    dest_udp_port: ROCE_UDP_PORT,
    max_src_udp_port: u16::MAX,
    min_src_udp_port: MIN_SOURCE_PORT,
    address_table_size: ROCE_ADDRESSES,
};

const FLOW_TABLE: FlowTable = FlowTable {
    support: true,
    modify: true,
    modify_root: true,
    identified_miss: true,
    modify_table: true,
    log_max_size: 16,
    // The receive tables of Linux 7.2 have more than 64 levels.
    max_level: 128,
    log_max_tables: 16,
    log_max_destination: 8,
    log_max_flows: 16,
    match_outer: [0xff; 16],
    match_inner: [0xff; 16],
};

/// Flow tables.
pub const FLOW_TABLES: FlowTables = FlowTables { receive: FLOW_TABLE, transmit: FLOW_TABLE };
