//! Faults of single operations, of the port, and of the device as a whole.

use std::time::Duration;

use crate::base::faults::{Faults, PortFlap};
use crate::base::rng::Rng;
use crate::base::tally::{Fault, Tally};

// Each kind of fault draws from a generator of its own: one more fault of one kind does not change those of
// another kind.
const RNR_STREAM: u64 = 0x524e_5200;

/// Decides the fate of each operation.
#[derive(Debug)]
pub struct OperationFaults {
    faults: Faults,
    rng: Rng,
    tally: Tally,
    sends: u64,
    receives: u64,
    messages: u64,
}

impl OperationFaults {
    /// Makes the state of decisions that follow from `seed`.
    pub fn new(faults: Faults, seed: u64, tally: Tally) -> Self {
        let rng = Rng::new(seed ^ RNR_STREAM);
        Self { faults, rng, tally, sends: 0, receives: 0, messages: 0 }
    }

    /// Changes the faults from now on, and counts from zero.
    pub fn set(&mut self, faults: Faults) {
        (self.faults, self.sends, self.receives, self.messages) = (faults, 0, 0, 0);
    }

    /// Counts a send WQE; returns `true` if this WQE fails.
    pub fn send_fails(&mut self) -> bool {
        self.sends += 1;
        self.tally.count_if(self.faults.fail_send == Some(self.sends), Fault::Send)
    }

    /// Counts a message that goes into a receive WQE; returns `true` if this message fails.
    pub fn receive_fails(&mut self) -> bool {
        self.receives += 1;
        self.tally.count_if(self.faults.fail_receive == Some(self.receives), Fault::Receive)
    }

    /// Counts a message, sent or received; returns `true` if this message takes its QP to error.
    pub fn is_fatal(&mut self) -> bool {
        self.messages += 1;
        self.tally.count_if(self.faults.qp_fatal == Some(self.messages), Fault::Qp)
    }

    /// Returns `true` if the receiver counts as not ready.
    pub fn is_rnr(&mut self) -> bool {
        let refused = self.rng.chance(self.faults.rnr);
        self.tally.count_if(refused, Fault::Rnr)
    }
}

/// Times at which a device works, and at which its port changes.
#[derive(Debug)]
pub struct Schedule {
    flap: Option<PortFlap>,
    // The last state of the port, and the time up to which changes were applied.
    up: bool,
    looked: u64,
    slow: Option<u64>,
    next_work: u64,
}

impl Schedule {
    /// Makes a schedule that begins at power-up.
    pub fn new(faults: &Faults) -> Self {
        let slow = faults.slow.map(nanoseconds);
        Self { flap: faults.port_flap, up: true, looked: 0, slow, next_work: 0 }
    }

    /// Changes the schedule; the port stays as it is until the next time it would change.
    pub fn set(&mut self, faults: &Faults) {
        (self.flap, self.slow) = (faults.port_flap, faults.slow.map(nanoseconds));
    }

    /// Returns the next state that the port takes until time `now`. A late device makes up for every change.
    pub fn port_change(&mut self, now: u64) -> Option<bool> {
        let flap = self.flap.filter(|flap| next_change(*flap, self.looked) <= now);
        let Some(flap) = flap else {
            self.looked = now;
            return None;
        };
        self.looked = next_change(flap, self.looked);
        let (up, period) = flap_times(flap);
        let state = self.looked % period < up;
        if state == self.up {
            return self.port_change(now);
        }
        self.up = state;
        Some(state)
    }

    /// Returns `true` if the device works at time `now`: always, unless it is slow.
    pub fn works(&mut self, now: u64) -> bool {
        let Some(slow) = self.slow else { return true };
        if now < self.next_work {
            return false;
        }
        self.next_work = now + slow;
        true
    }

    /// Returns `true` if the device does only a little at a time.
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Returns when something changes next after `now`.
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        let flap = self.flap.map(|flap| next_change(flap, now));
        flap.into_iter().chain(self.slow.map(|_| self.next_work)).min()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn flap_times(flap: PortFlap) -> (u64, u64) {
    let (up, down) = (nanoseconds(flap.up), nanoseconds(flap.down));
    // The bound keeps the changes few that a late device makes up for.
    (up, (up + down).max(1000))
}

/// Returns when the port changes next after `now`.
fn next_change(flap: PortFlap, now: u64) -> u64 {
    let (up, period) = flap_times(flap);
    let into = now % period;
    now - into + if into < up { up } else { period }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_its_times() {
        let (up, down) = (Duration::from_micros(30), Duration::from_micros(10));
        let faults = Faults { port_flap: Some(PortFlap { up, down }), ..Faults::default() };
        let mut schedule = Schedule::new(&faults);
        let changes: Vec<_> =
            (0..100).filter_map(|now| schedule.port_change(now * 1000).map(|change| (now, change))).collect();
        assert_eq!(changes, [(30, false), (40, true), (70, false), (80, true)]);
        let mut late = Schedule::new(&faults);
        let changes: Vec<_> = std::iter::from_fn(|| late.port_change(75_000)).collect();
        assert_eq!(changes, [false, true, false]);
        assert_eq!(schedule.next_deadline(0), Some(30_000));
        assert_eq!(schedule.next_deadline(30_000), Some(40_000));
        assert_eq!(schedule.next_deadline(79_000), Some(80_000));
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
        let mut operations = OperationFaults::new(faults, 1, Tally::default());
        assert_eq!([(); 4].map(|()| operations.send_fails()), [false, true, false, false]);
        assert_eq!([(); 2].map(|()| operations.is_fatal()), [true, false]);
        assert!(![(); 9].map(|()| operations.receive_fails()).contains(&true));
        operations.set(faults);
        assert_eq!([(); 2].map(|()| operations.send_fails()), [false, true]);
    }
}
