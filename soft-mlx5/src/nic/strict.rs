//! Rules that an adapter does not report when a program breaks them: it mangles data instead. Under
//! `--strict` the first breach stops the program with one paragraph; otherwise it is counted.

use std::fmt::Write;

/// A rule, and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// `next_wqe_index` names a slot of the SRQ.
    SrqLink,
    /// A slot is handed over again only after its CQE was written.
    SrqSlotTwice,
    /// No more WQEs are outstanding than the queue has usable slots.
    ReceiveOverflow,
    /// The consumer index in the record is not ahead of the CQEs written.
    ConsumerIndex,
    /// `ds` is at least 1 and the WQE stays inside what was posted.
    SendSize,
    /// The send queue holds what was posted, no more.
    SendOverflow,
    /// The control segment names the queue pair that it is posted to.
    SendQpn,
    /// The control segment carries the producer index of its basic block.
    SendIndex,
    /// A posted WQE does not change before it is completed.
    SendChanged,
    /// A doorbell names a queue pair of its UAR page.
    DoorbellQpn,
    /// A doorbell is rung in a state that processes the send queue.
    DoorbellState,
    /// A data segment of length 0 means 2 GiB.
    ZeroLength,
    /// A list operation has an opcode that exists, and the segments that belong to it.
    TagOperation,
    /// An append announces a free entry, and a list operation names one of the list.
    TagIndex,
    /// No more unexpected messages are handled than there were.
    TagPhase,
}

impl Rule {
    const ALL: usize = Self::TagPhase as usize + 1;

    fn text(self) -> &'static str {
        match self {
            Self::SrqLink => {
                "next_wqe_index of a posted WQE names a slot that the SRQ does not have"
            }
            Self::SrqSlotTwice => "an SRQ slot was handed over again before its CQE was written",
            Self::ReceiveOverflow => "more receive WQEs are outstanding than the queue has slots",
            Self::ConsumerIndex => "the consumer index is ahead of the CQEs that were written",
            Self::SendSize => "ds of a send WQE is 0 or reaches past the producer index",
            Self::SendOverflow => "the producer index runs ahead of the send queue's size",
            Self::SendQpn => "the control segment names another queue pair",
            Self::SendIndex => {
                "the control segment carries another index than its place in the queue"
            }
            Self::SendChanged => "a send WQE changed between its start and its completion",
            Self::DoorbellQpn => "a doorbell names a queue pair that does not use this UAR page",
            Self::DoorbellState => "a doorbell was rung in a state that drops it",
            Self::ZeroLength => "a data segment of length 0 stands for 2 GiB",
            Self::TagOperation => "a list operation has another opcode or ds than there are",
            Self::TagIndex => "a list operation names no entry, or announces one that is in use",
            Self::TagPhase => "sw_cnt is ahead of the unexpected messages that were counted",
        }
    }
}

/// What broke a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// Queue pair number.
    Qp(u32),
    /// Shared receive queue number.
    Srq(u32),
    /// Completion queue number.
    Cq(u32),
    /// UAR page index.
    Uar(u32),
}

/// Judge of the rules.
#[derive(Debug)]
pub struct Strict {
    abort: bool,
    counts: [u64; Rule::ALL],
}

impl Strict {
    /// A judge that stops the program (`abort`) or counts.
    pub fn new(abort: bool) -> Self {
        Self { abort, counts: [0; Rule::ALL] }
    }

    /// Reports a breach: the rule, the object, the index in it and the bytes found there.
    #[cold]
    pub fn violation(&mut self, rule: Rule, object: Object, index: u32, bytes: &[u8]) {
        self.counts[rule as usize] += 1;
        if self.abort {
            eprintln!("{}", paragraph(rule, object, index, bytes));
            std::process::abort();
        }
    }

    /// Breaches of a rule so far.
    pub fn count(&self, rule: Rule) -> u64 {
        self.counts[rule as usize]
    }
}

fn paragraph(rule: Rule, object: Object, index: u32, bytes: &[u8]) -> String {
    let object = match object {
        Object::Qp(n) => format!("QP {n:#x}"),
        Object::Srq(n) => format!("SRQ {n:#x}"),
        Object::Cq(n) => format!("CQ {n:#x}"),
        Object::Uar(n) => format!("UAR page {n}"),
    };
    let mut text =
        format!("soft-mlx5: strict: {rule:?}: {} ({object}, index {index})", rule.text());
    if !bytes.is_empty() {
        text.push_str("; bytes:");
        for (at, byte) in bytes.iter().enumerate() {
            let space = if at % 4 == 0 { " " } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{space}{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paragraph_names_rule_object_index_and_bytes() {
        let text = paragraph(Rule::SrqLink, Object::Srq(0x1001), 5, &[0, 0, 0xff, 0xfe, 1]);
        assert!(text.contains("SrqLink"), "{text}");
        assert!(text.contains("SRQ 0x1001, index 5"), "{text}");
        assert!(text.ends_with("bytes: 0000fffe 01"), "{text}");
    }

    #[test]
    fn without_abort_breaches_are_counted() {
        let mut strict = Strict::new(false);
        strict.violation(Rule::ZeroLength, Object::Qp(1), 0, &[]);
        strict.violation(Rule::ZeroLength, Object::Qp(1), 1, &[]);
        assert_eq!(strict.count(Rule::ZeroLength), 2);
        assert_eq!(strict.count(Rule::SendSize), 0);
    }
}
