//! Takes the place of the functions of libibverbs that inline verbs fall back to. Both the Rust
//! verbs and the compiled header reach these, since a program's own symbols come first.

use crate::recorder::record;
use rdma_core_sys::*;
use std::ffi::{c_int, c_uint, c_void};

macro_rules! replace {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        // SAFETY: this program calls libibverbs in no other way.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            record(concat!("library ", stringify!($name)), vec![$($arg as u64),*]) as $ret
        }
    )*};
}

replace! {
    ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut c_void) -> c_int;
    ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32,
        size: usize
    ) -> c_int;
    _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize
    ) -> isize;
    ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int
    ) -> *mut ibv_mr;
    ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
    ) -> *mut ibv_mr;
}
