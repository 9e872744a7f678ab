//! Frames of raw packet queue pairs and send queues, with checksums, a VLAN tag and segmentation by the device where a
//! WQE asks for them.

use mlx5_wire::eth::{EthSegment, INSERT_VLAN, L3_CSUM, L4_CSUM, MULTI_PACKET_UNITS};
use mlx5_wire::opcode::WqeOpcode;

use crate::engine::core::Core;
use crate::fabric::checksum::set;
use crate::fabric::frame_header::{ETHERNET, Headers, TAG_AT, TCP, VLAN, fill_transport};
use crate::fabric::packet::{MAX_ETHERNET, MIN_ETHERNET};
use crate::objects::qp::Qp;
use crate::objects::strict::Rule;
use crate::objects::wqe::{SendWqe, WqeError};

const SEGMENT: usize = 16;
// Offset of the inline header, and the unit in which it ends.
const INLINE: usize = SEGMENT + 14;
const UNIT: usize = 16;

/// The frames of a WQE.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frames {
    /// One.
    Single,
    /// One with so many bytes of payload each, all with the headers that stand inline (TSO).
    Segments(usize),
    /// One of each data or inline segment (enhanced multi-packet WQE).
    Many,
}

/// A WQE of frames.
struct Layout<'a> {
    segment: EthSegment,
    header: &'a [u8],
    // Offset of the data segments.
    data: usize,
    vlan: Option<u16>,
    frames: Frames,
}

impl<'a> Layout<'a> {
    fn of(wqe: &'a SendWqe) -> Result<Self, WqeError> {
        let bytes = wqe.tail(SEGMENT).first_chunk().ok_or(WqeError::Malformed)?;
        let segment = EthSegment::from_bytes(bytes);
        let size = segment.inline_hdr_sz.get();
        let insert = size & INSERT_VLAN != 0;
        let len = if insert { 0 } else { usize::from(size) };
        let header = wqe.tail(INLINE).get(..len).ok_or(WqeError::Malformed)?;
        let mss = segment.mss.get();
        let frames = match wqe.ctrl().opcode() {
            WqeOpcode::TSO if mss == 0 => return Err(WqeError::Malformed),
            WqeOpcode::TSO => Frames::Segments(mss.into()),
            WqeOpcode::ENHANCED_MPSW => Frames::Many,
            _ => Frames::Single,
        };
        Ok(Self {
            frames,
            segment,
            header,
            data: (INLINE + len.max(2)).next_multiple_of(UNIT),
            vlan: insert.then(|| u16::from_be_bytes(segment.inline_hdr_start)),
        })
    }

    /// Returns `true` if the segment asks for nothing that frames which share it cannot have.
    fn suits_many(&self) -> bool {
        self.header.is_empty() && self.vlan.is_none() && self.segment.mss.get() == 0
    }
}

/// Returns the offset of the data segments of a WQE.
pub fn data_offset(wqe: &SendWqe) -> Result<usize, WqeError> {
    Layout::of(wqe).map(|layout| layout.data)
}

/// Returns the length of all frames in bytes, and in how many packets they leave: each waits for room of its own.
pub fn measure(qp: &Qp, core: &mut Core, wqe: &SendWqe) -> Result<(u32, u32), WqeError> {
    let layout = Layout::of(wqe)?;
    if layout.frames != Frames::Many {
        return Ok((length(wqe, &layout)?, 1));
    }
    let suits = layout.suits_many();
    if !suits || u32::from(wqe.ctrl().ds()) > MULTI_PACKET_UNITS {
        let index = wqe.ctrl().index().into();
        core.strict.violation(Rule::MultiPacket, qp.object(), index, wqe.bytes());
    }
    if !suits {
        return Err(WqeError::Malformed);
    }
    let (mut total, mut count, mut at) = (0, 0, layout.data);
    while let Some((len, next)) = wqe.segment_length(at)? {
        if !(ETHERNET..=MAX_ETHERNET).contains(&(len as usize)) {
            return Err(WqeError::Length);
        }
        (total, count, at) = (total + len, count + 1, next);
    }
    if count > 0 { Ok((total, count)) } else { Err(WqeError::Malformed) }
}

/// Returns the length of the frame, or of the segment that becomes frames, in bytes.
fn length(wqe: &SendWqe, layout: &Layout<'_>) -> Result<u32, WqeError> {
    let tag = if layout.vlan.is_some() { 4 } else { 0 };
    let length = layout.header.len() as u64 + u64::from(wqe.length(layout.data)?);
    let (header, longest) = match layout.frames {
        // An IP packet counts its bytes with 16 bits.
        Frames::Segments(size) => {
            let frame = layout.header.len() + size;
            let fits = frame as u64 + tag <= MAX_ETHERNET as u64;
            (layout.header.len() as u64, if fits { 1 << 16 } else { 0 })
        }
        _ => (length, MAX_ETHERNET as u64),
    };
    let fits = header >= ETHERNET as u64 && length + tag <= longest;
    if fits { Ok(length as u32) } else { Err(WqeError::Length) }
}

/// Sends packet `number` of a WQE.
pub fn transmit(qp: &Qp, core: &mut Core, wqe: &SendWqe, number: u32) -> Result<(), WqeError> {
    let layout = Layout::of(wqe)?;
    let (mut at, mut len) = (layout.data, 0);
    if layout.frames == Frames::Many {
        let mut next = layout.data;
        for _ in 0..=number {
            at = next;
            (len, next) = wqe.segment_length(at)?.ok_or(WqeError::Malformed)?;
        }
    } else {
        len = length(wqe, &layout)?;
    }
    let mut frame = vec![0; len as usize];
    let (header, data) = frame.split_at_mut(layout.header.len());
    header.copy_from_slice(layout.header);
    wqe.gather(at, 0, data, &core.mkeys, qp.attr.pd)?;
    let (frames, flags) = match layout.frames {
        Frames::Segments(size) => (segments(&frame, layout.header.len(), size), L3_CSUM | L4_CSUM),
        _ => (vec![frame], layout.segment.cs_flags),
    };
    for mut frame in frames {
        fill_checksums(&mut frame, flags);
        if let Some(tag) = layout.vlan {
            let [a, b] = VLAN.to_be_bytes();
            let [c, d] = tag.to_be_bytes();
            frame.splice(TAG_AT..TAG_AT, [a, b, c, d]);
        }
        frame.resize(frame.len().max(MIN_ETHERNET), 0);
        core.link.send_ethernet(&frame, qp.attr.raw.domain, core.now);
    }
    Ok(())
}

/// Splits a TCP segment into frames with `size` bytes of payload each. The first `header` bytes stand before each:
/// lengths, identification, sequence number and flags follow the place of the frame, checksums come later.
fn segments(whole: &[u8], header: usize, size: usize) -> Vec<Vec<u8>> {
    const SEQUENCE: usize = 4;
    const FLAGS: usize = 13;
    const END: u8 = 1 << 0 | 1 << 3;
    const WINDOW_REDUCED: u8 = 1 << 7;
    let (header, payload) = whole.split_at(header);
    let ip = Headers::parse(whole).and_then(|headers| headers.ip);
    let ip = ip.filter(|ip| ip.protocol == TCP && ip.body + FLAGS < header.len());
    let count = payload.len().div_ceil(size);
    let mut frames = Vec::with_capacity(count);
    for (index, part) in payload.chunks(size).enumerate() {
        let mut frame = [header, part].concat();
        if let Some(ip) = &ip {
            let after = |from: usize| ((frame.len() - from) as u16).to_be_bytes();
            let (place, length) = match ip.version {
                4 => (ip.at + 2, after(ip.at)),
                _ => (ip.at + 4, after(ip.at + 40)),
            };
            frame[place..place + 2].copy_from_slice(&length);
            if ip.version == 4 {
                let id = &mut frame[ip.at + 4..ip.at + 6];
                let next = u16::from_be_bytes([id[0], id[1]]).wrapping_add(index as u16);
                id.copy_from_slice(&next.to_be_bytes());
            }
            let sequence = &mut frame[ip.body + SEQUENCE..ip.body + SEQUENCE + 4];
            let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            let next = first.wrapping_add((index * size) as u32);
            sequence.copy_from_slice(&next.to_be_bytes());
            let flags = &mut frame[ip.body + FLAGS];
            if index + 1 < count {
                *flags &= !END;
            }
            if index > 0 {
                *flags &= !WINDOW_REDUCED;
            }
        }
        frames.push(frame);
    }
    frames
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::frame_header::UDP;
    use crate::fabric::samples::Sample;

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
                    if flags & bit != 0 { whole[at..at + 2].to_vec() } else { broken[at..at + 2].to_vec() }
                };
                assert_eq!(frame[sums[0]..sums[0] + 2], expected(1, sums[0]));
                assert_eq!(frame[sums[1]..sums[1] + 2], expected(2, sums[1]));
            }
        }
    }

    #[test]
    fn a_large_segment_becomes_frames() {
        let payload: Vec<u8> = (0..2500u32).map(|at| at as u8).collect();
        for sample in
            [Sample::udp([10, 0, 0, 2], 5001, &payload).tcp(), Sample::udp([10, 0, 0, 2], 5001, &payload).tcp().ipv6()]
        {
            let mut whole = sample.build();
            let ip = Headers::parse(&whole).unwrap().ip.unwrap();
            let header = whole.len() - payload.len();
            whole[ip.body + 13] = 0x99;
            let mut frames = segments(&whole, header, 1000);
            assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500].map(|n| n + header));
            let word = |at: usize, frame: &[u8]| u32::from_be_bytes(*frame[at..].first_chunk().unwrap());
            for (index, frame) in frames.iter_mut().enumerate() {
                let first = word(ip.body + 4, &whole);
                assert_eq!(word(ip.body + 4, frame), first.wrapping_add(1000 * index as u32));
                assert_eq!(frame[ip.body + 13], [0x90, 0x10, 0x19][index]);
                assert_eq!(frame[header..], payload[1000 * index..][..frame.len() - header]);
                fill_checksums(frame, L3_CSUM | L4_CSUM);
                let ip = Headers::parse(frame).unwrap().ip.unwrap();
                assert!(ip.sound && ip.transport.unwrap().sound && ip.end == frame.len());
            }
        }
    }

    #[test]
    fn segments_of_no_packet_are_only_cut() {
        let whole: Vec<u8> = (0..100).collect();
        let frames = segments(&whole, 20, 30);
        assert_eq!(frames.len(), 3);
        for (frame, payload) in frames.iter().zip(whole[20..].chunks(30)) {
            assert_eq!((&frame[..20], &frame[20..]), (&whole[..20], payload));
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
