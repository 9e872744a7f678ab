//! Verbs that call one entry of the context, the completion queue or the queue pair, unchecked.

use crate::header::header;
use crate::recorder::{answer_with, recorded};
use crate::world::{Argument, World};
use rdma_core_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// Where the entries of an object are.
trait Entries {
    type Table;
    fn table(self, world: &World) -> *mut Self::Table;
}

macro_rules! entries_in_context {
    ($($object:ident)*) => {$(
        impl Entries for *mut $object {
            type Table = ibv_context_ops;
            fn table(self, world: &World) -> *mut ibv_context_ops {
                // SAFETY: the context lives as long as the world.
                unsafe { &raw mut (*world.context()).ops }
            }
        }
    )*};
}
entries_in_context! { ibv_cq ibv_qp ibv_srq }

macro_rules! entries_in_object {
    ($($object:ident)*) => {$(
        impl Entries for *mut $object {
            type Table = $object;
            fn table(self, _: &World) -> *mut $object {
                self
            }
        }
    )*};
}
entries_in_object! { ibv_cq_ex ibv_qp_ex }

macro_rules! plain {
    ($($verb:ident => $entry:ident(
        $object:ident: $object_type:ty $(, $arg:ident: $type:ty)*
    ) $(-> $ret:ty)?;)*) => {
        $(#[test]
        fn $verb() {
            let mut world = World::new(0);
            let mut position = 0;
            let mut next = || { position += 1; position };
            let $object = <$object_type>::make(&mut world, next());
            $(let $arg = <$type>::make(&mut world, next());)*
            let arguments = vec![$object as u64 $(, $arg as u64)*];

            let table = $object.table(&world);
            let name = stringify!($entry);
            let fake = recorded!(
                stringify!($entry), ($object: $object_type $(, $arg: $type)*) $(-> $ret)?
            );
            // SAFETY: the object or context is made up and lives as long as the world.
            unsafe { (*table).$entry = Some(fake) };
            world.remember();

            let header = header!($verb($object_type $(, $type)*) $(-> $ret)?);
            for answer in [0, 1, 0xfedc_ba98_7654_3210] {
                answer_with(answer);
                // SAFETY: the entry that the verb calls takes any arguments.
                let here = unsafe {
                    world.observe(|| returned!(rdma_core_sys::$verb($object $(, $arg)*) $(, $ret)?))
                };
                // SAFETY: as above.
                let there = unsafe {
                    world.observe(|| returned!(header($object $(, $arg)*) $(, $ret)?))
                };
                assert_eq!(here, there);
                assert_eq!(here.calls, [(name, arguments.clone())]);
            }
        })*
    };
}

/// A call's value as a number: nothing is zero.
macro_rules! returned {
    ($call:expr) => {{
        $call;
        0
    }};
    ($call:expr, $ret:ty) => {
        $call as u64
    };
}

plain! {
    ibv_poll_cq => poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int;
    ibv_req_notify_cq => req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int;
    ibv_post_recv => post_recv(
        qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int;
    ibv_post_send => post_send(
        qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int;
    ibv_post_srq_recv => post_srq_recv(
        srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int;

    ibv_start_poll => start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int;
    ibv_next_poll => next_poll(cq: *mut ibv_cq_ex) -> c_int;
    ibv_end_poll => end_poll(cq: *mut ibv_cq_ex);
    ibv_wc_read_opcode => read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode;
    ibv_wc_read_vendor_err => read_vendor_err(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_byte_len => read_byte_len(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_imm_data => read_imm_data(cq: *mut ibv_cq_ex) -> __be32;
    ibv_wc_read_invalidated_rkey => read_imm_data(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_qp_num => read_qp_num(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_src_qp => read_src_qp(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_wc_flags => read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint;
    ibv_wc_read_slid => read_slid(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_sl => read_sl(cq: *mut ibv_cq_ex) -> u8;
    ibv_wc_read_dlid_path_bits => read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8;
    ibv_wc_read_completion_ts => read_completion_ts(cq: *mut ibv_cq_ex) -> u64;
    ibv_wc_read_completion_wallclock_ns => read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64;
    ibv_wc_read_cvlan => read_cvlan(cq: *mut ibv_cq_ex) -> u16;
    ibv_wc_read_flow_tag => read_flow_tag(cq: *mut ibv_cq_ex) -> u32;
    ibv_wc_read_tm_info => read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info);

    ibv_wr_start => wr_start(qp: *mut ibv_qp_ex);
    ibv_wr_complete => wr_complete(qp: *mut ibv_qp_ex) -> c_int;
    ibv_wr_abort => wr_abort(qp: *mut ibv_qp_ex);
    ibv_wr_send => wr_send(qp: *mut ibv_qp_ex);
    ibv_wr_send_imm => wr_send_imm(qp: *mut ibv_qp_ex, imm: __be32);
    ibv_wr_send_inv => wr_send_inv(qp: *mut ibv_qp_ex, key: u32);
    ibv_wr_rdma_write => wr_rdma_write(qp: *mut ibv_qp_ex, key: u32, addr: u64);
    ibv_wr_rdma_write_imm => wr_rdma_write_imm(
        qp: *mut ibv_qp_ex, key: u32, addr: u64, imm: __be32);
    ibv_wr_rdma_read => wr_rdma_read(qp: *mut ibv_qp_ex, key: u32, addr: u64);
    ibv_wr_atomic_cmp_swp => wr_atomic_cmp_swp(
        qp: *mut ibv_qp_ex, key: u32, addr: u64, compare: u64, swap: u64);
    ibv_wr_atomic_fetch_add => wr_atomic_fetch_add(
        qp: *mut ibv_qp_ex, key: u32, addr: u64, add: u64);
    ibv_wr_bind_mw => wr_bind_mw(
        qp: *mut ibv_qp_ex, mw: *mut ibv_mw, key: u32, info: *const ibv_mw_bind_info);
    ibv_wr_local_inv => wr_local_inv(qp: *mut ibv_qp_ex, key: u32);
    ibv_wr_set_ud_addr => wr_set_ud_addr(
        qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32);
    ibv_wr_set_xrc_srqn => wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32);
    ibv_wr_set_sge => wr_set_sge(qp: *mut ibv_qp_ex, key: u32, addr: u64, length: u32);
    ibv_wr_set_sge_list => wr_set_sge_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_sge);
    ibv_wr_set_inline_data => wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, n: usize);
    ibv_wr_set_inline_data_list => wr_set_inline_data_list(
        qp: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf);
}
