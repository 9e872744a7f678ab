//! Rules of the kernel that combine two attributes of a QP, or look at the port.

use std::ptr;

use soft_mlx5::{Device, LinkLayer, Switch};

use crate::rdma::{ALL, Pair};
use crate::world::*;
use rdma_core_sys::*;

fn ethernet() -> World {
    World::new(Device::builder().stepped().link_layer(LinkLayer::Ethernet))
}

fn gid(world: &World, index: i32) -> ibv_gid {
    let mut gid = ibv_gid::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_gid(world.ctx, 1, index, &mut gid) }, 0);
    gid
}

// Returns the attributes that connect to a QP at a GID.
fn route(world: &World, sgid_index: u8, dgid: ibv_gid) -> ibv_qp_attr {
    let mut attr = world.to_rtr(1);
    attr.ah_attr.is_global = 1;
    (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.dgid) = (sgid_index, dgid);
    attr
}

fn in_init(world: &World) -> *mut ibv_qp {
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    qp
}

fn address_handle(world: &World, attr: &ibv_ah_attr) -> Result<(), i32> {
    let mut attr = *attr;
    // SAFETY: the domain is alive; the handle was just made.
    unsafe {
        let ah = ibv_create_ah(world.pd, &mut attr);
        if ah.is_null() {
            return Err(errno());
        }
        assert_eq!(ibv_destroy_ah(ah), 0);
    }
    Ok(())
}

#[test]
fn a_qp_without_resources_for_reads_has_no_right_to_reads_and_atomics() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), ALL);
    // SAFETY: the MR is alive.
    let (addr, key) = unsafe { ((*mr).addr as u64, (*mr).lkey) };
    let (local, remote) = ((addr, 8, key), (addr + 64, key));
    let without = || Pair::with(&world, |attr| attr.max_dest_rd_atomic = 0);
    for opcode in [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP] {
        let found = without().run(&world, opcode, Some(local), remote);
        assert_eq!(found, IBV_WC_REM_INV_REQ_ERR, "{opcode}");
        let found = Pair::new(&world).run(&world, opcode, Some(local), remote);
        assert_eq!(found, IBV_WC_SUCCESS, "{opcode}");
    }
    let found = without().run(&world, IBV_WR_RDMA_WRITE, Some(local), remote);
    assert_eq!(found, IBV_WC_SUCCESS);

    // Rights that are given later do not bring the resources.
    let later = without();
    let rights = ibv_qp_attr { qp_state: IBV_QPS_RTS, qp_access_flags: ALL, ..Default::default() };
    assert_eq!(modify(later.far, &rights, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS), 0);
    assert_eq!(query(later.far).qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
    let found = later.run(&world, IBV_WR_RDMA_READ, Some(local), remote);
    assert_eq!(found, IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn query_qp_reports_the_rights_in_effect_and_powers_of_two() {
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    let init = ibv_qp_attr { qp_access_flags: ALL, ..to_init() };
    assert_eq!(modify(qp, &init, rc(IBV_QPS_INIT)), 0);
    // There are no resources for READs yet; the local right is no right of a peer.
    assert_eq!(query(qp).qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
    let rtr = ibv_qp_attr { max_dest_rd_atomic: 5, ..world.to_rtr(1) };
    assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR)), 0);
    let now = query(qp);
    assert_eq!(now.qp_access_flags, ALL & !IBV_ACCESS_LOCAL_WRITE);
    assert_eq!((now.max_dest_rd_atomic, now.max_rd_atomic), (8, 1));
    let rts = ibv_qp_attr { max_rd_atomic: 0, ..to_rts() };
    assert_eq!(modify(qp, &rts, rc(IBV_QPS_RTS)), 0);
    assert_eq!(query(qp).max_rd_atomic, 1);
}

#[test]
fn the_path_mtu_is_at_most_that_of_the_port() {
    for (link, most) in [(LinkLayer::InfiniBand, IBV_MTU_4096), (LinkLayer::Ethernet, IBV_MTU_1024)] {
        let world = World::new(Device::builder().stepped().link_layer(link));
        let mut port = ibv_port_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { ibv_query_port(world.ctx, 1, &mut port) }, 0);
        assert_eq!(port.active_mtu, most);
        for mtu in IBV_MTU_256..=IBV_MTU_4096 {
            let attr = ibv_qp_attr { path_mtu: mtu, ..route(&world, 0, gid(&world, 0)) };
            let expected = if mtu <= most { 0 } else { libc::EINVAL };
            assert_eq!(modify(in_init(&world), &attr, rc(IBV_QPS_RTR)), expected, "{mtu}");
        }
    }
}

#[test]
fn a_rate_that_no_link_has_is_refused_in_paths_and_address_handles() {
    let world = ethernet();
    for rate in 0..=u8::MAX {
        let mut attr = route(&world, 0, gid(&world, 0));
        attr.ah_attr.static_rate = rate;
        let fine = rate == 0 || (2..=23).contains(&rate);
        let handle = address_handle(&world, &attr.ah_attr);
        assert_eq!(handle, if fine { Ok(()) } else { Err(libc::EINVAL) }, "{rate}");
        if [0, 1, 2, 23, 24, 255].contains(&rate) {
            let expected = if fine { 0 } else { libc::EINVAL };
            assert_eq!(modify(in_init(&world), &attr, rc(IBV_QPS_RTR)), expected, "{rate}");
        }
    }
}

fn ipv4(bytes: [u8; 4]) -> ibv_gid {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: all views of a GID are plain bytes.
    unsafe {
        (gid.raw[10], gid.raw[11]) = (0xff, 0xff);
        gid.raw[12..].copy_from_slice(&bytes);
    }
    gid
}

fn ipv6(first: u16, last: u16) -> ibv_gid {
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&first.to_be_bytes());
    raw[14..].copy_from_slice(&last.to_be_bytes());
    ibv_gid { raw }
}

/// The kernel finds the MAC address of a RoCE destination by its neighbours, so a wrong address is noticed at RTR.
#[test]
fn a_roce_address_that_nobody_has_is_refused_as_by_the_kernel() {
    let world = ethernet();
    let stranger = {
        // The link-local address of a port that is not there.
        let mut gid = gid(&world, 1);
        // SAFETY: all views of a GID are plain bytes.
        unsafe { gid.raw[15] += 1 };
        gid
    };
    for (sgid_index, dgid, expected) in [
        (3, ipv4([10, 219, 0, 77]), libc::ETIMEDOUT),
        (2, ipv4([10, 219, 0, 77]), libc::ETIMEDOUT),
        (3, ipv4([10, 219, 255, 255]), libc::ETIMEDOUT),
        (3, ipv4([10, 218, 0, 1]), libc::ENETUNREACH),
        (3, ipv4([192, 168, 1, 1]), libc::ENETUNREACH),
        (1, stranger, libc::ETIMEDOUT),
        (1, ipv6(0xfe80, 1), libc::ETIMEDOUT),
        (1, ipv6(0x2001, 1), libc::ENETUNREACH),
        // A GID that the program forgot.
        (1, ibv_gid { raw: [0; 16] }, libc::ENETUNREACH),
        (3, ibv_gid { raw: [0; 16] }, libc::EINVAL),
        // From a source of RoCE v1 the MAC address is computed, and packets are lost.
        (0, stranger, 0),
        (2, stranger, 0),
        (0, ipv6(0x2001, 1), libc::ENETUNREACH),
        (0, ipv4([10, 219, 0, 77]), libc::EINVAL),
        (1, ipv6(0xff02, 1), 0),
    ] {
        let qp = in_init(&world);
        let attr = route(&world, sgid_index, dgid);
        // SAFETY: all views of a GID are plain bytes.
        let what = (sgid_index, unsafe { dgid.raw });
        assert_eq!(modify(qp, &attr, rc(IBV_QPS_RTR)), expected, "{what:?}");
        let handle = address_handle(&world, &attr.ah_attr);
        assert_eq!(handle.err().unwrap_or(0), expected, "address handle, {what:?}");
        if expected != 0 {
            // Nothing has changed: the right address can follow.
            assert_eq!(query(qp).qp_state, IBV_QPS_INIT);
            let own = route(&world, 3, gid(&world, 3));
            assert_eq!(modify(qp, &own, rc(IBV_QPS_RTR)), 0);
            assert_eq!(query(qp).ah_attr.grh.hop_limit, 64, "of the route");
        }
    }
}

#[test]
fn a_roce_address_answers_while_its_device_exists_and_the_port_is_up() {
    let switch = Switch::new();
    let builder = || Device::builder().stepped().link_layer(LinkLayer::Ethernet).fabric(switch.clone());
    let world = World::new(builder());
    // SAFETY: all views of a GID are plain bytes.
    let own = unsafe { gid(&world, 3).raw };
    let peer = ipv4([10, 219, 0, own[15] + 1]);
    let connect = || modify(in_init(&world), &route(&world, 3, peer), rc(IBV_QPS_RTR));
    assert_eq!(connect(), libc::ETIMEDOUT);
    let other = builder().build().unwrap();
    assert_eq!(connect(), 0);
    world.device().set_link(false);
    assert_eq!(connect(), libc::ETIMEDOUT);
    assert_eq!(modify(in_init(&world), &route(&world, 3, gid(&world, 3)), rc(IBV_QPS_RTR)), 0);
    world.device().set_link(true);
    assert_eq!(connect(), 0);
    drop(other);
    assert_eq!(connect(), libc::ETIMEDOUT);
}

#[test]
fn a_privileged_queue_key_needs_the_right_to_raw_packets() {
    let init = ibv_qp_attr { qkey: 1 << 31 | 5, ..to_init() };
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    let world = World::new(Device::builder().stepped().refuse_raw(true));
    let qp = || world.qp(IBV_QPT_UD, world.cq(4), ptr::null_mut());
    assert_eq!(modify(qp(), &init, mask), libc::EPERM);
    assert_eq!(modify(qp(), &ibv_qp_attr { qkey: 5, ..init }, mask), 0);
}
