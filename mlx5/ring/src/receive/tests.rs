mod adjacency;
mod explorer;
mod noise;
mod random;

use std::vec::Vec;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::CqeOpcode;

use super::{PostError, ReceiveRing, complete};
use crate::completion::CqeKind;
use crate::sge::Sge;
use crate::testing::trace::{self, Event};
use crate::testing::{CqeSpec, Give, Kind, Rig, Setup, State, on};

const SEND: CqeSpec = CqeSpec::new(CqeOpcode::ResponderSend, 0);

/// One queue, on a CQ with as many entries as it has slots.
fn alone(kind: Kind, slots: u32) -> Rig {
    let queues = Vec::from([(kind, slots, 64)]);
    Rig::new(&Setup { queues, cqes: slots, cqe_size: 64, compression: None, wrap: 32 })
}

/// A full queue.
fn full(kind: Kind, slots: u32) -> Rig {
    let mut rig = alone(kind, slots);
    while rig.post(0) {}
    rig.load(0);
    rig.end();
    rig
}

/// Receives `count` messages and recycles each at once.
fn recycle(rig: &mut Rig, count: u32, position: impl Fn(&Rig) -> usize) {
    for _ in 0..count {
        let position = position(rig);
        rig.complete(0, position, SEND);
        assert!(rig.next());
        rig.give(0, Give::Recycle);
        rig.end();
        rig.check();
    }
}

#[test]
fn recycling_in_order_stores_to_no_wqe() {
    for kind in [Kind::Ordered, Kind::Srq, Kind::Rq] {
        let mut rig = full(kind, 8);
        recycle(&mut rig, 40, |_| 0);
        assert_eq!(rig.stored, 0, "{kind:?}");
    }
}

#[test]
fn links_that_stay_wrong_are_stored_once() {
    let mut rig = full(Kind::Srq, 8);
    recycle(&mut rig, 1, |_| 3);
    recycle(&mut rig, 7, |_| 0);
    assert!((2..=6).contains(&rig.stored), "{} bytes", rig.stored);
    let stored = rig.stored;
    recycle(&mut rig, 40, |_| 0);
    assert_eq!(rig.stored, stored, "the new order is kept");
}

#[test]
fn a_slot_waits_for_an_older_one() {
    let mut rig = full(Kind::Ordered, 16);
    recycle(&mut rig, 1, |_| 2);
    let seen = rig.queues[0].device.seen;
    recycle(&mut rig, 2, |_| 0);
    assert_eq!((rig.stored, rig.queues[0].device.seen), (0, seen.wrapping_add(3)), "all three follow in order");
    // A fifth of the slots wait, and no more.
    recycle(&mut rig, 3, |_| 1);
    assert_eq!((rig.stored, rig.queues[0].device.seen), (0, seen.wrapping_add(3)));
    recycle(&mut rig, 1, |_| 1);
    assert_ne!(rig.queues[0].device.seen, seen.wrapping_add(3));
}

#[test]
#[should_panic(expected = "the CQ can overrun")]
fn a_doorbell_before_the_consumer_index_overruns_an_exact_cq() {
    let mut rig = full(Kind::Rq, 2);
    rig.complete(0, 0, SEND);
    assert!(rig.next());
    rig.give(0, Give::Recycle);
    rig.ring_doorbell(0);
}

fn post<Q: ReceiveRing<Data = u32>>(ring: &mut Q) -> Result<u32, PostError> {
    // SAFETY: no message arrives.
    unsafe { ring.post(7, &[Sge { addr: 0x1000, length: 8, lkey: 1 }]) }
}

#[test]
fn the_doorbell_hands_over_all_that_was_posted_and_rings_for_nothing_else() {
    for kind in [Kind::Ordered, Kind::Srq, Kind::Rq] {
        let mut rig = alone(kind, 8);
        let queue = &mut rig.state.queues[0];
        let (ring, device) = (&mut queue.ring, &queue.device);
        let start = device.record();
        let rung = || device.record().wrapping_sub(start);
        on!(ring, ring => {
            let rings = |count: u16| {
                let record = Event::Record(start.wrapping_add(count).into());
                [Event::RecordFence, record]
            };
            assert_eq!(trace::of(|| ring.ring_doorbell()), []);
            assert!(post(ring).is_ok() && post(ring).is_ok());
            assert_eq!(rung(), 0, "the doorbell rang in the middle");
            assert_eq!(trace::of(|| ring.ring_doorbell()), rings(2));
            assert_eq!(rung(), 2);
            assert!(post(ring).is_ok());
            assert_eq!(trace::of(|| ring.ring_doorbell()), rings(3));
            assert_eq!(trace::of(|| ring.ring_doorbell()), []);
        });
    }
}

/// A device that goes on writing a CQE does not change what it was when it was taken.
#[test]
fn the_last_word_of_a_cqe_is_read_once() {
    for kind in [Kind::Ordered, Kind::Srq, Kind::Rq] {
        for op_own in 0..=u8::MAX {
            let mut rig = full(kind, 8);
            rig.complete(0, 0, CqeSpec { byte_count: 8, ..SEND });
            let State { queues, cq, producer, arrived, .. } = &mut rig.state;
            let (spec, completion) = (arrived[0].spec, arrived[0].completion);
            let cqe = cq.next().unwrap();
            let index = producer.producer_index.wrapping_sub(1);
            producer.set_counter(index, !spec.wqe_counter);
            // SAFETY: the last byte of the entry.
            unsafe { producer.entry(index).add(producer.size - 1).write_volatile(op_own) }
            let reported = (cqe.kind(), cqe.opcode(), cqe.format(), cqe.wqe_counter());
            let sent = (CqeKind::Send, spec.opcode, CqeFormat::Plain, spec.wqe_counter);
            assert_eq!(reported, sent, "{op_own:#x}");
            // SAFETY: a CQE of the queue, whose buffers exist.
            let got = on!(&mut queues[0].ring, ring => unsafe { complete(ring, cqe) });
            assert_eq!(got, completion, "{op_own:#x}");
        }
    }
}
