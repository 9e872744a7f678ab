//! Frames of raw packet queue pairs, with checksums and a VLAN tag by the device where a WQE asks for them.

use mlx5_wire::eth::{EthSegment, INSERT_VLAN, L3_CSUM, L4_CSUM};

use super::checksum;
use super::header::{ETHERNET, Headers, Ip, TAG_AT, TCP, UDP, VLAN};
use crate::fabric::packet::{MAX_ETHERNET, MIN_ETHERNET};
use crate::nic::core::Core;
use crate::nic::qp::Qp;
use crate::nic::wqe::{SendWqe, WqeError};

const SEGMENT: usize = 16;
// Offset of the inline header, and the unit in which it ends.
const INLINE: usize = SEGMENT + 14;
const UNIT: usize = 16;

/// A frame as its WQE describes it.
struct Layout<'a> {
    segment: EthSegment,
    header: &'a [u8],
    // Offset of the data segments.
    data: usize,
    vlan: Option<u16>,
}

impl<'a> Layout<'a> {
    fn of(wqe: &'a SendWqe) -> Result<Self, WqeError> {
        let bytes = wqe.tail(SEGMENT).first_chunk().ok_or(WqeError::Malformed)?;
        let segment = EthSegment::from_bytes(bytes);
        let size = segment.inline_hdr_sz.get();
        let insert = size & INSERT_VLAN != 0;
        let len = if insert { 0 } else { usize::from(size) };
        let header = wqe.tail(INLINE).get(..len).ok_or(WqeError::Malformed)?;
        Ok(Self {
            segment,
            header,
            data: (INLINE + len.max(2)).next_multiple_of(UNIT),
            vlan: insert.then(|| u16::from_be_bytes(segment.inline_hdr_start)),
        })
    }
}

/// Returns the offset of the data segments of a WQE.
pub fn data_offset(wqe: &SendWqe) -> Result<usize, WqeError> {
    Layout::of(wqe).map(|layout| layout.data)
}

/// Returns the length of the frame in bytes.
pub fn length(wqe: &SendWqe) -> Result<u32, WqeError> {
    let layout = Layout::of(wqe)?;
    let tag = if layout.vlan.is_some() { 4 } else { 0 };
    let length = layout.header.len() as u64 + u64::from(wqe.length(layout.data)?);
    let fits = length >= ETHERNET as u64 && length + tag <= MAX_ETHERNET as u64;
    if fits { Ok(length as u32) } else { Err(WqeError::Length) }
}

/// Sends the frame of a WQE.
pub fn transmit(qp: &Qp, core: &mut Core, wqe: &SendWqe) -> Result<(), WqeError> {
    let layout = Layout::of(wqe)?;
    let mut frame = vec![0; length(wqe)? as usize];
    let (header, data) = frame.split_at_mut(layout.header.len());
    header.copy_from_slice(layout.header);
    wqe.gather(layout.data, 0, data, &core.mkeys, qp.attr.pd)?;
    fill_checksums(&mut frame, layout.segment.cs_flags);
    if let Some(tag) = layout.vlan {
        let [a, b] = VLAN.to_be_bytes();
        let [c, d] = tag.to_be_bytes();
        frame.splice(TAG_AT..TAG_AT, [a, b, c, d]);
    }
    frame.resize(frame.len().max(MIN_ETHERNET), 0);
    core.link.send_ethernet(&frame, qp.attr.raw.domain, core.now);
    Ok(())
}

fn fill_checksums(frame: &mut [u8], flags: u8) {
    let Some(ip) = Headers::parse(frame).and_then(|headers| headers.ip) else { return };
    if ip.body > frame.len() {
        return;
    }
    if flags & L3_CSUM != 0 && ip.version == 4 {
        set(frame, ip.at..ip.body, ip.at + 10, 0);
    }
    if flags & L4_CSUM != 0 {
        fill_transport(frame, &ip);
    }
}

/// Fills in the checksum of a TCP or UDP header, and ignores the old one.
pub fn fill_transport(frame: &mut [u8], ip: &Ip) {
    let at = match ip.protocol {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    let length = ip.end.saturating_sub(ip.body);
    if ip.fragment || length < at + 2 {
        return;
    }
    let sum = set(frame, ip.body..ip.end, ip.body + at, checksum::pseudo(ip, length));
    if sum == 0 && ip.protocol == UDP {
        frame[ip.body + at..ip.body + at + 2].fill(0xff);
    }
}

// Puts the checksum of a range into two bytes of it.
fn set(frame: &mut [u8], range: std::ops::Range<usize>, at: usize, more: u32) -> u16 {
    frame[at..at + 2].fill(0);
    let sum = !checksum::folded(more + checksum::words(&frame[range]));
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    sum
}

#[cfg(test)]
mod tests {
    use super::super::samples::Sample;
    use super::*;

    #[test]
    fn checksums_are_those_of_the_protocol() {
        let udp = Sample::udp([239, 1, 2, 3], 5001, b"ticks");
        for whole in [udp.build(), udp.clone().tcp().build(), udp.clone().vlan(5).build()] {
            let ip = Headers::parse(&whole).unwrap().ip.unwrap();
            let sums = [ip.at + 10, ip.body + if ip.protocol == UDP { 6 } else { 16 }];
            for flags in 0..4 {
                let mut frame = whole.clone();
                sums.iter().for_each(|at| frame[*at..*at + 2].fill(0x5a));
                let broken = frame.clone();
                fill_checksums(&mut frame, flags << 6);
                let expected = |bit: u8, at: usize| {
                    if flags & bit != 0 {
                        whole[at..at + 2].to_vec()
                    } else {
                        broken[at..at + 2].to_vec()
                    }
                };
                assert_eq!(frame[sums[0]..sums[0] + 2], expected(1, sums[0]));
                assert_eq!(frame[sums[1]..sums[1] + 2], expected(2, sums[1]));
            }
        }
    }

    #[test]
    fn no_bytes_make_the_checksums_panic() {
        let whole = Sample::udp([239, 1, 2, 3], 5001, b"ticks").tcp().build();
        for at in 0..whole.len() {
            for value in 0..=255 {
                let mut frame = whole.clone();
                frame[at] = value;
                fill_checksums(&mut frame, L3_CSUM | L4_CSUM);
            }
            fill_checksums(&mut whole[..at].to_vec(), L3_CSUM | L4_CSUM);
        }
    }
}
