//! Completions, errors, and what is refused.

use core::ptr::NonNull;
use std::vec::Vec;

use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe, op_own};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::super::{Completion, Failure, Flags, Immediate, Payload, PostError};
use super::rig::{QPN, Rig, Wqe, inline_of};
use crate::completion::Cqe;
use crate::sge::Sge;
use crate::testing::Arena;

const NONE: Flags = Flags::NONE;
const SIGNALED: Flags = Flags::SIGNALED;

fn read(bytes: &[u8; 64]) -> Option<Completion> {
    let mut arena = Arena::default();
    let cqe: NonNull<u8> = arena.cut(64);
    // SAFETY: an aligned CQE in the arena, which no code writes after this.
    unsafe {
        cqe.cast().write(*bytes);
        Completion::read(Cqe::read(cqe, bytes[63] & 1, 64))
    }
}

#[test]
fn cqes_of_a_send_queue() {
    let mut cqe = Cqe64 {
        byte_cnt: 0x1000.into(),
        sop_drop_qpn: (0x1000_0000 | QPN).into(),
        wqe_counter: 0xfffe.into(),
        op_own: op_own(CqeOpcode::Requester, CqeFormat::Plain, false, 1),
        ..Cqe64::zeroed()
    };
    let opcode = WqeOpcode::RDMA_READ;
    let read_done = Completion { qpn: QPN, wqe_counter: 0xfffe, opcode, result: Ok(0x1000) };
    assert_eq!(read(&cqe.to_bytes()), Some(read_done));
    cqe.op_own = op_own(CqeOpcode::Requester, CqeFormat::Inline32, false, 1);
    assert_eq!(read(&cqe.to_bytes()), None, "data in the CQE");
    for opcode in (1..16).filter(|opcode| *opcode != 13) {
        let opcode = CqeOpcode::from_bits(opcode);
        cqe.op_own = op_own(opcode, CqeFormat::Plain, false, 1);
        assert_eq!(read(&cqe.to_bytes()), None, "{opcode:?}");
    }
    for syndrome in [Syndrome::REMOTE_ACCESS, Syndrome::WR_FLUSH] {
        let error = ErrorCqe {
            vendor_err_synd: 0x88,
            syndrome: syndrome.get(),
            s_wqe_opcode_qpn: (0x0800_0000 | QPN).into(),
            wqe_counter: 3.into(),
            op_own: op_own(CqeOpcode::RequesterError, CqeFormat::Plain, false, 0),
            ..ErrorCqe::from_bytes(&[0; 64])
        };
        let result = Err(Failure { syndrome, vendor: 0x88 });
        let opcode = WqeOpcode::RDMA_WRITE;
        let failed = Completion { qpn: QPN, wqe_counter: 3, opcode, result };
        assert_eq!(read(&error.to_bytes()), Some(failed));
    }
}

#[test]
fn a_cqe_retires_all_up_to_the_wqe_that_it_names() {
    let mut rig = Rig::new(16, 4);
    rig.start_at(14, 0);
    // A WQE has started at each block before.
    for data in 0..16 {
        rig.send(1, NONE, data).unwrap();
    }
    rig.complete(29).unwrap();
    rig.start_at(14, 0);
    for (data, blocks) in [1, 2, 3, 1].into_iter().enumerate() {
        let flags = if data == 1 { SIGNALED } else { NONE };
        rig.send(blocks, flags, data as u32).unwrap();
    }
    assert_eq!(rig.queue.free_blocks(), 9);
    assert_eq!(rig.complete(15).unwrap(), [0, 1]);
    assert_eq!(rig.queue.free_blocks(), 12);
    // Blocks of a WQE that is over, in the middle of a WQE, and beyond all.
    for stray in [14, 15, 16, 18, 19, 21, 22, 17 + 16] {
        assert_eq!(rig.complete(stray), None, "{stray}");
    }
    assert_eq!(rig.complete(20).unwrap(), [2, 3]);
    assert!(rig.queue.is_empty());
    assert_eq!(rig.complete(20), None);
}

/// The WQEs before the first failed one have succeeded. It and each after it has a CQE of its own.
#[test]
fn a_failure_and_the_flushes_after_it_name_each_wqe_in_order() {
    let mut rig = Rig::new(16, 4);
    for data in 0..4 {
        rig.send(2, NONE, data).unwrap();
    }
    assert_eq!(rig.complete(2).unwrap(), [0, 1]);
    assert_eq!(rig.complete(4).unwrap(), [2]);
    // Posted to a queue in error: flushed too.
    rig.send(1, NONE, 4).unwrap();
    assert_eq!(rig.complete(6).unwrap(), [3]);
    assert_eq!(rig.complete(8).unwrap(), [4]);
    assert!(rig.queue.is_empty());
}

#[test]
fn a_completion_that_is_dropped_or_forgotten_keeps_the_count() {
    let mut rig = Rig::new(8, 1);
    for data in 0..4 {
        rig.send(1, NONE, data).unwrap();
    }
    drop(rig.queue.complete(1).unwrap());
    assert_eq!(rig.queue.free_blocks(), 6);
    let mut completed = rig.queue.complete(3).unwrap();
    assert_eq!(completed.next(), Some(2));
    core::mem::forget(completed);
    assert_eq!(rig.queue.free_blocks(), 7);
    assert_eq!(rig.complete(3).unwrap(), [3]);
}

/// Blocks are what is counted: 8 WQEs of one block, 4 of two, 2 of three.
#[test]
fn the_queue_is_full_when_its_blocks_are() {
    for (blocks, fit) in [(1, 8), (2, 4), (3, 2), (4, 2), (5, 1), (8, 1)] {
        let mut rig = Rig::new(8, 8);
        for data in 0..fit {
            assert_eq!(rig.send(blocks, SIGNALED, data), Ok(()));
        }
        let before: Vec<_> = (0..8).map(|block| rig.device.block(block)).collect();
        assert_eq!(rig.send(blocks, SIGNALED, 9), Err(PostError::Full));
        let after: Vec<_> = (0..8).map(|block| rig.device.block(block)).collect();
        assert_eq!(before, after, "nothing was written");
        assert_eq!(rig.device.look(), fit as usize);
        rig.complete(0).unwrap();
        assert_eq!(rig.send(blocks, SIGNALED, 9), Ok(()));
        rig.device.queue.pop_front();
        assert_eq!(rig.device.look(), 1);
    }
}

fn send(rig: &mut Rig, payload: Payload<'_>) -> Result<(), PostError> {
    // SAFETY: [memory] never touched; the device is a model.
    unsafe { rig.queue.posting().send(payload, Immediate::None, SIGNALED, 0) }
}

#[test]
fn what_is_too_long_is_refused_and_says_why() {
    let sge = |length| Sge { addr: 1 << 32, length, lkey: 7 };
    let mut rig = Rig::new(64, 2);
    let seven = [sge(1); 7];
    assert_eq!(send(&mut rig, Payload::gather(&seven)), Ok(()));
    let eight = [sge(1); 8];
    assert_eq!(send(&mut rig, Payload::gather(&eight)), Err(PostError::TooLong));
    assert_eq!(send(&mut rig, Payload::gather(&[sge(0x7fff_ffff)])), Ok(()));
    let long = [sge(1), sge(0x8000_0000)];
    assert_eq!(send(&mut rig, Payload::gather(&long)), Err(PostError::SgeTooLong));
    let bytes = [0; 1 << 12];
    let fits = inline_of(2);
    assert_eq!(send(&mut rig, Payload::inline(&[&bytes[..fits]])), Ok(()));
    for len in [fits + 1, 988, 989, 1 << 12] {
        let refused = send(&mut rig, Payload::inline(&[&bytes[..len]]));
        assert_eq!(refused, Err(PostError::InlineTooLong), "{len}");
    }
    assert_eq!(rig.device.look(), 3);
    assert_eq!(rig.queue.free_blocks(), 64 - 2 - 1 - 2);
    // A size has six bits: 16 blocks hold a unit more.
    let mut rig = Rig::new(64, 100);
    let (most, more) = ([sge(1); 62], [sge(1); 63]);
    assert_eq!(send(&mut rig, Payload::gather(&most)), Ok(()));
    assert_eq!(send(&mut rig, Payload::gather(&more)), Err(PostError::TooLong));
    assert_eq!(send(&mut rig, Payload::inline(&[&bytes[..988]])), Ok(()));
    assert_eq!(send(&mut rig, Payload::inline(&[&bytes[..989]])), Err(PostError::InlineTooLong));
}

#[test]
fn a_reset_gives_back_what_is_outstanding_and_starts_at_0() {
    let mut rig = Rig::new(8, 2);
    rig.start_at(5, 1);
    for data in 0..3 {
        rig.send(2, NONE, data).unwrap();
    }
    rig.complete(5).unwrap();
    let mut back = Vec::new();
    // SAFETY: the device is a model.
    unsafe { rig.queue.reset(|data| back.push(data)) }
    assert_eq!(back, [1, 2]);
    assert_eq!(rig.complete(7), None);
    rig.device.start_at(0);
    for data in 9..11 {
        rig.send(2, NONE, data).unwrap();
    }
    rig.device.look();
    // The second is the first that must ask, as in a new queue.
    let asks: Vec<_> = rig.device.queue.iter().map(|wqe| (wqe.index, wqe.asks())).collect();
    assert_eq!(asks, [(0, false), (2, true)]);
    assert_eq!(rig.device.record(), 4);
    assert_eq!(rig.complete(2).unwrap(), [9, 10]);
}

/// A ring that may have fewer blocks outstanding than it has is full at so many, however often it wraps; the largest
/// WQE finds room in any case.
#[test]
fn fewer_blocks_are_outstanding_than_the_ring_has() {
    for (asked, room) in [(5, 5), (1, 4), (0, 4), (16, 16), (u32::MAX, 16)] {
        let mut rig = Rig::new(16, 4);
        rig.queue = rig.queue.with_max_outstanding(asked);
        assert_eq!((rig.queue.capacity(), rig.queue.free_blocks()), (room, room));
        for lap in 0..40 {
            for number in 0..room {
                rig.send(1, NONE, number).unwrap();
                rig.device.look();
                let has_room = rig.queue.free_blocks() >= 4;
                assert!(has_room || rig.device.queue.iter().any(Wqe::asks), "nothing makes room after {number}");
            }
            assert_eq!(rig.send(1, NONE, 99), Err(PostError::Full));
            rig.device.look();
            // The queue asks for CQEs by itself.
            let asking = rig.device.queue.iter().rev().find(|wqe| wqe.asks()).expect("a WQE that asks").index;
            let back = rig.complete(asking).unwrap();
            assert!(back.iter().copied().eq(0..back.len() as u32), "lap {lap}: {back:?}");
            let last = rig.device.queue.back().unwrap().index;
            let rest = rig.complete(last).unwrap_or_default();
            assert_eq!(back.len() + rest.len(), room as usize, "lap {lap}");
            rig.device.queue.clear();
            assert!(rig.queue.is_empty());
            rig.send(4, SIGNALED, lap).unwrap();
            rig.device.look();
            let first = rig.device.queue.pop_front().unwrap().index;
            assert_eq!(rig.complete(first), Some(std::vec![lap]));
        }
    }
}
