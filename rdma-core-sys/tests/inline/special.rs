//! Verbs with conditions of their own.

use crate::header::{self, header};
use crate::recorder::{answer_with, recorded};
use crate::world::{Argument, Extent, World};
use rdma_core_sys::*;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

#[test]
fn create_qp_ex_uses_the_plain_verb_when_only_a_pd_is_given() {
    let mut world = World::new(0);
    let context = world.context();
    let pd = <*mut ibv_pd>::make(&mut world, 1);
    let attr = <*mut ibv_qp_init_attr_ex>::make(&mut world, 2);
    let header = header!(ibv_create_qp_ex(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp);
    let fake = recorded!(
        "create_qp_ex",
        (context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
    );
    answer_with(0x1000);
    let mut plain = 0;
    for extent in [Extent::None, Extent::Full] {
        world.set_extent(extent, 0);
        for comp_mask in 0..128 {
            // SAFETY: made up, and alive as long as the world.
            unsafe {
                (*world.extended()).create_qp_ex = Some(fake);
                (*attr).comp_mask = comp_mask;
                (*attr).pd = pd;
            }
            world.remember();
            // SAFETY: the recorded entries take any arguments.
            let here = unsafe { world.observe(|| ibv_create_qp_ex(context, attr) as u64) };
            // SAFETY: as above.
            let there = unsafe { world.observe(|| header(context, attr) as u64) };
            assert_eq!(here, there, "comp_mask {comp_mask:#x}, {extent:?}");
            if here.calls == [("library ibv_create_qp", vec![pd as u64, attr as u64])] {
                plain += 1;
            }
        }
    }
    assert_eq!(plain, 2, "with IBV_QP_INIT_ATTR_PD and nothing else");
}

#[test]
fn create_srq_ex_uses_the_plain_verb_for_a_basic_queue() {
    let mut world = World::new(0);
    let context = world.context();
    let pd = <*mut ibv_pd>::make(&mut world, 1);
    let attr = <*mut ibv_srq_init_attr_ex>::make(&mut world, 2);
    let header = header!(ibv_create_srq_ex(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq);
    let fake = recorded!(
        "create_srq_ex",
        (context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
    );
    answer_with(0x1000);
    let mut plain = 0;
    for extent in [Extent::None, Extent::Full] {
        world.set_extent(extent, 0);
        for (comp_mask, srq_type) in (0..64).flat_map(|mask| (0..3).map(move |kind| (mask, kind))) {
            // SAFETY: made up, and alive as long as the world.
            unsafe {
                (*world.extended()).create_srq_ex = Some(fake);
                (*attr).comp_mask = comp_mask;
                (*attr).srq_type = srq_type;
                (*attr).pd = pd;
            }
            world.remember();
            // SAFETY: the recorded entries take any arguments.
            let here = unsafe { world.observe(|| ibv_create_srq_ex(context, attr) as u64) };
            // SAFETY: as above.
            let there = unsafe { world.observe(|| header(context, attr) as u64) };
            assert_eq!(here, there, "comp_mask {comp_mask:#x}, type {srq_type}, {extent:?}");
            if here.calls == [("library ibv_create_srq", vec![pd as u64, attr as u64])] {
                plain += 1;
            }
        }
    }
    // With a PD alone whatever the type field holds, and with PD and type when the type is basic.
    assert_eq!(plain, 2 * (3 + 1));
}

#[test]
fn query_device_ex_falls_back_when_the_provider_does_not_support_it() {
    let mut world = World::new(0xa5a5_a5a5_a5a5_a5a5);
    let context = world.context();
    let input = world.scratch().cast::<ibv_query_device_ex_input>();
    let attr = <*mut ibv_device_attr_ex>::make(&mut world, 2);
    type Input = *const ibv_query_device_ex_input;
    let header = header!(ibv_query_device_ex(*mut ibv_context, Input, *mut ibv_device_attr_ex) -> c_int);
    let fake = recorded!(
        "query_device_ex",
        (context: *mut ibv_context, input: Input, attr: *mut ibv_device_attr_ex, size: usize)
            -> c_int
    );
    let in_header = header::size_of("ibv_device_attr_ex");
    let names = |calls: &[(&'static str, Vec<u64>)]| -> Vec<&str> { calls.iter().map(|(name, _)| *name).collect() };
    for extent in [Extent::None, Extent::Full] {
        world.set_extent(extent, 0);
        for answer in [0, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS] {
            answer_with(answer as u64);
            for (input, comp_mask) in [(ptr::null_mut(), 0), (input, 0), (input, 1)] {
                // SAFETY: made up, and alive as long as the world.
                unsafe {
                    (*world.extended()).query_device_ex = Some(fake);
                    if !input.is_null() {
                        (*input).comp_mask = comp_mask;
                    }
                }
                world.remember();
                // SAFETY: the recorded entries take any arguments.
                let here = unsafe { world.observe(|| ibv_query_device_ex(context, input, attr) as u64) };
                // SAFETY: as above.
                let there = unsafe { world.observe(|| header(context, input, attr) as u64) };
                let (ours, theirs) = (size_of::<ibv_device_attr_ex>(), in_header);
                let here = here.without_appended(ours, theirs);
                let there = there.without_appended(ours, theirs);
                assert_eq!(here, there, "{extent:?}, answer {answer}, comp_mask {comp_mask}");

                let refused = [libc::EOPNOTSUPP, libc::ENOSYS].contains(&answer);
                let expected: &[&str] = match (comp_mask, extent) {
                    (1, _) => &[],
                    (_, Extent::None) => &["library ibv_query_device"],
                    _ if refused => &["query_device_ex", "library ibv_query_device"],
                    _ => &["query_device_ex"],
                };
                assert_eq!(names(&here.calls), expected);
            }
        }
    }
}

#[test]
fn close_xrcd_goes_to_the_provider() {
    let mut world = World::new(0);
    let xrcd = <*mut ibv_xrcd>::make(&mut world, 1);
    world.set_extent(Extent::JustLongEnough, offset_of!(verbs_context, close_xrcd));
    let fake = recorded!("close_xrcd", (xrcd: *mut ibv_xrcd) -> c_int);
    // SAFETY: made up, and alive as long as the world.
    unsafe { (*world.extended()).close_xrcd = Some(fake) };
    let header = header!(ibv_close_xrcd(*mut ibv_xrcd) -> c_int);
    for answer in [0, libc::EBUSY] {
        answer_with(answer as u64);
        // SAFETY: the recorded entries take any arguments.
        let here = unsafe { world.observe(|| ibv_close_xrcd(xrcd) as u64) };
        // SAFETY: as above.
        let there = unsafe { world.observe(|| header(xrcd) as u64) };
        assert_eq!(here, there);
        assert_eq!(here.calls, [("close_xrcd", vec![xrcd as u64])]);
    }
}

#[test]
fn memory_with_optional_access_flags_goes_to_the_newer_function() {
    let mut world = World::new(0);
    let pd = <*mut ibv_pd>::make(&mut world, 1);
    let addr = world.scratch().cast::<c_void>();
    let reg = header!(ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_uint) -> *mut ibv_mr);
    let reg_iova = header!(ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr);
    answer_with(0x2000);
    let optional = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    for (access, name, name_iova) in [
        (IBV_ACCESS_LOCAL_WRITE, "library ibv_reg_mr", "library ibv_reg_mr_iova"),
        (optional, "library ibv_reg_mr_iova2", "library ibv_reg_mr_iova2"),
    ] {
        // SAFETY: the recorded entries take any arguments.
        let here = unsafe { world.observe(|| ibv_reg_mr(pd, addr, 4096, access) as u64) };
        // SAFETY: as above.
        let there = unsafe { world.observe(|| reg(pd, addr, 4096, access) as u64) };
        assert_eq!(here, there);
        assert_eq!(here.calls[0].0, name);

        // SAFETY: as above.
        let here = unsafe { world.observe(|| ibv_reg_mr_iova(pd, addr, 4096, 77, access) as u64) };
        // SAFETY: as above.
        let there = unsafe { world.observe(|| reg_iova(pd, addr, 4096, 77, access) as u64) };
        assert_eq!(here, there);
        assert_eq!(here.calls[0].0, name_iova);
    }
}

#[test]
fn gid_queries_tell_the_size_of_an_entry() {
    let mut world = World::new(0);
    let context = world.context();
    let entry = <*mut ibv_gid_entry>::make(&mut world, 1);
    type Entry = *mut ibv_gid_entry;
    let one = header!(ibv_query_gid_ex(*mut ibv_context, u32, u32, Entry, u32) -> c_int);
    let all = header!(ibv_query_gid_table(*mut ibv_context, Entry, usize, u32) -> isize);
    for answer in [0, libc::ENODATA, -libc::EINVAL] {
        answer_with(answer as u64);
        // SAFETY: the recorded entries take any arguments.
        let here = unsafe { world.observe(|| ibv_query_gid_ex(context, 1, 2, entry, 3) as u64) };
        // SAFETY: as above.
        let there = unsafe { world.observe(|| one(context, 1, 2, entry, 3) as u64) };
        assert_eq!(here, there);
        let size = size_of::<ibv_gid_entry>() as u64;
        assert_eq!(here.calls[0].1, [context as u64, 1, 2, entry as u64, 3, size]);

        // SAFETY: as above.
        let here = unsafe { world.observe(|| ibv_query_gid_table(context, entry, 4, 5) as u64) };
        // SAFETY: as above.
        let there = unsafe { world.observe(|| all(context, entry, 4, 5) as u64) };
        assert_eq!(here, there);
        assert_eq!(here.calls[0].1, [context as u64, entry as u64, 4, 5, size]);
    }
}

#[test]
fn an_extended_queue_is_its_plain_queue() {
    let mut world = World::new(0);
    let cq = <*mut ibv_cq_ex>::make(&mut world, 1);
    let header = header!(ibv_cq_ex_to_cq(*mut ibv_cq_ex) -> *mut ibv_cq);
    // SAFETY: the header only casts.
    assert_eq!(ibv_cq_ex_to_cq(cq), unsafe { header(cq) });
}

#[test]
fn transports_are_bits_of_the_capability() {
    let header = header!(ibv_is_qpt_supported(u32, ibv_qp_type) -> c_int);
    for caps in [0, 1 << IBV_QPT_RC, 1 << IBV_QPT_XRC_RECV | 1 << IBV_QPT_UD, u32::MAX] {
        for qpt in IBV_QPT_RC..=IBV_QPT_XRC_RECV {
            // SAFETY: the header only computes.
            assert_eq!(ibv_is_qpt_supported(caps, qpt), unsafe { header(caps, qpt) } != 0);
        }
    }
}

#[test]
fn timestamps_become_nanoseconds_as_in_the_header() {
    let header = header!(mlx5dv_ts_to_ns(*mut mlx5dv_clock_info, u64) -> u64);
    // xorshift64: numbers of all magnitudes, the same in each run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> (state & 63)
    };
    let mut before = 0;
    for _ in 0..100_000 {
        let mask = u64::MAX >> (random() % 40);
        let mut info = mlx5dv_clock_info {
            nsec: random(),
            last_cycles: random() & mask,
            frac: random(),
            mult: random() as u32,
            shift: (random() % 32) as u32,
            mask,
        };
        let ts = random() & mask;
        before += u32::from(ts.wrapping_sub(info.last_cycles) & mask > mask / 2);
        // SAFETY: the header only reads `info`.
        let there = unsafe { header(&mut info, ts) };
        assert_eq!(mlx5dv_ts_to_ns(&info, ts), there, "at {ts}");
    }
    assert!((10_000..90_000).contains(&before), "{before} lie before the reading");
}

#[test]
fn windows_are_those_of_the_context() {
    let mut world = World::new(0);
    let context = world.context();
    let pd = <*mut ibv_pd>::make(&mut world, 1);
    let mw = <*mut ibv_mw>::make(&mut world, 2);
    let qp = <*mut ibv_qp>::make(&mut world, 3);
    let bind = world.scratch().cast::<ibv_mw_bind>();
    let alloc = header!(ibv_alloc_mw(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw);
    let dealloc = header!(ibv_dealloc_mw(*mut ibv_mw) -> c_int);
    let bind_mw = header!(ibv_bind_mw(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int);
    for has_entry in [false, true] {
        // SAFETY: made up, and alive as long as the world.
        unsafe {
            let ops = &mut (*context).ops;
            let fake = recorded!("alloc_mw", (pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw);
            ops.alloc_mw = has_entry.then_some(fake);
            ops.dealloc_mw = Some(recorded!("dealloc_mw", (mw: *mut ibv_mw) -> c_int));
            let fake = recorded!("bind_mw", (qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int);
            ops.bind_mw = Some(fake);
        }
        for kind in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            // SAFETY: as above.
            unsafe { (*mw).type_ = kind };
            world.remember();
            // SAFETY: the recorded entries take any arguments.
            let (here, there) = unsafe {
                let here = world.observe(|| ibv_alloc_mw(pd, kind) as u64);
                (here, world.observe(|| alloc(pd, kind) as u64))
            };
            assert_eq!(here, there);
            assert_eq!(here.calls.len(), usize::from(has_entry));
            // SAFETY: as above.
            let (here, there) = unsafe {
                let here = world.observe(|| ibv_bind_mw(qp, mw, bind) as u64);
                (here, world.observe(|| bind_mw(qp, mw, bind) as u64))
            };
            assert_eq!(here, there);
            assert_eq!(here.calls.len(), usize::from(kind == IBV_MW_TYPE_1));
            // SAFETY: as above.
            let (here, there) = unsafe {
                let here = world.observe(|| ibv_dealloc_mw(mw) as u64);
                (here, world.observe(|| dealloc(mw) as u64))
            };
            assert_eq!(here, there);
        }
    }
    let next = header!(ibv_inc_rkey(u32) -> u32);
    for key in [0, 0xff, 0x1234_56ff, u32::MAX] {
        // SAFETY: a function of a number.
        assert_eq!(ibv_inc_rkey(key), unsafe { next(key) });
    }
}
