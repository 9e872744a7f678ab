//! libmlx5, found at run time.

use crate::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_qp, ibv_qp_init_attr_ex, ibv_rwq_ind_table,
    ibv_srq, ibv_wq, ibv_wq_init_attr, mlx5_ib_uapi_devx_create_event_channel_flags, mlx5_ib_uapi_query_port,
    mlx5dv_clock_info, mlx5dv_context, mlx5dv_context_attr, mlx5dv_cq_init_attr, mlx5dv_devx_cmd_comp,
    mlx5dv_devx_event_channel, mlx5dv_devx_obj, mlx5dv_devx_uar, mlx5dv_devx_umem, mlx5dv_devx_umem_in, mlx5dv_obj,
    mlx5dv_qp_init_attr, mlx5dv_set_ctx_attr_type, mlx5dv_wq_init_attr,
};
use core::ffi::{c_int, c_void};

use crate::library::{Library, functions};

/// Head of the answer to an asynchronous query; the answer follows (`mlx5dv_devx_async_cmd_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mlx5_ib_uapi_devx_async_cmd_hdr {
    /// Number that the program gave to the query.
    pub wr_id: u64,
}

/// Head of an event. The entry of the event queue follows, 64 bytes, unless the channel leaves it out
/// (`mlx5dv_devx_async_event_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct mlx5_ib_uapi_devx_async_event_hdr {
    /// Number that the program gave to the subscription.
    pub cookie: u64,
}

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
    /// Executes a command of the firmware about no object. A refused command returns an errno, and `out` has its status
    /// and syndrome if the errno is `EREMOTEIO`; also below.
    devx_general_cmd = c"mlx5dv_devx_general_cmd": fn(
        context: *mut ibv_context, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Makes an object by a command. Null and errno on failure.
    devx_obj_create = c"mlx5dv_devx_obj_create": fn(
        context: *mut ibv_context, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> *mut mlx5dv_devx_obj;
    /// Asks about an object by a command.
    devx_obj_query = c"mlx5dv_devx_obj_query": fn(
        obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes an object by a command.
    devx_obj_modify = c"mlx5dv_devx_obj_modify": fn(
        obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Destroys an object.
    devx_obj_destroy = c"mlx5dv_devx_obj_destroy": fn(obj: *mut mlx5dv_devx_obj) -> c_int;
    /// Asks about a CQ of verbs by a command.
    devx_cq_query = c"mlx5dv_devx_cq_query": fn(
        cq: *mut ibv_cq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes a CQ of verbs by a command.
    devx_cq_modify = c"mlx5dv_devx_cq_modify": fn(
        cq: *mut ibv_cq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Asks about a queue pair of verbs by a command.
    devx_qp_query = c"mlx5dv_devx_qp_query": fn(
        qp: *mut ibv_qp, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes a queue pair of verbs by a command.
    devx_qp_modify = c"mlx5dv_devx_qp_modify": fn(
        qp: *mut ibv_qp, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Asks about an SRQ of verbs by a command.
    devx_srq_query = c"mlx5dv_devx_srq_query": fn(
        srq: *mut ibv_srq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes an SRQ of verbs by a command.
    devx_srq_modify = c"mlx5dv_devx_srq_modify": fn(
        srq: *mut ibv_srq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Asks about a work queue of verbs by a command.
    devx_wq_query = c"mlx5dv_devx_wq_query": fn(
        wq: *mut ibv_wq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes a work queue of verbs by a command.
    devx_wq_modify = c"mlx5dv_devx_wq_modify": fn(
        wq: *mut ibv_wq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Asks about a table of receive queues of verbs by a command.
    devx_ind_tbl_query = c"mlx5dv_devx_ind_tbl_query": fn(
        ind_tbl: *mut ibv_rwq_ind_table, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Changes a table of receive queues of verbs by a command.
    devx_ind_tbl_modify = c"mlx5dv_devx_ind_tbl_modify": fn(
        ind_tbl: *mut ibv_rwq_ind_table, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
    ) -> c_int;
    /// Registers memory for queues of commands, with rights of `ibv_access_flags`. Null and errno on failure.
    devx_umem_reg = c"mlx5dv_devx_umem_reg": fn(
        context: *mut ibv_context, addr: *mut c_void, size: usize, access: u32,
    ) -> *mut mlx5dv_devx_umem;
    /// Registers memory with certain page sizes, or of a dma-buf. Null and errno on failure.
    devx_umem_reg_ex = c"mlx5dv_devx_umem_reg_ex":
        fn(context: *mut ibv_context, umem_in: *mut mlx5dv_devx_umem_in) -> *mut mlx5dv_devx_umem;
    /// Ends such a registration.
    devx_umem_dereg = c"mlx5dv_devx_umem_dereg": fn(umem: *mut mlx5dv_devx_umem) -> c_int;
    /// Returns the number of the event queue of a completion vector.
    devx_query_eqn = c"mlx5dv_devx_query_eqn":
        fn(context: *mut ibv_context, vector: u32, eqn: *mut u32) -> c_int;
    /// Opens a file for the answers of asynchronous queries. Null and errno on failure.
    devx_create_cmd_comp = c"mlx5dv_devx_create_cmd_comp":
        fn(context: *mut ibv_context) -> *mut mlx5dv_devx_cmd_comp;
    /// Closes such a file.
    devx_destroy_cmd_comp = c"mlx5dv_devx_destroy_cmd_comp": fn(cmd_comp: *mut mlx5dv_devx_cmd_comp);
    /// Asks about an object; the answer comes to the file, with `wr_id`.
    devx_obj_query_async = c"mlx5dv_devx_obj_query_async": fn(
        obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, outlen: usize, wr_id: u64,
        cmd_comp: *mut mlx5dv_devx_cmd_comp,
    ) -> c_int;
    /// Reads an answer.
    devx_get_async_cmd_comp = c"mlx5dv_devx_get_async_cmd_comp": fn(
        cmd_comp: *mut mlx5dv_devx_cmd_comp, cmd_resp: *mut mlx5_ib_uapi_devx_async_cmd_hdr, cmd_resp_len: usize,
    ) -> c_int;
    /// Opens a file for events. Null and errno on failure.
    devx_create_event_channel = c"mlx5dv_devx_create_event_channel": fn(
        context: *mut ibv_context, flags: mlx5_ib_uapi_devx_create_event_channel_flags,
    ) -> *mut mlx5dv_devx_event_channel;
    /// Closes such a file.
    devx_destroy_event_channel = c"mlx5dv_devx_destroy_event_channel":
        fn(event_channel: *mut mlx5dv_devx_event_channel);
    /// Has events of an object, or of the device if `obj` is null, reported with `cookie`.
    devx_subscribe_devx_event = c"mlx5dv_devx_subscribe_devx_event": fn(
        event_channel: *mut mlx5dv_devx_event_channel, obj: *mut mlx5dv_devx_obj, events_sz: u16,
        events_num: *mut u16, cookie: u64,
    ) -> c_int;
    /// Has the events of one kind counted by an `eventfd(2)`.
    devx_subscribe_devx_event_fd = c"mlx5dv_devx_subscribe_devx_event_fd": fn(
        event_channel: *mut mlx5dv_devx_event_channel, fd: c_int, obj: *mut mlx5dv_devx_obj, event_num: u16,
    ) -> c_int;
    /// Reads an event; returns the number of its bytes, or -1 and errno.
    devx_get_event = c"mlx5dv_devx_get_event": fn(
        event_channel: *mut mlx5dv_devx_event_channel, event_data: *mut mlx5_ib_uapi_devx_async_event_hdr,
        event_resp_len: usize,
    ) -> isize;
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
            devx_general_cmd: declared::mlx5dv_devx_general_cmd,
            devx_obj_create: declared::mlx5dv_devx_obj_create,
            devx_obj_query: declared::mlx5dv_devx_obj_query,
            devx_obj_modify: declared::mlx5dv_devx_obj_modify,
            devx_obj_destroy: declared::mlx5dv_devx_obj_destroy,
            devx_cq_query: declared::mlx5dv_devx_cq_query,
            devx_cq_modify: declared::mlx5dv_devx_cq_modify,
            devx_qp_query: declared::mlx5dv_devx_qp_query,
            devx_qp_modify: declared::mlx5dv_devx_qp_modify,
            devx_srq_query: declared::mlx5dv_devx_srq_query,
            devx_srq_modify: declared::mlx5dv_devx_srq_modify,
            devx_wq_query: declared::mlx5dv_devx_wq_query,
            devx_wq_modify: declared::mlx5dv_devx_wq_modify,
            devx_ind_tbl_query: declared::mlx5dv_devx_ind_tbl_query,
            devx_ind_tbl_modify: declared::mlx5dv_devx_ind_tbl_modify,
            devx_umem_reg: declared::mlx5dv_devx_umem_reg,
            devx_umem_reg_ex: declared::mlx5dv_devx_umem_reg_ex,
            devx_umem_dereg: declared::mlx5dv_devx_umem_dereg,
            devx_query_eqn: declared::mlx5dv_devx_query_eqn,
            devx_create_cmd_comp: declared::mlx5dv_devx_create_cmd_comp,
            devx_destroy_cmd_comp: declared::mlx5dv_devx_destroy_cmd_comp,
            devx_obj_query_async: declared::mlx5dv_devx_obj_query_async,
            devx_get_async_cmd_comp: declared::mlx5dv_devx_get_async_cmd_comp,
            devx_create_event_channel: declared::mlx5dv_devx_create_event_channel,
            devx_destroy_event_channel: declared::mlx5dv_devx_destroy_event_channel,
            devx_subscribe_devx_event: declared::mlx5dv_devx_subscribe_devx_event,
            devx_subscribe_devx_event_fd: declared::mlx5dv_devx_subscribe_devx_event_fd,
            devx_get_event: declared::mlx5dv_devx_get_event,
        }
    }
}
