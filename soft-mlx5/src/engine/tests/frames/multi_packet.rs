//! Enhanced multi-packet WQEs: several frames with one Ethernet segment and one CQE.

use mlx5_wire::eth::{INSERT_VLAN, L3_CSUM, L4_CSUM, MULTI_PACKET_HEAD, MULTI_PACKET_UNITS};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::*;
use crate::objects::strict::Rule as StrictRule;

fn work(segment: EthSegment) -> Work {
    Work::new(WqeOpcode::ENHANCED_MPSW).bytes(&segment.to_bytes())
}

fn with_checksums() -> Work {
    work(EthSegment { cs_flags: L3_CSUM | L4_CSUM, ..EthSegment::zeroed() })
}

fn send(pair: &mut Pair, work: &Work) {
    pair.out.post(&mut pair.sender, work);
    pair.settle();
}

/// Makes a pair whose sender goes on after a breach of a rule.
fn lenient() -> Pair {
    Pair::between(|config| NicConfig { strict: false, ..config }, |config| config)
}

#[test]
fn frames_in_memory_and_inline_leave_in_order() {
    let mut pair = Pair::new();
    let mut queue = pair.takes_all(16);
    let frames = [&b"first"[..], b"a longer one, inline", b"third"].map(|text| feed(text).build());
    // The device writes all checksums.
    let broken = frames.clone().map(|mut frame| {
        frame[24..26].fill(0x5a);
        frame[40..42].fill(0x5a);
        frame
    });
    pair.memory.set(0, &broken[0]);
    pair.memory.set(4096, &broken[2]);
    let (addr, key) = (pair.memory.addr(), pair.key);
    let many = with_checksums().data(addr, broken[0].len() as u32, key).inline(&broken[1]).data(
        addr + 4096,
        broken[2].len() as u32,
        key,
    );
    // Two laps of the ring, which ends at each unit of the WQE once.
    for round in 0..64 {
        send(&mut pair, &many);
        let sent = pair.send_cq.drain();
        assert_eq!(sent.len(), 1, "one CQE for the frames together");
        assert_eq!((sent[0].opcode(), sent[0].send_opcode()), (CqeOpcode::Requester, 0x29));
        let arrived = pair.cq.drain();
        assert_eq!(arrived.len(), 3, "{round}");
        for (frame, cqe) in frames.iter().zip(arrived) {
            assert_eq!(queue.received(cqe.wqe_counter.get(), frame.len()), *frame, "{round}");
            queue.post();
        }
        // The next WQE starts at another block.
        let nop = Work::new(WqeOpcode::NOP).flags(0);
        for _ in 0..round % 2 {
            pair.out.post(&mut pair.sender, &nop);
        }
    }
}

#[test]
fn as_many_frames_as_the_wqe_has_units() {
    let mut pair = Pair::new();
    let most = (MULTI_PACKET_UNITS - MULTI_PACKET_HEAD) as usize;
    let queue = pair.takes_all(64);
    let mut many = work(EthSegment::zeroed()).flags(0);
    for at in 0..most {
        let frame = feed(&[at as u8; 20]).build();
        pair.memory.set(64 * at, &frame);
        many = many.data(pair.memory.addr() + 64 * at as u64, frame.len() as u32, pair.key);
    }
    send(&mut pair, &many);
    assert_eq!(pair.send_cq.drain().len(), 0, "unsignaled");
    let arrived = pair.cq.drain();
    assert_eq!(arrived.len(), most);
    for (at, cqe) in arrived.iter().enumerate() {
        let frame = feed(&[at as u8; 20]).build();
        assert_eq!(queue.received(cqe.wqe_counter.get(), frame.len()), frame);
    }
}

/// Each frame waits until the link takes it.
#[test]
fn frames_wait_for_a_receiver_that_does_not_look() {
    let mut pair = Pair::new();
    let mut queue = pair.takes_all(64);
    let frame = feed(b"tick").build();
    pair.memory.set(0, &frame);
    let (addr, key) = (pair.memory.addr(), pair.key);
    let many = (0..30).fold(work(EthSegment::zeroed()).flags(0), |work, _| work.data(addr, frame.len() as u32, key));
    let mut posted = 0;
    for _ in 0..300 {
        if pair.sender.sent.wrapping_sub(pair.out.nic.queues().qps[0].send_index) < 32 {
            pair.out.post(&mut pair.sender, &many);
            pair.out.settle();
            posted += 1;
        }
    }
    assert!(posted < 300);
    let mut received = 0;
    for _ in 0..20_000 {
        pair.out.settle();
        pair.device.nic.step(1);
        for _ in pair.cq.drain() {
            received += 1;
            queue.post();
        }
    }
    assert_eq!(received + pair.device.nic.queues().wqs[0].dropped, 30 * posted);
}

#[test]
fn frames_have_no_header_of_their_own() {
    let bad = [
        EthSegment { inline_hdr_sz: 2.into(), ..EthSegment::zeroed() },
        EthSegment { inline_hdr_sz: (INSERT_VLAN).into(), ..EthSegment::zeroed() },
        EthSegment { mss: 100.into(), ..EthSegment::zeroed() },
    ];
    for segment in bad {
        let mut pair = lenient();
        let _queue = pair.takes_all(4);
        let many = work(segment).data(pair.memory.addr(), 60, pair.key);
        send(&mut pair, &many);
        assert_eq!(pair.out.nic.violations(StrictRule::MultiPacket), 1);
        let cqe = error(&pair.send_cq.poll().unwrap());
        assert_eq!(cqe.syndrome, Syndrome::LOCAL_QP_OP.get());
        pair.cq.expect_nothing();
    }
}

#[test]
fn a_wqe_has_at_most_15_blocks() {
    for (units, breaches) in [(MULTI_PACKET_UNITS, 0), (MULTI_PACKET_UNITS + 1, 1)] {
        let mut pair = lenient();
        let _queue = pair.takes_all(64);
        let (addr, key) = (pair.memory.addr(), pair.key);
        let frames = MULTI_PACKET_HEAD..units;
        let count = frames.len();
        let many = frames.fold(work(EthSegment::zeroed()), |work, _| work.data(addr, 60, key));
        send(&mut pair, &many);
        assert_eq!(pair.out.nic.violations(StrictRule::MultiPacket), breaches);
        assert_eq!((pair.send_cq.drain().len(), pair.cq.drain().len()), (1, count));
    }
}

/// No frame of a WQE leaves if a length cannot be; those before one that the device may not read have left.
#[test]
fn a_frame_that_cannot_be_sent_fails_the_wqe() {
    let [short, long, key] = [0, 1, 2];
    for bad in [short, long, key] {
        let mut pair = Pair::new();
        let _queue = pair.takes_all(4);
        let (addr, lkey) = (pair.memory.addr(), pair.key);
        let first = work(EthSegment::zeroed()).data(addr, 60, lkey);
        let many = match bad {
            0 => first.data(addr, 13, lkey),
            1 => first.data(addr, 10_001, lkey),
            _ => first.data(addr, 60, lkey ^ 0xff),
        };
        send(&mut pair, &many);
        let cqe = error(&pair.send_cq.poll().unwrap());
        let (syndrome, left) = if bad == key { (Syndrome::LOCAL_PROT, 1) } else { (Syndrome::LOCAL_LENGTH, 0) };
        assert_eq!((cqe.syndrome, cqe.send_opcode()), (syndrome.get(), 0x29));
        assert_eq!(pair.cq.drain().len(), left);
        assert_eq!(pair.out.state(&pair.sender), QpState::Sqe);
    }
    let mut pair = Pair::new();
    send(&mut pair, &work(EthSegment::zeroed()));
    assert_eq!(error(&pair.send_cq.poll().unwrap()).syndrome, Syndrome::LOCAL_QP_OP.get());
}
