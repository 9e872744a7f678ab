//! CQEs in the CQ of a receiver of frames, plain or striding: with any content safe code reads nothing outside the CQ
//! and the buffers, does not panic, and never has a frame in memory that belongs to the device or to another frame.

use std::ops::Range;

use doorbell::frames::{FrameConfig, FrameReceiver, TakenFrame};
use doorbell::{CqConfig, DataPath};
use soft_mlx5::LinkLayer;

use super::cq::CqWriter;
use super::{RAW, target};
use crate::input::Input;

/// Begins an operation, see [`run`].
pub mod op {
    /// `delta: i8`, then 64 bytes: a CQE at the producer index. Unless [`RAW`](super::RAW), its owner is put right, and
    /// `delta` is added to the WQE, or the stride, that is next.
    pub const CQE: u8 = 0;
    /// The last CQE again.
    pub const AGAIN: u8 = 1;
    /// `budget: u8, taken: u8`: a batch; the bits of `taken` say which frames are taken.
    pub const POLL: u8 = 2;
    /// `index: u8`: a frame that was taken is dropped.
    pub const DROP: u8 = 3;
    /// Number of operations.
    pub const COUNT: u8 = 4;
}

const WQES: u32 = 4;
const STRIDES: u32 = 512;
const STRIDE: u32 = 64;

struct Subject {
    receiver: FrameReceiver,
    cq: CqWriter,
    striding: bool,
    /// WQE and stride that are next.
    next: (u16, u32),
    last: [u8; 64],
    taken: Vec<TakenFrame>,
}

fn range(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr().addr();
    start..start + bytes.len()
}

impl Subject {
    fn put(&mut self, byte: u8, input: &mut Input) -> Option<()> {
        let delta = input.u8()? as i8;
        let mut cqe: [u8; 64] = input.block()?;
        if byte & RAW == 0 {
            cqe[63] = 2 << 4 | cqe[63] & 0xe;
            let (wqe, stride) = &mut self.next;
            if self.striding {
                cqe[2..4].copy_from_slice(&wqe.to_be_bytes());
                let first = (*stride as u16).wrapping_add_signed(delta.into());
                cqe[60..62].copy_from_slice(&first.to_be_bytes());
                // Up to 256 strides at a time, and mostly no more than are left.
                let count = u32::from(cqe[45]) + 1;
                cqe[44] &= 0x80;
                cqe[44] |= (count >> 8) as u8;
                cqe[45] = count as u8;
                *stride += count;
                if *stride >= STRIDES {
                    (*wqe, *stride) = (wqe.wrapping_add(1), 0);
                }
            } else {
                let index = wqe.wrapping_add_signed(delta.into());
                cqe[60..62].copy_from_slice(&index.to_be_bytes());
                *wqe = wqe.wrapping_add(1);
            }
        }
        self.cq.write(cqe, byte & RAW == 0);
        self.last = cqe;
        Some(())
    }

    fn poll(&mut self, input: &mut Input) -> Option<()> {
        let (budget, taken) = (u32::from(input.u8()?), input.u8()?);
        let mut sum = 0;
        let mut batch = self.receiver.poll_up_to(budget);
        let mut seen = 0;
        while let Some(frame) = batch.next() {
            let Ok(frame) = frame else { continue };
            let place = range(&frame);
            for other in &self.taken {
                let other = range(other);
                assert!(
                    place.is_empty() || place.end <= other.start || other.end <= place.start,
                    "two frames in one place"
                );
            }
            sum += frame.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            sum += u64::from(frame.checksum_ok()) + u64::from(frame.vlan().unwrap_or(0));
            if taken >> (seen % 8) & 1 != 0 {
                self.taken.push(frame.take());
            }
            seen += 1;
        }
        std::hint::black_box(sum);
        Some(())
    }

    fn operation(&mut self, input: &mut Input) -> Option<()> {
        let byte = input.u8()?;
        match byte % op::COUNT {
            op::CQE => self.put(byte, input)?,
            op::AGAIN => self.cq.write(self.last, byte & RAW == 0),
            op::POLL => self.poll(input)?,
            _ => {
                let index = usize::from(input.u8()?);
                if index < self.taken.len() {
                    drop(self.taken.swap_remove(index));
                }
            }
        }
        Some(())
    }
}

/// Makes a receiver of the kind that the first byte selects, and executes the other bytes: operations as [`op`] lists
/// them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target(LinkLayer::Ethernet);
    let mut input = Input(bytes);
    let Some(kind) = input.u8() else { return };
    let config = FrameConfig::new().cq(CqConfig::new(1).path(DataPath::Direct));
    let striding = kind & 1 != 0;
    let config = if striding { config.striding(WQES, STRIDES, STRIDE) } else { config.plain(WQES, 256) };
    let config = config.spare(u32::from(kind >> 1 & 3)).vlan_stripping(kind & 8 != 0);
    let receiver = FrameReceiver::new(&target.pd, &config).expect("a receiver");
    let cq = CqWriter::of_last(&target.device);
    let mut subject = Subject { receiver, cq, striding, next: (0, 0), last: [0; 64], taken: Vec::new() };
    while subject.operation(&mut input).is_some() {}
    let Subject { receiver, taken, .. } = subject;
    drop(receiver);
    std::hint::black_box(taken.iter().map(|frame| frame.len()).sum::<usize>());
}
