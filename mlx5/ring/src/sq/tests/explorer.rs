//! Every small queue: all sequences of WQEs of all sizes, asked for and not, from each place of the ring, and from
//! each all that a device can report.

use std::vec::Vec;

use super::super::{Flags, PostError};
use super::rig::Rig;

/// A WQE of a sequence.
#[derive(Clone, Copy, Debug)]
struct Posted {
    blocks: u32,
    asks: bool,
}

struct Explorer {
    rig: Rig,
    count: u32,
    max_blocks: u32,
    /// Running index of the first block, and silent blocks before it.
    start: u32,
    silent: u32,
    states: u64,
}

#[test]
fn every_small_queue() {
    let mut states = 0;
    // With 8 blocks only such queues as differ from smaller ones.
    for (count, sizes) in [(1, 1..=1), (2, 1..=2), (4, 1..=4), (8, 3..=3)] {
        for (max_blocks, is_single) in sizes.flat_map(|size| [(size, false), (size, true)]) {
            let mut rig = Rig::new(count, max_blocks);
            rig.is_single = is_single;
            let mut explorer = Explorer { rig, count, max_blocks, start: 0, silent: 0, states: 0 };
            explorer.run();
            states += explorer.states;
        }
    }
    // A change that makes the explorer see less must be noticed.
    assert!(states > 80_000, "{states} states");
}

impl Explorer {
    fn run(&mut self) {
        // A WQE that starts earlier ends before the ring does.
        for place in self.count.saturating_sub(3)..self.count {
            // Once at the wrap of the 16-bit index, once at that of the running count.
            self.start = if place % 2 == 0 { 1 << 16 } else { 0u32 }.wrapping_sub(self.count - place);
            for silent in 0..=self.rig.queue.max_silent() {
                self.silent = silent;
                self.explore(&mut Vec::new(), 0, silent);
            }
        }
    }

    /// Goes on from the sequence `posted`, which takes `used` blocks; `silent` blocks ask for nothing since.
    fn explore(&mut self, posted: &mut Vec<Posted>, used: u32, silent: u32) {
        self.states += 1;
        self.completions(posted);
        for blocks in 1..=self.max_blocks {
            for flags in [Flags::NONE, Flags::SIGNALED] {
                self.replay(posted);
                let result = self.rig.send(blocks, flags, posted.len() as u32);
                if used + blocks > self.count {
                    assert_eq!(result, Err(PostError::Full), "{posted:?} and {blocks}");
                    // Whatever is refused: something outstanding will make room.
                    assert!(posted.iter().any(|wqe| wqe.asks), "{posted:?} and {blocks}");
                    continue;
                }
                assert_eq!(result, Ok(()), "{posted:?} and {blocks}");
                self.rig.device.look();
                let wqe = self.rig.device.queue.back().expect("a WQE");
                let asks = wqe.asks();
                assert_eq!(wqe.blocks, blocks);
                let must = silent + blocks > self.count / 4 || silent + blocks + self.max_blocks > self.count;
                assert_eq!(asks, flags == Flags::SIGNALED || must, "{posted:?} and {blocks}");
                assert_eq!(self.rig.queue.is_covered(), asks, "{posted:?} and {blocks}");
                posted.push(Posted { blocks, asks });
                self.explore(posted, used + blocks, if asks { 0 } else { silent + blocks });
                posted.pop();
            }
        }
    }

    /// Posts the sequence to a queue that has just become empty at the start.
    fn replay(&mut self, posted: &[Posted]) {
        self.rig.start_at(self.start, self.silent);
        assert!(self.rig.queue.is_covered(), "an empty queue, after {} silent blocks", self.silent);
        for (data, wqe) in (0..).zip(posted) {
            let flags = if wqe.asks { Flags::SIGNALED } else { Flags::NONE };
            self.rig.send(wqe.blocks, flags, data).expect("room");
        }
        assert_eq!(self.rig.device.look(), posted.len());
    }

    /// Lets the device report each WQE that asked, or fail at each WQE and flush the rest.
    fn completions(&mut self, posted: &[Posted]) {
        let starts: Vec<u16> = posted
            .iter()
            .scan(self.start, |at, wqe| {
                let start = *at as u16;
                *at = at.wrapping_add(wqe.blocks);
                Some(start)
            })
            .collect();
        for failed in 0..=posted.len() {
            self.replay(posted);
            let reported = (0..posted.len()).filter(|wqe| *wqe >= failed || posted[*wqe].asks);
            let mut retired = 0;
            let mut free = self.rig.queue.free_blocks();
            for wqe in reported {
                let back = self.rig.complete(starts[wqe]).expect("an outstanding WQE");
                let expected: Vec<_> = (retired as u32..=wqe as u32).collect();
                assert_eq!(back, expected, "{posted:?}, failed at {failed}");
                free += posted[retired..=wqe].iter().map(|wqe| wqe.blocks).sum::<u32>();
                assert_eq!(self.rig.queue.free_blocks(), free, "{posted:?}, failed at {failed}");
                retired = wqe + 1;
            }
            if failed == posted.len() {
                self.strays(&starts[retired..]);
            }
        }
    }

    /// No index near the queue but that of an outstanding WQE completes anything.
    fn strays(&mut self, outstanding: &[u16]) {
        let from = (self.start as u16).wrapping_sub(2 * self.count as u16);
        for index in (0..5 * self.count as u16).map(|index| from.wrapping_add(index)) {
            if !outstanding.contains(&index) {
                assert!(self.rig.queue.complete(index).is_none(), "{index}");
            }
        }
    }
}
