//! Objects that need each other, memory that must be there.

use std::ptr;

use crate::world::{World, create_qp, errno, init_attr, names, next_event, open};
use rdma_core_sys::*;

#[test]
fn what_is_in_use_cannot_be_destroyed() {
    let world = World::stepped();
    let cq = world.cq(4);
    let srq = world.srq(4);
    let qp = world.qp(IBV_QPT_RC, cq, srq);
    let mr = world.reg(Box::leak(Box::new([0; 64])), 0);
    // SAFETY: everything is alive until its destroy call succeeds.
    unsafe {
        assert_eq!(ibv_destroy_cq(cq), libc::EBUSY);
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(world.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_dealloc_pd(world.pd), libc::EBUSY, "the SRQ and the MR are in it");
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dealloc_pd(world.pd), libc::EBUSY, "the MR is in it");
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(world.pd), 0);
    }
}

#[test]
fn closing_the_device_destroys_what_was_made_on_it() {
    let world = World::stepped();
    assert_eq!(names().len(), 1);
    for _ in 0..20 {
        let ctx = open(world.device().name());
        // SAFETY: the objects are leaked on purpose, until the context is closed.
        unsafe {
            let pd = ibv_alloc_pd(ctx);
            let cq = ibv_create_cq(ctx, 4, ptr::null_mut(), ptr::null_mut(), 0);
            create_qp(pd, &mut init_attr(IBV_QPT_RC, cq, 1)).unwrap();
            assert_eq!(ibv_close_device(ctx), 0);
        }
    }
    assert!(!world.device().step());
}

#[test]
fn a_registration_needs_mapped_memory_and_sensible_rights() {
    let world = World::stepped();
    let refused = |addr: u64, length: usize, access: u32| {
        // SAFETY: the device is expected to refuse; no other command names the address.
        let mr = unsafe { ibv_reg_mr(world.pd, addr as *mut _, length, access) };
        assert!(mr.is_null());
        errno()
    };
    let memory = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let addr = memory.as_ptr() as u64;
    assert_eq!(refused(0x1000, 64, 0), libc::EFAULT);
    assert_eq!(refused(addr, 64, IBV_ACCESS_REMOTE_WRITE), libc::EINVAL);
    assert_eq!(refused(addr, 64, IBV_ACCESS_REMOTE_ATOMIC), libc::EINVAL);
    assert_eq!(refused(addr, 64, IBV_ACCESS_ON_DEMAND), libc::EOPNOTSUPP);
    // SAFETY: a fresh mapping that stays.
    let readonly = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), 8192, libc::PROT_READ, flags, -1, 0)
    } as u64;
    assert_eq!(refused(readonly, 8192, IBV_ACCESS_LOCAL_WRITE), libc::EFAULT);
    // SAFETY: unmaps half of what was mapped above.
    unsafe { libc::munmap((readonly + 4096) as *mut _, 4096) };
    assert_eq!(refused(readonly, 8192, 0), libc::EFAULT);
    // SAFETY: readable memory, registered without the right to write.
    assert!(!unsafe { ibv_reg_mr(world.pd, readonly as *mut _, 4096, 0) }.is_null());
}

#[test]
fn a_region_registered_again_covers_other_memory() {
    let world = World::stepped();
    let (one, other) = (Box::leak(Box::new([1u8; 64])), Box::leak(Box::new([2u8; 64])));
    let mr = world.reg(one, 0);
    // SAFETY: the region and the memory are alive.
    unsafe {
        let flags = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
        assert_eq!(ibv_rereg_mr(mr, flags, world.pd, other.as_mut_ptr().cast(), 64, 0), 0);
        assert_eq!((*mr).addr, other.as_mut_ptr().cast());
        let flags = IBV_REREG_MR_CHANGE_ACCESS as i32;
        let wrong = IBV_ACCESS_REMOTE_WRITE as i32;
        assert_ne!(ibv_rereg_mr(mr, flags, world.pd, ptr::null_mut(), 0, wrong), 0);
        let domain = ibv_alloc_pd(world.ctx);
        let flags = IBV_REREG_MR_CHANGE_PD as i32;
        assert_eq!(ibv_rereg_mr(mr, flags, domain, ptr::null_mut(), 0, 0), 0);
        assert_eq!(ibv_dealloc_pd(domain), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(world.pd), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(domain), 0);
    }
}

#[test]
fn a_multicast_member_must_leave_before_it_goes() {
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_UD, world.cq(4), ptr::null_mut());
    let mut group = ibv_gid::default();
    // SAFETY: writing the bytes of a union of plain integers.
    unsafe { (group.raw[0], group.raw[15]) = (0xff, 7) };
    let rc = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    // SAFETY: the QPs are alive until their destroy call succeeds.
    unsafe {
        assert_eq!(ibv_attach_mcast(rc, &group, 0xc001), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(qp, &group, 1), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(qp, &ibv_gid::default(), 0xc001), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(qp, &group, 0xc001), 0);
        assert_eq!(ibv_attach_mcast(qp, &group, 0xc001), 0, "joining twice is joining once");
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!(ibv_detach_mcast(qp, &group, 0xc002), libc::EINVAL);
        assert_eq!(ibv_detach_mcast(qp, &group, 0xc001), 0);
        assert_eq!(ibv_detach_mcast(qp, &group, 0xc001), libc::EINVAL);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
}

#[test]
fn an_srq_reports_its_limit_once() {
    let world = World::stepped();
    let srq = world.srq(100);
    let query = || {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the SRQ is alive.
        assert_eq!(unsafe { ibv_query_srq(srq, &mut attr) }, 0);
        attr
    };
    assert_eq!((query().srq_limit, query().max_sge), (0, 1));
    let modify = |mask: u32, srq_limit| {
        let mut attr = ibv_srq_attr { srq_limit, max_wr: 200, ..Default::default() };
        // SAFETY: the SRQ is alive.
        unsafe { ibv_modify_srq(srq, &mut attr, mask as i32) }
    };
    assert_eq!(modify(IBV_SRQ_MAX_WR, 0), libc::EINVAL);
    assert_eq!(modify(IBV_SRQ_LIMIT, 100_000), libc::EINVAL);
    // Nothing is posted, so the limit is undercut at once, and the event is due.
    assert_eq!(modify(IBV_SRQ_LIMIT, 10), 0);
    let event = next_event(world.ctx).unwrap();
    assert_eq!((event.event_type, query().srq_limit), (IBV_EVENT_SRQ_LIMIT_REACHED, 0));
    // SAFETY: such an event has an SRQ, which is alive.
    unsafe {
        assert_eq!(event.element.srq, srq);
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
}
