//! libibverbs with the functions of the drop-in.

use std::collections::VecDeque;

use super::{Completion, Keys, Receive, Subject};
use crate::plan::{Entry, Give};
use crate::queue::Wqe;
use crate::reference::{self, Refusal};
use crate::twin::Objects;
use crate::verbs::{self, fields};

pub struct DropIn {
    objects: Objects,
    keys: Keys,
    /// Identifies receives: no two have the same.
    next_id: u64,
    /// Receives that were posted and not read back, by queue.
    posted: Vec<VecDeque<u64>>,
}

impl DropIn {
    pub fn new(objects: Objects, keys: Keys) -> Self {
        let posted = vec![VecDeque::new(); objects.qps.len()];
        Self { objects, keys, next_id: 1, posted }
    }
}

impl Subject for DropIn {
    fn prepare(&mut self, lists: &[Vec<Entry>]) -> Vec<Receive> {
        self.keys.prepare(lists, &mut self.next_id)
    }

    fn post(&mut self, queue: usize, receives: &[Receive]) -> (usize, Option<Refusal>) {
        let (taken, refusal) = reference::post(&self.objects, queue, receives);
        self.posted[queue].extend(receives[..taken].iter().map(|receive| receive.0));
        (taken, refusal)
    }

    fn load_spare(&mut self, _: usize) -> Option<Receive> {
        None
    }

    fn poll(&mut self, budget: u32, _: &[Give]) -> Vec<Completion> {
        let completions = verbs::poll(self.objects.cq, budget);
        let completion = |wc| Completion { fields: fields(wc), given: Give::Take, data: None };
        completions.iter().map(completion).collect()
    }

    fn held(&self) -> usize {
        0
    }

    fn give_back(&mut self, _: usize, _: bool) -> (usize, u64) {
        unreachable!("holds no message")
    }

    fn arm(&mut self, solicited_only: bool) {
        reference::arm(&self.objects, solicited_only);
    }

    fn reset(&mut self, qp: usize) {
        reference::reset(&self.objects, qp);
        if self.objects.srq.is_null() {
            self.posted[qp].clear();
        }
    }

    fn id(&mut self, queue: usize, _: &Wqe) -> u64 {
        self.posted[queue].pop_front().unwrap_or(0)
    }
}
