//! Both twins, and the operations that sessions of each kind share.

use std::time::Duration;

use rdma_core_sys as sys;
use soft_mlx5::Faults;
use soft_mlx5::engine::inspect::Queues;

use crate::base::Base;
use crate::difference::{Result, same, same_bytes};
use crate::memory::{Arena, Region};
use crate::sequence::Settings;
use crate::tally::{self, Tally};
use crate::verbs::{fields, same_fields};

/// One of two equal sets of objects.
pub trait Twin {
    /// A message of a peer.
    type Send;
    fn base(&self) -> &Base;
    /// Posts messages on a peer; returns how many it took.
    fn send(&mut self, index: usize, sends: &[Self::Send]) -> usize;
    /// Polls the completions of the peers' sends.
    fn poll_peers(&mut self) -> Vec<sys::ibv_wc>;
}

pub struct Twins<T> {
    pub doorbell: T,
    pub libmlx5: T,
    arena: Arena,
    /// The lead is over, and messages carry bytes: the memory that they are written to is compared.
    pub payload: bool,
    /// QPs that are in error.
    failed: Vec<bool>,
}

impl<T: Twin> Twins<T> {
    /// Both write messages to `regions`.
    pub fn new(libmlx5: T, doorbell: T, regions: Vec<Region>) -> Self {
        Self::with_regions(libmlx5, doorbell, regions.into_iter().map(|region| [region; 2]).collect())
    }

    /// They write messages to `regions`: doorbell's and libmlx5's.
    pub fn with_regions(libmlx5: T, doorbell: T, regions: Vec<[Region; 2]>) -> Self {
        let failed = vec![false; doorbell.base().qps.len()];
        Self { doorbell, libmlx5, arena: Arena::new(regions), payload: false, failed }
    }

    fn bases(&self) -> [&Base; 2] {
        [self.libmlx5.base(), self.doorbell.base()]
    }

    /// State of the queues of the two devices: libmlx5's and doorbell's.
    pub fn queues(&self) -> (Queues, Queues) {
        (self.libmlx5.base().queues(), self.doorbell.base().queues())
    }

    /// QPs under test.
    pub fn qps(&self) -> usize {
        self.failed.len()
    }

    /// The lead is over.
    pub fn begin(&mut self, settings: &Settings) {
        self.payload = true;
        if settings.lossy {
            let faults = Faults { loss: 0.02, reordering: 0.05, ..Faults::default() };
            for base in self.bases() {
                base.device.set_faults(faults);
            }
        }
    }

    pub fn send(&mut self, qp: usize, sends: &[T::Send]) -> Result<()> {
        // The peers of both twins read the same memory, and each twin writes the same bytes there.
        let posted = [&mut self.libmlx5, &mut self.doorbell].map(|twin| twin.send(qp, sends) as u64);
        same(|| "sends that a peer took".into(), posted[0], posted[1])
    }

    /// Lets both devices work until there is nothing left to do.
    pub fn work(&mut self, tally: &mut Tally) -> Result<()> {
        let (ours, theirs) = self.on_both(tally, |twin| twin.base().work(), |twin| twin.base().work())?;
        same(|| "steps of the device".into(), theirs as u64, ours as u64)?;
        let (theirs, ours) = (self.libmlx5.poll_peers(), self.doorbell.poll_peers());
        for wc in theirs.iter().filter(|wc| wc.status != sys::IBV_WC_SUCCESS) {
            let failed = self.libmlx5.base().peer(wc.qp_num);
            self.failed[failed] = true;
        }
        same(|| "completions of peers".into(), theirs.len() as u64, ours.len() as u64)?;
        for (number, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            let name = |name: &str| format!("completion {number} of peers: {name}");
            same_fields(name, &fields(theirs), &fields(ours))?;
        }
        Ok(())
    }

    /// Does an operation on both twins that writes to the memory of messages, and compares the memory.
    pub fn on_both<O, L>(
        &mut self,
        tally: &mut Tally,
        ours: impl FnOnce(&mut T) -> O,
        theirs: impl FnOnce(&mut T) -> L,
    ) -> Result<(O, L)> {
        let Self { doorbell, libmlx5, arena, payload, .. } = self;
        if !*payload {
            return Ok((ours(doorbell), theirs(libmlx5)));
        }
        arena.remember();
        let ours = ours(doorbell);
        arena.put_back();
        let theirs = theirs(libmlx5);
        match arena.compare() {
            Ok(bytes) => tally.add(tally::PAYLOAD, bytes as u64),
            Err((region, ours, theirs)) => {
                same_bytes(|| format!("message memory, region {region}"), &theirs, &ours)?;
            }
        }
        Ok((ours, theirs))
    }

    /// Time passes.
    pub fn wait(&self, milliseconds: u32) {
        let time = Duration::from_millis(milliseconds.into());
        for base in self.bases() {
            base.device.advance(time);
        }
    }

    /// A QP goes to error.
    pub fn fail(&mut self, qp: usize) {
        self.failed[qp] = true;
        for base in self.bases() {
            base.fail(qp);
        }
    }

    /// A QP has gone to error by itself.
    pub fn note_failure(&mut self, qp: usize) {
        self.failed[qp] = true;
    }

    pub fn has_failed(&self, qp: usize) -> bool {
        self.failed[qp]
    }

    /// A QP is reset.
    pub fn renew(&mut self, qp: usize) {
        self.failed[qp] = false;
    }
}
