//! Packets as a capture file: RoCE over Ethernet, as `tcpdump` and `tshark` read it.
//!
//! Each device appends the packets that leave its port, each with one write. So several devices and
//! processes can share a file, and no packet is in it twice.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::packet::Frame;
use super::{address, ethernet};

// The variant with times in nanoseconds, in the byte order of this machine.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const LINK_ETHERNET: u32 = 1;
const SNAP_LENGTH: u32 = 65_535;

const RECORD: usize = 16;

/// Makes an empty capture file, and overwrites an existing file.
pub fn create(path: &Path) -> io::Result<()> {
    let mut header = Vec::with_capacity(24);
    header.extend(MAGIC.to_ne_bytes());
    header.extend(VERSION.iter().flat_map(|number| number.to_ne_bytes()));
    // Offset from UTC and accuracy, which no program fills in.
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
        let record = &mut self.record;
        record.clear();
        record.resize(RECORD, 0);
        match frame.ethernet() {
            Some(bytes) => record.extend(bytes),
            None => {
                record.extend(address::mac(frame.dlid()));
                record.extend(address::mac(frame.slid()));
                ethernet::emit(frame, record);
            }
        }
        let length = (record.len() - RECORD) as u32;
        let head = [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, length, length];
        for (at, word) in record.chunks_exact_mut(4).zip(head) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        // A full disk ends the capture, not the program.
        let _ = self.file.write_all(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::run_dir::{RunDir, fresh_path};
    use crate::fabric::address::GidType;
    use crate::fabric::headers::Bth;
    use crate::fabric::packet::Route;

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
            sgid: (GidType::InfiniBand, address::gid(3)),
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
        let len = 14 + frame.ip_packet().len();
        assert_eq!(bytes.len(), 24 + 2 * (RECORD + len));
        let record = &bytes[24 + RECORD + len..];
        let word = |at: usize| u32::from_ne_bytes(*record[at..].first_chunk().unwrap());
        assert_eq!([word(0), word(4), word(8), word(12)], [7, 6, len as u32, len as u32]);
        assert_eq!(record[RECORD..][..14], *b"\x02\xdb\0\0\0\x05\x02\xdb\0\0\0\x03\x86\xdd");
    }
}
