//! Timers of queue pairs: one deadline each, kept in a heap that may hold it too early but never too
//! late, so that moving a deadline further away costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A deadline of a queue pair.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deadline {
    at: Option<u64>,
    // Earliest entry of this queue pair in the heap.
    queued: Option<u64>,
}

impl Deadline {
    /// Returns the deadline, if it is set.
    pub fn get(&self) -> Option<u64> {
        self.at
    }
}

/// The heap.
#[derive(Debug, Default)]
pub struct Timers(BinaryHeap<Reverse<(u64, u32)>>);

impl Timers {
    /// Sets or clears the deadline of queue pair `qpn`.
    #[inline]
    pub fn set(&mut self, qpn: u32, deadline: &mut Deadline, at: Option<u64>) {
        deadline.at = at;
        if let Some(at) = at {
            if deadline.queued.is_none_or(|queued| at < queued) {
                deadline.queued = Some(at);
                self.0.push(Reverse((at, qpn)));
            }
        }
    }

    /// Takes the next queue pair whose entry is due at `now`; [`Self::is_due`] says whether its deadline
    /// is due, too.
    pub fn pop(&mut self, now: u64) -> Option<u32> {
        let Reverse((at, qpn)) = *self.0.peek()?;
        if at > now {
            return None;
        }
        self.0.pop();
        Some(qpn)
    }

    /// Returns `true` if the deadline has passed; otherwise queues it again.
    pub fn is_due(&mut self, qpn: u32, deadline: &mut Deadline, now: u64) -> bool {
        deadline.queued = None;
        let due = deadline.at.is_some_and(|at| at <= now);
        if !due {
            self.set(qpn, deadline, deadline.at);
        }
        due
    }

    /// Returns a time that is not later than the next deadline.
    pub fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_moved_later_does_not_fire_early() {
        let mut timers = Timers::default();
        let mut deadline = Deadline::default();
        timers.set(1, &mut deadline, Some(100));
        timers.set(1, &mut deadline, Some(500));
        assert_eq!(timers.next(), Some(100));
        assert_eq!(timers.pop(99), None);
        assert_eq!(timers.pop(100), Some(1));
        assert!(!timers.is_due(1, &mut deadline, 100));
        assert_eq!(timers.next(), Some(500));
        assert_eq!(timers.pop(500), Some(1));
        assert!(timers.is_due(1, &mut deadline, 500));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_moved_earlier_fires_in_time() {
        let mut timers = Timers::default();
        let mut deadline = Deadline::default();
        timers.set(1, &mut deadline, Some(500));
        timers.set(1, &mut deadline, Some(50));
        assert_eq!(timers.pop(50), Some(1));
        assert!(timers.is_due(1, &mut deadline, 50));
        timers.set(1, &mut deadline, None);
        // The entry for 500 is stale.
        assert_eq!(timers.pop(500), Some(1));
        assert!(!timers.is_due(1, &mut deadline, 500));
        assert_eq!(timers.next(), None);
    }
}
