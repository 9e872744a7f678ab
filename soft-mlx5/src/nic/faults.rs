//! Faults of single operations, of the port, and of the device as a whole.

use std::time::Duration;

use crate::fabric::rng::Rng;
use crate::faults::{Faults, PortFlap};

// Faults of different kinds draw from generators of their own: one more of the first kind does not move
// those of the second.
const RNR_STREAM: u64 = 0x524e_5200;

/// Decides what becomes of each operation.
#[derive(Debug)]
pub struct OperationFaults {
    faults: Faults,
    rng: Rng,
    sends: u64,
    receives: u64,
    messages: u64,
}

impl OperationFaults {
    /// Decisions that follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        Self { faults, rng: Rng::new(seed ^ RNR_STREAM), sends: 0, receives: 0, messages: 0 }
    }

    /// Changes what goes wrong from now on, and counts anew.
    pub fn set(&mut self, faults: Faults) {
        (self.faults, self.sends, self.receives, self.messages) = (faults, 0, 0, 0);
    }

    /// Counts a send WQE; `true` when it is the one that fails.
    pub fn send_fails(&mut self) -> bool {
        self.sends += 1;
        self.faults.fail_send == Some(self.sends)
    }

    /// Counts a message that goes into a receive WQE; `true` when it is the one that fails.
    pub fn receive_fails(&mut self) -> bool {
        self.receives += 1;
        self.faults.fail_receive == Some(self.receives)
    }

    /// Counts a message, sent or received; `true` when it is the one that takes its QP to error.
    pub fn is_fatal(&mut self) -> bool {
        self.messages += 1;
        self.faults.qp_fatal == Some(self.messages)
    }

    /// Whether the receiver counts as not ready.
    pub fn is_rnr(&mut self) -> bool {
        self.rng.chance(self.faults.rnr)
    }
}

/// Times at which a device works, and at which its port changes.
#[derive(Debug)]
pub struct Schedule {
    flap: Option<PortFlap>,
    // What the port was last told.
    up: bool,
    slow: Option<u64>,
    next_work: u64,
}

impl Schedule {
    /// A schedule that begins at power-up.
    pub fn new(faults: &Faults) -> Self {
        let slow = faults.slow.map(nanoseconds);
        Self { flap: faults.port_flap, up: true, slow, next_work: 0 }
    }

    /// Changes the schedule; the port stays as it is until the next time it would change.
    pub fn set(&mut self, faults: &Faults) {
        (self.flap, self.slow) = (faults.port_flap, faults.slow.map(nanoseconds));
    }

    /// State that the port takes at time `now`, if it changes.
    pub fn port_change(&mut self, now: u64) -> Option<bool> {
        let (up, period) = flap_times(self.flap?);
        let state = now % period < up;
        let changes = state != self.up;
        self.up = state;
        changes.then_some(state)
    }

    /// Whether a slow device works at time `now`; one that is not slow always does.
    pub fn works(&mut self, now: u64) -> bool {
        let Some(slow) = self.slow else { return true };
        if now < self.next_work {
            return false;
        }
        self.next_work = now + slow;
        true
    }

    /// Whether only a little is done at a time.
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// When something changes next after `now`.
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        let flap = self.flap.map(|flap| {
            let (up, period) = flap_times(flap);
            let into = now % period;
            now - into + if into < up { up } else { period }
        });
        flap.into_iter().chain(self.slow.map(|_| self.next_work)).min()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn flap_times(flap: PortFlap) -> (u64, u64) {
    let (up, down) = (nanoseconds(flap.up), nanoseconds(flap.down));
    (up, (up + down).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_its_times() {
        let (up, down) = (Duration::from_nanos(30), Duration::from_nanos(10));
        let faults = Faults { port_flap: Some(PortFlap { up, down }), ..Faults::default() };
        let mut schedule = Schedule::new(&faults);
        let changes: Vec<_> = (0..100)
            .filter_map(|now| schedule.port_change(now).map(|change| (now, change)))
            .collect();
        assert_eq!(changes, [(30, false), (40, true), (70, false), (80, true)]);
        assert_eq!(schedule.next_deadline(0), Some(30));
        assert_eq!(schedule.next_deadline(30), Some(40));
        assert_eq!(schedule.next_deadline(79), Some(80));
    }

    #[test]
    fn a_slow_device_works_at_its_times() {
        let slow = Some(Duration::from_nanos(10));
        let mut schedule = Schedule::new(&Faults { slow, ..Faults::default() });
        let times: Vec<_> = (0..35).filter(|now| schedule.works(*now)).collect();
        assert_eq!(times, [0, 10, 20, 30]);
        assert_eq!(schedule.next_deadline(35), Some(40));
    }

    #[test]
    fn only_the_nth_operation_fails() {
        let faults = Faults { fail_send: Some(2), qp_fatal: Some(1), ..Faults::default() };
        let mut operations = OperationFaults::new(faults, 1);
        assert_eq!([(); 4].map(|()| operations.send_fails()), [false, true, false, false]);
        assert_eq!([(); 2].map(|()| operations.is_fatal()), [true, false]);
        assert!(![(); 9].map(|()| operations.receive_fails()).contains(&true));
        operations.set(faults);
        assert_eq!([(); 2].map(|()| operations.send_fails()), [false, true]);
    }
}
