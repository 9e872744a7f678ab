//! Comparing what the device may read: queue memory, doorbell records, and the CQEs that wait.

use std::collections::HashSet;

use mlx5_wire::cqe::Cqe64;

use super::{Case, Pair, describe};
use crate::difference::{Difference, Result, same, same_bytes};
use crate::queue::WorkQueue;
use crate::tally::{self, Tally};

/// Queues larger than this are looked at as a whole once in so many operations.
const LARGE: usize = 64 * 1024;
const SELDOM: u64 = 64;

impl Case<'_> {
    /// Compares all queues; `thorough` also the large ones.
    pub(super) fn compare(&mut self, thorough: bool) -> Result<()> {
        let (theirs, ours) = (self.libmlx5.queues(), self.doorbell.queues());
        for (number, pair) in self.queues.iter().enumerate() {
            let words = pair.libmlx5.record().into_iter().zip(pair.doorbell.record());
            for (word, (theirs, ours)) in words.enumerate() {
                let name = || format!("queue {number}: doorbell record, word {word}");
                same(name, theirs.into(), ours.into())?;
                self.run.tally.add(tally::EXACT, 4);
            }
            let large = pair.doorbell.memory.len() > LARGE;
            if large && !thorough && self.operation % SELDOM != 0 {
                continue;
            }
            if !pair.diverged {
                same_memory(number, pair, self.run.tally)?;
            }
            unchanged(number, &pair.libmlx5, "libmlx5")?;
            unchanged(number, &pair.doorbell, "doorbell")?;
            if let ([theirs], [ours]) = (&theirs.srqs[..], &ours.srqs[..]) {
                let theirs = device_view(&pair.libmlx5, theirs.next, theirs.taken);
                let ours = device_view(&pair.doorbell, ours.next, ours.taken);
                same_view(number, &theirs, &ours, self.run.tally)?;
            }
        }
        let words = self.cqs[0].record().into_iter().zip(self.cqs[1].record());
        for (word, (theirs, ours)) in words.enumerate() {
            same(|| format!("CQ: doorbell record, word {word}"), theirs.into(), ours.into())?;
        }
        self.run.tally.add(tally::EXACT, 8);
        let live = (self.cqs[0].live(&theirs), self.cqs[1].live(&ours));
        same(|| "CQEs that wait".into(), live.0.len() as u64, live.1.len() as u64)?;
        let diverged = self.queues.iter().any(|pair| pair.diverged);
        for (number, (mut theirs, mut ours)) in live.0.into_iter().zip(live.1).enumerate() {
            if diverged {
                for entry in [&mut theirs, &mut ours] {
                    let counter =
                        entry.len() - Cqe64::SIZE + std::mem::offset_of!(Cqe64, wqe_counter);
                    entry[counter..counter + 2].fill(0);
                }
            }
            same_bytes(|| format!("CQE {number} of those that wait"), &theirs, &ours)?;
            self.run.tally.add(tally::EXACT, theirs.len() as u64);
        }
        Ok(())
    }
}

/// Compares every byte that the device may read, in the same places.
fn same_memory(number: usize, pair: &Pair, tally: &mut Tally) -> Result<()> {
    let Pair { libmlx5, doorbell, .. } = pair;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    libmlx5.memory.read(&mut theirs);
    doorbell.memory.read(&mut ours);
    if theirs == ours {
        tally.add(tally::EXACT, ours.len() as u64);
        return Ok(());
    }
    let posted: HashSet<u32> = doorbell.outstanding.iter().map(|wqe| wqe.slot).collect();
    let stride = doorbell.stride;
    let slots = theirs.chunks_exact(stride).zip(ours.chunks_exact(stride));
    for (slot, (theirs, ours)) in (0..).zip(slots) {
        if theirs == ours {
            tally.add(tally::EXACT, stride as u64);
            continue;
        }
        if !posted.contains(&slot) {
            if slot >= doorbell.slots {
                let name =
                    || format!("queue {number}: slot {slot}, beyond the end of the free list");
                same_bytes(name, theirs, ours)?;
            }
            tally.add(tally::FREE_SLOT, stride as u64);
            continue;
        }
        let len = doorbell.wqe(slot).segments.len() + (stride - doorbell.max_sge() * 16);
        same_bytes(|| format!("queue {number}: WQE in slot {slot}"), &theirs[..len], &ours[..len])?;
        tally.add(tally::EXACT, len as u64);
        tally.add(tally::BEHIND_END, (stride - len) as u64);
    }
    Ok(())
}

/// Sees that no WQE was touched while the device has it, nor its link.
fn unchanged(number: usize, queue: &WorkQueue, who: &str) -> Result<()> {
    for wqe in &queue.outstanding {
        let now = queue.wqe(wqe.slot);
        if now.segments == wqe.segments && now.link == wqe.link {
            continue;
        }
        let text = |wqe: &crate::queue::Wqe| {
            format!("link {}, segments {}", wqe.link, describe(&wqe.segments))
        };
        let slot = wqe.slot;
        let field = format!("queue {number}: WQE in slot {slot} of {who} while the device has it");
        return Err(Difference::new(field, text(wqe), text(&now)));
    }
    Ok(())
}

/// What a device that follows the links sees: the segments of each WQE that it has not taken, in order.
fn device_view(queue: &WorkQueue, next: u16, taken: u16) -> Vec<Vec<u8>> {
    let count = (queue.record()[0] as u16).wrapping_sub(taken);
    let mut slot = u32::from(next);
    (0..count)
        .map(|_| {
            let wqe = queue.wqe(slot % queue.slots);
            slot = wqe.link;
            wqe.segments
        })
        .collect()
}

fn same_view(number: usize, theirs: &[Vec<u8>], ours: &[Vec<u8>], tally: &mut Tally) -> Result<()> {
    same(
        || format!("queue {number}: WQEs in the list of the device"),
        theirs.len() as u64,
        ours.len() as u64,
    )?;
    for (place, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
        if theirs != ours {
            let field = format!("queue {number}: WQE {place} in the list of the device");
            return Err(Difference::new(field, describe(theirs), describe(ours)));
        }
        tally.add(tally::VIEWED, ours.len() as u64);
    }
    Ok(())
}
