//! Devices come and go.

use soft_mlx5::{Device, LinkLayer, Switch};

use crate::world::{World, errno, names, open, serial};
use rdma_core_sys::*;

#[test]
fn a_device_is_listed_as_long_as_it_lives() {
    let _serial = serial();
    let first = Device::builder().build().unwrap();
    let second = Device::builder().name("mlx5_second").build().unwrap();
    assert!(names().contains(&first.name().to_owned()));
    assert!(names().contains(&"mlx5_second".to_owned()));
    drop(second);
    assert!(!names().contains(&"mlx5_second".to_owned()));
    let again = Device::builder().name("mlx5_second").build().unwrap();
    assert!(names().contains(&"mlx5_second".to_owned()));
    drop((first, again));
    assert!(names().is_empty());
}

#[test]
fn names_are_checked() {
    let _serial = serial();
    let _first = Device::builder().name("one").build().unwrap();
    let doubled = Device::builder().name("one").build().unwrap_err();
    assert!(doubled.to_string().contains("`one`"), "{doubled}");
    assert!(Device::builder().name("../one").build().is_err());
    assert!(Device::builder().name("").build().is_err());
}

#[test]
fn a_sixth_device_is_refused() {
    let _serial = serial();
    let all: Vec<_> = (0..5).map(|_| Device::builder().build().unwrap()).collect();
    let more = Device::builder().build().unwrap_err();
    assert!(more.to_string().contains("5 devices"), "{more}");
    for device in &all {
        // SAFETY: the context was just opened and is not used.
        unsafe { ibv_close_device(open(device.name())) };
    }
}

#[test]
fn a_dropped_device_fails_what_is_still_open() {
    let mut world = World::threaded();
    let cq = world.cq(1);
    world.device = None;
    // SAFETY: the context is open, although its device was dropped.
    unsafe {
        assert!(ibv_alloc_pd(world.ctx).is_null());
        assert_eq!(errno(), libc::EIO);
        assert_eq!(ibv_destroy_cq(cq), libc::EIO);
    }
}

#[test]
fn two_devices_on_a_switch_have_different_addresses() {
    let _serial = serial();
    let switch = Switch::default();
    let on_it = || Device::builder().fabric(switch.clone()).link_layer(LinkLayer::InfiniBand);
    let (one, other) = (on_it().build().unwrap(), on_it().build().unwrap());
    let guids = [&one, &other].map(|device| {
        let ctx = open(device.name());
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open until it is closed here.
        unsafe {
            let guid = ibv_get_device_guid((*ctx).device);
            assert_eq!(ibv_query_gid(ctx, 1, 0, &mut gid), 0);
            assert_eq!(gid.global.interface_id, guid, "sysfs and commands agree");
            ibv_close_device(ctx);
            guid
        }
    });
    assert_ne!(guids[0], guids[1]);
}

#[test]
fn a_forked_child_fails_and_does_not_hang() {
    let world = World::threaded();
    let cq = world.cq(4);
    let mr_memory = &mut [0u8; 64];
    for _ in 0..20 {
        // SAFETY: the child makes calls that fail at once, and leaves without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: context, domain and CQ are those of the parent.
            let code = unsafe {
                let no_pd = ibv_alloc_pd(world.ctx).is_null() && errno() == libc::EIO;
                let addr = mr_memory.as_mut_ptr().cast();
                let no_mr = ibv_reg_mr(world.pd, addr, 64, 0).is_null() && errno() == libc::EIO;
                let no_end = ibv_destroy_cq(cq) == libc::EIO;
                libc::close((*world.ctx).cmd_fd);
                i32::from(!(no_pd && no_mr && no_end))
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
    // SAFETY: the CQ is still alive here.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
}
