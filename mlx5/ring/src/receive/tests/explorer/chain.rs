//! The WQEs of an SRQ that the device was not told of, as it will find them.
//!
//! The queue never reads a link. So for what it does next it does not matter in which order the device comes through
//! these WQEs, as long as it comes through all of them and to the head: of a state that is known by [`walk`], and
//! [`lay`] makes some order.

use crate::slots;
use crate::testing::{Device, TestQueue};

use super::state::MOST;

/// Slots that follow each other, by themselves or because the last one was turned.
#[derive(Clone, Copy, Default)]
struct Run {
    first: u32,
    last: u32,
    turned: bool,
}

/// Follows the links from where the device goes on. Returns a bit for each slot.
pub fn walk<Q: TestQueue>(queue: &Q, device: &Device) -> u32 {
    let mut found = 0u32;
    let mut slot = u32::from(device.next);
    for _ in 0..queue.unrung() {
        assert!(slots::is_posted(queue.book().state(slot)), "slot {slot} is not posted");
        assert_eq!(found >> slot & 1, 0, "the device comes to slot {slot} twice");
        found |= 1 << slot;
        slot = device.link_of(slot).into();
    }
    assert_eq!(slot, queue.head_slot(), "the last link leads to the head");
    found
}

/// Links these slots, each to the one after it, but for those that were turned. Returns where the device goes on.
pub fn lay<Q: TestQueue>(queue: &Q, device: &mut Device, chain: u32) -> u32 {
    let count = queue.book().count();
    let has = |slot: u32| chain >> slot & 1 != 0;
    let turned = |slot| queue.book().state(slot) == slots::POSTED_TURNED;
    let follows = |slot: u32| {
        let before = (slot + count - 1) % count;
        has(before) && !turned(before)
    };
    let mut runs = [Run::default(); MOST];
    let mut len = 0;
    for first in (0..count).filter(|&slot| has(slot) && !follows(slot)) {
        let mut last = first;
        while !turned(last) && has((last + 1) % count) {
            last = (last + 1) % count;
        }
        runs[len] = Run { first, last, turned: turned(last) };
        len += 1;
    }
    let (runs, head) = (&mut runs[..len], queue.head_slot());
    assert!(arrange(runs, 0, head, count), "no order of the slots {chain:b}");
    let firsts = runs.iter().map(|run| run.first).chain([head]);
    for (run, next) in runs.iter().zip(firsts.clone().skip(1)) {
        device.set_link(run.last, next as u16);
    }
    firsts.into_iter().next().unwrap_or(head)
}

/// Puts the runs from `at` on in an order in which those that were turned lead elsewhere than to the slot after them,
/// the others there, and the last one to the head.
fn arrange(runs: &mut [Run], at: usize, head: u32, count: u32) -> bool {
    let leads = |run: Run, to| run.turned == ((run.last + 1) % count != to);
    if at == runs.len() {
        return runs.last().is_none_or(|&run| leads(run, head));
    }
    for other in at..runs.len() {
        runs.swap(at, other);
        let fits = at == 0 || leads(runs[at - 1], runs[at].first);
        if fits && arrange(runs, at + 1, head, count) {
            return true;
        }
        runs.swap(at, other);
    }
    false
}
