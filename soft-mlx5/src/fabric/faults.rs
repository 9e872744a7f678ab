//! Faults of the link, on request.

use std::collections::VecDeque;

use super::packet::Frame;
use crate::base::faults::Faults;
use crate::base::rng::Rng;

// A packet held back lets up to this many others pass, and goes anyway after this time.
const MOST_OVERTAKERS: u64 = 8;
const LONGEST_HOLD_NS: u64 = 50_000;

#[derive(Debug)]
struct Held {
    frame: Frame,
    overtakers_left: u64,
    until: u64,
}

/// Decides the fate of each packet.
#[derive(Debug)]
pub struct Injector {
    faults: Faults,
    rng: Rng,
    held: Vec<Held>,
    // Delayed packets with their times of arrival, in the order of sending.
    late: VecDeque<(u64, Frame)>,
}

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet is sent.
    Send,
    /// The packet is sent twice.
    SendTwice,
    /// The packet is lost.
    Lose,
    /// The packet is held back; see [`Injector::hold`].
    Hold,
}

impl Injector {
    /// Makes an injector whose decisions follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, rng: Rng::new(seed), held: Vec::new(), late: VecDeque::new() }
    }

    /// Returns `true` if packets can pass without a decision.
    pub fn is_idle(&self) -> bool {
        !self.faults.touch_packets() && self.held.is_empty() && self.late.is_empty()
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Draws the fate of the next packet.
    pub fn fate(&mut self) -> Fate {
        if self.rng.chance(self.faults.loss) {
            Fate::Lose
        } else if self.rng.chance(self.faults.duplication) {
            Fate::SendTwice
        } else if self.rng.chance(self.faults.reordering) {
            Fate::Hold
        } else {
            Fate::Send
        }
    }

    /// Holds a packet back at time `now`.
    pub fn hold(&mut self, frame: Frame, now: u64) {
        let overtakers_left = 1 + self.rng.below(MOST_OVERTAKERS);
        self.held.push(Held { frame, overtakers_left, until: now + LONGEST_HOLD_NS });
    }

    /// Counts a packet that overtook all that are held.
    pub fn overtake(&mut self) {
        for held in &mut self.held {
            held.overtakers_left = held.overtakers_left.saturating_sub(1);
        }
    }

    /// Sends a packet on its way at time `now`; gives it back when it arrives at once.
    pub fn delay(&mut self, frame: Frame, now: u64) -> Option<Frame> {
        // A packet must not overtake a delayed one, although the delay has changed.
        if self.faults.delay.is_zero() && self.late.is_empty() {
            return Some(frame);
        }
        let arrival = now + self.faults.delay.as_nanos() as u64;
        self.late.push_back((arrival, frame));
        None
    }

    /// Takes the next delayed packet that has arrived.
    pub fn arrival(&mut self, now: u64) -> Option<Frame> {
        self.late.front().filter(|(arrival, _)| *arrival <= now)?;
        self.late.pop_front().map(|(_, frame)| frame)
    }

    /// Takes a held packet whose time has come.
    pub fn release(&mut self, now: u64) -> Option<Frame> {
        let due = |held: &Held| held.overtakers_left == 0 || held.until <= now;
        let index = self.held.iter().position(due)?;
        Some(self.held.remove(index).frame)
    }

    /// Returns when the next packet goes or arrives at the latest.
    pub fn next_deadline(&self) -> Option<u64> {
        let late = self.late.front().map(|(arrival, _)| *arrival);
        self.held.iter().map(|held| held.until).chain(late).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_late_packet_keeps_its_place() {
        let faults = Faults { delay: Duration::from_nanos(50), ..Faults::default() };
        let mut injector = Injector::new(faults, 1);
        assert!(injector.delay(Frame::default(), 100).is_none());
        injector.set_faults(Faults::default());
        assert!(!injector.is_idle());
        assert!(injector.delay(Frame::default(), 110).is_none(), "after the one under way");
        assert!(injector.arrival(149).is_none());
        assert_eq!(injector.next_deadline(), Some(150));
        assert!(injector.arrival(150).is_some() && injector.arrival(150).is_some());
        assert!(injector.is_idle() && injector.delay(Frame::default(), 160).is_some());
    }

    #[test]
    fn a_held_packet_goes_after_its_overtakers_or_its_time() {
        let mut injector = Injector::new(Faults { reordering: 1.0, ..Faults::default() }, 1);
        assert_eq!(injector.fate(), Fate::Hold);
        injector.hold(Frame::default(), 100);
        assert!(injector.release(100).is_none());
        for _ in 0..MOST_OVERTAKERS {
            injector.overtake();
        }
        assert!(injector.release(100).is_some());
        injector.hold(Frame::default(), 100);
        assert_eq!(injector.next_deadline(), Some(100 + LONGEST_HOLD_NS));
        assert!(injector.release(100 + LONGEST_HOLD_NS).is_some());
        assert_eq!(injector.next_deadline(), None);
    }
}
