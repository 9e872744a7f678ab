//! Frames that a raw packet queue pair makes of its WQEs.

use mlx5_wire::eth::{INSERT_VLAN, L3_CSUM, L4_CSUM};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::*;

/// Makes a pair whose queue has WQEs, and takes all frames.
fn receiving() -> (Pair, Queue) {
    let mut pair = Pair::new();
    let queue = pair.takes_all(16);
    (pair, queue)
}

/// Makes a WQE that contains the first `inline` bytes.
fn work(pair: &Pair, frame: &[u8], inline: usize, flags: u8) -> Work {
    pair.memory.set(0, frame);
    let mut segment = EthSegment::zeroed().to_bytes();
    segment[4] = flags;
    segment[12..14].copy_from_slice(&(inline as u16).to_be_bytes());
    let mut bytes = segment[..14].to_vec();
    bytes.extend(&frame[..inline]);
    bytes.resize(bytes.len().max(16).next_multiple_of(16), 0xee);
    let (addr, len) = (pair.memory.addr() + inline as u64, frame.len() - inline);
    let work = Work::send().bytes(&bytes);
    if len == 0 { work } else { work.data(addr, len as u32, pair.key) }
}

fn send(pair: &mut Pair, work: &Work) {
    pair.out.post(&mut pair.sender, work);
    pair.settle();
}

#[test]
fn the_header_stands_inline_as_far_as_the_wqe_says() {
    let (mut pair, queue) = receiving();
    let frame = feed(b"a tick of some bytes more").build();
    for (index, inline) in [0, 1, 2, 3, 14, 18, 34, frame.len()].into_iter().enumerate() {
        let work = work(&pair, &frame, inline, 0);
        send(&mut pair, &work);
        assert_eq!(queue.received(index as u16, frame.len()), frame, "{inline}");
        let sent = pair.send_cq.poll().unwrap();
        assert_eq!((sent.opcode(), sent.qpn()), (CqeOpcode::Requester, pair.sender.number.0));
    }
}

#[test]
fn the_device_fills_in_checksums_and_a_tag() {
    let (mut pair, queue) = receiving();
    let whole = feed(b"a tick of some bytes more").build();
    let mut frame = whole.clone();
    frame[24..26].fill(0);
    frame[40..42].fill(0);
    let plain = work(&pair, &frame, 18, L3_CSUM | L4_CSUM);
    send(&mut pair, &plain);
    assert_eq!(queue.received(0, whole.len()), whole);
    let mut tagged = work(&pair, &frame, 0, L3_CSUM | L4_CSUM);
    tagged.segments[12..16].copy_from_slice(&[(INSERT_VLAN >> 8) as u8, 0, 0x20, 0x64]);
    send(&mut pair, &tagged);
    let expected = feed(b"a tick of some bytes more").vlan(0x2064).build();
    assert_eq!(queue.received(1, expected.len()), expected);
}

#[test]
fn short_frames_are_padded_and_shorter_ones_refused() {
    let (mut pair, queue) = receiving();
    let short = feed(b"").build()[..14].to_vec();
    let least = work(&pair, &short, 0, 0);
    send(&mut pair, &least);
    assert_eq!(pair.cq.poll().unwrap().byte_cnt.get(), 60);
    assert_eq!(queue.received(0, 60), [&short[..], &[0; 46]].concat());
    assert_eq!(pair.send_cq.drain().len(), 1);
    let runt = work(&pair, &short[..13], 0, 0);
    send(&mut pair, &runt);
    let cqe = error(&pair.send_cq.poll().unwrap());
    // As in dump C1, of a frame with wrong sizes.
    assert_eq!((cqe.syndrome, cqe.vendor_err_synd), (Syndrome::LOCAL_LENGTH.get(), 0x68));
    assert_eq!((cqe.hw_err_synd, cqe.hw_synd_type), (0x60, 0x10));
    pair.cq.expect_nothing();
    assert_eq!(pair.out.state(&pair.sender), QpState::Sqe);
}

#[test]
fn an_invalid_frame_is_refused() {
    for bad in 0..4 {
        let (mut pair, _queue) = receiving();
        let frame = feed(b"tick").build();
        let mut wqe = work(&pair, &frame, 0, 0);
        match bad {
            // An inline header longer than the WQE, an operation of RDMA, no Ethernet segment, a frame too long.
            0 => wqe.segments[12..14].copy_from_slice(&100u16.to_be_bytes()),
            1 => wqe.opcode = WqeOpcode::RDMA_WRITE,
            2 => wqe.segments.clear(),
            _ => wqe.segments[16..20].copy_from_slice(&10_001u32.to_be_bytes()),
        }
        send(&mut pair, &wqe);
        let cqe = pair.send_cq.poll().unwrap();
        assert_eq!(cqe.opcode(), CqeOpcode::RequesterError, "{bad}");
        pair.cq.expect_nothing();
    }
}

#[test]
fn a_sender_waits_for_a_receiver_that_does_not_look() {
    let (mut pair, mut queue) = receiving();
    let frame = feed(b"tick").build();
    let mut received = 0;
    let work = work(&pair, &frame, 0, 0).flags(0);
    for _ in 0..5000 {
        if pair.sender.sent.wrapping_sub(pair.out.nic.queues().qps[0].send_index) < 32 {
            pair.out.post(&mut pair.sender, &work);
            pair.out.settle();
        }
    }
    // Nothing is lost: frames that the link does not take wait in the send queue.
    let posted = pair.sender.sent;
    for _ in 0..20_000 {
        pair.out.settle();
        pair.device.nic.step(1);
        for _ in pair.cq.drain() {
            received += 1;
            queue.post();
        }
    }
    let dropped = pair.device.nic.queues().wqs[0].dropped;
    assert_eq!(received + dropped, u64::from(posted));
    assert!(posted < 5000);
}
