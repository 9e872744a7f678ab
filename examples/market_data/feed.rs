//! The format on the wire, and the data that the two programs exchange over TCP.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;

use crate::stream::{read_u64, write_u64};

/// Groups of the A and the B feed.
pub const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(239, 192, 1, 1), Ipv4Addr::new(239, 192, 1, 2)];
/// UDP port of both.
pub const PORT: u16 = 30_001;

/// Bytes of the headers of Ethernet, IPv4 and UDP.
pub const HEADERS: usize = 14 + 20 + 8;
/// Bytes of the sequence number after them.
const SEQUENCE: usize = 8;
/// Bytes of a frame.
pub const SIZES: std::ops::RangeInclusive<usize> = 64..=1500;

/// Updates, of both feeds together, that the publisher is ahead of the subscriber at most.
pub const WINDOW: u64 = 2048;
/// Frames that the subscriber takes between two reports.
pub const REPORT: u64 = 256;

/// Writes an update over the whole frame. The adapter writes the checksums.
pub fn write(frame: &mut [u8], feed: usize, sequence: u64) {
    let group = GROUPS[feed].octets();
    let (ip, udp) = ((frame.len() - 14) as u16, (frame.len() - 34) as u16);
    frame[..HEADERS].fill(0);
    frame[..6].copy_from_slice(&[0x01, 0x00, 0x5e, group[1] & 0x7f, group[2], group[3]]);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    frame[14..16].copy_from_slice(&[0x45, 0]);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    frame[22..24].copy_from_slice(&[16, 17]);
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[30..34].copy_from_slice(&group);
    frame[34..36].copy_from_slice(&PORT.to_be_bytes());
    frame[36..38].copy_from_slice(&PORT.to_be_bytes());
    frame[38..40].copy_from_slice(&udp.to_be_bytes());
    frame[HEADERS..HEADERS + SEQUENCE].copy_from_slice(&sequence.to_be_bytes());
    frame[HEADERS + SEQUENCE..].fill(sequence as u8);
}

/// Returns the sequence number of an update; `None` for bytes that `write` did not write.
pub fn read(frame: &[u8]) -> Option<u64> {
    let (sequence, rest) = frame.get(HEADERS..)?.split_first_chunk()?;
    let sequence = u64::from_be_bytes(*sequence);
    rest.iter().all(|byte| *byte == sequence as u8).then_some(sequence)
}

/// Frames that were left out on purpose: feed and sequence number, in the order of sending.
pub type Gaps = Vec<(usize, u64)>;

pub fn write_gaps(stream: &mut impl Write, gaps: &Gaps) -> io::Result<()> {
    write_u64(stream, gaps.len() as u64)?;
    for &(feed, sequence) in gaps {
        write_u64(stream, sequence << 1 | feed as u64)?;
    }
    Ok(())
}

pub fn read_gaps(stream: &mut impl Read) -> io::Result<Gaps> {
    let count = read_u64(stream)?;
    let gap = |word: u64| ((word & 1) as usize, word >> 1);
    (0..count).map(|_| read_u64(stream).map(gap)).collect()
}
