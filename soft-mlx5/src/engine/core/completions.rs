//! The way of completions to their CQs: shuffled, late, in compressed blocks or torn, as options say.

use super::Core;
use crate::base::defect::Defect;
use crate::engine::NicConfig;
use crate::objects::completion::Completion;
use crate::objects::defects::TORN_NS;
use crate::objects::shuffle::Shuffler;
use crate::objects::{Cqn, Event};

/// Completions on their way, and CQs with more to write.
#[derive(Debug)]
pub struct Completions {
    shuffler: Shuffler,
    // CQs with a torn CQE, and when it becomes whole.
    torn: Vec<(Cqn, u64)>,
    // CQs that hold CQEs back for a compressed block.
    held_back: Vec<Cqn>,
    // CQs that overran and whose queue pairs do not know it yet.
    failed: Vec<Cqn>,
}

impl Completions {
    /// Starts without completions.
    pub fn new(config: &NicConfig) -> Self {
        let shuffler = Shuffler::new(config.faults.shuffle_completions, config.seed);
        Self { shuffler, torn: Vec::new(), held_back: Vec::new(), failed: Vec::new() }
    }

    /// Shuffles from now on, or no more.
    pub fn set_shuffling(&mut self, on: bool) {
        self.shuffler.set(on);
    }

    /// Takes a CQ that overran.
    pub fn take_failed(&mut self) -> Option<Cqn> {
        self.failed.pop()
    }

    /// Returns when the next completion or the rest of a torn CQE is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.torn.iter().map(|(_, until)| *until).chain(self.shuffler.next_deadline()).min()
    }
}

impl Core {
    /// Reports a completion.
    pub fn complete(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        if self.completions.shuffler.is_on() && !self.is_of_tag_matching(cqn) {
            self.completions.shuffler.hold(cqn, completion, self.now);
        } else {
            self.write_cqe(cqn, completion);
        }
    }

    fn is_of_tag_matching(&mut self, cqn: Cqn) -> bool {
        self.srqs.iter_mut().any(|(_, srq)| srq.own_cq() == Some(cqn))
    }

    /// Writes the CQEs whose time has come.
    pub fn release_completions(&mut self) {
        while let Some((cqn, completion)) = self.completions.shuffler.release(self.now) {
            self.write_cqe(cqn, &completion);
        }
        if self.late.is_due(&self.late.completions, self.now) {
            self.write_late_cqes();
        }
    }

    /// Writes all CQEs of a queue pair: later CQEs must not come before them.
    pub fn release_completions_of(&mut self, qpn: u32) {
        while let Some((cqn, completion)) = self.completions.shuffler.release_of_qp(qpn) {
            self.write_cqe(cqn, &completion);
        }
        self.write_late_cqes();
        self.write_blocks();
    }

    /// Writes all CQEs of a CQ.
    pub fn release_completions_to(&mut self, cq: Cqn) {
        while let Some((cqn, completion)) = self.completions.shuffler.release_of_cq(cq) {
            self.write_cqe(cqn, &completion);
        }
        self.write_late_cqes();
        self.write_blocks();
    }

    /// Writes the CQEs that wait for their bunch.
    pub fn write_late_cqes(&mut self) {
        while let Some((cqn, completion)) = self.late.completions.take() {
            self.write_cqe_now(cqn, &completion);
        }
    }

    /// Reports a completion of a queue of frames. Its CQEs do not name their queue, so they are never shuffled.
    pub fn complete_frame(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        self.write_cqe(cqn, completion);
    }

    /// Writes a CQE now, or with its bunch.
    pub fn write_cqe(&mut self, cqn: Cqn, completion: &Completion) {
        if self.late.is_on() {
            self.late.completions.add((cqn, completion.clone()), self.now);
        } else {
            self.write_late_cqes();
            self.write_cqe_now(cqn, completion);
        }
    }

    fn write_cqe_now(&mut self, cqn: Cqn, completion: &Completion) {
        match self.defects.completions(completion) {
            None => self.push_cqe(cqn, completion),
            Some(others) => others.iter().for_each(|completion| self.push_cqe(cqn, completion)),
        }
    }

    fn push_cqe(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        // Only a driver's mistake lets a queue pair outlive its CQ; no program waits for the CQE then.
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return };
        self.trace.completed(cqn, cq.producer(), completion);
        self.counters.count_cqe(completion);
        let event = cq.push(completion, &self.defects, &mut self.strict);
        if self.defects.is(Defect::TornCqe) {
            // This CQE has made the one before whole.
            self.completions.torn.retain(|(torn, _)| *torn != cqn);
            self.completions.torn.push((cqn, self.now + TORN_NS));
        }
        if cq.holds_back() && !self.completions.held_back.contains(&cqn) {
            self.completions.held_back.push(cqn);
        }
        self.raise(event);
    }

    /// Reports an event of a CQ to the driver.
    pub fn raise(&mut self, event: Option<Event>) {
        if let Some(Event::CqError(cqn)) = event {
            self.completions.failed.push(cqn);
        }
        self.events.extend(event);
    }

    /// Writes the CQEs that were held back for a compressed block.
    pub fn write_blocks(&mut self) {
        while let Some(cqn) = self.completions.held_back.pop() {
            let cq = self.cqs.get_mut(cqn.0);
            let event = cq.and_then(|cq| cq.write_block(&self.defects, &mut self.strict));
            self.raise(event);
        }
    }

    /// Writes the rest of torn CQEs whose time has come.
    pub fn mend_cqes(&mut self) {
        let Self { completions, now, cqs, strict, .. } = self;
        completions.torn.retain(|(cqn, until)| {
            let due = *until <= *now;
            if let Some(cq) = cqs.get_mut(cqn.0).filter(|_| due) {
                cq.mend(strict);
            }
            !due
        });
    }

    /// Looks at the arm record of a CQ.
    pub fn arm(&mut self, cq: u32) {
        let Some(cq) = self.cqs.get_mut(cq) else { return };
        let number = cq.number();
        let event = cq.arm(&mut self.strict, &mut self.trace);
        let early = self.defects.is(Defect::EarlyEvent).then_some(Event::Completion(number));
        self.raise(event.or(early));
    }
}
