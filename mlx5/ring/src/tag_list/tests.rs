//! Against a small device: what the list writes, byte by byte, and what it makes of CQEs.

mod device;
mod random;

use core::mem::forget;
use core::ptr::NonNull;
use std::vec::Vec;

use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::Tmh;

use self::device::{Rig, reported};
use super::{Append, Completion, Handle, PostError};
use crate::sge::Sge;

const ALL: u64 = u64::MAX;

fn receive(data: u32, tag: u64, mask: u64, buffer: Option<Sge>) -> Append<u32> {
    Append { data, tag, mask, buffer, signaled: true }
}

fn tagged(data: u32) -> Append<u32> {
    receive(data, data.into(), ALL, None)
}

/// Appends one receive with a doorbell of its own.
fn append(rig: &mut Rig, append: Append<u32>, count: Option<u16>) -> Result<Handle, PostError> {
    // SAFETY: no buffer, or memory of the test's that it leaves alone.
    unsafe { rig.list.posting().append(append, count) }
}

fn silent(data: u32) -> Append<u32> {
    Append { signaled: false, ..tagged(data) }
}

/// Appends receives with one doorbell, and asks for no CQE.
fn silently(rig: &mut Rig, data: &[u32]) {
    let mut posting = rig.list.posting();
    for &data in data {
        // SAFETY: no buffer.
        unsafe { posting.append(silent(data), None) }.unwrap();
    }
}

fn header(tag: u64, context: u32) -> Tmh {
    Tmh { opcode: 3, app_ctx: context.into(), tag: tag.into(), ..Tmh::zeroed() }
}

#[test]
fn an_append_byte_by_byte() {
    let mut rig = Rig::new(4, 8);
    let buffer = Sge { addr: 0x7f00_1122_3340, length: 0x1000, lkey: 0x0102_0304 };
    append(&mut rig, tagged(1), None).unwrap();
    let second = receive(2, 0x1122_3344_5566_7788, 0xffff_ffff_0000_ffff, Some(buffer));
    let handle = append(&mut rig, second, Some(0xabcd)).unwrap();
    assert_eq!(handle.entry(), 1);
    #[rustfmt::skip]
    let expected = [
        // Opcode 0x28 in block 1, QP 0x1234, four units.
        0, 0, 1, 0x28, 0, 0x12, 0x34, 4, 0, 0, 0, 0, 0, 0, 0, 0,
        // Append with CQE and count; entry 2 comes next.
        0x10, 0xc0, 0, 2, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 0,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff,
        0, 0, 0x10, 0, 1, 2, 3, 4, 0, 0, 0x7f, 0, 0x11, 0x22, 0x33, 0x40,
    ];
    assert_eq!(rig.block(1), expected);
    // An empty buffer is a list of no segments; no count is carried.
    let first = rig.block(0);
    assert_eq!(first[16..24], [0x10, 0x80, 0, 1, 0, 0, 0, 0]);
    assert_eq!(first[48..], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn removes_and_synchronizations_byte_by_byte() {
    let mut rig = Rig::new(4, 8);
    append(&mut rig, tagged(1), None).unwrap();
    let handle = append(&mut rig, tagged(2), None).unwrap();
    let mut posting = rig.list.posting();
    posting.remove(handle, Some(7)).unwrap();
    posting.synchronize(Some(0xfffe), true).unwrap();
    drop(posting);
    let (remove, synchronize) = (rig.block(2), rig.block(3));
    assert_eq!(remove[..16], [0, 0, 2, 0x28, 0, 0x12, 0x34, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(remove[16..24], [0x20, 0xc0, 0, 1, 0, 0, 0, 7]);
    assert_eq!(remove[24..], [0; 40]);
    assert_eq!(synchronize[..8], [0, 0, 3, 0x28, 0, 0x12, 0x34, 3]);
    assert_eq!(synchronize[16..24], [0x00, 0xc0, 0, 0, 0, 0, 0xff, 0xfe]);
    // Without a count, and without a CQE.
    rig.list.posting().synchronize(None, true).unwrap();
    rig.list.posting().synchronize(Some(8), false).unwrap();
    assert_eq!(rig.block(4)[16..24], [0x00, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.block(5)[16..24], [0x00, 0x40, 0, 0, 0, 0, 0, 8]);
    for (op, success) in [(AppOp::APPEND, true), (AppOp::APPEND, true), (AppOp::REMOVE, true)] {
        rig.answer(op, 0, success);
    }
    for _ in 0..2 {
        let reported = rig.answer(AppOp::NOOP, 0, true);
        assert_eq!(reported, Completion::Synchronized { count: 0xfffe });
    }
    assert_eq!(rig.answer(AppOp::NOOP, 0, true), Completion::Stray);
}

#[test]
fn one_doorbell_for_a_batch_and_none_for_an_empty_one() {
    let mut rig = Rig::new(4, 8);
    let seen = rig.doorbells;
    drop(rig.list.posting());
    assert_eq!((seen.record(), seen.registers()), (0, [0, 0]));
    let mut posting = rig.list.posting();
    for data in 0..3 {
        // SAFETY: no buffer.
        unsafe { posting.append(tagged(data), None) }.unwrap();
    }
    assert_eq!((seen.record(), seen.registers()), (0, [0, 0]));
    drop(posting);
    let ctrl = |index: u64, ds: u64| 0x28_0012_3400 | index << 40 | ds;
    assert_eq!((seen.record(), seen.registers()), (3, [ctrl(2, 4), 0]));
    rig.list.posting().synchronize(Some(0), true).unwrap();
    assert_eq!((seen.record(), seen.registers()), (4, [ctrl(2, 4), ctrl(3, 3)]));
    rig.list.posting().synchronize(Some(0), true).unwrap();
    assert_eq!((seen.record(), seen.registers()), (5, [ctrl(4, 3), ctrl(3, 3)]));
}

#[test]
fn a_register_of_one_half_is_rung_again() {
    let mut rig = Rig::with_register(4, 8, 0);
    for index in 0..3u64 {
        rig.list.posting().synchronize(Some(0), true).unwrap();
        assert_eq!(rig.doorbells.registers(), [0x28_0012_3403 | index << 40, 0]);
    }
}

#[test]
fn a_full_list_is_reported_before_anything_is_written() {
    let mut rig = Rig::new(3, 8);
    for data in 0..3 {
        append(&mut rig, tagged(data), None).unwrap();
    }
    assert_eq!(append(&mut rig, tagged(3), None), Err(PostError::ListFull));
    assert_eq!((rig.list.free_entries(), rig.doorbells.record()), (0, 3));
    assert_eq!(rig.block(3), [0; 64]);
}

#[test]
fn a_full_queue_is_reported_before_anything_is_written() {
    let mut rig = Rig::new(8, 4);
    let handle = append(&mut rig, tagged(0), None).unwrap();
    for _ in 0..3 {
        rig.list.posting().synchronize(Some(0), true).unwrap();
    }
    assert_eq!(append(&mut rig, tagged(1), None), Err(PostError::QueueFull));
    assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::QueueFull));
    assert_eq!(rig.list.posting().synchronize(Some(0), true), Err(PostError::QueueFull));
    assert_eq!(rig.doorbells.record(), 4);
    rig.answer(AppOp::APPEND, 0, true);
    assert_eq!(rig.list.free_operations(), 1);
    // The remove was not posted, so it can be now.
    assert_eq!(rig.list.posting().remove(handle, None), Ok(()));
}

#[test]
fn a_receive_is_over_once() {
    let mut rig = Rig::new(4, 8);
    let handle = append(&mut rig, tagged(5), Some(2)).unwrap();
    let appended = Completion::Appended { handle, hw_phase: 3, phase: 2 };
    assert_eq!(rig.answer(AppOp::APPEND, 3, true), appended);
    assert_eq!(rig.list.data(handle), Some(5));
    rig.list.posting().remove(handle, None).unwrap();
    assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::Removing));
    let removed = Completion::Removed { handle, data: 5, hw_phase: 3, phase: 2 };
    assert_eq!(rig.answer(AppOp::REMOVE, 3, true), removed);
    assert_eq!(rig.list.data(handle), None);
    assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::Gone));
    assert_eq!(rig.list.free_entries(), 4);
    // The entry comes round, and the old handle does not name it.
    for data in 0..4 {
        let next = append(&mut rig, tagged(data), None).unwrap();
        assert_ne!(next, handle);
        rig.answer(AppOp::APPEND, 3, true);
        assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::Gone));
        rig.message(AppOp::CONSUMED_MSG, next.entry(), header(0, 0), 0);
    }
    assert_eq!(append(&mut rig, tagged(9), None).unwrap().entry(), handle.entry());
}

#[test]
fn a_remove_that_comes_too_late_keeps_the_entry_until_all_cqes_have_come() {
    let mut rig = Rig::new(2, 8);
    let handle = append(&mut rig, tagged(5), None).unwrap();
    rig.answer(AppOp::APPEND, 0, true);
    rig.list.posting().remove(handle, None).unwrap();
    let matched = Completion::Matched { handle, header: header(5, 1) };
    assert_eq!(rig.message(AppOp::CONSUMED, 0, header(5, 1), 0), matched);
    let late = Completion::TooLate { handle, hw_phase: 0, phase: 0 };
    assert_eq!(rig.answer(AppOp::REMOVE, 0, false), late);
    assert_eq!(rig.list.free_entries(), 1);
    assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::Matched));
    // The header is that of the match, whatever the later CQE has there.
    let received = Completion::Received { handle, data: 5, header: header(5, 1), byte_count: 77 };
    assert_eq!(rig.message(AppOp::EXPECTED, 0, header(0, 0), 77), received);
    assert_eq!(rig.list.free_entries(), 2);

    // And in the other order.
    let handle = append(&mut rig, tagged(6), None).unwrap();
    rig.answer(AppOp::APPEND, 0, true);
    rig.list.posting().remove(handle, None).unwrap();
    let reported = rig.message(AppOp::CONSUMED_MSG, handle.entry(), header(6, 2), 9);
    let received = Completion::Received { handle, data: 6, header: header(6, 2), byte_count: 9 };
    assert_eq!(reported, received);
    assert_eq!(rig.list.free_entries(), 1);
    let late = Completion::TooLate { handle, hw_phase: 0, phase: 0 };
    assert_eq!(rig.answer(AppOp::REMOVE, 0, false), late);
    assert_eq!(rig.list.free_entries(), 2);
}

#[test]
fn a_rendezvous_for_software_is_reported_in_one_or_in_two_parts() {
    let mut rig = Rig::new(4, 8);
    let [one, two, three] = [1, 2, 3].map(|data| {
        let handle = append(&mut rig, tagged(data), None).unwrap();
        rig.answer(AppOp::APPEND, 0, true);
        handle
    });
    let reported = rig.message(AppOp::CONSUMED_MSG_SW_RNDV, 0, header(1, 0), 32);
    let incomplete = |handle, data| Completion::Incomplete { handle, data, header: header(1, 0), byte_count: 32 };
    assert_eq!(reported, incomplete(one, 1));
    let reported = rig.message(AppOp::CONSUMED_SW_RNDV, 1, header(1, 0), 0);
    assert_eq!(reported, Completion::Matched { handle: two, header: header(1, 0) });
    let reported = rig.message(AppOp::EXPECTED, 1, header(0, 0), 32);
    assert_eq!(reported, incomplete(two, 2));
    rig.message(AppOp::CONSUMED, 2, header(1, 0), 0);
    let reported = rig.message(AppOp::MSG_COMPLETION_CANCELED, 2, header(0, 0), 0);
    assert_eq!(reported, Completion::Canceled { handle: three, data: 3 });
    assert_eq!(rig.list.free_entries(), 4);
}

#[test]
fn what_cannot_be_true_is_stray_and_changes_nothing() {
    let mut rig = Rig::new(2, 8);
    let handle = append(&mut rig, tagged(5), None).unwrap();
    for (op, entry) in [
        (AppOp::EXPECTED, 0),
        (AppOp::CONSUMED, 1),
        (AppOp::CONSUMED_MSG, 3),
        (AppOp::CONSUMED_MSG, u16::MAX),
        (AppOp::new(0x42), 0),
    ] {
        assert_eq!(rig.message(op, entry, header(0, 0), 0), Completion::Stray, "{op:?} {entry}");
    }
    assert_eq!(rig.answer(AppOp::REMOVE, 0, true), Completion::Stray);
    assert_eq!(rig.answer(AppOp::NOOP, 0, true), Completion::Stray);
    rig.answer(AppOp::APPEND, 0, true);
    assert_eq!(rig.answer(AppOp::APPEND, 0, true), Completion::Stray);
    rig.message(AppOp::CONSUMED_MSG, 0, header(5, 0), 0);
    assert_eq!(rig.message(AppOp::CONSUMED_MSG, 0, header(5, 0), 0), Completion::Stray);
    // Removed by a device that says it found what was consumed.
    let second = append(&mut rig, tagged(6), None).unwrap();
    rig.answer(AppOp::APPEND, 0, true);
    rig.list.posting().remove(second, None).unwrap();
    rig.message(AppOp::CONSUMED_MSG, second.entry(), header(6, 0), 0);
    assert_eq!(rig.answer(AppOp::REMOVE, 0, true), Completion::Stray);
    assert_eq!((rig.list.free_entries(), rig.list.data(handle)), (2, None));
}

#[test]
fn other_completions_are_not_the_lists() {
    let mut rig = Rig::new(2, 8);
    assert_eq!(rig.message(AppOp::UNEXPECTED, 0, header(0, 0), 9), Completion::Unexpected);
    assert_eq!(rig.message(AppOp::NO_TAG, 0, header(0, 0), 9), Completion::NoTag);
    let mut cqe = reported(AppOp::UNEXPECTED, 0);
    cqe.app = 0;
    assert_eq!(rig.complete(&cqe, &[0; 64]), Completion::Other);
}

#[test]
fn inline_data_comes_to_the_buffer_as_far_as_it_fits() {
    let mut rig = Rig::new(2, 8);
    let mut bytes = [0xee_u8; 16];
    let buffer = NonNull::from(&mut bytes).cast::<u8>();
    let addr = buffer.as_ptr().expose_provenance() as u64;
    for len in [5, 64] {
        let sge = Sge { addr, length: 12, lkey: 7 };
        let handle = append(&mut rig, receive(1, 0, ALL, Some(sge)), None).unwrap();
        rig.answer(AppOp::APPEND, 0, true);
        rig.inline(handle.entry(), len, &core::array::from_fn(|i| i as u8 + 1));
        // SAFETY: the test's memory.
        let got = unsafe { buffer.cast::<[u8; 16]>().read() };
        let fits = len.min(12) as usize;
        assert!(got[..fits].iter().zip(1..).all(|(byte, i)| *byte == i), "{got:?}");
        assert!(got[fits..].iter().all(|byte| *byte == 0xee), "{got:?}");
    }
}

#[test]
fn a_cqe_is_asked_for_before_the_queue_is_full() {
    for batch in [1, 3, 16] {
        let mut rig = Rig::new(64, 16);
        let appends: Vec<u32> = (0..16).collect();
        for data in appends.chunks(batch) {
            silently(&mut rig, data);
        }
        let asked: Vec<usize> = (0..16).filter(|i| rig.block(*i)[17] & 0x80 != 0).collect();
        assert_eq!(asked, [4, 9, 14], "batches of {batch}");
        assert_eq!(append(&mut rig, tagged(0), None), Err(PostError::QueueFull));
        rig.answer(AppOp::APPEND, 0, true);
        assert_eq!(rig.list.free_operations(), 5);
    }
}

#[test]
fn a_batch_goes_on_at_the_start_of_the_ring() {
    let mut rig = Rig::new(64, 8);
    for lap in 0..3 {
        let data = lap * 6..lap * 6 + 6;
        silently(&mut rig, &data.clone().collect::<Vec<_>>());
        assert_eq!(rig.doorbells.record(), data.end);
        for index in data {
            let block = rig.block(index as usize % 8);
            assert_eq!(block[1..4], [0, index as u8, 0x28], "block {index}");
            assert_eq!((block[19], block[39]), (index as u8 + 1, index as u8), "block {index}");
        }
        while rig.answer(AppOp::APPEND, 0, true) != Completion::Stray {}
    }
}

/// The next batch or a completion takes over the appends of a forgotten batch.
#[test]
fn a_forgotten_batch_is_rung_by_the_next() {
    for completes in [false, true] {
        let mut rig = Rig::new(8, 32);
        let mut posting = rig.list.posting();
        let handles = [0, 1, 2].map(|data| {
            // SAFETY: no buffer.
            unsafe { posting.append(silent(data), None) }.unwrap()
        });
        forget(posting);
        assert_eq!(rig.doorbells.record(), 0);
        if completes {
            // By a device that knows more than the operations contained.
            rig.message(AppOp::CONSUMED_MSG, 1, header(1, 0), 0);
            assert_eq!(rig.list.free_entries(), 6);
        }
        let next = append(&mut rig, tagged(3), None).unwrap();
        assert_eq!((next.entry(), rig.doorbells.record()), (3, 4));
        assert_eq!(rig.list.data(handles[0]), Some(0));
        assert_eq!(rig.list.data(handles[1]), (!completes).then_some(1));
        for data in 4..8 + u32::from(completes) {
            append(&mut rig, tagged(data), None).unwrap();
        }
        assert_eq!(append(&mut rig, tagged(9), None), Err(PostError::ListFull));
    }
}

#[test]
fn what_a_destroyed_list_held_comes_back_once() {
    let mut rig = Rig::new(4, 16);
    let handles = [1, 2, 3].map(|data| append(&mut rig, tagged(data), None).unwrap());
    for _ in 0..3 {
        rig.answer(AppOp::APPEND, 0, true);
    }
    rig.message(AppOp::CONSUMED_MSG, handles[1].entry(), header(2, 0), 0);
    rig.message(AppOp::CONSUMED, handles[2].entry(), header(3, 0), 0);
    let mut back = Vec::new();
    rig.list.drain(|data| back.push(data));
    assert_eq!(back, [1, 3]);
    rig.list.drain(|data| panic!("{data} once more"));
}
