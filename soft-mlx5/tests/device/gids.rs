//! The GID table of a port, and packets of each of its entries.

use std::ptr;

use rdma_core_sys::*;
use soft_mlx5::{Device, LinkLayer};

use crate::world::{World, modify, rc, statuses, to_init, to_rts};

fn world(link: LinkLayer) -> World {
    World::new(Device::builder().stepped().strict(true).link_layer(link))
}

/// Returns the answer of QUERY_GID_ENTRY for an index: type and GID, or an errno.
fn entry(world: &World, index: u32) -> Result<(u32, [u8; 16]), i32> {
    let mut entry = ibv_gid_entry::default();
    // SAFETY: the context is open.
    match unsafe { ibv_query_gid_ex(world.ctx, 1, index, &mut entry, 0) } {
        // SAFETY: all views of a GID are plain bytes.
        0 => Ok((entry.gid_type, unsafe { entry.gid.raw })),
        error => Err(error),
    }
}

fn gid(world: &World, index: i32) -> [u8; 16] {
    let mut gid = ibv_gid::default();
    // SAFETY: the context is open; all views of a GID are plain bytes.
    unsafe {
        assert_eq!(ibv_query_gid(world.ctx, 1, index, &mut gid), 0, "{index}");
        gid.raw
    }
}

fn table(world: &World) -> Vec<(u32, u32)> {
    let mut entries = [ibv_gid_entry::default(); 16];
    // SAFETY: the context is open; there is room for sixteen entries.
    let count = unsafe { ibv_query_gid_table(world.ctx, entries.as_mut_ptr(), 16, 0) };
    entries[..count as usize].iter().map(|entry| (entry.gid_index, entry.gid_type)).collect()
}

#[test]
fn an_ethernet_port_has_two_addresses_in_two_versions() {
    const V1: u32 = IBV_GID_TYPE_ROCE_V1;
    const V2: u32 = IBV_GID_TYPE_ROCE_V2;
    let world = world(LinkLayer::Ethernet);
    assert_eq!(table(&world), [(0, V1), (1, V2), (2, V1), (3, V2)]);
    let (link_local, ipv4) = (gid(&world, 0), gid(&world, 2));
    assert_eq!(link_local[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ipv4[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    for (index, expected) in [(V1, link_local), (V2, link_local), (V1, ipv4), (V2, ipv4)].iter().enumerate() {
        assert_eq!(entry(&world, index as u32), Ok(*expected));
    }
    assert_eq!(entry(&world, 4), Err(libc::ENODATA));
    assert_eq!(entry(&world, 254), Err(libc::ENODATA));
    assert_eq!(entry(&world, 255), Err(libc::EINVAL));
    assert_eq!(gid(&world, 4), [0; 16], "an empty entry");
}

#[test]
fn an_infiniband_port_has_one_gid_and_empty_entries() {
    let world = world(LinkLayer::InfiniBand);
    assert_eq!(table(&world), [(0, IBV_GID_TYPE_IB)]);
    assert_eq!(entry(&world, 1), Err(libc::ENODATA));
    assert_eq!(entry(&world, 8), Err(libc::EINVAL));
    assert_eq!((1..8).map(|index| gid(&world, index)).max(), Some([0; 16]));
}

#[test]
fn connections_of_every_entry_carry_messages() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let mr = world.reg(Box::leak(vec![7; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    for index in 0..4 {
        let [qp, other] = [0; 2].map(|_| world.qp(IBV_QPT_RC, cq, ptr::null_mut()));
        // SAFETY: the QP is alive.
        let mut route = world.to_rtr(unsafe { (*qp).qp_num });
        route.ah_attr.is_global = 1;
        route.ah_attr.grh.sgid_index = index;
        assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
        assert_eq!(modify(other, &to_init(), rc(IBV_QPS_INIT)), 0);
        // An address of the other family cannot be reached from this one, unless RoCE v1 needs no route.
        route.ah_attr.grh.dgid.raw = gid(&world, (i32::from(index) + 2) % 4);
        let expected = if index == 2 { 0 } else { libc::EINVAL };
        assert_eq!(modify(other, &route, rc(IBV_QPS_RTR)), expected, "{index}");
        route.ah_attr.grh.dgid.raw = gid(&world, index.into());
        assert_eq!(modify(qp, &route, rc(IBV_QPS_RTR)), 0);
        assert_eq!(modify(qp, &to_rts(), rc(IBV_QPS_RTS)), 0);
        world.exchange(qp, mr, 32);
        assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 2], "{index}");
    }
}
