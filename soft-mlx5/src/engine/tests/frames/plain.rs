//! CQEs of queues with a WQE for each frame.

use mlx5_wire::cqe::{L3_OK, L4_OK};
use mlx5_wire::frame::VLAN_STRIPPED;
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use super::*;
use crate::fabric::icrc::Crc;

#[test]
fn a_cqe_describes_its_frame() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(2, |attr| attr);
    pair.lead(&[queue.number], Some(0xab_cdef));
    // Indices wrap at the size of the queue, and at 16 bits.
    for round in 0..5 {
        queue.post();
        let frame = feed(b"tick").vlan(0x2064).build();
        let cqe = pair.arrives(&frame);
        assert_eq!((cqe.opcode(), cqe.wqe_counter.get()), (CqeOpcode::ResponderSend, round));
        assert_eq!((cqe.byte_cnt.get(), cqe.srqn_uidx.get()), (60, 0x77));
        assert_eq!((cqe.flow_tag(), cqe.dropped(), cqe.vlan()), (0xab_cdef, 0, None));
        assert_eq!(cqe.hds_ip_ext, 1 | L3_OK | L4_OK);
        assert_eq!(cqe.l4_hdr_type_etc, 2 << 2 | 2 << 4);
        assert!(cqe.timestamp.get() > 0);
        // The checksum of a right IP header is all ones, and adds nothing.
        let behind = &frame[18 + 20..18 + 32];
        let sum = crate::fabric::checksum::sum(behind);
        assert_eq!(cqe.check_sum.get(), sum);
        assert_eq!(queue.received(round, 60), frame);
    }
}

#[test]
fn tags_come_out_and_check_sequences_go_in() {
    let mut pair = Pair::new();
    let offloads = RxOffloads { strip_vlan: true, scatter_fcs: true };
    let mut queue = pair.queue(4, |attr| RwqAttr { offloads, ..attr });
    pair.lead(&[queue.number], None);
    queue.post_many(3);
    let (tagged, plain) = (feed(&[7; 40]).vlan(0x2064).build(), feed(&[7; 40]).build());
    let cqe = pair.arrives(&tagged);
    assert_eq!((cqe.vlan(), cqe.byte_cnt.get()), (Some(0x2064), plain.len() as u32 + 4));
    let bytes = queue.received(0, plain.len() + 4);
    let (frame, fcs) = bytes.split_at(plain.len());
    assert_eq!(frame, plain);
    assert_eq!(fcs, Crc::new().add(&tagged).finish(), "of the frame as it was on the wire");
    let cqe = pair.arrives(&plain);
    assert_eq!((cqe.vlan(), cqe.l4_hdr_type_etc & VLAN_STRIPPED), (None, 0));
    // The outer tag of two is stripped.
    let cqe = pair.arrives(&feed(&[7; 40]).vlan(5).vlan(0x64).build());
    assert_eq!(cqe.vlan(), Some(5));
    let inner = feed(&[7; 40]).vlan(0x64).build();
    assert_eq!(queue.received(2, inner.len()), inner);
    pair.device.nic.set_vlan_stripping(queue.number, false).unwrap();
    queue.post();
    assert_eq!(pair.arrives(&tagged).vlan(), None);
}

#[test]
fn frames_without_a_wqe_are_counted_in_the_next_cqe() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(2, |attr| attr);
    pair.lead(&[queue.number], Some(7));
    queue.post();
    queue.post();
    for _ in 0..5 {
        pair.send(&feed(b"tick").build());
    }
    let reported: Vec<_> = pair.cq.drain().iter().map(|cqe| (cqe.dropped(), cqe.flow_tag())).collect();
    assert_eq!(reported, [(0, 7), (0, 7)]);
    queue.post();
    assert_eq!(pair.arrives(&feed(b"tick").build()).dropped(), 3);
    queue.post();
    assert_eq!(pair.arrives(&feed(b"tick").build()).dropped(), 0, "reported twice");
    for _ in 0..300 {
        pair.send(&feed(b"tick").build());
    }
    queue.post();
    let cqe = pair.arrives(&feed(b"tick").build());
    assert_eq!((cqe.dropped(), cqe.flow_tag()), (255, 7));
    assert_eq!(pair.device.nic.queues().wqs[0].dropped, 303);
}

#[test]
fn a_queue_that_is_not_ready_receives_nothing() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(4, |attr| attr);
    let (tir, flow) = pair.lead(&[queue.number], None);
    queue.post_many(4);
    pair.device.nic.modify_wq(queue.number, WqState::Ready, WqState::Err).unwrap();
    pair.send(&feed(b"tick").build());
    let flushed: Vec<_> = pair.cq.drain().iter().map(error).collect();
    assert!(flushed.iter().all(|cqe| cqe.syndrome == Syndrome::WR_FLUSH.get()));
    let indices: Vec<_> = flushed.iter().map(|cqe| cqe.wqe_counter.get()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    // WQEs that are posted later are flushed, too.
    queue.post();
    pair.settle();
    assert_eq!(pair.cq.drain().len(), 1);
    let nic = &mut pair.device.nic;
    assert!(nic.modify_wq(queue.number, WqState::Err, WqState::Ready).is_err());
    assert!(nic.modify_wq(queue.number, WqState::Ready, WqState::Ready).is_err());
    nic.modify_wq(queue.number, WqState::Err, WqState::Reset).unwrap();
    queue.record.span().set_record(RECEIVE, 0).unwrap();
    queue.posted = 0;
    pair.device.nic.modify_wq(queue.number, WqState::Reset, WqState::Ready).unwrap();
    queue.post();
    assert_eq!(pair.arrives(&feed(b"tick").build()).wqe_counter.get(), 0);
    // The queue is destroyed while frames arrive.
    queue.post();
    pair.memory.set(0, &feed(b"late").build());
    pair.device.nic.destroy_flow(flow);
    pair.device.nic.destroy_tir(tir).unwrap();
    pair.device.nic.destroy_wq(queue.number).unwrap();
    pair.send(&feed(b"late").build());
    pair.cq.expect_nothing();
}

#[test]
fn the_receive_side_of_a_queue_pair_follows_its_state() {
    let mut pair = Pair::new();
    let made = pair.device.qp_attr(Service::Raw, &pair.cq, &pair.cq);
    let mut qp = pair.device.qp(made);
    let (_, tir) = pair.device.nic.receiver_of(qp.number).unwrap();
    pair.device.nic.create_flow(&[rule(Target::Tir(tir), Some(5))]).unwrap();
    let buffers = Memory::new(ROOM);
    let key = pair.device.register(&buffers, ALL_ACCESS);
    let segment = DataSegment::new(buffers.addr(), ROOM as u32, key);
    pair.send(&feed(b"tick").build());
    pair.device.set_state(&qp, QpState::Init);
    qp.post_receive(&[segment]);
    let cqe = pair.arrives(&feed(b"tick").build());
    assert_eq!((cqe.srqn_uidx.get(), cqe.flow_tag()), (qp.attr.user_index, 5));
    pair.device.set_state(&qp, QpState::Rtr);
    qp.post_receive(&[segment]);
    assert_eq!(pair.arrives(&feed(b"tick").build()).wqe_counter.get(), 1);
    qp.post_receive(&[segment]);
    pair.device.set_state(&qp, QpState::Err);
    pair.settle();
    let cqe = pair.cq.poll().unwrap();
    assert_eq!(error(&cqe).syndrome, Syndrome::WR_FLUSH.get());
    assert_eq!(error(&cqe).srqn_uidx.get(), qp.attr.user_index);
    pair.device.nic.destroy_qp(qp.number).unwrap();
    pair.send(&feed(b"tick").build());
    pair.cq.expect_nothing();
    assert!(pair.device.nic.destroy_cq(pair.cq.number).is_ok());
}

#[test]
fn a_key_that_allows_nothing_stops_the_queue() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(4, |attr| attr);
    pair.lead(&[queue.number], None);
    let wrong = DataSegment::new(queue.buffers.addr(), ROOM as u32, queue.key + 0x100);
    queue.post_segment(wrong);
    queue.post();
    pair.send(&feed(b"tick").build());
    let cqes: Vec<_> = pair.cq.drain();
    let errors: Vec<_> = cqes.iter().map(|cqe| (error(cqe).syndrome, cqe.qpn(), cqe.op_own)).collect();
    // As dumps C5 and C6: no number of a queue, no solicited event.
    assert_eq!(errors, [(4, 0, 0xe0), (5, 0, 0xe0)]);
    assert_eq!(error(&cqes[0]).hw_err_synd, 0x93);
    assert_eq!(pair.device.events(), [Event::WqFatal(queue.number)]);
    assert_eq!(pair.device.nic.wq_state(queue.number), Ok(WqState::Err));
}

#[test]
fn a_cq_that_overruns_stops_its_queues() {
    let mut pair = Pair::new();
    let small = pair.device.cq(2);
    let mut queue = Queue::new(&mut pair.device, &small, 4, |attr| attr);
    pair.lead(&[queue.number], None);
    queue.post_many(4);
    for _ in 0..3 {
        pair.send(&feed(b"tick").build());
    }
    let events = pair.device.events();
    assert_eq!(events, [Event::CqError(small.number), Event::WqFatal(queue.number)]);
    assert!(pair.device.nic.destroy_cq(small.number).is_err(), "a queue completes there");
}

#[test]
fn a_queue_with_unmapped_memory_stops() {
    let mut pair = Pair::with(|config| NicConfig { strict: false, ..config });
    let queue = pair.queue(4, |attr| attr);
    pair.lead(&[queue.number], None);
    queue.record.take_away();
    pair.send(&feed(b"tick").build());
    assert_eq!(pair.device.events(), [Event::WqFatal(queue.number)]);
    assert_eq!(pair.device.nic.violations(crate::objects::strict::Rule::QueueMemory), 1);
}
