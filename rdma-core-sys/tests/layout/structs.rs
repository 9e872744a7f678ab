//! Every structure that is bound, with every field.

use crate::Structure;

/// Names that exist only in Rust are mapped to C by `crate::c_name`.
#[rustfmt::skip] // One field to a line would be nine hundred lines.
pub static ALL: &[Structure] = structures! {
    union ibv_gid { raw, global, global.subnet_prefix, global.interface_id }
    struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    struct ibv_alloc_dm_attr { length, log_align_req, comp_mask }
    struct ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
    struct ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
        vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
        max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
        max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
        max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
        max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
        max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
    }
    struct ibv_query_device_ex_input { comp_mask }
    struct ibv_odp_caps {
        general_caps, per_transport_caps, per_transport_caps.rc_odp_caps,
        per_transport_caps.uc_odp_caps, per_transport_caps.ud_odp_caps
    }
    struct ibv_tso_caps { max_tso, supported_qpts }
    struct ibv_rss_caps {
        supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function
    }
    struct ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
    struct ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
    struct ibv_cq_moderation_caps { max_cq_count, max_cq_period }
    struct ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
    struct ibv_device_attr_ex {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
        device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex
    }
    struct ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2
    }
    struct ibv_async_event {
        element, element.cq, element.qp, element.srq, element.wq, element.port_num,
        event_type
    }
    struct ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, __bindgen_anon_1.imm_data,
        __bindgen_anon_1.invalidated_rkey, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits
    }
    struct ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    struct ibv_pd { context, handle }
    struct ibv_td_init_attr { comp_mask }
    struct ibv_td { context }
    struct ibv_xrcd_init_attr { comp_mask, fd, oflags }
    struct ibv_xrcd { context }
    struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    struct ibv_mw { context, pd, rkey, handle, type_ }
    struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    struct ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
    struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    struct ibv_srq_attr { max_wr, max_sge, srq_limit }
    struct ibv_srq_init_attr { srq_context, attr }
    struct ibv_tm_cap { max_num_tags, max_ops }
    struct ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
    struct ibv_wq_init_attr {
        wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags
    }
    struct ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
    struct ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
    struct ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
    struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    struct ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
    struct ibv_qp_init_attr_ex {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
        create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
    }
    struct ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
    struct ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
    }
    struct ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
    struct ibv_data_buf { addr, length }
    struct ibv_sge { addr, length, lkey }
    struct ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1.imm_data,
        __bindgen_anon_1.invalidate_rkey, wr, wr.rdma, wr.rdma.remote_addr, wr.rdma.rkey,
        wr.atomic, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap,
        wr.atomic.rkey, wr.ud, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey, qp_type,
        qp_type.xrc, qp_type.xrc.remote_srqn, __bindgen_anon_2.bind_mw,
        __bindgen_anon_2.bind_mw.mw, __bindgen_anon_2.bind_mw.rkey,
        __bindgen_anon_2.bind_mw.bind_info, __bindgen_anon_2.tso, __bindgen_anon_2.tso.hdr,
        __bindgen_anon_2.tso.hdr_sz, __bindgen_anon_2.tso.mss
    }
    struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
    struct ibv_ops_wr {
        wr_id, next, opcode, flags, tm, tm.unexpected_cnt, tm.handle, tm.add,
        tm.add.recv_wr_id, tm.add.sg_list, tm.add.num_sge, tm.add.tag, tm.add.mask
    }
    struct ibv_mw_bind { wr_id, send_flags, bind_info }
    struct ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
    struct ibv_wq {
        context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
        events_completed, comp_mask
    }
    struct ibv_qp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
        mutex, cond, events_completed
    }
    struct ibv_qp_ex {
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
        wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send,
        wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
        wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start,
        wr_complete, wr_abort, wr_atomic_write
    }
    struct ibv_ece { vendor_id, options, comp_mask }
    struct ibv_comp_channel { context, fd, refcnt }
    struct ibv_cq {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed
    }
    struct ibv_poll_cq_attr { comp_mask }
    struct ibv_wc_tm_info { tag, priv_ }
    struct ibv_cq_ex {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
        read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num,
        read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
        read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
        read_completion_wallclock_ns
    }
    struct ibv_moderate_cq { cq_count, cq_period }
    struct ibv_modify_cq_attr { attr_mask, moderate }
    struct ibv_ah { context, pd, handle }
    struct ibv_flow_attr { comp_mask, type_, size, priority, num_of_specs, port, flags }
    struct ibv_flow_eth_filter { dst_mac, src_mac, ether_type, vlan_tag }
    struct ibv_flow_spec_eth { type_, size, val, mask }
    struct ibv_flow_ipv4_filter { src_ip, dst_ip }
    struct ibv_flow_spec_ipv4 { type_, size, val, mask }
    struct ibv_flow_tcp_udp_filter { dst_port, src_port }
    struct ibv_flow_spec_tcp_udp { type_, size, val, mask }
    struct ibv_flow_spec_action_tag { type_, size, tag_id }
    struct ibv_flow { comp_mask, context, handle }
    struct ibv_flow_action { context }
    struct ibv_flow_action_esp_attr {  }
    struct _ibv_device_ops { _dummy1, _dummy2 }
    struct ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    struct ibv_context_ops {
        _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
        _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
        _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
        _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
        _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
        _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
        _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
    }
    struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    struct ibv_cq_init_attr_ex {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
    }
    struct ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
    struct ibv_counters_init_attr { comp_mask }
    struct ibv_counters { context }
    struct ibv_counter_attach_attr {  }
    struct ibv_values_ex { comp_mask, raw_clock }
    struct verbs_context {
        query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
        create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
        modify_flow_action_esp, destroy_flow_action, create_flow_action_esp,
        modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq,
        post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq,
        create_wq, query_rt_values, create_cq_ex, priv_, query_device_ex, ibv_destroy_flow,
        ABI_placeholder2, ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex,
        get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz, context
    }
    struct ibv_tmh { opcode, reserved, app_ctx, tag }
    struct ibv_rvh { va, rkey, len }
    struct mlx5_ib_uapi_reg { value, mask }
    struct mlx5_ib_uapi_query_port {
        flags, vport, vport_vhca_id, esw_owner_vhca_id, rsvd0, vport_steering_icm_rx,
        vport_steering_icm_tx, reg_c0
    }
    struct mlx5dv_cqe_comp_caps { max_num, supported_format }
    struct mlx5dv_sw_parsing_caps { sw_parsing_offloads, supported_qpts }
    struct mlx5dv_striding_rq_caps {
        min_single_stride_log_num_of_bytes, max_single_stride_log_num_of_bytes,
        min_single_wqe_log_num_of_strides, max_single_wqe_log_num_of_strides, supported_qpts
    }
    struct mlx5dv_dci_streams_caps { max_log_num_concurent, max_log_num_errored }
    struct mlx5dv_sig_caps { block_size, block_prot, t10dif_bg, crc_type }
    struct mlx5dv_crypto_caps {
        failed_selftests, crypto_engines, wrapped_import_method, log_max_num_deks, flags
    }
    struct mlx5dv_context {
        version, flags, comp_mask, cqe_comp_caps, sw_parsing_caps, striding_rq_caps,
        tunnel_offloads_caps, max_dynamic_bfregs, max_clock_info_update_nsec,
        flow_action_flags, dc_odp_caps, hca_core_clock, num_lag_ports, sig_caps,
        dci_streams_caps, max_wr_memcpy_length, crypto_caps
    }
    struct mlx5dv_cq_init_attr { comp_mask, cqe_comp_res_format, flags, cqe_size }
    struct mlx5dv_dci_streams { log_num_concurent, log_num_errored }
    struct mlx5dv_dc_init_attr {
        dc_type, __bindgen_anon_1.dct_access_key, __bindgen_anon_1.dci_streams
    }
    struct mlx5dv_qp_init_attr { comp_mask, create_flags, dc_init_attr, send_ops_flags }
    struct mlx5dv_qp {
        dbrec, sq, sq.buf, sq.wqe_cnt, sq.stride, rq, rq.buf, rq.wqe_cnt, rq.stride, bf,
        bf.reg, bf.size, comp_mask, uar_mmap_offset, tirn, tisn, rqn, sqn, tir_icm_addr
    }
    struct mlx5dv_cq { buf, dbrec, cqe_cnt, cqe_size, cq_uar, cqn, comp_mask }
    struct mlx5dv_srq { buf, dbrec, stride, head, tail, comp_mask, srqn }
    struct mlx5dv_striding_rq_init_attr {
        single_stride_log_num_of_bytes, single_wqe_log_num_of_strides, two_byte_shift_en
    }
    struct mlx5dv_wq_init_attr { comp_mask, striding_rq_attrs }
    struct mlx5dv_rwq { buf, dbrec, wqe_cnt, stride, comp_mask }
    struct mlx5dv_dm { buf, length, comp_mask, remote_va }
    struct mlx5dv_ah { av, comp_mask }
    struct mlx5dv_pd { pdn, comp_mask }
    struct mlx5dv_obj {
        qp, qp.in_, qp.out, cq, cq.in_, cq.out, srq, srq.in_, srq.out, rwq, rwq.in_,
        rwq.out, dm, dm.in_, dm.out, ah, ah.in_, ah.out, pd, pd.in_, pd.out
    }
    struct mlx5_wqe_av {
        key, key.qkey, key.qkey.qkey, key.qkey.reserved, key.dc_key, dqp_dct, stat_rate_sl,
        fl_mlid, rlid, reserved0, rmac, tclass, hop_limit, grh_gid_fl, rgid
    }
    struct mlx5dv_ctx_allocators { alloc, free, data }
    struct mlx5dv_clock_info { nsec, last_cycles, frac, mult, shift, mask }
    struct mlx5dv_context_attr { flags, comp_mask }
    struct mlx5_ib_uapi_devx_async_cmd_hdr { wr_id }
    struct mlx5_ib_uapi_devx_async_event_hdr { cookie }
    struct mlx5dv_devx_cmd_comp { fd }
    struct mlx5dv_devx_event_channel { fd }
    struct mlx5dv_devx_uar { reg_addr, base_addr, page_id, mmap_off, comp_mask }
    struct mlx5dv_devx_umem { umem_id }
    struct mlx5dv_devx_umem_in { addr, size, access, pgsz_bitmap, comp_mask, dmabuf_fd }
    struct rdma_event_channel { fd }
    struct rdma_cm_id {
        verbs, channel, context, qp, route.addr.src_storage, route.addr.dst_storage
    }
    struct rdma_conn_param {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num
    }
    struct rdma_cm_event { id, listen_id, event, status, param.conn }
};
