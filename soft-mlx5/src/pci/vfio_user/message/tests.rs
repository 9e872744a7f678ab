use super::*;
use crate::base::rng::Rng;

fn header(command: u16, size: u32, flags: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..2].copy_from_slice(&7u16.to_le_bytes());
    bytes[2..4].copy_from_slice(&command.to_le_bytes());
    bytes[4..8].copy_from_slice(&size.to_le_bytes());
    bytes[8..12].copy_from_slice(&flags.to_le_bytes());
    bytes
}

#[test]
fn a_header_and_its_replies() {
    let bytes = [7, 0, 9, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let header = Header::parse(&bytes).unwrap();
    assert_eq!((header.id, header.command, header.payload()), (7, 9, 16));
    assert!(header.wants_reply());
    assert_eq!(header.reply(Ok(&[0xaa, 0xbb])), [7, 0, 9, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb]);
    assert_eq!(header.reply(Err(EINVAL)), [7, 0, 9, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
}

#[test]
fn headers_that_end_a_connection() {
    assert_eq!(Header::parse(&header(9, 15, 0)), Err(EINVAL));
    assert_eq!(Header::parse(&header(9, MAX_MESSAGE + 1, 0)), Err(EINVAL));
    assert_eq!(Header::parse(&header(9, u32::MAX, 0)), Err(EINVAL));
    assert_eq!(Header::parse(&header(9, 16, REPLY)), Err(EINVAL));
    assert!(Header::parse(&header(9, MAX_MESSAGE, 0)).is_ok());
    assert!(!Header::parse(&header(10, 16, NO_REPLY)).unwrap().wants_reply());
}

#[test]
fn accesses_to_regions() {
    let read = [0x14, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    let expected = Request::RegionRead { region: 0, offset: 0x1014, count: 4 };
    assert_eq!(Request::parse(9, &read), Ok(expected));
    let write = [0x18, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0xab, 0xcd];
    let expected = Request::RegionWrite { region: 7, offset: 0x18, data: &[0xab, 0xcd] };
    assert_eq!(Request::parse(10, &write), Ok(expected));
    // A count of more bytes than the message has, and a read of more than a message may carry.
    assert_eq!(Request::parse(10, &write[..17]), Err(EINVAL));
    let mut read = read;
    read[12..].copy_from_slice(&(MAX_TRANSFER + 1).to_le_bytes());
    assert_eq!(Request::parse(9, &read), Err(EINVAL));
}

#[test]
fn memory_as_qemu_maps_and_unmaps_it() {
    let mut map = Vec::new();
    map.extend([32, 0, 0, 0, 3, 0, 0, 0]);
    map.extend(0x10_0000u64.to_le_bytes());
    map.extend(0x1_0000_0000u64.to_le_bytes());
    map.extend(0x4000_0000u64.to_le_bytes());
    let expected = Request::DmaMap { writable: true, offset: 0x10_0000, address: 0x1_0000_0000, size: 0x4000_0000 };
    assert_eq!(Request::parse(2, &map), Ok(expected));
    let mut unmap = vec![24, 0, 0, 0, 0, 0, 0, 0];
    unmap.extend(0x10_0000u64.to_le_bytes());
    unmap.extend(0x1000u64.to_le_bytes());
    let expected = Request::DmaUnmap { all: false, address: 0x10_0000, size: 0x1000 };
    assert_eq!(Request::parse(3, &unmap), Ok(expected));
    unmap[4] = 2;
    assert!(matches!(Request::parse(3, &unmap), Ok(Request::DmaUnmap { all: true, .. })));
    unmap[4] = 1;
    assert_eq!(Request::parse(3, &unmap), Err(EINVAL));
}

#[test]
fn interrupts_as_qemu_sets_them() {
    let set = |flags: u8| [20, 0, 0, 0, flags, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0];
    let expected = Request::SetIrqs { action: IrqAction::SetEventfds, index: 2, start: 1, count: 3 };
    assert_eq!(Request::parse(8, &set(0x24)), Ok(expected));
    let expected = Request::SetIrqs { action: IrqAction::Trigger, index: 2, start: 1, count: 3 };
    assert_eq!(Request::parse(8, &set(0x21)), Ok(expected));
    for flags in [0x22, 0x09, 0x11, 0x25, 0] {
        assert_eq!(Request::parse(8, &set(flags)), Err(EINVAL), "{flags:#x}");
    }
}

#[test]
fn every_command_refuses_a_payload_that_is_cut() {
    let full = [0u8; 32];
    let needed = [(1, 4), (2, 32), (3, 24), (4, 0), (5, 12), (7, 12), (8, 20), (9, 16), (10, 16), (13, 0)];
    for command in 0..=64 {
        let needs = needed.iter().find(|(known, _)| *known == command);
        for len in 0..=full.len() {
            let parsed = Request::parse(command, &full[..len]);
            match needs {
                None => assert_eq!(parsed, Err(ENOTSUP)),
                // Flags of zero are no valid action.
                Some((8, _)) => assert_eq!(parsed, Err(EINVAL)),
                Some((_, needs)) => assert_eq!(parsed.is_ok(), len >= *needs, "{command}"),
            }
        }
    }
}

#[test]
fn garbage_is_parsed_or_refused_and_never_read_beyond() {
    let mut rng = Rng::new(47);
    for _ in 0..1_000_000 {
        let len = rng.below(64) as usize;
        let payload: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let command = rng.below(20) as u16;
        match Request::parse(command, &payload) {
            Ok(Request::RegionWrite { data, .. }) => assert!(data.len() + 16 <= len),
            Ok(Request::RegionRead { count, .. }) => assert!(count <= MAX_TRANSFER),
            _ => {}
        }
    }
}
