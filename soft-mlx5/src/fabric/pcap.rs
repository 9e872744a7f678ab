//! Packets as a capture file: RoCE v2 over Ethernet, as `tcpdump` and `tshark` read it.
//!
//! Each device appends what leaves its port, a packet with one write, so that several devices and
//! processes share a file and nothing is in it twice.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::address;
use super::packet::Frame;

// The variant with times in nanoseconds, in the byte order of this machine.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LINK_ETHERNET: u32 = 1;
const SNAP_LENGTH: u32 = 65_535;
const ETHERTYPE_IPV6: u16 = 0x86dd;

const RECORD: usize = 16;
const ETHERNET: usize = 14;
// In an IP packet.
const ADDRESSES: std::ops::Range<usize> = 8..40;
const UDP: usize = 40;
const UDP_CHECKSUM: usize = UDP + 6;
const UDP_PROTOCOL: u32 = 17;

/// Makes an empty capture file; what was there is gone.
pub fn create(path: &Path) -> io::Result<()> {
    let mut header = Vec::with_capacity(24);
    header.extend(MAGIC.to_ne_bytes());
    header.extend(VERSION.iter().flat_map(|number| number.to_ne_bytes()));
    // Offset from UTC and accuracy, which nobody fills in.
    header.extend([0; 8]);
    header.extend(SNAP_LENGTH.to_ne_bytes());
    header.extend(LINK_ETHERNET.to_ne_bytes());
    std::fs::write(path, header)
}

/// A capture file that this device adds to.
#[derive(Debug)]
pub struct Capture {
    file: File,
    epoch: u64,
    record: Vec<u8>,
}

impl Capture {
    /// Opens a file that [`create`] made. Time 0 of the device is `epoch` nanoseconds after 1970.
    pub fn open(path: &Path, epoch: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { file, epoch, record: Vec::new() })
    }

    /// Adds a packet, with its ICRC in place, that leaves the port at time `now`.
    pub fn add(&mut self, frame: &Frame, now: u64) {
        let time = self.epoch + now;
        let packet = frame.ip_packet();
        let length = (ETHERNET + packet.len()) as u32;
        let record = &mut self.record;
        record.clear();
        for word in [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, length, length] {
            record.extend(word.to_ne_bytes());
        }
        record.extend(address::mac(frame.dlid()));
        record.extend(address::mac(frame.slid()));
        record.extend(ETHERTYPE_IPV6.to_be_bytes());
        record.extend(packet);
        let packet = &mut record[RECORD + ETHERNET..];
        // Over IPv6 a checksum of 0 means an error to those who do not know RoCE; the ICRC leaves it out.
        let sum = udp_checksum(packet);
        packet[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        // A full disk ends the capture, not the program.
        let _ = self.file.write_all(record);
    }
}

fn udp_checksum(packet: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks(2);
        pairs
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
            .sum()
    };
    let udp = &packet[UDP..];
    let mut sum = words(&packet[ADDRESSES]) + udp.len() as u32 + UDP_PROTOCOL + words(udp);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::headers::Bth;
    use crate::fabric::packet::Route;
    use crate::run_dir::{RunDir, fresh_path};

    #[test]
    fn a_record_is_an_ethernet_frame_with_its_time() {
        let dir = RunDir::create(fresh_path("test")).unwrap();
        let path = dir.path().join("capture");
        create(&path).unwrap();
        let route = Route {
            slid: 3,
            dlid: 5,
            sl: 0,
            global: true,
            dgid: address::gid(5),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut frame = Frame::default();
        frame.begin(&route, &Bth::default());
        frame.payload_mut(8).copy_from_slice(b"payload!");
        frame.finish();
        frame.seal();
        for now in [5, 6] {
            Capture::open(&path, 7_000_000_000).unwrap().add(&frame, now);
        }
        let bytes = std::fs::read(&path).unwrap();
        let len = ETHERNET + frame.ip_packet().len();
        assert_eq!(bytes.len(), 24 + 2 * (RECORD + len));
        let record = &bytes[24 + RECORD + len..];
        let word = |at: usize| u32::from_ne_bytes(*record[at..].first_chunk().unwrap());
        assert_eq!([word(0), word(4), word(8), word(12)], [7, 6, len as u32, len as u32]);
        let packet = &record[RECORD..];
        assert_eq!(packet[..14], *b"\x02\xdb\0\0\0\x05\x02\xdb\0\0\0\x03\x86\xdd");
        // Whoever checks sums up everything, the checksum included, and must get all ones.
        let mut check = packet[ETHERNET..].to_vec();
        assert_ne!(check[UDP_CHECKSUM..UDP_CHECKSUM + 2], [0, 0]);
        assert_eq!(udp_checksum(&check), 0xffff);
        check[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
        assert_eq!(check, frame.ip_packet());
    }
}
