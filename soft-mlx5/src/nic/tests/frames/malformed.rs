//! Malformed frames: a verdict or a drop, and no access out of bounds.

use mlx5_wire::cqe::{L3_OK, L4_OK};
use mlx5_wire::syndrome::Syndrome;

use super::*;
use crate::fabric::rng::Rng;

#[test]
fn a_frame_that_is_too_long_costs_its_wqe() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(4, |attr| attr);
    pair.lead(&[queue.number], None);
    queue.post_many(3);
    let largest = feed(&vec![1; ROOM - 42]).build();
    assert_eq!(pair.arrives(&largest).byte_cnt.get() as usize, ROOM);
    pair.send(&feed(&vec![1; ROOM - 41]).build());
    let cqe = error(&pair.cq.poll().unwrap());
    assert_eq!((cqe.syndrome, cqe.wqe_counter.get()), (Syndrome::LOCAL_LENGTH.get(), 1));
    assert_eq!(pair.arrives(&feed(b"tick").build()).wqe_counter.get(), 2);
    let jumbo = Sample::udp([239, 9, 9, 9], 1, &vec![1; 9000]).build();
    pair.send(&jumbo);
    pair.cq.expect_nothing();
}

#[test]
fn wrong_checksums_and_fragments_have_a_verdict() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(8, |attr| attr);
    pair.lead(&[queue.number], None);
    let whole = feed(b"some ticks").build();
    let verdict = |change: fn(&mut Vec<u8>), pair: &mut Pair, queue: &mut Queue| {
        queue.post();
        let mut frame = whole.clone();
        change(&mut frame);
        let cqe = pair.arrives(&frame);
        (cqe.hds_ip_ext & (L3_OK | L4_OK), cqe.l4_hdr_type_etc)
    };
    let mut verdict = |change| verdict(change, &mut pair, &mut queue);
    assert_eq!(verdict(|_| {}), (L3_OK | L4_OK, 0x28));
    // Time to live, payload, and a length of IP that reaches past the frame.
    assert_eq!(verdict(|frame| frame[22] ^= 1), (0, 0x28));
    assert_eq!(verdict(|frame| frame[43] ^= 1), (L3_OK, 0x28));
    assert_eq!(verdict(|frame| frame[16] ^= 0x10), (0, 0x28));
    // No UDP checksum.
    assert_eq!(verdict(|frame| frame[40..42].fill(0)), (L3_OK | L4_OK, 0x28));
    // More fragments follow; the header checksum is made right.
    let fragment = |frame: &mut Vec<u8>| {
        frame[20] |= 0x20;
        let sum = u16::from_be_bytes([frame[24], frame[25]]) - 0x2000;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    };
    assert_eq!(verdict(fragment), (L3_OK, 0x88));
}

#[test]
fn whatever_arrives_nothing_breaks() {
    let mut pair = Pair::new();
    let mut queue =
        pair.queue(4, |attr| RwqAttr { offloads: RxOffloads { strip_vlan: true, scatter_fcs: true }, ..attr });
    let tir = pair.tir(&[queue.number], None);
    let mut all = rule(Target::Tir(tir), None);
    all.mask = [0; FIELDS];
    pair.device.nic.create_flow(&[all]).unwrap();
    let mut rng = Rng::new(7);
    let bases = [feed(b"tick").vlan(5).vlan(6).build(), feed(b"tick").ipv6().build(), feed(b"tick").tcp().build()];
    for round in 0..2000 {
        let mut frame = bases[round % bases.len()].clone();
        for _ in 0..rng.below(6) {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] = rng.next_u64() as u8;
        }
        // A runt arrives padded.
        frame.truncate(14 + rng.below(60) as usize);
        let index = queue.post();
        let cqe = pair.arrives(&frame);
        let len = cqe.byte_cnt.get() as usize;
        assert!((60..=60 + 18).contains(&len), "{len}");
        assert_eq!(queue.received(index, len).len(), len);
    }
}

#[test]
fn a_removed_rule_takes_its_tag_with_it() {
    let mut pair = Pair::new();
    let mut queue = pair.queue(4, |attr| attr);
    let (_, flow) = pair.lead(&[queue.number], Some(9));
    queue.post_many(2);
    assert_eq!(pair.arrives(&feed(b"tick").build()).flow_tag(), 9);
    pair.device.nic.destroy_flow(flow);
    pair.send(&feed(b"tick").build());
    pair.cq.expect_nothing();
    pair.lead(&[queue.number], Some(8));
    assert_eq!(pair.arrives(&feed(b"tick").build()).flow_tag(), 8);
}
