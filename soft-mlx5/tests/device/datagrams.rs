//! Address handles made from a completion (`ibv_create_ah_from_wc(3)`).

use std::ptr;

use rdma_core_sys::*;
use soft_mlx5::{Device, LinkLayer};

use crate::qp_states;
use crate::world::{World, errno, poll, post_recv};

const QKEY: u32 = 0x1111;
const GRH: usize = 40;

fn ready(world: &World, cq: *mut ibv_cq) -> *mut ibv_qp {
    let qp = world.qp(IBV_QPT_UD, cq, ptr::null_mut());
    let attr = ibv_qp_attr { port_num: 1, qkey: QKEY, ..Default::default() };
    // SAFETY: the QP is alive.
    unsafe { qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr) }
    qp
}

fn send(qp: *mut ibv_qp, mr: *mut ibv_mr, ah: *mut ibv_ah, remote_qpn: u32, text: usize) {
    // SAFETY: all objects are alive.
    unsafe {
        let addr = (*mr).addr as u64 + text as u64;
        let mut sge = ibv_sge { addr, length: 8, lkey: (*mr).lkey };
        let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
        (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, remote_qpn, QKEY);
        assert_eq!(ibv_post_send(qp, &mut wr, &mut ptr::null_mut()), 0);
    }
}

/// Returns the receive among the completions of a send to oneself.
fn received(world: &World, cq: *mut ibv_cq) -> ibv_wc {
    world.device().settle();
    let all: Vec<_> = std::iter::from_fn(|| poll(cq)).collect();
    assert!(all.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    *all.iter().find(|wc| wc.opcode & IBV_WC_RECV != 0).expect("it has arrived")
}

/// Sends a datagram with a GRH of this entry of the GID table, and an answer to the sender in its completion.
fn answer(link: LinkLayer, index: u8) {
    let world = World::new(Device::builder().stepped().strict(true).link_layer(link));
    let cq = world.cq(16);
    let (asks, answers) = (ready(&world, cq), ready(&world, cq));
    let mut memory = vec![0u8; 512];
    memory[..16].copy_from_slice(b"question answer!");
    let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    post_recv(answers, mr, 128, 128);
    post_recv(asks, mr, 256, 128);
    // SAFETY: all objects are alive, and the first receive starts with a GRH.
    unsafe {
        let mut port = ibv_port_attr::default();
        assert_eq!(ibv_query_port(world.ctx, 1, &mut port), 0);
        let mut attr = ibv_ah_attr { dlid: port.lid, port_num: 1, is_global: 1, ..Default::default() };
        assert_eq!(ibv_query_gid(world.ctx, 1, index.into(), &mut attr.grh.dgid), 0);
        attr.grh.sgid_index = index;
        (attr.grh.hop_limit, attr.grh.traffic_class, attr.grh.flow_label) = (7, 3, 5);
        let ah = ibv_create_ah(world.pd, &mut attr);
        assert!(!ah.is_null());
        send(asks, mr, ah, (*answers).qp_num, 0);
        let mut wc = received(&world, cq);
        assert_eq!((wc.qp_num, wc.src_qp), ((*answers).qp_num, (*asks).qp_num));
        assert_ne!(wc.wc_flags & IBV_WC_GRH, 0);
        assert_eq!(memory[128 + GRH..][..8], *b"question");

        let grh = memory.as_mut_ptr().add(128).cast::<ibv_grh>();
        let mut found = ibv_ah_attr::default();
        assert_eq!(ibv_init_ah_from_wc(world.ctx, 1, &mut wc, grh, &mut found), 0, "{}", errno());
        assert_eq!((found.is_global, found.grh.sgid_index, found.dlid), (1, index, wc.slid));
        assert_eq!((found.grh.hop_limit, found.grh.traffic_class), (7, 3));
        assert_eq!(found.grh.dgid.raw, attr.grh.dgid.raw);
        let back = ibv_create_ah_from_wc(world.pd, &mut wc, grh, 1);
        assert!(!back.is_null(), "{}", errno());
        send(answers, mr, back, wc.src_qp, 8);
        let wc = received(&world, cq);
        assert_eq!((wc.qp_num, wc.src_qp), ((*asks).qp_num, (*answers).qp_num));
        assert_eq!(memory[256 + GRH..][..8], *b" answer!");
        assert_eq!((ibv_destroy_ah(ah), ibv_destroy_ah(back)), (0, 0));
    }
}

#[test]
fn an_address_made_from_a_completion_leads_back_on_infiniband() {
    answer(LinkLayer::InfiniBand, 0);
}

#[test]
fn an_address_made_from_a_completion_leads_back_on_ethernet() {
    for index in 0..4 {
        answer(LinkLayer::Ethernet, index);
    }
}
