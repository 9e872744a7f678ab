//! WQEs byte by byte. The expected bytes are those that libmlx5 writes.

use std::string::String;
use std::vec::Vec;

use mlx5_wire::datagram::{DatagramSegment, GlobalRoute};

use super::super::{Flags, Immediate, KeyChange, Payload, PostError, Posting, Remote, Window};
use super::rig::{Rig, inline_of};
use crate::sge::Sge;

const SGE: Sge = Sge { addr: 0x1122_3344_5566_7788, length: 0x100, lkey: 0xaabb_ccdd };
const DATA: &str = "00000100 aabbccdd 11223344 55667788";
const REMOTE: Remote = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x99 };
const RADDR: &str = "01020304 05060708 00000099 00000000";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Posts at running index `index`, and compares what the device finds.
#[track_caller]
fn writes(index: u32, expected: &str, post: impl FnOnce(&mut Posting<'_, u32>) -> Result<(), PostError>) {
    let mut rig = Rig::new(8, 4);
    rig.start_at(index, 0);
    assert_eq!(post(&mut rig.queue.posting()), Ok(()));
    assert_eq!(rig.device.look(), 1);
    let expected = hex(expected);
    assert_eq!(rig.device.queue[0].bytes, expected);
    // The last block is as it was beyond the end of the WQE.
    let wqe = &rig.device.queue[0];
    let last = rig.device.block(index + wqe.blocks - 1);
    assert!(last[(expected.len() - 1) % 64 + 1..].iter().all(|byte| *byte == 0xee));
}

const SIGNALED: Flags = Flags::SIGNALED;

/// Ethernet segment with the header inline (`struct mlx5_wqe_eth_seg`), then the rest of the frame.
#[test]
fn frames() {
    let header = core::array::from_fn(|i| i as u8 + 0x10);
    let eth = "00000000 c0000000 00000000 0012 1011 12131415 16171819 1a1b1c1d 1e1f2021";
    let expected = std::format!("0000000a 12345604 00000008 00000000 {eth} {DATA}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(0, &expected, |posting| unsafe { posting.send_frame(&header, 0xc0, Payload::gather(&[SGE]), SIGNALED, 0) });
    let expected = "0000030a 12345604 00000000 00000000 00000000 00000000 00000000 0012 1011 \
                    12131415 16171819 1a1b1c1d 1e1f2021 80000003 a1a2a3ee eeeeeeee eeeeeeee";
    // SAFETY: as above.
    writes(3, expected, |posting| unsafe {
        posting.send_frame(&header, 0, Payload::inline(&[&[0xa1, 0xa2, 0xa3]]), Flags::NONE, 0)
    });
}

/// An enhanced multi-packet WQE as DPDK writes it (`mlx5_tx_burst_empw_simple`): Ethernet segment without a header, a
/// pointer for each frame.
#[test]
fn frames_with_one_ethernet_segment() {
    let eth = "00000000 c0000000 00000000 00000000";
    let third = Sge { length: 60, ..SGE };
    let expected =
        std::format!("00000029 12345605 00000008 00000000 {eth} {DATA} {DATA} 0000003c aabbccdd 11223344 55667788");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(0, &expected, |posting| unsafe { posting.send_frames(0xc0, &[SGE, SGE, third], SIGNALED, 0) });
    // Around the end of the ring: three of eight blocks ask for a CQE by themselves. Then a single frame.
    let eth = "00000000 00000000 00000000 00000000";
    let expected = std::format!("00000629 1234560c 00000008 00000000 {eth} {}", DATA.repeat(10));
    // SAFETY: as above.
    writes(6, &expected, |posting| unsafe { posting.send_frames(0, &[SGE; 10], Flags::NONE, 0) });
    let expected = std::format!("00000729 12345603 00000000 00000000 {eth} {DATA}");
    // SAFETY: as above.
    writes(7, &expected, |posting| unsafe { posting.send_frames(0, &[SGE], Flags::NONE, 0) });
}

/// The longest WQE of the queue and its free blocks bound the number of frames; a WQE completes as one request.
#[test]
fn as_many_frames_as_there_is_room_for() {
    let mut rig = Rig::new(8, 4);
    for (most, expected) in [(32, 14), (14, 14), (3, 3)] {
        assert_eq!(rig.queue.posting().frames_of_next(most), expected);
    }
    let sges = [SGE; 15];
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    unsafe {
        let mut posting = rig.queue.posting();
        assert_eq!(posting.send_frames(0, &sges, SIGNALED, 1), Err(PostError::TooLong));
        assert_eq!(posting.send_frames(0, &sges[..14], SIGNALED, 1), Ok(()));
        assert_eq!(posting.send_frames(0, &sges[..3], SIGNALED, 2), Ok(()));
        // Two of eight blocks are free.
        assert_eq!(posting.frames_of_next(32), 6);
        assert_eq!(posting.send_frames(0, &sges[..7], SIGNALED, 3), Err(PostError::Full));
        assert_eq!(posting.send_frames(0, &sges[..6], SIGNALED, 3), Ok(()));
        assert_eq!(posting.frames_of_next(32), 1);
        assert_eq!(posting.send_frames(0, &sges[..1], SIGNALED, 4), Err(PostError::Full));
    }
    assert_eq!(rig.device.look(), 3);
    let Some(done) = rig.queue.complete(4) else { panic!("a WQE starts at block 4") };
    assert_eq!(done.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn sends() {
    let one = &[SGE][..];
    let flags = SIGNALED | Flags::SOLICITED;
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(0, &std::format!("0000000a 12345602 0000000a 00000000 {DATA}"), |posting| unsafe {
        posting.send(Payload::gather(one), Immediate::None, flags, 0)
    });
    let three = &[SGE, SGE, SGE][..];
    let expected = std::format!("0000010b 12345604 00000008 0000cafe {DATA} {DATA} {DATA}");
    // SAFETY: as above.
    writes(1, &expected, |posting| unsafe {
        posting.send(Payload::gather(three), Immediate::Data(0xcafe), SIGNALED, 0)
    });
    // SAFETY: as above.
    writes(2, &std::format!("00000201 12345602 00000000 11223344 {DATA}"), |posting| unsafe {
        posting.send(Payload::gather(one), Immediate::Invalidate(0x1122_3344), Flags::NONE, 0)
    });
    // SAFETY: as above.
    writes(5, "0000050a 12345601 00000000 00000000", |posting| unsafe {
        posting.send(Payload::default(), Immediate::None, Flags::NONE, 0)
    });
}

#[test]
fn empty_entries_and_empty_inline_pieces_are_left_out() {
    let empty = Sge { length: 0, ..SGE };
    let sges = &[empty, SGE, empty][..];
    let payload = Payload { sges, ..Payload::inline(&[&[], &[]]) };
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(0, &std::format!("0000000a 12345602 00000000 00000000 {DATA}"), |posting| unsafe {
        posting.send(payload, Immediate::None, Flags::NONE, 0)
    });
}

#[test]
fn one_sided() {
    let one = &[SGE][..];
    let write = Payload::gather(one);
    let expected = std::format!("00000208 12345603 00000080 00000000 {RADDR} {DATA}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(2, &expected, |posting| unsafe { posting.write(REMOTE, write, None, Flags::FENCE, 0) });
    let expected = std::format!("00000209 12345603 00000000 0000cafe {RADDR} {DATA}");
    // SAFETY: as above.
    writes(2, &expected, |posting| unsafe { posting.write(REMOTE, write, Some(0xcafe), Flags::NONE, 0) });
    // Over the end of the ring.
    let two = &[SGE, SGE, SGE][..];
    let expected = std::format!("00000710 12345605 00000008 00000000 {RADDR} {DATA} {DATA} {DATA}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(7, &expected, |posting| unsafe { posting.read(REMOTE, two, SIGNALED, 0) });
    let result = Sge { length: 8, ..SGE };
    let data = "00000008 aabbccdd 11223344 55667788";
    let expected =
        std::format!("00000311 12345604 00000008 00000000 {RADDR} 00000000 00000022 00000000 00000011 {data}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(3, &expected, |posting| unsafe { posting.compare_swap(REMOTE, [0x11, 0x22], result, SIGNALED, 0) });
    let expected =
        std::format!("00ffff12 12345604 00000008 00000000 {RADDR} 00000000 00000022 00000000 00000000 {data}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(0xffff, &expected, |posting| unsafe { posting.fetch_add(REMOTE, 0x22, result, SIGNALED, 0) });
}

/// Around the end of the ring: the target fills the first block of each WQE.
#[test]
fn requests_to_dc_targets() {
    let to = DatagramSegment::infiniband(7, 3).to_target(0x4711, 0x1122_3344_5566_7788);
    let av = "11223344 55667788 80004711 03000007 00000000 00000000 00000000 00000000 \
              00000000 00000000 00000000 00000000";
    let one = &[SGE][..];
    let expected = std::format!("0000070b 12345605 00000008 0000cafe {av} {DATA}");
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(7, &expected, |posting| unsafe {
        posting.send_to_target(&to, Payload::gather(one), Immediate::Data(0xcafe), SIGNALED, 0)
    });
    let expected = std::format!("00000708 12345606 00000000 00000000 {av} {RADDR} {DATA}");
    // SAFETY: as above.
    writes(7, &expected, |posting| unsafe {
        posting.write_to_target(&to, REMOTE, Payload::gather(one), None, Flags::NONE, 0)
    });
    let inline = "80000003 a1a2a3ee eeeeeeee eeeeeeee";
    let expected = std::format!("00000609 12345606 00000000 0000cafe {av} {RADDR} {inline}");
    // SAFETY: as above.
    writes(6, &expected, |posting| unsafe {
        posting.write_to_target(&to, REMOTE, Payload::inline(&[&[0xa1, 0xa2, 0xa3]]), Some(0xcafe), Flags::NONE, 0)
    });
    let three = &[SGE, SGE, SGE][..];
    let expected = std::format!("00000610 12345608 00000080 00000000 {av} {RADDR} {DATA} {DATA} {DATA}");
    // SAFETY: as above.
    writes(6, &expected, |posting| unsafe { posting.read_from_target(&to, REMOTE, three, Flags::FENCE, 0) });
    let result = Sge { length: 8, ..SGE };
    let data = "00000008 aabbccdd 11223344 55667788";
    let expected =
        std::format!("00000711 12345607 00000008 00000000 {av} {RADDR} 00000000 00000022 00000000 00000011 {data}");
    // SAFETY: as above.
    writes(7, &expected, |posting| unsafe {
        posting.compare_swap_at_target(&to, REMOTE, [0x11, 0x22], result, SIGNALED, 0)
    });
    let expected =
        std::format!("00ffff12 12345607 00000008 00000000 {av} {RADDR} 00000000 00000022 00000000 00000000 {data}");
    // SAFETY: as above.
    writes(0xffff, &expected, |posting| unsafe { posting.fetch_add_at_target(&to, REMOTE, 0x22, result, SIGNALED, 0) });
}

#[test]
fn the_units_of_a_wqe_are_read_back_around_the_end_of_the_ring() {
    let mut rig = Rig::new(8, 4);
    rig.start_at(7, 0);
    let to = DatagramSegment::infiniband(7, 3).to_target(0x4711, 5);
    // SAFETY: [memory] the memory of the request is never touched; the device is a model.
    let posted = unsafe { rig.queue.posting().read_from_target(&to, REMOTE, &[SGE], SIGNALED, 0) };
    assert_eq!((posted, rig.device.look()), (Ok(()), 1));
    let read: Vec<u8> = (0..6).flat_map(|number| rig.queue.unit(7, number)).collect();
    assert_eq!(read, rig.device.queue[0].bytes);
}

/// Key 0x1234 becomes that of 0x1000 bytes, with variant 0x57, around the end of the ring; then no key is left.
#[test]
fn windows() {
    let remote = Remote { addr: 0x7f00_0000_2000, rkey: 0x12_3457 };
    let window = Window { key: 0x12_3456, remote, len: 0x1000, lkey: 0x1805, read: true, write: false, atomic: true };
    let zeros = |units: usize| "00000000 ".repeat(4 * units);
    let expected = std::format!(
        "00000625 1234560c 00000008 00123456 b0000000 00040000 00000000 203c6041 {} \
         00005000 12345657 00000000 00000000 00007f00 00002000 00000000 00001000 {} \
         00001000 00001805 00007f00 00002000 {}",
        zeros(2),
        zeros(2),
        zeros(3)
    );
    // SAFETY: the device is a model, and looks at no memory.
    writes(6, &expected, |posting| unsafe { posting.bind(&window, SIGNALED, 0) });
    let expected = std::format!(
        "00000725 12345608 00000020 00123457 98000000 00000000 00000000 20006000 {} 40000000 ffffff00 {} {}",
        zeros(2),
        "00000000 00000000",
        zeros(3)
    );
    // SAFETY: as above.
    writes(7, &expected, |posting| unsafe { posting.invalidate(0x12_3457, Flags::SMALL_FENCE, 0) });
    let expected = "00000700 12345601 00000028 00000000";
    // SAFETY: as above.
    writes(7, expected, |posting| unsafe { posting.nop(Flags::SMALL_FENCE | SIGNALED, 0) });
    let mut rig = Rig::new(8, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { rig.queue.posting().bind(&window, SIGNALED, 0) }, Err(PostError::TooLong));
}

/// A batch writes what a posting writes, around the end of the ring, and posts nothing that it was not asked to.
#[test]
fn windows_of_a_batch() {
    let remote = Remote { addr: 0x2000, rkey: 0x57 };
    let window = Window { key: 0x1256, remote, len: 0x10, lkey: 0x1805, read: true, write: false, atomic: false };
    let bind = KeyChange::bind(&window, 0x12_3456);
    let changes = [
        bind,
        bind.zero_based().local_write(),
        KeyChange::bind_type_1(&window),
        KeyChange::unbind_type_1(0x1256, 0x57),
        KeyChange::invalidate(0x1257, 0),
    ];
    for change in changes {
        let [mut posted, mut built] = [(); 2].map(|()| Rig::new(8, 4));
        for rig in [&mut posted, &mut built] {
            rig.start_at(6, 0);
        }
        // SAFETY: [memory] the device is a model, and looks at no memory. The batch is of its queue.
        unsafe {
            assert_eq!(posted.queue.posting().change(&change, SIGNALED, 1), Ok(()));
            let mut batch = built.queue.batch();
            assert_eq!(built.queue.change(&mut batch, &change, SIGNALED, 1), Ok(()));
            assert_eq!(built.device.look(), 0);
            drop(built.queue.commit(&batch));
        }
        assert_eq!((posted.device.look(), built.device.look()), (1, 1));
        assert_eq!(posted.device.queue[0].bytes, built.device.queue[0].bytes);
        // The queue has two blocks left, or three.
        let mut batch = built.queue.batch();
        // SAFETY: as above.
        let results = [(); 4].map(|()| unsafe { built.queue.change(&mut batch, &change, SIGNALED, 1) });
        let fits = (8 - built.device.queue[0].blocks) / built.device.queue[0].blocks;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), fits as usize);
        assert_eq!(results[fits as usize], Err(PostError::Full));
    }
}

#[test]
fn datagrams() {
    let dgid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let route = GlobalRoute { dgid, sgid_index: 0, flow_label: 0, tclass: 0x20, hop_limit: 0x40 };
    let to = DatagramSegment::roce([1, 2, 3, 4, 5, 6], 0xc001, 3, route).to(0x55, 0x1111_1111);
    let expected = std::format!(
        "0000070a 12345605 00000008 00000000 11111111 00000000 80000055 0600c001
         00000000 01020304 05062040 00000000 fe800000 00000000 00000000 00000009 {DATA}"
    );
    // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
    writes(7, &expected, |posting| unsafe { posting.send_to(&to, Payload::gather(&[SGE]), None, SIGNALED, 0) });
    let expected = "0000070b 12345605 00000008 00000007 11111111 00000000 80000055 0600c001
         00000000 01020304 05062040 00000000 fe800000 00000000 00000000 00000009
         80000003 01020300 00000000 00000000";
    let mut rig = Rig::new(8, 4);
    rig.start_at(7, 0);
    // SAFETY: inline bytes alone.
    unsafe {
        let payload = Payload::inline(&[&[1, 2], &[3]]);
        rig.queue.posting().send_to(&to, payload, Some(7), SIGNALED, 0).unwrap();
    }
    rig.device.look();
    let bytes = &rig.device.queue[0].bytes;
    assert_eq!((&bytes[..71], bytes.len()), (&hex(expected)[..71], 80));
}

/// Each length at each distance from the end of the ring, in pieces that are cut at each place around it.
#[test]
fn inline_bytes_go_on_at_the_start_of_the_ring_at_any_byte() {
    let source: Vec<u8> = (0..=255).collect();
    let mut rig = Rig::new(4, 4);
    for start in 0..4 {
        for len in 1..=inline_of(4) {
            for cut in (0..=len).step_by(1 + len / 7) {
                rig.start_at(start, 0);
                let (first, second) = source[..len].split_at(cut);
                let pieces = [first, second];
                // SAFETY: inline bytes alone.
                unsafe {
                    let payload = Payload::inline(&pieces);
                    rig.queue.posting().send(payload, Immediate::None, SIGNALED, 0).unwrap();
                }
                assert_eq!(rig.device.look(), 1);
                let bytes = &rig.device.queue[0].bytes;
                assert_eq!(bytes.len(), 16 + (4 + len).next_multiple_of(16), "{len}");
                assert_eq!(bytes[16..20], (0x8000_0000 | len as u32).to_be_bytes());
                assert_eq!(bytes[20..20 + len], source[..len], "{start} {len} {cut}");
            }
        }
    }
}

/// A header inline and the rest by pointer: the pointer stands at the next unit, after the bytes of each length.
#[test]
fn an_inline_header_and_pointers() {
    let header = [7_u8; 64];
    for start in 0..4 {
        for len in 1..=64 {
            let mut rig = Rig::new(4, 4);
            rig.start_at(start, 0);
            // SAFETY: [memory] the memory of these requests is never touched; the device is a model.
            unsafe {
                let pieces = [&header[..len]];
                let payload = Payload { sges: &[SGE, SGE], ..Payload::inline(&pieces) };
                rig.queue.posting().send(payload, Immediate::None, SIGNALED, 0).unwrap();
            }
            rig.device.look();
            let bytes = &rig.device.queue[0].bytes;
            assert_eq!(bytes.len(), 16 + (4 + len).next_multiple_of(16) + 32);
            assert_eq!(bytes[20..20 + len], header[..len]);
            assert_eq!(bytes[bytes.len() - 32..], [hex(DATA), hex(DATA)].concat(), "{start} {len}");
        }
    }
}
