//! libmlx5, found at run time.

use crate::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_qp, ibv_qp_init_attr_ex, ibv_wq, ibv_wq_init_attr,
    mlx5_ib_uapi_query_port, mlx5dv_clock_info, mlx5dv_context, mlx5dv_context_attr, mlx5dv_cq_init_attr,
    mlx5dv_devx_uar, mlx5dv_obj, mlx5dv_qp_init_attr, mlx5dv_set_ctx_attr_type, mlx5dv_wq_init_attr,
};
use core::ffi::{c_int, c_void};

use crate::library::{Library, functions};

const LIBMLX5: Library = Library {
    soname: c"libmlx5.so.1",
    name: "libmlx5",
    packages: "Debian and Ubuntu: package ibverbs-providers; Fedora and RHEL: package libibverbs",
};

functions! {
    /// The functions of libmlx5 (`mlx5dv_*`, without the prefix).
    ///
    /// libmlx5 is a library, and also the driver that libibverbs loads for an mlx5 device. The second
    /// load gets the copy that is already there. So after
    /// [`ibv_get_device_list`](crate::ibv_get_device_list) has found such a device, these functions
    /// belong to its driver.
    Mlx5dv of LIBMLX5;

    /// Whether the device is driven by libmlx5.
    is_supported = c"mlx5dv_is_supported": fn(device: *mut ibv_device) -> bool;
    /// Opens a device with attributes of libmlx5, such as DEVX. Null and errno on failure.
    open_device = c"mlx5dv_open_device":
        fn(device: *mut ibv_device, attr: *mut mlx5dv_context_attr) -> *mut ibv_context;
    /// Reads the capabilities of the driver. `comp_mask` selects the fields to read, and then says which were read.
    query_device = c"mlx5dv_query_device":
        fn(context: *mut ibv_context, attrs: *mut mlx5dv_context) -> c_int;
    /// Reads attributes of a port. The last argument is the size of the structure.
    query_port = c"_mlx5dv_query_port": fn(
        context: *mut ibv_context, port_num: u32, info: *mut mlx5_ib_uapi_query_port, len: usize,
    ) -> c_int;
    /// Reads where the queues of verbs objects lie in memory; `obj_type` is a set of
    /// `MLX5DV_OBJ_*`.
    init_obj = c"mlx5dv_init_obj": fn(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
    /// Makes a completion queue with attributes of libmlx5, such as compression.
    create_cq = c"mlx5dv_create_cq": fn(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
        mlx5_attr: *mut mlx5dv_cq_init_attr,
    ) -> *mut ibv_cq_ex;
    /// Makes a queue pair with attributes of libmlx5, such as no scatter to CQE.
    create_qp = c"mlx5dv_create_qp": fn(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        mlx5_attr: *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp;
    /// Makes a work queue with attributes of libmlx5, such as strides. Null and errno on failure.
    create_wq = c"mlx5dv_create_wq": fn(
        context: *mut ibv_context,
        attr: *mut ibv_wq_init_attr,
        mlx5_attr: *mut mlx5dv_wq_init_attr,
    ) -> *mut ibv_wq;
    /// Sets an attribute of an open context, such as the allocators of its queues.
    set_context_attr = c"mlx5dv_set_context_attr": fn(
        context: *mut ibv_context, attr_type: mlx5dv_set_ctx_attr_type, attr: *mut c_void,
    ) -> c_int;
    /// Reads the parameters that turn timestamps into nanoseconds; see
    /// [`mlx5dv_ts_to_ns`](crate::mlx5dv_ts_to_ns).
    get_clock_info = c"mlx5dv_get_clock_info":
        fn(context: *mut ibv_context, info: *mut mlx5dv_clock_info) -> c_int;
    /// Allocates a UAR of one's own (`MLX5DV_UAR_ALLOC_TYPE_*`). Null and errno on failure.
    devx_alloc_uar = c"mlx5dv_devx_alloc_uar":
        fn(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar;
    /// Frees such a UAR.
    devx_free_uar = c"mlx5dv_devx_free_uar": fn(uar: *mut mlx5dv_devx_uar);
}

/// The time in nanoseconds of a hardware timestamp, relative to a recent reading of the clock.
///
/// Right for timestamps at most half a turn of the device's counter away from that reading.
#[inline]
pub const fn mlx5dv_ts_to_ns(clock_info: &mlx5dv_clock_info, device_timestamp: u64) -> u64 {
    let info = clock_info;
    let delta = device_timestamp.wrapping_sub(info.last_cycles) & info.mask;
    if delta > info.mask / 2 {
        // Older than the reading.
        let delta = info.last_cycles.wrapping_sub(device_timestamp) & info.mask;
        let ns = delta.wrapping_mul(info.mult as u64).wrapping_sub(info.frac);
        info.nsec.wrapping_sub(ns.wrapping_shr(info.shift))
    } else {
        let ns = delta.wrapping_mul(info.mult as u64).wrapping_add(info.frac);
        info.nsec.wrapping_add(ns.wrapping_shr(info.shift))
    }
}

#[cfg(test)]
mod tests {
    use super::Mlx5dv;

    mod declared {
        use crate::*;

        #[cfg(not(feature = "bindgen"))]
        include!("generated/mlx5dv.rs");
        #[cfg(feature = "bindgen")]
        include!(concat!(env!("OUT_DIR"), "/mlx5dv.rs"));
    }

    /// Compiles only if each field has the type that the header declares. Never called: the
    /// declared functions are not linked.
    #[expect(dead_code, reason = "only the types matter")]
    fn fields_have_the_types_of_the_header() -> Mlx5dv {
        Mlx5dv {
            is_supported: declared::mlx5dv_is_supported,
            open_device: declared::mlx5dv_open_device,
            query_device: declared::mlx5dv_query_device,
            query_port: declared::_mlx5dv_query_port,
            init_obj: declared::mlx5dv_init_obj,
            create_cq: declared::mlx5dv_create_cq,
            create_qp: declared::mlx5dv_create_qp,
            create_wq: declared::mlx5dv_create_wq,
            set_context_attr: declared::mlx5dv_set_context_attr,
            get_clock_info: declared::mlx5dv_get_clock_info,
            devx_alloc_uar: declared::mlx5dv_devx_alloc_uar,
            devx_free_uar: declared::mlx5dv_devx_free_uar,
        }
    }
}
