//! Structures of the uverbs core (`rdma/ib_user_verbs.h`, `rdma/ib_user_ioctl_verbs.h`).

use super::structure;

structure! {
    struct CommandHeader = 8 {
        command: u32,
        in_words: u16,
        out_words: u16,
    }
}
structure! {
    struct ExtendedHeader = 16 {
        response: u64,
        provider_in_words: u16,
        provider_out_words: u16,
        reserved: u32,
    }
}
structure! {
    struct IoctlHeader = 24 {
        length: u16,
        object: u16,
        method: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
}
structure! {
    struct IoctlAttr = 16 {
        id: u16,
        len: u16,
        flags: u16,
        enum_id: u8,
        reserved: u8,
        data: u64,
    }
}
structure! {
    struct AsyncEvent = 16 {
        element: u64,
        event_type: u32,
        reserved: u32,
    }
}
structure! {
    /// Request that consists of the response pointer alone.
    struct Respond = 8 {
        response: u64,
    }
}
structure! {
    struct GetContextResp = 8 {
        async_fd: u32,
        num_comp_vectors: u32,
    }
}
structure! {
    struct QueryDeviceResp = 176 {
        fw_ver: u64,
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }
}
structure! {
    struct ExQueryDevice = 8 {
        comp_mask: u32,
        reserved: u32,
    }
}
structure! {
    struct OdpCaps = 24 {
        general_caps: u64,
        rc: u32,
        uc: u32,
        ud: u32,
        reserved: u32,
    }
}
structure! {
    struct RssCaps = 16 {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        reserved: u32,
    }
}
structure! {
    struct TmCaps = 24 {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
        reserved: u32,
    }
}
structure! {
    struct ExQueryDeviceResp = 304 {
        base: QueryDeviceResp,
        comp_mask: u32,
        response_length: u32,
        odp_caps: OdpCaps,
        timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        max_cq_moderation_count: u16,
        max_cq_moderation_period: u16,
        moderation_reserved: u32,
        max_dm_size: u64,
        xrc_odp_caps: u32,
        reserved: u32,
    }
}
structure! {
    struct QueryPort = 16 {
        response: u64,
        port_num: u8,
        reserved: [u8; 7],
    }
}
structure! {
    struct QueryPortResp = 40 {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }
}
structure! {
    struct QueryPortRespEx = 48 {
        legacy: QueryPortResp,
        port_cap_flags2: u16,
        reserved: [u8; 6],
    }
}
structure! {
    struct GidEntry = 32 {
        gid: [u8; 16],
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        netdev_ifindex: u32,
    }
}
structure! {
    struct RegMr = 40 {
        response: u64,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }
}
structure! {
    struct RegMrResp = 12 {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }
}
structure! {
    struct ReregMr = 48 {
        response: u64,
        mr_handle: u32,
        flags: u32,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }
}
structure! {
    struct ReregMrResp = 8 {
        lkey: u32,
        rkey: u32,
    }
}
structure! {
    struct AllocMw = 16 {
        response: u64,
        pd_handle: u32,
        mw_type: u8,
        reserved: [u8; 3],
    }
}
structure! {
    struct AllocMwResp = 8 {
        mw_handle: u32,
        rkey: u32,
    }
}
structure! {
    struct CreateCq = 32 {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        reserved: u32,
    }
}
structure! {
    struct ExCreateCq = 32 {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        comp_mask: u32,
        flags: u32,
        reserved: u32,
    }
}
structure! {
    struct CreateCqResp = 8 {
        cq_handle: u32,
        cqe: u32,
    }
}
structure! {
    struct ExCreateCqResp = 16 {
        base: CreateCqResp,
        comp_mask: u32,
        response_length: u32,
    }
}
structure! {
    struct ResizeCq = 16 {
        response: u64,
        cq_handle: u32,
        cqe: u32,
    }
}
structure! {
    struct ResizeCqResp = 8 {
        cqe: u32,
        reserved: u32,
    }
}
structure! {
    /// Destroy request with a response: CQ, QP, SRQ.
    struct Destroy = 16 {
        response: u64,
        handle: u32,
        reserved: u32,
    }
}
structure! {
    struct DestroyCqResp = 8 {
        comp_events_reported: u32,
        async_events_reported: u32,
    }
}
structure! {
    struct GlobalRoute = 24 {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }
}
structure! {
    struct AhAttr = 32 {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }
}
structure! {
    struct CreateAh = 56 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        reserved: u32,
        attr: AhAttr,
    }
}
structure! {
    struct QpCap = 20 {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
}
structure! {
    struct CreateQp = 56 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        cap: QpCap,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }
}
structure! {
    struct ExCreateQp = 64 {
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        cap: QpCap,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }
}
structure! {
    struct CreateQpResp = 32 {
        qp_handle: u32,
        qpn: u32,
        cap: QpCap,
        reserved: u32,
    }
}
structure! {
    struct ExCreateQpResp = 40 {
        base: CreateQpResp,
        comp_mask: u32,
        response_length: u32,
    }
}
structure! {
    struct QpDest = 32 {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
}
structure! {
    struct QueryQp = 16 {
        response: u64,
        qp_handle: u32,
        attr_mask: u32,
    }
}
structure! {
    struct QueryQpResp = 128 {
        dest: QpDest,
        alt_dest: QpDest,
        cap: QpCap,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }
}
structure! {
    struct ModifyQp = 112 {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }
}
structure! {
    struct ExModifyQp = 120 {
        base: ModifyQp,
        rate_limit: u32,
        reserved: u32,
    }
}
structure! {
    struct ExModifyQpResp = 8 {
        comp_mask: u32,
        response_length: u32,
    }
}
structure! {
    /// Request to attach and to detach.
    struct Multicast = 24 {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        reserved: u16,
    }
}
structure! {
    struct CreateSrq = 32 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
}
structure! {
    struct CreateXsrq = 48 {
        response: u64,
        user_handle: u64,
        srq_type: u32,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        max_num_tags: u32,
        xrcd_handle: u32,
        cq_handle: u32,
    }
}
structure! {
    struct CreateSrqResp = 16 {
        srq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srqn: u32,
    }
}
structure! {
    struct ModifySrq = 16 {
        srq_handle: u32,
        attr_mask: u32,
        max_wr: u32,
        srq_limit: u32,
    }
}
structure! {
    struct QuerySrqResp = 16 {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        reserved: u32,
    }
}
structure! {
    struct ExCreateWq = 40 {
        comp_mask: u32,
        wq_type: u32,
        user_handle: u64,
        pd_handle: u32,
        cq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        create_flags: u32,
        reserved: u32,
    }
}
structure! {
    struct ExCreateWqResp = 24 {
        comp_mask: u32,
        response_length: u32,
        wq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        wqn: u32,
    }
}
structure! {
    struct ExModifyWq = 24 {
        attr_mask: u32,
        wq_handle: u32,
        wq_state: u32,
        curr_wq_state: u32,
        flags: u32,
        flags_mask: u32,
    }
}
structure! {
    struct ExDestroyWq = 8 {
        comp_mask: u32,
        wq_handle: u32,
    }
}
structure! {
    struct ExDestroyWqResp = 16 {
        comp_mask: u32,
        response_length: u32,
        events_reported: u32,
        reserved: u32,
    }
}
structure! {
    /// The handles of its WQs follow.
    struct ExCreateIndTable = 8 {
        comp_mask: u32,
        log_ind_tbl_size: u32,
    }
}
structure! {
    struct ExCreateIndTableResp = 16 {
        comp_mask: u32,
        response_length: u32,
        ind_tbl_handle: u32,
        ind_tbl_num: u32,
    }
}
structure! {
    struct ExDestroyIndTable = 8 {
        comp_mask: u32,
        ind_tbl_handle: u32,
    }
}
structure! {
    /// Its specs follow.
    struct CreateFlow = 24 {
        comp_mask: u32,
        qp_handle: u32,
        flow_type: u32,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        reserved: [u8; 2],
        port: u8,
        flags: u32,
    }
}
structure! {
    struct CreateFlowResp = 8 {
        comp_mask: u32,
        flow_handle: u32,
    }
}
structure! {
    struct ExDestroyFlow = 8 {
        comp_mask: u32,
        flow_handle: u32,
    }
}
