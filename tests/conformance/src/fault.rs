//! What doorbell can be made to do wrong, to see what is reported.

use crate::memory::Region;
use crate::plan::{Entry, Give};
use crate::queue::{CompletionQueue, WorkQueue, Wqe};
use crate::reference::Refusal;
use crate::subject::{Completion, Receive, Subject};

/// An error that is put into doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// A wrong length in scatter lists of two entries and more.
    Length,
    /// A bit too many in the doorbell record of a queue, after lists of two entries and more.
    Record,
    /// A CQ is armed for the other kind of event.
    Arm,
    /// Arming a CQ leaves its doorbell record as it was.
    ArmRecord,
    /// Messages of more than 64 bytes are reported longer than they are.
    Completion,
    /// A wrong mask in the tag list.
    Mask,
    /// The doorbell record of the command queue is ahead.
    CommandRecord,
    /// The doorbell record of a send queue is ahead.
    SendRecord,
}

impl Fault {
    /// As the command line has it.
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self).expect("no fault is hidden");
        value.get_name().to_owned()
    }
}

/// A layer of doorbell that does something wrong.
pub struct Faulty {
    pub subject: Box<dyn Subject>,
    pub fault: Fault,
    /// Doorbell records of the queues, and of the CQ.
    records: Vec<Region>,
    cq_record: Region,
}

impl Faulty {
    pub fn new(
        subject: Box<dyn Subject>,
        fault: Fault,
        queues: &[WorkQueue],
        cq: &CompletionQueue,
    ) -> Self {
        let records = queues.iter().map(WorkQueue::record_memory).collect();
        Self { subject, fault, records, cq_record: cq.record_memory() }
    }
}

/// Changes bits of a big-endian word.
pub fn flip(memory: Region, word: usize, bits: u32) {
    let now = memory.word(4 * word) ^ bits;
    memory.write_at(4 * word, &now.to_be_bytes());
}

impl Subject for Faulty {
    fn prepare(&mut self, lists: &[Vec<Entry>]) -> Vec<Receive> {
        self.subject.prepare(lists)
    }

    fn post(&mut self, queue: usize, receives: &[Receive]) -> (usize, Option<Refusal>) {
        let mut receives = receives.to_vec();
        let mut long = false;
        for (_, list) in &mut receives {
            let [_, second, ..] = &mut list[..] else { continue };
            long = true;
            if self.fault == Fault::Length {
                second.length ^= 1;
            }
        }
        let posted = self.subject.post(queue, &receives);
        if long && self.fault == Fault::Record {
            flip(self.records[queue], 0, 1 << 16);
        }
        posted
    }

    fn load_spare(&mut self, queue: usize) -> Option<Receive> {
        self.subject.load_spare(queue)
    }

    fn poll(&mut self, budget: u32, give: &[Give]) -> Vec<Completion> {
        let mut completions = self.subject.poll(budget, give);
        if self.fault == Fault::Completion {
            let fields = completions.iter_mut().flat_map(|completion| &mut completion.fields);
            for (_, value) in fields.filter(|(name, value)| *name == "byte_len" && *value > 64) {
                *value += 1;
            }
        }
        completions
    }

    fn held(&self) -> usize {
        self.subject.held()
    }

    fn give_back(&mut self, index: usize, recycle: bool) -> (usize, u64) {
        self.subject.give_back(index, recycle)
    }

    fn arm(&mut self, solicited_only: bool) {
        let before = self.cq_record.word(4);
        self.subject.arm(solicited_only ^ (self.fault == Fault::Arm));
        if self.fault == Fault::ArmRecord {
            self.cq_record.write_at(4, &before.to_be_bytes());
        }
    }

    fn reset(&mut self, qp: usize) {
        self.subject.reset(qp);
    }

    fn id(&mut self, queue: usize, wqe: &Wqe) -> u64 {
        self.subject.id(queue, wqe)
    }
}
