//! Faults that can be put into doorbell, to see what is reported.

use crate::memory::Region;
use crate::plan::Give;
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
    /// Arming a CQ does not change its doorbell record.
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
    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self).expect("no fault is hidden");
        value.get_name().to_owned()
    }
}

/// Changes bits of a big-endian word.
pub fn flip(memory: Region, word: usize, bits: u32) {
    let now = memory.word(4 * word) ^ bits;
    memory.write_at(4 * word, &now.to_be_bytes());
}

/// Posts to a queue with this doorbell record.
pub fn post(
    fault: Option<Fault>,
    subject: &mut dyn Subject,
    queue: usize,
    receives: &[Receive],
    record: Region,
) -> (usize, Option<Refusal>) {
    let mut receives = receives.to_vec();
    let mut long = false;
    for (_, list) in &mut receives {
        let [_, second, ..] = &mut list[..] else { continue };
        long = true;
        if fault == Some(Fault::Length) {
            second.length ^= 1;
        }
    }
    let posted = subject.post(queue, &receives);
    if long && fault == Some(Fault::Record) {
        flip(record, 0, 1 << 16);
    }
    posted
}

pub fn poll(fault: Option<Fault>, subject: &mut dyn Subject, budget: u32, give: &[Give]) -> Vec<Completion> {
    let mut completions = subject.poll(budget, give);
    if fault == Some(Fault::Completion) {
        let fields = completions.iter_mut().flat_map(|completion| &mut completion.fields);
        for (_, value) in fields.filter(|(name, value)| *name == "byte_len" && *value > 64) {
            *value += 1;
        }
    }
    completions
}

/// Arms a CQ with this doorbell record.
pub fn arm(fault: Option<Fault>, subject: &mut dyn Subject, solicited_only: bool, record: Region) {
    let before = record.word(4);
    subject.arm(solicited_only ^ (fault == Some(Fault::Arm)));
    if fault == Some(Fault::ArmRecord) {
        record.write_at(4, &before.to_be_bytes());
    }
}
