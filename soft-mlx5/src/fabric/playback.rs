//! Frames from a capture file, as `tcpdump` writes them, at the times of the capture or at a rate.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER: usize = 24;
const RECORD: usize = 16;
const LINK_ETHERNET: u32 = 1;
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
// Longer records are no frames.
const MAX_RECORD: usize = 1 << 16;

const SECOND: u64 = 1_000_000_000;

/// A capture file that is played back.
#[derive(Debug)]
pub struct Playback {
    file: BufReader<File>,
    swapped: bool,
    unit: u64,
    // Frames in a second; `None` for the times of the capture.
    rate: Option<f64>,
    // Time of the device at which the first frame came, and time of that frame in the capture.
    started: Option<(u64, u64)>,
    played: u64,
    next: Option<(u64, Vec<u8>)>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Playback {
    /// Opens a file; it begins to play when it is first asked for a frame.
    pub fn open(path: &Path, rate: Option<f64>) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot play {}: {error}", path.display()));
        Self::read(BufReader::new(File::open(path).map_err(named)?), rate).map_err(named)
    }

    fn read(mut file: BufReader<File>, rate: Option<f64>) -> io::Result<Self> {
        let mut header = [0; HEADER];
        file.read_exact(&mut header).map_err(|_| invalid("it is no capture file"))?;
        let magic = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let (swapped, unit) = match (magic, magic.swap_bytes()) {
            (MICROSECONDS, _) => (false, 1000),
            (NANOSECONDS, _) => (false, 1),
            (_, MICROSECONDS) => (true, 1000),
            (_, NANOSECONDS) => (true, 1),
            _ => {
                return Err(invalid("it is no capture file (pcapng is not read: `editcap -F pcap`)"));
            }
        };
        let mut playback = Self { file, swapped, unit, rate, started: None, played: 0, next: None };
        if playback.word(&header[20..]) & 0xffff != LINK_ETHERNET {
            return Err(invalid("it was not captured on Ethernet"));
        }
        playback.advance();
        Ok(playback)
    }

    fn word(&self, bytes: &[u8]) -> u32 {
        let word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if self.swapped { word.swap_bytes() } else { word }
    }

    // A file with an incomplete last record ends before that record.
    fn advance(&mut self) {
        let mut record = [0; RECORD];
        self.next = None;
        if self.file.read_exact(&mut record).is_err() {
            return;
        }
        let time = u64::from(self.word(&record)) * SECOND + u64::from(self.word(&record[4..])) * self.unit;
        let mut frame = vec![0; (self.word(&record[8..]) as usize).min(MAX_RECORD)];
        if self.file.read_exact(&mut frame).is_ok() {
            self.next = Some((time, frame));
        }
    }

    // Returns when the next frame comes; the first frame comes at once.
    fn due(&self) -> Option<u64> {
        let (time, _) = self.next.as_ref()?;
        let Some((started, first)) = self.started else { return Some(0) };
        Some(
            started
                + match self.rate {
                    Some(rate) => (self.played as f64 * SECOND as f64 / rate) as u64,
                    None => time.saturating_sub(first),
                },
        )
    }

    /// Returns when the next frame of a playing file comes.
    pub fn next_deadline(&self) -> Option<u64> {
        self.started.and_then(|_| self.due())
    }

    /// Takes the next frame whose time has come.
    pub fn play(&mut self, now: u64) -> Option<Vec<u8>> {
        self.due().filter(|due| *due <= now)?;
        let (time, frame) = self.next.take()?;
        self.started.get_or_insert((now, time));
        self.played += 1;
        self.advance();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::run_dir::{RunDir, fresh_path};

    fn capture(swap: bool, magic: u32, link: u32, frames: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let word = |word: u32| if swap { word.swap_bytes() } else { word }.to_ne_bytes();
        let mut bytes = [word(magic), word(0), word(0), word(0), word(65_535), word(link)].concat();
        for (seconds, fraction, frame) in frames {
            let len = frame.len() as u32;
            bytes.extend([word(*seconds), word(*fraction), word(len), word(len)].concat());
            bytes.extend(*frame);
        }
        bytes
    }

    fn open(bytes: &[u8], rate: Option<f64>) -> io::Result<Playback> {
        let dir = RunDir::create(fresh_path("playback")).unwrap();
        let path = dir.path().join("capture");
        std::fs::write(&path, bytes).unwrap();
        Playback::open(&path, rate)
    }

    #[test]
    fn frames_come_at_the_times_of_the_capture_whatever_wrote_it() {
        for swap in [false, true] {
            for (magic, unit) in [(MICROSECONDS, 1000), (NANOSECONDS, 1)] {
                let frames: [(u32, u32, &[u8]); 3] = [(7, 10, b"one"), (7, 15, b"two"), (8, 10, b"three")];
                let mut playback = open(&capture(swap, magic, 1, &frames), None).unwrap();
                assert_eq!(playback.next_deadline(), None, "it did not begin");
                assert_eq!(playback.play(100).as_deref(), Some(&b"one"[..]));
                assert_eq!(playback.next_deadline(), Some(100 + 5 * unit));
                assert_eq!(playback.play(99 + 5 * unit), None);
                assert_eq!(playback.play(100 + 5 * unit).as_deref(), Some(&b"two"[..]));
                assert_eq!(playback.next_deadline(), Some(100 + SECOND));
                assert_eq!(playback.play(5 * SECOND).as_deref(), Some(&b"three"[..]));
                assert_eq!((playback.play(9 * SECOND), playback.next_deadline()), (None, None));
            }
        }
    }

    #[test]
    fn a_rate_takes_the_place_of_the_times() {
        let frames: [(u32, u32, &[u8]); 3] = [(7, 10, b"one"), (7, 10, b"two"), (99, 0, b"three")];
        let mut playback = open(&capture(false, MICROSECONDS, 1, &frames), Some(4.0)).unwrap();
        let mut times = Vec::new();
        for now in (0..).step_by(50_000_000).take(20) {
            times.extend(playback.play(now).map(|_| now / 1_000_000));
        }
        assert_eq!(times, [0, 250, 500]);
    }

    #[test]
    fn other_files_are_refused_and_cut_ones_end() {
        assert!(open(b"", None).is_err());
        assert!(open(&[7; 100], None).is_err());
        let error = open(&capture(false, MICROSECONDS, 113, &[]), None).unwrap_err().to_string();
        assert!(error.ends_with("it was not captured on Ethernet"), "{error}");
        let whole = capture(false, MICROSECONDS, 1, &[(0, 0, b"frame")]);
        let mut playback = open(&whole[..whole.len() - 1], None).unwrap();
        assert_eq!(playback.play(0), None);
    }
}
