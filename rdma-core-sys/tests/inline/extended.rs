//! Verbs that call one entry of the extended context, after a check that it is there.

use crate::header::{self, header};
use crate::recorder::{answer_with, recorded};
use crate::world::{Argument, Extent, World};
use rdma_core_sys::*;
use std::ffi::c_int;
use std::mem::offset_of;

macro_rules! extended {
    ($($verb:ident => $entry:ident(
        $($arg:ident: $type:ty),* $(; $size:ident of $sized:ident)?
    ) -> $ret:ty;)*) => {
        $(#[test]
        fn $verb() {
            // Memory of zeroes reaches the entry in every verb; other memory shows what is
            // cleared by those that fall back on an older function.
            for fill in [0, 0xa5a5_a5a5_a5a5_a5a5] {
                let mut world = World::new(fill);
                let mut position = 0;
                let mut next = || { position += 1; position };
                $(let $arg = <$type>::make(&mut world, next());)*
                let arguments = vec![$($arg as u64),*];

                let offset = offset_of!(verbs_context, $entry);
                let name = stringify!($entry);
                let fake = recorded!(
                    stringify!($entry), ($($arg: $type),* $(, $size: usize)?) -> $ret
                );
                let header = header!($verb($($type),*) -> $ret);
                for extent in ALL {
                    world.set_extent(extent, offset);
                    for (set, answer) in
                        [(false, 0), (true, 0), (true, libc::EINVAL), (true, libc::EOPNOTSUPP)]
                    {
                        if extent == Extent::JustLongEnough && !set {
                            continue;
                        }
                        answer_with(answer as u64);
                        // SAFETY: the context is made up and lives as long as the world.
                        unsafe { (*world.extended()).$entry = set.then_some(fake as _) };
                        // SAFETY: the recorded entries take any arguments.
                        let here = unsafe {
                            world.observe(|| rdma_core_sys::$verb($($arg),*) as u64)
                        };
                        // SAFETY: as above.
                        let there = unsafe { world.observe(|| header($($arg),*) as u64) };
                        $(let theirs = header::size_of(stringify!($sized));
                        let here = here.without_appended(size_of::<$sized>(), theirs);
                        let there = there.without_appended(size_of::<$sized>(), theirs);)?
                        assert_eq!(here, there, "{extent:?}, entry set: {set}");

                        let reached = here.calls.iter().any(|(entry, _)| *entry == name);
                        let exists = matches!(extent, Extent::JustLongEnough | Extent::Full) && set;
                        assert!(!reached || exists, "{extent:?}, entry set: {set}");
                        if fill == 0 && exists {
                            let (entry, mut given) = here.calls[0].clone();
                            assert_eq!(entry, name);
                            given.truncate(arguments.len());
                            assert_eq!(given, arguments);
                        }
                    }
                }
            }
        })*
    };
}

const ALL: [Extent; 4] = [Extent::None, Extent::TooShort, Extent::JustLongEnough, Extent::Full];

extended! {
    ibv_query_port => query_port(
        context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr; size of ibv_port_attr
    ) -> c_int;
    ibv_query_device_ex => query_device_ex(
        context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex; size of ibv_device_attr_ex
    ) -> c_int;
    ibv_query_rt_values_ex => query_rt_values(
        context: *mut ibv_context, values: *mut ibv_values_ex
    ) -> c_int;
    ibv_advise_mr => advise_mr(
        pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, list: *mut ibv_sge, n: u32
    ) -> c_int;
    ibv_alloc_td => alloc_td(
        context: *mut ibv_context, attr: *mut ibv_td_init_attr
    ) -> *mut ibv_td;
    ibv_dealloc_td => dealloc_td(td: *mut ibv_td) -> c_int;
    ibv_alloc_parent_domain => alloc_parent_domain(
        context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr
    ) -> *mut ibv_pd;
    ibv_open_xrcd => open_xrcd(
        context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr
    ) -> *mut ibv_xrcd;
    ibv_create_cq_ex => create_cq_ex(
        context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex
    ) -> *mut ibv_cq_ex;
    ibv_modify_cq => modify_cq(
        cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr
    ) -> c_int;
    ibv_create_qp_ex => create_qp_ex(
        context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex
    ) -> *mut ibv_qp;
    ibv_open_qp => open_qp(
        context: *mut ibv_context, attr: *mut ibv_qp_open_attr
    ) -> *mut ibv_qp;
    ibv_modify_qp_rate_limit => modify_qp_rate_limit(
        qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr
    ) -> c_int;
    ibv_create_srq_ex => create_srq_ex(
        context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex
    ) -> *mut ibv_srq;
    ibv_get_srq_num => get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int;
    ibv_post_srq_ops => post_srq_ops(
        srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr
    ) -> c_int;
    ibv_modify_wq => modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int;
    ibv_destroy_wq => destroy_wq(wq: *mut ibv_wq) -> c_int;
    ibv_create_rwq_ind_table => create_rwq_ind_table(
        context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr
    ) -> *mut ibv_rwq_ind_table;
    ibv_destroy_rwq_ind_table => destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int;
    ibv_create_flow => ibv_create_flow(
        qp: *mut ibv_qp, attr: *mut ibv_flow_attr
    ) -> *mut ibv_flow;
    ibv_destroy_flow => ibv_destroy_flow(flow: *mut ibv_flow) -> c_int;
}
