//! Every state that a small queue can reach, in every order of posting, completing, polling and giving back.
//!
//! Steps are as small as the queue knows them: most states are inside a batch, and each call on it is a step of
//! its own. What goes through a batch is a `Receiving`, or a `Cursor` as the safe layer uses it. A
//! [`State`](state::State) is what decides the future: the states of the slots, which WQEs the device has and of which
//! it was not told, the fields of the queue and of the batch, what is held or lent, and where the CQ stands. It is all
//! that the search keeps: before each step, queue, CQ, device and ledger are made anew from it, so nothing that is not
//! in it can matter unseen. Not in it is what the future does not depend on:
//!
//! - which buffer is which: in every state each is compared with its slot, and then named after it;
//! - the order in which the device has WQEs, and in which messages were held: any of them may be next;
//! - the order in which the device will find the WQEs that it was not told of: the queue never reads a link, see
//!   [`chain`];
//! - how far counters have come: they are put where the next lap wraps them, at 16, 24 and 32 bits;
//! - what stands in WQEs and data of empty slots: garbage is put there;
//! - CQEs that wait: nothing but polling looks at the CQ, so the queue cannot tell a CQE that came long ago
//!   from one that is written just before it is asked for. Small queues are explored with CQEs that wait all
//!   the same.
//!
//! Of the states that are known, fingerprints of 128 bits are kept: that two of a billion states have the same
//! one has a probability below 10^-20.

mod chain;
mod lending;
mod search;
mod state;
mod steps;

use std::fmt::{self, Display, Formatter};
use std::println;
use std::time::Instant;

use crate::rq::ReceiveQueue;
use crate::srq::SharedReceiveQueue;
use crate::testing::TestQueue;

use search::{Found, Search};
use steps::{Cqes, Loop};

/// No limit to a batch.
const ANY: u32 = u32::MAX;

/// Farther from the end of the CQ's buffer than a batch comes.
const FAR: u32 = u32::MAX;

/// What is explored.
struct Extent {
    slots: u32,
    cqes: Cqes,
    budgets: &'static [u32],
    loops: &'static [Loop],
    /// Whether batches are forgotten.
    forget: bool,
    /// Whether cursors ask for a [`retarget`](crate::receive::retarget).
    retargets: &'static [bool],
}

const ALL: usize = usize::MAX;

impl Extent {
    fn waits(&self) -> bool {
        matches!(self.cqes, Cqes::Wait(_))
    }

    /// Until so many states are known.
    fn explore<Q: TestQueue>(&self, limit: usize) {
        let began = Instant::now();
        let Found { all, states, transitions, frontier } = Search::new(self, limit).run::<Q>();
        println!(
            "{}, {self}: {states} states{}, {transitions} transitions, {frontier} at once, {:.1} s",
            if Q::LEAD > 0 { "SRQ" } else { "RQ" },
            if all { ", which are all" } else { "" },
            began.elapsed().as_secs_f64(),
        );
        assert_eq!(all, limit == ALL);
    }

    fn both(&self, limit: usize) {
        self.explore::<SharedReceiveQueue<u32>>(limit);
        self.explore::<ReceiveQueue<u32>>(limit);
    }
}

impl Display for Extent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { slots, cqes, budgets, loops, forget, .. } = self;
        write!(f, "{slots} slots, ")?;
        match cqes {
            Cqes::Wait(entries) => write!(f, "CQEs that wait in {entries} entries")?,
            Cqes::Asked(places) => write!(f, "{} places of the CQ", places.len())?,
        }
        write!(
            f,
            ", {} budgets, {loops:?}{}",
            budgets.len(),
            if *forget { ", forgotten" } else { "" }
        )
    }
}

const BATCH: &[Loop] = &[Loop::Batch];
const CURSOR: &[Loop] = &[Loop::Cursor];
const BOTH: &[Loop] = &[Loop::Batch, Loop::Cursor];

const TWO: Extent = Extent {
    slots: 2,
    cqes: Cqes::Wait(2),
    budgets: &[1, 2, ANY],
    loops: BOTH,
    forget: true,
    retargets: &[false, true],
};
const FOUR: Extent =
    Extent { slots: 4, cqes: Cqes::Asked(&[1, 2, 3, FAR]), budgets: &[1, 2, 3, ANY], ..TWO };
const EIGHT: Extent = Extent { slots: 8, cqes: DOES_NOT_WRAP, budgets: &[ANY], ..TWO };

const DOES_NOT_WRAP: Cqes = Cqes::Asked(&[FAR]);

/// After three CQEs of a batch, which goes on.
const WRAPS: Cqes = Cqes::Asked(&[3]);

/// As the safe layer does it: no message is held, and retargets are asked for on an SRQ.
const EIGHT_LENT: Extent = Extent { loops: CURSOR, forget: false, retargets: &[true], ..EIGHT };

#[test]
fn all_states_of_an_srq_of_2() {
    TWO.explore::<SharedReceiveQueue<u32>>(ALL);
    Extent { cqes: Cqes::Wait(4), ..TWO }.explore::<SharedReceiveQueue<u32>>(ALL);
}

#[test]
fn all_states_of_an_rq_of_1_and_2() {
    Extent { slots: 1, cqes: Cqes::Wait(1), ..TWO }.explore::<ReceiveQueue<u32>>(ALL);
    TWO.explore::<ReceiveQueue<u32>>(ALL);
}

#[test]
fn all_states_of_queues_of_4() {
    // Where the CPU is likely to be emulated, one place of the CQ must do.
    let one = Extent { cqes: Cqes::Asked(&[2]), budgets: &[ANY], ..FOUR };
    if !cfg!(target_arch = "aarch64") {
        Extent { loops: BATCH, ..FOUR }.both(ALL);
    }
    one.both(ALL);
}

#[test]
fn states_of_queues_of_8() {
    let limit = if cfg!(target_arch = "aarch64") { 4_000 } else { 40_000 };
    EIGHT.both(limit);
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_with_cqes_that_wait() {
    for entries in [4, 8] {
        Extent { cqes: Cqes::Wait(entries), ..TWO }.both(ALL);
    }
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_queues_of_4_with_cqes_that_wait() {
    let four = Extent { slots: 4, cqes: Cqes::Wait(4), ..EIGHT_LENT };
    four.explore::<SharedReceiveQueue<u32>>(ALL);
    Extent { retargets: &[false], ..four }.explore::<ReceiveQueue<u32>>(ALL);
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_queues_of_4_in_any_batch() {
    FOUR.both(ALL);
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_an_srq_of_8() {
    for cqes in [DOES_NOT_WRAP, WRAPS] {
        Extent { cqes, ..EIGHT_LENT }.explore::<SharedReceiveQueue<u32>>(ALL);
    }
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_an_rq_of_8() {
    for cqes in [DOES_NOT_WRAP, WRAPS] {
        Extent { cqes, loops: BATCH, ..EIGHT }.explore::<ReceiveQueue<u32>>(ALL);
        Extent { cqes, retargets: &[false], ..EIGHT_LENT }.explore::<ReceiveQueue<u32>>(ALL);
    }
}
