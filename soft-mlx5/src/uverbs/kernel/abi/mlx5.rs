//! Driver data of mlx5 (`rdma/mlx5-abi.h`).

use super::structure;

structure! {
    struct AllocContext = 32 {
        total_num_bfregs: u32,
        num_low_latency_bfregs: u32,
        flags: u32,
        comp_mask: u32,
        max_cqe_version: u8,
        reserved0: u8,
        reserved1: u16,
        reserved2: u32,
        lib_caps: u64,
    }
}
structure! {
    struct AllocContextResp = 72 {
        qp_tab_size: u32,
        bf_reg_size: u32,
        tot_bfregs: u32,
        cache_line_size: u32,
        max_sq_desc_sz: u16,
        max_rq_desc_sz: u16,
        max_send_wqebb: u32,
        max_recv_wr: u32,
        max_srq_recv_wr: u32,
        num_ports: u16,
        flow_action_flags: u16,
        comp_mask: u32,
        response_length: u32,
        cqe_version: u8,
        cmds_supp_uhw: u8,
        eth_min_inline: u8,
        clock_info_versions: u8,
        hca_core_clock_offset: u64,
        log_uar_size: u32,
        num_uars_per_page: u32,
        num_dyn_bfregs: u32,
        dump_fill_mkey: u32,
    }
}
structure! {
    struct QueryDeviceResp = 104 {
        comp_mask: u32,
        response_length: u32,
        max_tso: u32,
        tso_qpts: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
        rss_reserved: [u8; 7],
        cqe_comp_max_num: u32,
        cqe_comp_formats: u32,
        pacing_rate_min: u32,
        pacing_rate_max: u32,
        pacing_qpts: u32,
        pacing_cap_flags: u8,
        pacing_reserved: [u8; 3],
        multi_packet_send_wqes: u32,
        flags: u32,
        sw_parsing_offloads: u32,
        sw_parsing_qpts: u32,
        striding_rq: [u32; 5],
        striding_reserved: u32,
        tunnel_offloads: u32,
        dci_streams: [u8; 2],
        reserved: u16,
    }
}
structure! {
    struct CreateCq = 32 {
        buf_addr: u64,
        db_addr: u64,
        cqe_size: u32,
        cqe_comp_en: u8,
        cqe_comp_res_format: u8,
        flags: u16,
        uar_page_index: u16,
        reserved0: u16,
        reserved1: u32,
    }
}
structure! {
    /// Response to the creation of a CQ or SRQ: its number.
    struct Number = 8 {
        number: u32,
        reserved: u32,
    }
}
structure! {
    struct ResizeCq = 16 {
        buf_addr: u64,
        cqe_size: u16,
        reserved0: u16,
        reserved1: u32,
    }
}
structure! {
    struct CreateSrq = 32 {
        buf_addr: u64,
        db_addr: u64,
        flags: u32,
        reserved0: u32,
        uidx: u32,
        reserved1: u32,
    }
}
structure! {
    struct CreateQp = 56 {
        buf_addr: u64,
        db_addr: u64,
        sq_wqe_count: u32,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        flags: u32,
        uidx: u32,
        bfreg_index: u32,
        sq_buf_addr: u64,
        ece_options: u32,
        dci_streams: [u8; 2],
        reserved: u16,
    }
}
structure! {
    struct CreateQpResp = 40 {
        bfreg_index: u32,
        ece_options: u32,
        comp_mask: u32,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        reserved1: u32,
        tir_icm_addr: u64,
    }
}
structure! {
    struct CreateAhResp = 16 {
        response_length: u32,
        dmac: [u8; 6],
        reserved: [u8; 6],
    }
}
structure! {
    struct ModifyQp = 16 {
        comp_mask: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        reserved: u16,
        ece_options: u32,
    }
}
structure! {
    struct ModifyQpResp = 16 {
        response_length: u32,
        dctn: u32,
        ece_options: u32,
        reserved: u32,
    }
}
structure! {
    struct CreateQpRss = 152 {
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
        rx_key_len: u8,
        reserved: [u8; 6],
        rx_hash_key: [[u8; 8]; 16],
        comp_mask: u32,
        flags: u32,
    }
}
structure! {
    struct CreateWq = 48 {
        buf_addr: u64,
        db_addr: u64,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        user_index: u32,
        flags: u32,
        comp_mask: u32,
        single_stride_log_num_of_bytes: u32,
        single_wqe_log_num_of_strides: u32,
        two_byte_shift_en: u32,
    }
}
structure! {
    /// Response to the creation of a WQ.
    struct ResponseLength = 8 {
        response_length: u32,
        reserved: u32,
    }
}

structure! {
    struct AllocMw = 8 {
        comp_mask: u32,
        num_klms: u8,
        reserved: [u8; 3],
    }
}
structure! {
    struct AllocMwResp = 8 {
        comp_mask: u32,
        response_length: u32,
    }
}

/// Flags of [`CreateQp`].
pub mod driver_flag {
    pub const SCATTER_CQE: u32 = 1 << 1;
    /// A target looks into tunnels (`MLX5_QP_FLAG_TUNNEL_OFFLOADS`).
    pub const TUNNEL_OFFLOADS: u32 = 1 << 2;
    pub const BFREG_INDEX: u32 = 1 << 3;
    /// Frames of the own context come back (`MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC` and `_MC`).
    pub const LOOPBACK_UNICAST: u32 = 1 << 6;
    pub const LOOPBACK_MULTICAST: u32 = 1 << 7;
    /// Target and initiator of dynamic connections, and an initiator with streams.
    pub const TYPE_DCT: u32 = 1 << 4;
    pub const TYPE_DCI: u32 = 1 << 5;
    pub const DCI_STREAM: u32 = 1 << 11;
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}
