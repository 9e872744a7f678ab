//! Polling through libibverbs.

use std::collections::VecDeque;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::extended;
use crate::cq::Cq;

/// Completions taken with one call.
pub(super) const POLLED: usize = 32;

/// A completion as verbs report it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wc {
    pub(crate) wc: sys::ibv_wc,
    /// Time of completion in ticks of the device's clock, if it was asked for.
    pub(crate) timestamp: Option<u64>,
}

impl Wc {
    /// Returns the index of the queue that it is of: see [`VerbsQueue`](super::VerbsQueue).
    pub(crate) const fn queue(&self) -> u32 {
        (self.wc.wr_id >> 32) as u32
    }
}

/// A CQ that `ibv_poll_cq` polls. It fetches some completions ahead.
pub(crate) struct VerbsCq {
    cq: Arc<Cq>,
    waiting: VecDeque<Wc>,
    fetched: Box<[sys::ibv_wc; POLLED]>,
    /// Completions that were taken, modulo 2^32.
    taken: u32,
    /// The completion that was taken last.
    current: Wc,
}

// SAFETY: `ibv_wc` is plain data; the CQ is polled through `&mut` only.
unsafe impl Send for VerbsCq {}

impl VerbsCq {
    pub(crate) fn new(cq: Arc<Cq>) -> Self {
        Self {
            cq,
            waiting: VecDeque::with_capacity(POLLED),
            fetched: Box::new([sys::ibv_wc::default(); POLLED]),
            taken: 0,
            current: Wc::default(),
        }
    }

    /// Returns the number of completions that were taken, modulo 2^32.
    pub(crate) const fn taken(&self) -> u32 {
        self.taken
    }

    /// Returns the completion that was taken last.
    pub(crate) const fn current(&self) -> &Wc {
        &self.current
    }

    /// Takes the next completion; asks the device when all that it gave were taken.
    pub(crate) fn next(&mut self) -> Option<&Wc> {
        if self.waiting.is_empty() {
            self.fetch();
        }
        self.current = self.waiting.pop_front()?;
        self.taken = self.taken.wrapping_add(1);
        Some(&self.current)
    }

    /// Returns `true` if there is a completion that was not taken.
    pub(crate) fn has_arrived(&mut self) -> bool {
        !self.waiting.is_empty() || self.fetch() > 0
    }

    /// Fetches the next completions, at most `count`, and takes none.
    pub(crate) fn look_ahead(&mut self, count: usize) -> impl Iterator<Item = &Wc> {
        while self.waiting.len() < count && self.fetch() > 0 {}
        self.waiting.iter().take(count)
    }

    fn fetch(&mut self) -> usize {
        if let Some((cq, timestamps)) = self.cq.with_timestamps() {
            // SAFETY: a live CQ that no other code polls, created with what is read.
            return unsafe { extended::fetch(cq, timestamps, &mut self.waiting) };
        }
        let Self { waiting, fetched, .. } = self;
        // SAFETY: a live CQ that no other code polls, and room for as many completions.
        let got =
            unsafe { sys::ibv_poll_cq(self.cq.as_raw(), POLLED as i32, fetched.as_mut_ptr()) };
        // A negative number means that the CQ is broken; its asynchronous event says so.
        let got = usize::try_from(got).unwrap_or(0).min(POLLED);
        waiting.extend(fetched[..got].iter().map(|&wc| Wc { wc, timestamp: None }));
        got
    }

    /// Fetches everything that has arrived, and drops what `keep` does not keep.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Wc) -> bool) {
        while self.fetch() > 0 {}
        self.waiting.retain(|wc| keep(wc));
    }
}
