//! What goes wrong on the link, on request.

use super::packet::Frame;
use super::rng::Rng;

/// Probabilities (0 to 1) with which a port mistreats a packet that it sends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// The packet is lost.
    pub loss: f64,
    /// The packet arrives twice.
    pub duplication: f64,
    /// The packet is overtaken by packets sent after it.
    pub reordering: f64,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

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
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is sent.
    Send,
    /// It is sent twice.
    SendTwice,
    /// It is lost.
    Lose,
    /// It is held back; see [`Injector::hold`].
    Hold,
}

impl Injector {
    /// An injector whose decisions follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, rng: Rng::new(seed), held: Vec::new() }
    }

    /// Whether packets can pass without a question asked.
    pub fn is_idle(&self) -> bool {
        self.faults.is_none() && self.held.is_empty()
    }

    /// Changes what goes wrong from now on.
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

    /// A held packet whose time has come.
    pub fn release(&mut self, now: u64) -> Option<Frame> {
        let due = |held: &Held| held.overtakers_left == 0 || held.until <= now;
        let index = self.held.iter().position(due)?;
        Some(self.held.remove(index).frame)
    }

    /// When the next held packet goes at the latest.
    pub fn next_deadline(&self) -> Option<u64> {
        self.held.iter().map(|held| held.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
