//! Unexpected messages: how many the library has handled, and whether the device knows.
//!
//! The device counts the messages that match no receive. A receive that is appended carries the number that software
//! had handled by then. While this number differs from the device's count, a message that may belong to the receive is
//! on its way to software. So the device does not match the receive until an operation carries the number that the
//! device has counted.

use super::arrival::Counts;

/// More unreported messages than this are reported in any case: the counts have 16 bits.
const MOST: u16 = 0x2000;

#[derive(Debug, Default)]
pub(super) struct Phase {
    handled: u16,
    /// The count that the last operation carried.
    reported: u16,
    /// A receive was appended, or may have been, while the counts differed.
    behind: bool,
    /// A synchronisation was posted and is not executed.
    pending: bool,
}

impl Phase {
    /// An unexpected message was handled.
    pub(super) fn handle(&mut self) {
        self.handled = self.handled.wrapping_add(1);
    }

    /// The numbers for operations that are posted now.
    /// `news`: one of them reports what was handled.
    pub(super) fn report(&mut self, news: bool) -> Counts {
        let before = self.reported;
        if news {
            self.reported = self.handled;
        }
        Counts { before, now: self.handled }
    }

    /// An operation was executed that carried `count`, when the device had counted `hw_phase`. Without `hw_phase` the
    /// device had counted the messages handled so far, because completions come in order.
    pub(super) fn executed(&mut self, count: u16, hw_phase: Option<u16>) {
        self.behind = count != hw_phase.unwrap_or(self.handled);
    }

    /// A synchronisation was executed.
    pub(super) fn synchronized(&mut self) {
        self.pending = false;
    }

    /// Returns `true` if a synchronisation is to be posted.
    pub(super) fn is_due(&self) -> bool {
        let unreported = self.handled.wrapping_sub(self.reported);
        !self.pending && (self.behind && unreported != 0 || unreported >= MOST)
    }

    /// A synchronisation is about to be posted.
    pub(super) fn synchronize(&mut self) {
        self.pending = true;
    }

    /// Returns `true` if a synchronisation is posted and not executed.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_due_while_receives_are_appended_in_phase() {
        let mut phase = Phase::default();
        let count = phase.report(true).now;
        phase.handle();
        assert!(!phase.is_due(), "no receive waits");
        phase.executed(count, Some(0));
        assert!(!phase.is_due(), "it was appended in phase");
    }

    #[test]
    fn a_receive_appended_out_of_phase_is_synchronized_until_it_is_in_phase() {
        let mut phase = Phase::default();
        let count = phase.report(true).now;
        phase.handle();
        phase.executed(count, Some(1));
        assert!(phase.is_due());
        phase.synchronize();
        let Counts { before, now } = phase.report(true);
        assert_eq!((before, now), (0, 1));
        assert!(!phase.is_due(), "one at a time");
        // Another message was faster than the synchronisation.
        phase.handle();
        assert!(!phase.is_due(), "the one before is not executed");
        phase.synchronized();
        phase.executed(1, None);
        assert!(phase.is_due());
        phase.synchronize();
        assert_eq!(phase.report(true).now, 2);
        phase.synchronized();
        phase.executed(2, None);
        assert!(!phase.is_due());
    }

    #[test]
    fn the_counts_never_drift_so_far_apart_that_they_could_seem_equal() {
        let mut phase = Phase::default();
        for _ in 0..MOST {
            assert!(!phase.is_due());
            phase.handle();
        }
        assert!(phase.is_due());
    }
}
