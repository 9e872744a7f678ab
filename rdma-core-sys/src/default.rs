//! `Default` for structures that a caller fills in or has filled in: all zero, as in C programs.

/// Implements `Default` as all zeroes.
macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl Default for crate::$name {
            fn default() -> Self {
                // SAFETY: integers, pointers, nullable function pointers, and unions and
                // structures of these: zero is a value of each.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

zeroed! {
    ibv_ah_attr
    ibv_async_event
    ibv_cq_init_attr_ex
    ibv_device_attr
    ibv_device_attr_ex
    ibv_ece
    ibv_flow_attr
    ibv_flow_spec_action_tag
    ibv_flow_spec_eth
    ibv_flow_spec_ipv4
    ibv_flow_spec_tcp_udp
    ibv_gid
    ibv_gid_entry
    ibv_global_route
    ibv_grh
    ibv_modify_cq_attr
    ibv_ops_wr
    ibv_parent_domain_init_attr
    ibv_poll_cq_attr
    ibv_port_attr
    ibv_qp_attr
    ibv_qp_cap
    ibv_qp_init_attr
    ibv_qp_init_attr_ex
    ibv_qp_open_attr
    ibv_qp_rate_limit_attr
    ibv_query_device_ex_input
    ibv_recv_wr
    ibv_rvh
    ibv_send_wr
    ibv_rwq_ind_table_init_attr
    ibv_sge
    ibv_srq_attr
    ibv_srq_init_attr
    ibv_srq_init_attr_ex
    ibv_td_init_attr
    ibv_tmh
    ibv_values_ex
    ibv_wc
    ibv_wc_tm_info
    ibv_wq_attr
    ibv_wq_init_attr
    ibv_xrcd_init_attr
    mlx5dv_ah
    mlx5dv_clock_info
    mlx5dv_context
    mlx5dv_context_attr
    mlx5dv_cq
    mlx5dv_cq_init_attr
    mlx5dv_ctx_allocators
    mlx5dv_obj
    mlx5dv_pd
    mlx5dv_qp
    mlx5dv_qp_init_attr
    mlx5dv_rwq
    mlx5dv_srq
    mlx5dv_wq_init_attr
}
