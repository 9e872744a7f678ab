//! Lists of tags as libmlx5 makes them. `tests/conformance` compares what libmlx5 does with them.

use std::ptr;

use rdma_core_sys::*;

use crate::world::{World, errno};

pub fn cq_ex(world: &World) -> *mut ibv_cq_ex {
    let wc_flags = u64::from(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_TM_INFO);
    let mut attr = ibv_cq_init_attr_ex { cqe: 255, wc_flags, ..Default::default() };
    // SAFETY: the context is open.
    let cq = unsafe { ibv_create_cq_ex(world.ctx, &mut attr) };
    assert!(!cq.is_null());
    cq
}

pub fn create(world: &World, cq: *mut ibv_cq_ex, max_num_tags: u32) -> *mut ibv_srq {
    let mut attr = ibv_srq_init_attr_ex {
        srq_type: IBV_SRQT_TM,
        pd: world.pd,
        cq: cq.cast(),
        tm_cap: ibv_tm_cap { max_num_tags, max_ops: 16 },
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
        ..Default::default()
    };
    (attr.attr.max_wr, attr.attr.max_sge) = (64, 1);
    // SAFETY: context, domain and CQ are alive.
    unsafe { ibv_create_srq_ex(world.ctx, &mut attr) }
}

#[test]
fn a_list_has_from_1_to_127_tags() {
    let world = World::stepped();
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device_ex(world.ctx, ptr::null(), &mut attr) }, 0);
    let caps = attr.tm_caps;
    assert_eq!((caps.max_rndv_hdr_size, caps.max_num_tags, caps.max_ops), (64, 127, 8192));
    assert_eq!((caps.flags, caps.max_sge), (IBV_TM_CAP_RC, 1));
    let cq = cq_ex(&world);
    assert!(create(&world, cq, 128).is_null());
    assert_eq!(errno(), libc::EINVAL);
    let srq = create(&world, cq, 127);
    assert!(!srq.is_null());
    // SAFETY: both are alive; the SRQ keeps its CQ.
    unsafe {
        assert_eq!(ibv_destroy_cq(cq.cast()), libc::EBUSY);
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
    }
}
