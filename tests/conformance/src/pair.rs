//! Two queues that should be equal: one of each twin.

use std::collections::HashSet;

use mlx5_wire::cqe::Cqe64;
use soft_mlx5::engine::inspect::Queues;

use crate::difference::{Difference, Result, describe, same, same_bytes};
use crate::library;
use crate::queue::{CompletionQueue, WorkQueue, Wqe};
use crate::tally::{self, Tally};

/// Queues larger than this are compared as a whole only on request.
const LARGE: usize = 64 * 1024;

/// The queues of both twins with one number.
pub struct Pair {
    pub libmlx5: WorkQueue,
    pub doorbell: WorkQueue,
    /// Buffers that doorbell was given and has not handed over: until a slot is free.
    pub waiting: Vec<u64>,
    /// The lists of free slots have become different, both being legal: see docs/conformance.md.
    pub diverged: bool,
}

impl Pair {
    pub fn new(libmlx5: WorkQueue, doorbell: WorkQueue) -> Self {
        Self { libmlx5, doorbell, waiting: Vec::new(), diverged: false }
    }

    /// Compares the parts of queue `number` that the devices may read; with `whole` also if it is large.
    pub fn compare(&self, number: usize, [theirs, ours]: [&Queues; 2], whole: bool, tally: &mut Tally) -> Result<()> {
        let name = format!("queue {number}");
        same_record(&name, &self.libmlx5.record(), &self.doorbell.record(), tally)?;
        if self.doorbell.memory.len() > LARGE && !whole {
            return Ok(());
        }
        if !self.diverged {
            self.same_memory(number, tally)?;
        }
        unchanged(number, &self.libmlx5, "libmlx5")?;
        unchanged(number, &self.doorbell, "doorbell")?;
        if let ([theirs], [ours]) = (&theirs.srqs[..], &ours.srqs[..]) {
            let theirs = device_view(&self.libmlx5, theirs.next, theirs.taken);
            let ours = device_view(&self.doorbell, ours.next, ours.taken);
            same_view(number, &theirs, &ours, tally)?;
        }
        Ok(())
    }

    /// Compares every byte that the device may read, in the same places.
    fn same_memory(&self, number: usize, tally: &mut Tally) -> Result<()> {
        let Self { libmlx5, doorbell, .. } = self;
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
                    let name = || format!("queue {number}: slot {slot}, beyond the end of the free list");
                    same_bytes(name, theirs, ours)?;
                }
                tally.add(tally::FREE_SLOT, stride as u64);
                continue;
            }
            same_bytes(|| format!("queue {number}: WQE in slot {slot}"), theirs, ours)?;
        }
        Ok(())
    }

    /// Compares the WQEs that both twins have handed over now; `ours` are doorbell's.
    pub fn compare_new(&mut self, number: usize, ours: Vec<Wqe>, tally: &mut Tally) -> Result<()> {
        let mut theirs = self.libmlx5.handed_over();
        same(|| format!("queue {number}: WQEs handed over"), theirs.len() as u64, ours.len() as u64)?;
        for (theirs, ours) in theirs.iter_mut().zip(&ours) {
            theirs.id = ours.id;
            let name = |what: &str| format!("queue {number}: {what} of wr_id {:#x}", ours.id);
            if theirs.segments != ours.segments {
                let texts = (describe(&theirs.segments), describe(&ours.segments));
                return Err(Difference::new(name("segments"), texts.0, texts.1));
            }
            if !self.diverged {
                same(|| name("slot"), theirs.slot.into(), ours.slot.into())?;
                same(|| name("link"), theirs.link.into(), ours.link.into())?;
            }
            tally.add(tally::VIEWED, ours.segments.len() as u64);
        }
        self.libmlx5.outstanding.extend(theirs);
        self.doorbell.outstanding.extend(ours);
        Ok(())
    }

    /// A receive has completed. If it was not libmlx5's oldest, the lists of free slots of an SRQ differ afterwards,
    /// unless libmlx5 appends freed slots as doorbell does.
    pub fn complete(&mut self, id: u64, shared: bool, tally: &mut Tally) -> Result<()> {
        let orders = [self.libmlx5.complete(id), self.doorbell.complete(id)];
        let [Some(in_order), Some(_)] = orders else {
            let name = format!("WQE that completes (wr_id {id:#x})");
            let was = |found: Option<bool>| {
                if found.is_some() { "with the device" } else { "not posted" }
            };
            return Err(Difference::new(name, was(orders[0]), was(orders[1])));
        };
        if !in_order {
            self.diverged |= shared && !library::appends_freed_slots();
            tally.add(tally::OUT_OF_ORDER, 1);
        }
        Ok(())
    }
}

/// Checks that no WQE and no link was changed while the device has it.
fn unchanged(number: usize, queue: &WorkQueue, who: &str) -> Result<()> {
    for wqe in &queue.outstanding {
        let now = queue.wqe(wqe.slot);
        if now.segments == wqe.segments && now.link == wqe.link {
            continue;
        }
        let text = |wqe: &Wqe| format!("link {}, segments {}", wqe.link, describe(&wqe.segments));
        let slot = wqe.slot;
        let field = format!("queue {number}: WQE in slot {slot} of {who} while the device has it");
        return Err(Difference::new(field, text(wqe), text(&now)));
    }
    Ok(())
}

/// Segments of the WQEs that the device has not taken, in the order of the links.
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
    same(|| format!("queue {number}: WQEs in the list of the device"), theirs.len() as u64, ours.len() as u64)?;
    for (place, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
        if theirs != ours {
            let field = format!("queue {number}: WQE {place} in the list of the device");
            return Err(Difference::new(field, describe(theirs), describe(ours)));
        }
        tally.add(tally::VIEWED, ours.len() as u64);
    }
    Ok(())
}

/// Compares the words of two doorbell records.
pub fn same_record(of: &str, theirs: &[u32], ours: &[u32], tally: &mut Tally) -> Result<()> {
    for (word, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
        let name = || format!("{of}: doorbell record, word {word}");
        same(name, (*theirs).into(), (*ours).into())?;
        tally.add(tally::EXACT, 4);
    }
    Ok(())
}

/// Compares the records of two CQs, and the CQEs that wait in them. `mask` clears the fields of a CQE that may differ.
pub fn same_completions(
    [theirs, ours]: [&CompletionQueue; 2],
    queues: [&Queues; 2],
    tally: &mut Tally,
    mask: impl Fn(&mut Cqe64),
) -> Result<()> {
    same_record("CQ", &theirs.record(), &ours.record(), tally)?;
    let live = (theirs.live(queues[0]), ours.live(queues[1]));
    same(|| "CQEs that wait".into(), live.0.len() as u64, live.1.len() as u64)?;
    for (number, (mut theirs, mut ours)) in live.0.into_iter().zip(live.1).enumerate() {
        for entry in [&mut theirs, &mut ours] {
            let at = entry.len() - Cqe64::SIZE;
            let mut cqe = Cqe64::from_bytes(entry[at..].try_into().expect("a CQE"));
            mask(&mut cqe);
            // The signature covers the index. Doorbell signs a CQE again that a reset has moved; libmlx5 does not.
            cqe.signature = 0;
            entry[at..].copy_from_slice(&cqe.to_bytes());
        }
        same_bytes(|| format!("CQE {number} of those that wait"), &theirs, &ours)?;
        tally.add(tally::EXACT, theirs.len() as u64);
    }
    Ok(())
}
