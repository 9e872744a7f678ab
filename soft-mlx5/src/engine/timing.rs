//! The pace of an adapter, on request: ACK timeouts are long, and completions, arms of CQs and acknowledgements take
//! effect late and in bunches.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::rng::Rng;
use crate::objects::Cqn;
use crate::objects::completion::Completion;

/// How fast a device is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Timing {
    /// As fast as the machine lets it be, with ACK timeouts as the program asks for.
    #[default]
    Model,
    /// As slow as an adapter can be: see `docs/soft-mlx5.md`.
    Adapter,
}

// Each kind of choice draws from a generator of its own.
const COMPLETIONS_STREAM: u64 = 0x4c41_5443;
const ARMS_STREAM: u64 = 0x4c41_5441;
const ACKS_STREAM: u64 = 0x4c41_544b;
const TIMEOUTS_STREAM: u64 = 0x4c41_5454;
const COMMANDS_STREAM: u64 = 0x4c41_544d;

// Longest time that a bunch collects, after its first item.
const LONGEST_BUNCH_NS: u64 = 40_000;

const TIMEOUT_UNIT_NS: u64 = 4096;
// A device in software answers slower than an adapter: shorter timeouts than this are stretched.
const SHORTEST_TIMEOUT_NS: u64 = 1_000_000;
// Firmware without adaptive timers takes a lower code as this one.
const LOWEST_CODE: u8 = 16;
// An ACK timeout takes up to so many times as long as its code says.
const LONGEST_TIMEOUT: u64 = 4;

// Time that a modify command takes, and the random time on top of it.
const MODIFY_NS: u64 = 1_000_000;
const MODIFY_SPREAD_NS: u64 = 3_000_000;

/// Items that wait for each other, in the order in which they came.
#[derive(Debug)]
pub struct Bunch<T> {
    rng: Rng,
    items: VecDeque<T>,
    // Time at which the items leave; `None` if there are none.
    at: Option<u64>,
}

impl<T> Bunch<T> {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), items: VecDeque::new(), at: None }
    }

    /// Adds an item at time `now`.
    pub fn add(&mut self, item: T, now: u64) {
        self.at.get_or_insert_with(|| now + 1 + self.rng.below(LONGEST_BUNCH_NS));
        self.items.push_back(item);
    }

    /// Takes the oldest item, due or not.
    pub fn take(&mut self) -> Option<T> {
        let item = self.items.pop_front();
        if self.items.is_empty() {
            self.at = None;
        }
        item
    }

    fn is_due(&self, now: u64) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

/// The work that a device does later at the pace of an adapter.
#[derive(Debug)]
pub struct Late {
    timing: Timing,
    // Lowest code of an ACK timeout, which then takes no longer than its code says.
    lowest_code: Option<u8>,
    hurries: bool,
    /// Completions on their way to their CQs.
    pub completions: Bunch<(Cqn, Completion)>,
    /// CQs whose doorbell was rung.
    pub arms: Bunch<u32>,
    /// Queue pairs that hold an acknowledgement back.
    pub acks: Bunch<u32>,
    timeouts: Rng,
    commands: Rng,
}

impl Late {
    /// Makes the pace of a device; random times follow from `seed`. A `lowest_code` replaces the random times of ACK
    /// timeouts.
    pub fn new(timing: Timing, lowest_code: Option<u8>, seed: u64) -> Self {
        Self {
            timing,
            lowest_code,
            hurries: false,
            completions: Bunch::new(seed ^ COMPLETIONS_STREAM),
            arms: Bunch::new(seed ^ ARMS_STREAM),
            acks: Bunch::new(seed ^ ACKS_STREAM),
            timeouts: Rng::new(seed ^ TIMEOUTS_STREAM),
            commands: Rng::new(seed ^ COMMANDS_STREAM),
        }
    }

    /// Returns `true` at the pace of an adapter.
    pub fn is_slow(&self) -> bool {
        self.timing == Timing::Adapter
    }

    /// Returns `true` if completions, arms and acknowledgements wait for their bunch.
    pub fn is_on(&self) -> bool {
        self.is_slow() && !self.hurries
    }

    /// Lets nothing wait, or lets it wait again.
    pub fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    /// Returns `true` if this bunch leaves at time `now`.
    pub fn is_due<T>(&self, bunch: &Bunch<T>, now: u64) -> bool {
        bunch.is_due(if self.hurries { u64::MAX } else { now })
    }

    /// Returns when the next bunch leaves.
    pub fn next_deadline(&self) -> Option<u64> {
        [self.completions.at, self.arms.at, self.acks.at].into_iter().flatten().min()
    }

    /// Returns how long to wait this time for an acknowledgement, or `None` to wait for ever.
    pub fn ack_timeout(&mut self, code: u8) -> Option<u64> {
        if code == 0 {
            return None;
        }
        if let Some(lowest) = self.lowest_code {
            return Some(TIMEOUT_UNIT_NS << code.max(lowest));
        }
        if self.timing == Timing::Model {
            return Some((TIMEOUT_UNIT_NS << code).max(SHORTEST_TIMEOUT_NS));
        }
        let shortest = TIMEOUT_UNIT_NS << code.max(LOWEST_CODE);
        Some(shortest + self.timeouts.below((LONGEST_TIMEOUT - 1) * shortest))
    }

    /// Returns how long this modify command keeps its caller.
    pub fn modify_time(&mut self) -> Duration {
        let time = MODIFY_NS + self.commands.below(MODIFY_SPREAD_NS);
        if self.is_slow() { Duration::from_nanos(time) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE_16_NS: u64 = 4096 << 16;

    #[test]
    fn a_bunch_leaves_together_and_in_order() {
        let mut late = Late::new(Timing::Adapter, None, 1);
        late.arms.add(7, 1000);
        let at = late.next_deadline().unwrap();
        late.arms.add(8, at - 1);
        assert!(at > 1000 && at <= 1000 + LONGEST_BUNCH_NS);
        assert_eq!(late.next_deadline(), Some(at), "the first item sets the time");
        assert!(!late.is_due(&late.arms, at - 1) && late.is_due(&late.arms, at));
        assert_eq!([late.arms.take(), late.arms.take(), late.arms.take()], [Some(7), Some(8), None]);
        assert_eq!(late.next_deadline(), None);
    }

    #[test]
    fn timeouts_have_the_floor_and_the_factor_of_firmware() {
        let mut late = Late::new(Timing::Adapter, None, 1);
        let mut tries: Vec<_> = (0..1000).map(|_| late.ack_timeout(10).unwrap()).collect();
        tries.sort_unstable();
        assert!(tries[0] >= CODE_16_NS && tries[0] < CODE_16_NS * 11 / 10, "{}", tries[0]);
        assert!(tries[999] < 4 * CODE_16_NS && tries[999] > 4 * CODE_16_NS * 9 / 10, "{}", tries[999]);
        assert!((0..1000).all(|_| late.ack_timeout(18).unwrap() >= 4 * CODE_16_NS));
        assert_eq!(late.ack_timeout(0), None, "0 means for ever");
        let mut model = Late::new(Timing::Model, None, 1);
        assert_eq!([1, 10, 16].map(|code| model.ack_timeout(code)), [1_000_000, 4_194_304, CODE_16_NS].map(Some));
    }

    #[test]
    fn timeouts_keep_to_a_floor_that_was_asked_for() {
        for timing in [Timing::Model, Timing::Adapter] {
            let mut late = Late::new(timing, Some(17), 1);
            let codes = [0, 10, 17, 18].map(|code| late.ack_timeout(code));
            assert_eq!(codes, [None, Some(2 * CODE_16_NS), Some(2 * CODE_16_NS), Some(4 * CODE_16_NS)], "{timing:?}");
        }
    }
}
