//! Work that a device still does for its peers before a queue pair is destroyed.
//!
//! An adapter sends the acknowledgement of a message together with its CQE. Here the program may see
//! the CQE first, and destroy the queue pair or exit before the acknowledgement is sent; the peer would
//! then run into its retry limit. So the device sends outstanding answers first. On a link with injected
//! loss that is not enough: the acknowledgement itself may be lost, and the peer needs a device that
//! answers its retransmissions.

use std::thread;
use std::time::Duration;

use super::Core;
use crate::base::tally::Fault;

/// Steps that send the outstanding answers.
const STEPS: usize = 16;
/// How long a lossy device answers retransmissions: for four of the usual timeouts of 67 ms (14). A peer
/// fails only if all of these retransmissions are lost. At the pace of an adapter the time has room for the longest
/// timeout that counts as 16.
const LINGER_NS: u64 = 300_000_000;
const LONG_LINGER_NS: u64 = 1_200_000_000;
/// Teardowns within this time of another one have lingered already.
const ONE_TEARDOWN_NS: u64 = 1_000_000_000;
const NAP: Duration = Duration::from_micros(100);

impl Core {
    /// Works for the peers before one or all queue pairs are destroyed.
    pub fn settle(&mut self) {
        self.work_off();
        if !self.clock.is_real() {
            return;
        }
        let now = self.clock.now();
        if !self.faults.touch_packets() || self.lingered.is_some_and(|last| now < last + ONE_TEARDOWN_NS) {
            return;
        }
        let linger = if self.nic.is_slow() { LONG_LINGER_NS } else { LINGER_NS };
        while self.clock.now() < now + linger {
            if !self.work() {
                thread::sleep(NAP);
            }
        }
        self.lingered = Some(self.clock.now());
    }

    /// Lets the device do its present work; a stepped device waits for its steps.
    pub fn work_off(&mut self) {
        let mut steps = if self.clock.is_real() { STEPS } else { 0 };
        self.nic.hurry(true);
        while steps > 0 && self.work() {
            steps -= 1;
        }
        self.nic.hurry(false);
    }

    /// Settles before the process ends, if there are queue pairs that peers may talk to.
    pub fn settle_at_exit(&mut self) {
        self.end_rdma_cm();
        if self.nic.has_queue_pairs() {
            self.settle();
        }
    }

    /// Lets the device work for a bounded while; returns `false` if there was nothing to do.
    pub fn work(&mut self) -> bool {
        let now = self.clock.now();
        if let Some(removal) = self.removal_time().filter(|removal| *removal <= now) {
            // Work that was due before the removal is done first, even by a late device.
            self.nic.step(removal);
            self.tally.count(Fault::Removal);
            self.remove();
        }
        let mut busy = self.nic.step(now);
        busy |= self.take_management();
        busy |= self.expire_umad();
        busy |= self.work_rdma_cm();
        self.clock_pages.set(now);
        self.deliver_events();
        busy
    }
}
