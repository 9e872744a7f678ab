//! Updates out of a capture file (pcap or pcapng), as `tcpdump` writes them.

use std::fs::File;
use std::path::Path;

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};

use crate::Result;
use crate::feed::{self, GROUPS, Gaps, SIZES};

/// Bytes of the file that are read at a time: more than a frame has.
const CHUNK: usize = 1 << 16;

/// A capture file. Its updates are sent unchanged.
pub struct Capture {
    reader: Box<dyn PcapReaderIterator>,
    name: String,
    /// Number that each feed has next.
    next: [u64; 2],
}

impl Capture {
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
        let reader = create_reader(CHUNK, file).map_err(|error| format!("{name}: {error:?}"))?;
        Ok(Self { reader, name, next: [0; 2] })
    }

    /// Calls `each` with the next update: its feed, its number and the frame. Returns `false` at the end of the file.
    pub fn next(&mut self, mut each: impl FnMut(usize, u64, &[u8])) -> Result<bool> {
        loop {
            match self.reader.next() {
                Ok((length, block)) => {
                    let frame = match &block {
                        PcapBlockOwned::Legacy(packet) => packet.data,
                        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => packet.packet_data(),
                        _ => &[],
                    };
                    let update = feed_of(frame).zip(feed::read(frame));
                    // A publisher repeats the last update of a feed.
                    let update = update.filter(|&(feed, number)| number + 1 != self.next[feed]);
                    if let Some((feed, number)) = update {
                        self.next[feed] = number + 1;
                        each(feed, number, frame);
                    }
                    let found = update.is_some();
                    self.reader.consume(length);
                    if found {
                        return Ok(true);
                    }
                }
                Err(PcapError::Eof) => return Ok(false),
                Err(PcapError::Incomplete(_)) => {
                    self.reader.refill().map_err(|error| format!("{}: {error:?}", self.name))?;
                }
                Err(error) => return Err(format!("{}: {error:?}", self.name).into()),
            }
        }
    }

    /// Reads the rest. Returns how many updates each feed has, with the missing ones, and the missing updates.
    pub fn survey(mut self) -> Result<([u64; 2], Gaps)> {
        let (mut end, mut gaps, mut wrong) = ([0; 2], Gaps::new(), None);
        while self.next(|feed, number, frame| {
            let next = &mut end[feed];
            if number < *next {
                wrong = Some(format!("update {number} of feed {feed} comes after {}", *next - 1));
            } else if frame.len() > *SIZES.end() {
                wrong = Some(format!("a frame of {} bytes, more than {}", frame.len(), SIZES.end()));
            }
            gaps.extend((*next..number).map(|missing| (feed, missing)));
            *next = number + 1;
        })? {}
        match wrong {
            Some(wrong) => Err(format!("{}: {wrong}", self.name).into()),
            None => Ok((end, gaps)),
        }
    }
}

/// Returns the feed of a datagram, by its group.
fn feed_of(frame: &[u8]) -> Option<usize> {
    let group = frame.get(30..34)?;
    GROUPS.iter().position(|known| known.octets() == *group)
}
