//! Doorbells: what is written, where, and in which order.

use super::super::{BlueFlame, Config, Flags, Immediate, LayoutError, Payload, Posting};
use super::rig::{HALF, Rig};
use crate::testing::trace::{self, Event};

fn rig(blue_flame: BlueFlame) -> Rig {
    Rig::with(8, Config { max_wqe_blocks: 8, blue_flame }, HALF as u32)
}

#[test]
fn the_record_and_then_the_register_with_a_fence_before_each_and_one_after() {
    for blue_flame in [BlueFlame::Never, BlueFlame::Always] {
        let mut rig = rig(blue_flame);
        for (ring, half) in [0, 1, 0].into_iter().enumerate() {
            let events = trace::of(|| rig.send(2, Flags::SIGNALED, 0).unwrap());
            let expected = [
                Event::RecordFence,
                Event::Record(2 * ring as u32 + 2),
                Event::RegisterFence,
                Event::Register(rig.device.half(half)),
                Event::RegisterFence,
            ];
            assert_eq!(events, expected, "{blue_flame:?}");
        }
    }
}

/// While a batch is open the device is not notified. Then the record covers all and the register names the last WQE.
#[test]
fn one_doorbell_for_a_batch_and_none_for_an_empty_one() {
    let mut rig = rig(BlueFlame::Always);
    assert_eq!(trace::of(|| drop(rig.queue.posting())), []);
    let events = trace::of(|| {
        let mut posting = rig.queue.posting();
        for data in 0..3 {
            // SAFETY: inline bytes alone.
            unsafe {
                let payload = Payload::inline(&[&[1; 50]]);
                posting.send(payload, Immediate::None, Flags::NONE, data).unwrap();
            }
        }
        assert_eq!(rig.device.record(), 0);
    });
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Register(_))).count(), 1);
    assert_eq!(rig.device.look(), 3);
    let mut register = [[0; HALF]; 2];
    register[0][..8].copy_from_slice(&[0, 0, 4, 0x0a, 0x12, 0x34, 0x56, 5]);
    assert_eq!(rig.device.register(), register, "eight bytes of the last WQE");
    assert_eq!(trace::of(|| drop(rig.queue.posting())), []);
}

/// Each request of a posting has a doorbell, and asks for a CQE as its flags say, until the queue needs one.
#[test]
fn a_doorbell_for_each_request() {
    for blue_flame in [BlueFlame::Never, BlueFlame::Always] {
        let mut rig = Rig::with(8, Config { max_wqe_blocks: 2, blue_flame }, HALF as u32);
        rig.queue.signals_last = true;
        let mut posting = rig.queue.posting_singly();
        // A WQE of two blocks may follow without a CQE on a queue of eight.
        let all = [(Flags::NONE, false), (Flags::SIGNALED, true), (Flags::NONE, false), (Flags::NONE, true)];
        for (ring, (flags, is_signaled)) in (0..).zip(all) {
            let events = trace::of(|| {
                // SAFETY: inline bytes alone.
                unsafe { posting.send(Payload::inline(&[&[1; 50]]), Immediate::None, flags, ring) }.unwrap();
            });
            let expected = [
                Event::RecordFence,
                Event::Record(2 * ring + 2),
                Event::RegisterFence,
                Event::Register(rig.device.half(ring as usize % 2)),
                Event::RegisterFence,
            ];
            assert_eq!(events, expected, "{blue_flame:?}");
            let bits = if is_signaled { Flags::SIGNALED.bits() } else { 0 };
            assert_eq!(rig.device.block(2 * ring)[11], bits, "request {ring}");
        }
        assert_eq!(trace::of(|| drop(posting)), []);
        assert_eq!(rig.complete(2).unwrap(), [0, 1]);
        assert_eq!(rig.complete(6).unwrap(), [2, 3]);
    }
}

/// All blocks of the WQE, what is stale in them included, and no more; around the end of the ring.
#[test]
fn blue_flame_copies_a_single_wqe_of_up_to_four_blocks() {
    for start in 0..8 {
        for blocks in 1..=6 {
            let mut rig = rig(BlueFlame::Always);
            rig.start_at(start, 0);
            rig.send(blocks, Flags::SIGNALED, 0x5a).unwrap();
            let mut half = [0; HALF];
            if blocks <= 4 {
                for (block, to) in (start..start + blocks).zip(half.chunks_mut(64)) {
                    to.copy_from_slice(&rig.device.block(block));
                }
            } else {
                half[..8].copy_from_slice(&rig.device.block(start)[..8]);
            }
            assert_eq!(rig.device.register(), [half, [0; HALF]], "{blocks} blocks at {start}");
        }
    }
}

/// Returns whether the bytes after the first eight are written, for a WQE with and without inline bytes and one of one
/// unit.
fn copies(blue_flame: BlueFlame) -> [bool; 3] {
    let sges = [crate::sge::Sge { addr: 1 << 32, length: 5, lkey: 7 }];
    let payloads = [Payload::inline(&[&[1; 20]]), Payload::gather(&sges), Payload::default()];
    payloads.map(|payload| {
        let mut rig = rig(blue_flame);
        // SAFETY: [memory] never touched; the device is a model.
        unsafe { rig.queue.posting().send(payload, Immediate::None, Flags::SIGNALED, 0) }.unwrap();
        let register = rig.device.register()[0];
        assert_eq!(register[..8], rig.device.block(0)[..8]);
        register[8..].iter().any(|byte| *byte != 0)
    })
}

#[test]
fn blue_flame_is_used_as_it_is_wanted() {
    assert_eq!(copies(BlueFlame::Never), [false, false, false]);
    assert_eq!(copies(BlueFlame::Inline), [true, false, false]);
    assert_eq!(copies(BlueFlame::Always), [true, true, false]);
}

#[test]
fn a_register_of_one_half_takes_eight_bytes_again_and_again() {
    let config = Config { max_wqe_blocks: 4, blue_flame: BlueFlame::Always };
    let mut rig = Rig::with(8, config, 0);
    for index in 0..4 {
        rig.send(1, Flags::SIGNALED, 0).unwrap();
        let mut half = [0; HALF];
        half[..8].copy_from_slice(&[0, 0, index, 0x0a, 0x12, 0x34, 0x56, 4]);
        assert_eq!(rig.device.register(), [half, [0; HALF]]);
    }
}

/// A batch that is forgotten is rung by the next one, which is not single then.
#[test]
fn a_forgotten_batch_costs_a_late_doorbell() {
    let mut rig = rig(BlueFlame::Always);
    let mut posting = rig.queue.posting();
    // SAFETY: inline bytes alone.
    unsafe {
        let payload = Payload::inline(&[&[1; 20]]);
        posting.send(payload, Immediate::None, Flags::NONE, 7).unwrap();
    }
    core::mem::forget(posting);
    assert_eq!((rig.device.look(), rig.queue.free_blocks()), (0, 7));
    rig.send(1, Flags::SIGNALED, 8).unwrap();
    assert_eq!(rig.device.look(), 2);
    assert!(rig.device.register()[0][8..].iter().all(|byte| *byte == 0));
    assert_eq!(rig.complete(1).unwrap(), [7, 8]);
}

/// Nor does a doorbell for one request forget what was posted before it, or copy it.
#[test]
fn a_forgotten_batch_is_rung_with_a_single_request() {
    let mut rig = rig(BlueFlame::Always);
    let post = |posting: &mut Posting<'_, u32>, data| {
        // SAFETY: inline bytes alone.
        unsafe { posting.send(Payload::inline(&[&[1; 20]]), Immediate::None, Flags::SIGNALED, data) }.unwrap();
    };
    let mut forgotten = rig.queue.posting();
    post(&mut forgotten, 7);
    core::mem::forget(forgotten);
    post(&mut rig.queue.posting_singly(), 8);
    assert_eq!(rig.device.look(), 2);
    assert!(rig.device.register()[0][8..].iter().all(|byte| *byte == 0));
    assert_eq!(rig.complete(1).unwrap(), [7, 8]);
}

/// A panic between two requests leaves the doorbell for those that were written.
#[test]
fn a_panic_rings_for_what_was_written() {
    let mut rig = rig(BlueFlame::Never);
    let queue = &mut rig.queue;
    let panic = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let mut posting = queue.posting();
        // SAFETY: no bytes.
        unsafe { posting.send(Payload::default(), Immediate::None, Flags::NONE, 1) }.unwrap();
        std::panic::resume_unwind(std::boxed::Box::new(()));
    }));
    assert!(panic.is_err());
    assert_eq!(rig.device.look(), 1);
}

#[test]
fn the_record_counts_modulo_65536() {
    let mut rig = rig(BlueFlame::Never);
    rig.start_at(0xffff, 0);
    rig.send(3, Flags::SIGNALED, 0).unwrap();
    assert_eq!((rig.device.record(), rig.device.look()), (2, 1));
}

#[test]
fn layouts_that_are_refused() {
    let layout = |wqe_cnt, stride| {
        let at = core::ptr::NonNull::<u64>::dangling();
        let (buf, dbrec, register) = (at.cast(), at.cast(), at.cast());
        super::super::Layout { buf, dbrec, wqe_cnt, stride, register, register_size: 0, qpn: 0 }.check()
    };
    assert_eq!(layout(1 << 15, 64), Ok(()));
    assert_eq!(layout(1 << 16, 64), Err(LayoutError::BlockCount));
    assert_eq!(layout(0, 64), Err(LayoutError::BlockCount));
    assert_eq!(layout(24, 64), Err(LayoutError::BlockCount));
    assert_eq!(layout(8, 128), Err(LayoutError::Stride));
}
