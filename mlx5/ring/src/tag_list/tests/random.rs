//! Random operations against a device that takes the list at its word.

use core::mem::forget;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::Tmh;

use super::device::Rig;
use super::tagged;
use crate::tag_list::{Append, Completion, Handle, PostError};

/// The list as an adapter sees it, and the CQEs that the adapter owes.
#[derive(Default)]
struct Device {
    /// Blocks executed.
    taken: u32,
    /// The entry of the next append.
    announced: u16,
    /// Receives in the list; and those whose message has matched, with data to come.
    posted: BTreeMap<u16, u32>,
    matched: BTreeMap<u16, u32>,
    answers: VecDeque<(AppOp, bool)>,
}

impl Device {
    fn take(&mut self, rig: &Rig, blocks: u32) {
        for block in rig.posted(self.taken, blocks) {
            let u16_at = |at| u16::from_be_bytes([block[at], block[at + 1]]);
            assert_eq!(u16_at(1), self.taken as u16, "index of the WQE");
            self.taken = self.taken.wrapping_add(1);
            let index = u16_at(18);
            let op = match block[16] {
                0x10 => {
                    let free = !self.posted.contains_key(&index) && !self.matched.contains_key(&index);
                    assert!(free && index != self.announced, "announced entry {index} is in use");
                    let tag = u64::from_be_bytes(block[32..40].try_into().unwrap());
                    assert!(self.posted.insert(self.announced, tag as u32).is_none());
                    self.announced = index;
                    (AppOp::APPEND, true)
                }
                0x20 => (AppOp::REMOVE, self.posted.remove(&index).is_some()),
                _ => (AppOp::NOOP, true),
            };
            if block[17] & 0x80 != 0 {
                self.answers.push_back(op);
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// Receives that are not over, and what was reported of each.
type Open = BTreeMap<u32, Handle>;

/// Receives that were over last.
type Over = VecDeque<Handle>;

fn end((open, over): (&mut Open, &mut Over), handle: Handle, data: u32) {
    assert_eq!(open.remove(&data), Some(handle), "receive {data} is over twice");
    over.push_back(handle);
    if over.len() > 16 {
        over.pop_front();
    }
}

/// The list knows a receive until it is over, whichever receive has its entry then.
fn check(rig: &mut Rig, random: &mut Random, open: &Open, over: &Over) {
    if let Some((&data, &handle)) = open.iter().nth(random.below(open.len().max(1))) {
        assert_eq!(rig.list.data(handle), Some(data));
    }
    if let Some(&handle) = over.get(random.below(over.len().max(1))) {
        assert_eq!(rig.list.data(handle), None);
        assert_eq!(rig.list.posting().remove(handle, None), Err(PostError::Gone));
    }
}

/// Posts operations with one doorbell, and now and then forgets to ring it.
fn batch(rig: &mut Rig, random: &mut Random, open: &mut Open, number: &mut u32, operations: usize) {
    // The next batch counts what a forgotten batch has appended.
    drop(rig.list.posting());
    let (mut free, mut blocks) = (rig.list.free_entries(), rig.list.free_operations());
    let mut posting = rig.list.posting();
    for _ in 0..operations {
        let result = match random.below(4) {
            0 | 1 => {
                let signaled = random.below(2) == 0;
                // SAFETY: no buffer.
                let result = unsafe { posting.append(Append { signaled, ..tagged(*number) }, None) };
                let full = if free == 0 { PostError::ListFull } else { PostError::QueueFull };
                result.map_err(|error| assert_eq!(error, full)).map(|handle| {
                    open.insert(*number, handle);
                    *number += 1;
                    free -= 1;
                })
            }
            2 => {
                let at = random.below(open.len().max(1));
                let Some((_, &handle)) = open.iter().nth(at) else { continue };
                let result = posting.remove(handle, None);
                if let Err(PostError::Removing | PostError::Matched) = result {
                    continue;
                }
                result.map_err(|error| assert_eq!(error, PostError::QueueFull))
            }
            _ => posting
                .synchronize(Some(0), random.below(2) == 0)
                .map_err(|error| assert_eq!(error, PostError::QueueFull)),
        };
        assert!(result.is_ok() || free == 0 || blocks == 0, "refused, and there is room");
        blocks -= u32::from(result.is_ok());
    }
    if random.below(8) == 0 {
        forget(posting);
    }
}

/// Returns how many blocks the device has executed.
fn run(tags: u16, blocks: u32, steps: u32, seed: u64) -> u32 {
    let mut rig = Rig::new(tags, blocks);
    assert_eq!(rig.list.tags(), tags);
    let mut device = Device::default();
    let mut random = Random(seed);
    let (mut open, mut over) = (Open::new(), Over::new());
    let mut number = 0;
    let some = |map: &BTreeMap<u16, u32>, random: &mut Random| {
        let at = random.below(map.len().max(1));
        map.iter().nth(at).map(|(entry, data)| (*entry, *data))
    };
    for _ in 0..steps {
        match random.below(5) {
            0..=2 => {
                let operations = random.below(9);
                batch(&mut rig, &mut random, &mut open, &mut number, operations);
            }
            3 => {
                device.take(&rig, blocks);
                if random.below(2) == 0 {
                    check(&mut rig, &mut random, &open, &over);
                    drop(rig.list.posting());
                    device.take(&rig, blocks);
                    assert_eq!(rig.list.outstanding() as usize, device.answers.len());
                }
                for _ in 0..random.below(device.answers.len() + 1) {
                    let (op, success) = device.answers.pop_front().unwrap();
                    match rig.answer(op, 0, success) {
                        Completion::Removed { handle, data, .. } => end((&mut open, &mut over), handle, data),
                        Completion::TooLate { .. } => assert!(!success),
                        Completion::Appended { .. } | Completion::Synchronized { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            _ => {
                device.take(&rig, blocks);
                if random.below(3) == 0 {
                    if let Some((entry, data)) = some(&device.matched, &mut random) {
                        device.matched.remove(&entry);
                        let reported = rig.message(AppOp::EXPECTED, entry, Tmh::zeroed(), 0);
                        let Completion::Received { handle, data: reported, .. } = reported else {
                            panic!("{reported:?}")
                        };
                        assert_eq!(reported, data);
                        end((&mut open, &mut over), handle, data);
                    }
                } else if let Some((entry, data)) = some(&device.posted, &mut random) {
                    device.posted.remove(&entry);
                    if random.below(2) == 0 {
                        let reported = rig.message(AppOp::CONSUMED_MSG, entry, Tmh::zeroed(), 0);
                        let Completion::Received { handle, data: reported, .. } = reported else {
                            panic!("{reported:?}")
                        };
                        assert_eq!(reported, data);
                        end((&mut open, &mut over), handle, data);
                    } else {
                        device.matched.insert(entry, data);
                        let reported = rig.message(AppOp::CONSUMED, entry, Tmh::zeroed(), 0);
                        assert!(matches!(reported, Completion::Matched { .. }), "{reported:?}");
                    }
                }
            }
        }
    }
    let mut left = Vec::new();
    rig.list.drain(|data| left.push(data));
    left.sort_unstable();
    assert!(left.iter().eq(open.keys()));
    assert!(number > steps / 50, "{number} receives in {steps} steps");
    device.taken
}

#[test]
fn each_receive_ends_once_and_announced_entries_are_free() {
    for (seed, (tags, blocks)) in (1u64..).zip([(1, 1), (1, 8), (2, 4), (3, 16), (16, 8), (64, 128), (700, 64)]) {
        run(tags, blocks, 10_000, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

#[test]
fn the_index_of_the_queue_wraps() {
    assert!(run(8, 16, 160_000, 0x1234_5678_9abc_def1) > 2 << 16);
}
