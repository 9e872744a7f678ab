//! Functions for a caller that provides all of verbs: completions at once, data in CQEs, requests that are taken back.

use core::ptr::NonNull;
use std::thread;

use mlx5_wire::cqe::{Cqe64, CqeFormat, op_own};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::super::{Flags, Immediate, Payload, Progress, Remote};
use super::rig::{QPN, Rig};
use crate::completion::Cqe;
use crate::sge::Sge;
use crate::testing::{Arena, wait_for};

const NONE: Flags = Flags::NONE;
const SIGNALED: Flags = Flags::SIGNALED;

#[test]
fn a_cqe_is_answered_at_once_with_the_value_of_the_wqe_that_it_names() {
    let mut rig = Rig::new(8, 2);
    rig.start_at(6, 0);
    for (data, blocks) in [(1, 2), (2, 1), (3, 2)] {
        rig.send(blocks, NONE, data).unwrap();
    }
    let progress = Progress::at(6);
    // SAFETY: the test completes with it alone, and gives this value to both sides.
    let completer = unsafe { rig.queue.completer() };
    // SAFETY: as above.
    let complete = |index| unsafe { completer.complete(&progress, index) };
    assert_eq!(complete(8), None, "not handed over");
    rig.queue.hand_over(&progress);
    assert_eq!(complete(7), None, "the middle of a WQE");
    assert_eq!(complete(8), Some(2));
    assert_eq!(complete(6), None, "over");
    let mut free = || {
        // SAFETY: as above.
        unsafe { rig.queue.take_back(&progress) };
        rig.queue.free_blocks()
    };
    assert_eq!(free(), 6);
    assert_eq!(complete(9), Some(3));
    assert_eq!(free(), 8);
}

/// One thread posts and another one completes; they tell each other how far they are, and nothing else.
#[test]
fn one_thread_posts_and_another_completes() {
    const COUNT: u32 = 20_000;
    let mut rig = Rig::new(8, 2);
    let start = u32::MAX - 9;
    rig.start_at(start, 0);
    rig.queue = core::mem::replace(&mut rig.queue, Rig::new(8, 2).queue).without_asking();
    let progress = Progress::at(start);
    // SAFETY: one thread completes with it, and gives this value to both sides.
    let completer = unsafe { rig.queue.completer() };
    thread::scope(|scope| {
        let (queue, progress) = (&mut rig.queue, &progress);
        scope.spawn(move || {
            for number in 0..COUNT {
                wait_for(|| {
                    let payload = Payload::inline(&[&[7; 60]]);
                    // SAFETY: as above; inline bytes alone.
                    unsafe {
                        queue.take_back(progress);
                        let mut posting = queue.posting();
                        let posted = posting.send(payload, Immediate::None, NONE, number);
                        posting.hand_over(progress);
                        posted.ok()
                    }
                });
            }
        });
        for number in 0..COUNT {
            // Each has two blocks.
            let index = start.wrapping_add(2 * number) as u16;
            // SAFETY: as above.
            assert_eq!(wait_for(|| unsafe { completer.complete(progress, index) }), number);
        }
    });
    // SAFETY: as above.
    unsafe { rig.queue.take_back(&progress) };
    assert_eq!(rig.queue.free_blocks(), 8);
}

#[test]
fn only_the_flags_ask_for_a_cqe() {
    let mut rig = Rig::new(8, 1);
    let asks = |rig: &mut Rig| {
        for data in 0..8 {
            rig.send(1, NONE, data).unwrap();
        }
        rig.device.look();
        rig.device.queue.drain(..).filter(|wqe| wqe.asks()).count()
    };
    assert!(asks(&mut rig) > 0, "without it the queue asks");
    rig.start_at(0, 0);
    let queue = core::mem::replace(&mut rig.queue, Rig::new(8, 1).queue);
    rig.queue = queue.without_asking();
    assert_eq!(asks(&mut rig), 0);
}

#[test]
fn requests_are_taken_back_until_a_doorbell_has_covered_them() {
    let mut rig = Rig::new(8, 2);
    rig.start_at(7, 0);
    rig.send(1, SIGNALED, 1).unwrap();
    let mark = rig.queue.mark();
    for data in 2..4 {
        let payload = Payload::inline(&[&[7; 60]]);
        let mut posting = rig.queue.posting();
        // SAFETY: inline bytes alone.
        unsafe { posting.send(payload, Immediate::None, SIGNALED, data) }.unwrap();
        core::mem::forget(posting);
    }
    assert!(rig.queue.rewind(mark));
    assert_eq!((rig.device.look(), rig.queue.free_blocks()), (1, 7));
    rig.send(2, NONE, 4).unwrap();
    assert_eq!(rig.device.look(), 1, "it is written where the others were");
    assert_eq!(rig.device.queue[1].index, 8);
    assert!(!rig.queue.rewind(mark), "a doorbell has covered it");
    assert_eq!(rig.complete(8).unwrap(), [1, 4]);
}

/// Data of a READ that came in its CQE, of a WQE that goes on at the start of the ring.
#[test]
fn data_in_a_cqe_goes_to_the_buffers_of_the_wqe() {
    let mut rig = Rig::new(4, 2);
    rig.start_at(3, 0);
    let mut memory = [[0_u8; 8]; 4];
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    let sge = |index: u64, length| Sge { addr: start + 8 * index, length, lkey: 7 };
    let from = Remote { addr: 1, rkey: 2 };
    let list = [sge(0, 3), sge(1, 2), sge(2, 8), sge(3, 8)];
    let mut post = |list: &[Sge], data| {
        // SAFETY: [memory] is the test's, and the device a model.
        unsafe { rig.queue.posting().read(from, list, SIGNALED, data) }.unwrap();
    };
    post(&list, 1);
    post(&list[3..], 2);
    let progress = Progress::at(3);
    // SAFETY: the test gives this value to both sides.
    let completer = unsafe { rig.queue.completer() };
    let mut arena = Arena::default();
    let cqe: NonNull<u8> = arena.cut(64);
    let arrive = |format, opcode: WqeOpcode, wqe_counter: u16, byte_cnt: u32| {
        let mut bytes = Cqe64 {
            byte_cnt: byte_cnt.into(),
            sop_drop_qpn: (u32::from(opcode.get()) << 24 | QPN).into(),
            wqe_counter: wqe_counter.into(),
            op_own: op_own(CqeOpcode::Requester, format, false, 0),
            ..Cqe64::zeroed()
        }
        .to_bytes();
        bytes[..16].copy_from_slice(b"abcdefghijklmnop");
        // SAFETY: an aligned CQE in the arena; the buffers are the test's.
        unsafe {
            cqe.cast().write(bytes);
            rig.queue.hand_over(&progress);
            completer.scatter_inline(&progress, Cqe::read(cqe, 0, 64))
        }
    };
    let read = WqeOpcode::RDMA_READ;
    assert!(!arrive(CqeFormat::Plain, read, 3, 16), "there is no data");
    assert!(!arrive(CqeFormat::Inline64, read, 3, 16), "a CQE of 64 bytes has no room for them");
    assert!(!arrive(CqeFormat::Inline32, read, 4, 16), "no WQE starts there");
    assert!(!arrive(CqeFormat::Inline32, WqeOpcode::SEND, 3, 16), "no data comes for a SEND");
    // SAFETY: read where the queue has written it.
    let now = || unsafe { (&raw const memory).read_volatile() };
    assert_eq!(now(), [[0; 8]; 4]);
    assert!(arrive(CqeFormat::Inline32, read, 3, 15));
    assert_eq!(now(), [*b"abc\0\0\0\0\0", *b"de\0\0\0\0\0\0", *b"fghijklm", *b"no\0\0\0\0\0\0"]);
    assert!(arrive(CqeFormat::Inline32, read, 5, 3));
    assert_eq!(now()[3], *b"abc\0\0\0\0\0");
}
