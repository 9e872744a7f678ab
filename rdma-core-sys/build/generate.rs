//! Which part of the C headers is bound, and how.

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use bindgen::{Builder, EnumVariation, RustEdition, RustTarget};
use std::path::PathBuf;
use std::{env, fs};

/// The functions that are bound. Everything else is bound only if they refer to it.
const FUNCTIONS: &[&str] = &[
    // Devices and their properties.
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_name",
    "ibv_get_device_index",
    "ibv_get_device_guid",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_query_device",
    "ibv_query_gid",
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_get_pkey_index",
    // Events.
    "ibv_get_async_event",
    "ibv_ack_async_event",
    "ibv_create_comp_channel",
    "ibv_destroy_comp_channel",
    "ibv_get_cq_event",
    "ibv_ack_cq_events",
    // Protection domains and memory.
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_reg_mr_iova2",
    "ibv_reg_dmabuf_mr",
    "ibv_rereg_mr",
    "ibv_dereg_mr",
    // Queues.
    "ibv_create_cq",
    "ibv_resize_cq",
    "ibv_destroy_cq",
    "ibv_create_srq",
    "ibv_modify_srq",
    "ibv_query_srq",
    "ibv_destroy_srq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_qp_to_qp_ex",
    "ibv_destroy_qp",
    "ibv_set_ece",
    "ibv_query_ece",
    // Datagrams.
    "ibv_create_ah",
    "ibv_init_ah_from_wc",
    "ibv_create_ah_from_wc",
    "ibv_destroy_ah",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_attach_mcast",
    "ibv_detach_mcast",
    // Process-wide.
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    // Names of values.
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_event_type_str",
    "ibv_wc_status_str",
    "ibv_rate_to_mult",
    "mult_to_ibv_rate",
    "ibv_rate_to_mbps",
    "mbps_to_ibv_rate",
];

const TYPES: &[&str] = &[
    // Values that the structures have as plain integers, so nothing else refers to them.
    "ibv_access_flags",
    "ibv_cq_attr_mask",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_device_cap_flags",
    "ibv_flow_attr_type",
    "ibv_flow_flags",
    "ibv_flow_spec_type",
    "ibv_fork_status",
    "ibv_gid_type",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_ops_flags",
    "ibv_parent_domain_init_attr_mask",
    "ibv_pci_atomic_op_size",
    "ibv_port_cap_flags",
    "ibv_port_cap_flags2",
    "ibv_qp_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_qp_open_attr_mask",
    "ibv_query_qp_data_in_order.*",
    "ibv_raw_packet_caps",
    "ibv_rate",
    "ibv_ind_table_init_attr_mask",
    "ibv_rereg_mr_err_code",
    "ibv_rereg_mr_flags",
    "ibv_rx_hash_fields",
    "ibv_rx_hash_function_flags",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_srq_init_attr_mask",
    "ibv_tm_cap_flags",
    "ibv_tmh_op",
    "ibv_values_mask",
    "ibv_wc_flags",
    "ibv_wq_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_init_attr_mask",
    "ibv_xrcd_init_attr_mask",
    "ib_uverbs_access_flags",
    "ib_uverbs_query_port_flags",
    // Structures.
    "ibv_cq_ex",
    "ibv_data_buf",
    "ibv_device_attr_ex",
    "ibv_flow_attr",
    "ibv_flow_spec_action_tag",
    "ibv_flow_spec_eth",
    "ibv_flow_spec_ipv4",
    "ibv_flow_spec_tcp_udp",
    "ibv_grh",
    "ibv_port_attr",
    "ibv_qp_ex",
    "ibv_rvh",
    "ibv_tmh",
    "verbs_context",
    // mlx5: data only. Its functions are looked up in the library that is loaded at run time.
    "mlx5dv_clock_info",
    "mlx5dv_context",
    "mlx5dv_context_attr",
    "mlx5dv_context_attr_flags",
    "mlx5dv_context_comp_mask",
    "mlx5dv_context_flags",
    "mlx5dv_cq_init_attr",
    "mlx5dv_cq_init_attr_flags",
    "mlx5dv_cq_init_attr_mask",
    "mlx5dv_cqe_comp_res_format",
    "mlx5dv_ctx_allocators",
    "mlx5dv_devx_cmd_comp",
    "mlx5_ib_uapi_devx_create_event_channel_flags",
    "mlx5dv_devx_event_channel",
    "mlx5dv_devx_obj",
    "mlx5dv_devx_uar",
    "mlx5dv_devx_umem",
    "mlx5dv_devx_umem_in",
    "mlx5dv_devx_umem_in_mask",
    "mlx5dv_obj",
    "mlx5dv_obj_type",
    "mlx5dv_qp_comp_mask",
    "mlx5dv_qp_create_flags",
    "mlx5dv_qp_create_send_ops_flags",
    "mlx5dv_qp_init_attr",
    "mlx5dv_qp_init_attr_mask",
    "mlx5dv_set_ctx_attr_type",
    "mlx5dv_srq_comp_mask",
    "mlx5dv_wq_init_attr",
    "mlx5dv_wq_init_attr_mask",
    "mlx5_ib_uapi_uar_alloc_type",
    "mlx5_ib_uapi_query_port.*",
];

/// Verbs that are used only as entries of `verbs_context`. doorbell does not use flow counters or encryption, so the
/// types of their arguments stay opaque.
const OPAQUE: &[&str] = &["ibv_flow_action_esp_attr", "ibv_counter_attach_attr"];

/// Tells bindgen which of the types that come from libc may be copied. A mutex may not.
#[derive(Debug)]
struct LibcTypes;

impl ParseCallbacks for LibcTypes {
    fn blocklisted_type_implements_trait(&self, name: &str, derive: DeriveTrait) -> Option<ImplementsTrait> {
        let plain = matches!(name, "off_t" | "timespec" | "struct timespec");
        (plain && derive == DeriveTrait::Copy).then_some(ImplementsTrait::Yes)
    }
}

/// The functions of libmlx5. It is not linked, so these declarations serve only to check the types
/// of the function pointers that are looked up in it.
const LOADED: &str = "mlx5dv_(is_supported|open_device|query_device|init_obj|create_cq|create_qp|create_wq\
                      |set_context_attr|get_clock_info|devx_(alloc_uar|free_uar|general_cmd|obj_create|obj_destroy\
                      |obj_modify|obj_query|obj_query_async|cq_modify|cq_query|qp_modify|qp_query\
                      |srq_modify|srq_query|wq_modify|wq_query|ind_tbl_modify|ind_tbl_query\
                      |umem_reg|umem_reg_ex|umem_dereg|query_eqn|create_cmd_comp|destroy_cmd_comp\
                      |get_async_cmd_comp|create_event_channel|destroy_event_channel\
                      |subscribe_devx_event|subscribe_devx_event_fd|get_event))\
                      |_mlx5dv_query_port";

/// Writes to `OUT_DIR`, for each architecture, the bindings with assertions on every offset, which
/// are used, and without, which the crate carries; and the declarations for libmlx5.
///
/// The other architecture is left out where its C library's headers are not installed (Debian:
/// `libc6-dev-arm64-cross` or `libc6-dev-amd64-cross`).
pub fn write() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let (target, host) = (variable("TARGET")?, variable("HOST")?);
    for architecture in ["x86_64", "aarch64"] {
        let mut builder = bindings()?.clang_arg(format!("--target={architecture}-linux-gnu"));
        if !host.starts_with(architecture) {
            let headers = format!("/usr/{architecture}-linux-gnu/include");
            if fs::exists(&headers).unwrap_or(false) {
                builder = builder.clang_args(["-isystem", &headers]);
            } else if !target.starts_with(architecture) {
                continue;
            }
        }
        let carried = builder.clone().layout_tests(false);
        store(out.join(format!("{architecture}-carried.rs")), &run(carried)?)?;
        store(out.join(format!("{architecture}.rs")), &run(builder)?)?;
    }
    store(out.join("mlx5dv.rs"), &run(declarations(&host)?)?)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

fn store(path: PathBuf, text: &str) -> Result<(), String> {
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn run(builder: Builder) -> Result<String, String> {
    let bindings = builder.generate().map_err(|e| {
        format!(
            "the headers of rdma-core cannot be read.\n{e}\n\
             Debian, Ubuntu: apt-get install libibverbs-dev\n\
             Fedora, RHEL:   dnf install rdma-core-devel"
        )
    })?;
    Ok(bindings.to_string())
}

fn builder() -> Result<Builder, String> {
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/build/headers.h");
    Ok(Builder::default()
        .header(headers)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(false)
        .derive_debug(false)
        .generate_comments(false)
        .merge_extern_blocks(true)
        .rust_target(RustTarget::stable(85, 0).map_err(|e| e.to_string())?)
        .rust_edition(RustEdition::Edition2024)
        .use_core()
        .ctypes_prefix("core::ffi"))
}

fn bindings() -> Result<Builder, String> {
    let mut builder = builder()?
        .parse_callbacks(Box::new(LibcTypes))
        .allowlist_var("IBV_DEVICE_RAW_SCATTER_FCS")
        .allowlist_var("IBV_DEVICE_PCI_WRITE_END_PADDING")
        .allowlist_var("ETHERNET_LL_SIZE")
        // The sizes of these differ between architectures and are libc's to know.
        .blocklist_type("pthread_.*|__pthread_.*|__atomic_wide_counter.*")
        .blocklist_type("timespec|__time_t|__syscall_slong_t|off_t|__off_t")
        // Structures of one field, after which bytes follow: they are written by hand.
        .blocklist_type("mlx5_ib_uapi_devx_async_(cmd|event)_hdr")
        .raw_line("use libc::{off_t, pthread_cond_t, pthread_mutex_t, timespec};");
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    Ok(builder)
}

fn declarations(host: &str) -> Result<Builder, String> {
    Ok(builder()?.clang_arg(format!("--target={host}")).allowlist_function(LOADED).allowlist_recursively(false))
}
