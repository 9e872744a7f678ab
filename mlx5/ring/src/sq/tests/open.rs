//! WQEs written call by call, in small queues: the same bytes as those that are posted at once.

use core::iter;
use core::mem::ManuallyDrop;
use std::vec::Vec;

use super::super::{
    BlueFlame, Config, Flags, Immediate, Open, Payload, PostError, Remote, SendQueue,
};
use super::rig::{HALF, Rig};
use crate::sge::Sge;
use mlx5_wire::datagram::DatagramSegment;

const REMOTE: Remote = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x99 };
const SGES: [Sge; 16] = [Sge { addr: 0x1122_3344_5566_7788, length: 0x100, lkey: 7 }; 16];
const BYTES: [u8; 256] = [0x5a; 256];

fn to() -> DatagramSegment {
    DatagramSegment::infiniband(7, 2).to(0x99, 0x8000_0001)
}

fn open(queue: &mut SendQueue<u32>, kind: usize) -> Result<Open, PostError> {
    match kind {
        0 => queue.open_send(Immediate::Data(5), Flags::SIGNALED),
        1 => queue.open_write(REMOTE, None, Flags::SIGNALED),
        _ => queue.open_datagram(Immediate::Data(5), Flags::SIGNALED),
    }
}

fn post(rig: &mut Rig, kind: usize, payload: Payload<'_>) -> Result<(), PostError> {
    let mut posting = ManuallyDrop::new(rig.queue.posting());
    // SAFETY: [memory] never touched; the device is a model.
    unsafe {
        match kind {
            0 => posting.send(payload, Immediate::Data(5), Flags::SIGNALED, 1),
            1 => posting.write(REMOTE, payload, None, Flags::SIGNALED, 1),
            _ => posting.send_to(&to(), payload, Some(5), Flags::SIGNALED, 1),
        }
    }
}

/// Each operation at each block of each small queue, with each number of SGEs and of inline bytes, the address of a datagram
/// first and last.
#[test]
fn each_wqe_at_each_block() {
    let inline: Vec<[&[u8]; 1]> = (0..=BYTES.len()).map(|len| [&BYTES[..len]]).collect();
    let payloads = (0..=SGES.len()).map(|count| Payload::gather(&SGES[..count]));
    let payloads: Vec<_> = payloads.chain(inline.iter().map(|one| Payload::inline(one))).collect();
    for (count, kind) in
        [1, 2, 4, 8].into_iter().flat_map(|count| [0, 1, 2].map(|kind| (count, kind)))
    {
        let (mut built, mut posted) = (Rig::new(count, count), Rig::new(count, count));
        for start in 0xffff..0xffff + count {
            for (&payload, is_addressed_last) in
                payloads.iter().zip([true, false].into_iter().cycle())
            {
                for rig in [&mut built, &mut posted] {
                    rig.start_at(start, 0);
                }
                let queue = &mut built.queue;
                let mut wqe = open(queue, kind).unwrap();
                // SAFETY: [memory] never touched; the device is a model. Nothing is posted since it was opened.
                let put = unsafe {
                    if kind == 2 && !is_addressed_last {
                        queue.put_address(&wqe, &to());
                    }
                    let put = queue.put(&mut wqe, payload);
                    if kind == 2 && is_addressed_last {
                        queue.put_address(&wqe, &to());
                    }
                    put
                };
                assert_eq!(put, post(&mut posted, kind, payload));
                if put.is_ok() {
                    // SAFETY: as above.
                    unsafe { queue.close(&wqe, 1) };
                }
                drop((built.queue.posting(), posted.queue.posting()));
                assert_eq!(built.device.look(), usize::from(put.is_ok()));
                posted.device.look();
                assert_eq!(built.device.queue, posted.device.queue, "{count} {start} {payload:?}");
                assert_eq!(built.queue.free_blocks(), posted.queue.free_blocks());
            }
        }
    }
}

/// A queue asks for CQEs at the same WQEs.
#[test]
fn a_wqe_asks_for_a_cqe_when_the_queue_needs_one() {
    let (mut built, mut posted) = (Rig::new(16, 2), Rig::new(16, 2));
    let payload = Payload::gather(&SGES[..4]);
    for data in 0..6 {
        let queue = &mut built.queue;
        let mut wqe = queue.open_send(Immediate::None, Flags::NONE).unwrap();
        let mut posting = ManuallyDrop::new(posted.queue.posting());
        // SAFETY: [memory] never touched; the device is a model. Nothing is posted since it was opened.
        unsafe {
            queue.put(&mut wqe, payload).unwrap();
            queue.close(&wqe, data);
            posting.send(payload, Immediate::None, Flags::NONE, data).unwrap();
        }
    }
    for rig in [&mut built, &mut posted] {
        drop(rig.queue.posting());
        assert_eq!(rig.device.look(), 6);
    }
    assert!(built.device.queue.iter().any(|wqe| wqe.asks()));
    assert_eq!(built.device.queue, posted.device.queue);
}

/// A payload that finds no room leaves the WQE open for one that does; nothing is posted before it is closed.
#[test]
fn a_full_queue() {
    let mut rig = Rig::new(4, 4);
    for data in 0..3 {
        rig.send(1, Flags::SIGNALED, data).unwrap();
    }
    let queue = &mut rig.queue;
    let mut wqe = open(queue, 1).unwrap();
    // SAFETY: [memory] never touched; the device is a model. Nothing is posted since it was opened.
    unsafe {
        assert_eq!(queue.put(&mut wqe, Payload::gather(&SGES[..3])), Err(PostError::Full));
        let long = [&BYTES[..]];
        assert_eq!(queue.put(&mut wqe, Payload::inline(&long)), Err(PostError::InlineTooLong));
        assert_eq!(queue.put(&mut wqe, Payload::gather(&SGES)), Err(PostError::TooLong));
        let too_long = [Sge { length: 1 << 31, ..SGES[0] }];
        assert_eq!(queue.put(&mut wqe, Payload::gather(&too_long)), Err(PostError::SgeTooLong));
        assert_eq!((queue.free_blocks(), queue.posted()), (1, 3));
        queue.put(&mut wqe, Payload::gather(&SGES[..2])).unwrap();
        queue.close(&wqe, 3);
    }
    for kind in 0..3 {
        assert_eq!(open(queue, kind).unwrap_err(), PostError::Full);
    }
    drop(queue.posting());
    assert_eq!(rig.device.look(), 4);
    assert_eq!(rig.complete(0), Some([0].into()));
    open(&mut rig.queue, 2).unwrap();
    assert_eq!(rig.complete(3), Some([1, 2, 3].into()));
}

/// Each number of WQEs that are closed, and one that is open, are taken back; those of before are with the device.
#[test]
fn a_batch_that_is_aborted() {
    for (start, closed) in (0..8).flat_map(|start| (0..4).map(move |closed| (start, closed))) {
        let mut rig = Rig::new(8, 4);
        rig.start_at(start, 0);
        rig.send(3, Flags::NONE, 9).unwrap();
        assert_eq!(rig.device.look(), 1);
        let queue = &mut rig.queue;
        let mark = queue.mark();
        // SAFETY: [memory] never touched; the device is a model. Nothing is posted since each was opened, which has room.
        unsafe {
            for data in 0..closed {
                let wqe = open(queue, 1).unwrap();
                queue.close_with(&wqe, SGES[0], data);
            }
            let mut wqe = open(queue, 2).unwrap();
            queue.put(&mut wqe, Payload::gather(&SGES[..1])).unwrap();
            queue.put_address(&wqe, &to());
        }
        assert!(queue.rewind(mark));
        drop(queue.posting());
        assert_eq!(rig.device.look(), 0);
        rig.send(4, Flags::SIGNALED, 10).unwrap();
        assert_eq!(rig.device.look(), 1);
        assert_eq!(rig.complete((start + 3) as u16), Some([9, 10].into()));
    }
}

/// A WQE with inline data is copied to the register, and the next one without is not, however they are closed.
#[test]
fn blue_flame_of_inline_data_alone() {
    let config = Config { max_wqe_blocks: 4, blue_flame: BlueFlame::Inline };
    for is_short in [true, false] {
        let mut rig = Rig::with(8, config, HALF as u32);
        let close = |rig: &mut Rig, payload: Payload<'_>| {
            let before = rig.device.register();
            let queue = &mut rig.queue;
            let mut wqe = open(queue, 0).unwrap();
            // SAFETY: [memory] never touched; the device is a model. Nothing is posted since it was opened, which has room.
            unsafe {
                match payload {
                    Payload { inline: [bytes], .. } if is_short => {
                        queue.close_with_inline(&wqe, bytes.len(), iter::once(bytes), 0)
                    }
                    Payload { sges: &[sge], .. } if is_short => queue.close_with(&wqe, sge, 0),
                    _ => {
                        queue.put(&mut wqe, payload).unwrap();
                        queue.close(&wqe, 0);
                    }
                }
            }
            drop(queue.posting());
            let after = rig.device.register();
            (0..2).any(|half| before[half][16..] != after[half][16..])
        };
        for byte in [7, 8] {
            assert!(close(&mut rig, Payload::inline(&[&[byte; 20]])));
            assert!(!close(&mut rig, Payload::gather(&SGES[..1])));
        }
    }
}
