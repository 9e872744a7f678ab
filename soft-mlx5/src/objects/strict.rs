//! Rules that an adapter does not report when a program breaks them: it mangles data instead. Under
//! `--strict` the first breach stops the program with one paragraph; otherwise it is counted.

use std::fmt::Write;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// `next_wqe_index` names a slot of the SRQ.
    SrqLink,
    /// A slot is handed over again only after its CQE was written.
    SrqSlotTwice,
    /// No more WQEs are outstanding than the queue has usable slots.
    ReceiveOverflow,
    /// A receive WQE, link included, does not change after the doorbell record covered it.
    ReceiveChanged,
    /// Nothing is posted to a receive queue whose queue pair is in state Reset.
    ReceiveState,
    /// WQEs stand at multiples of the queue's stride: each WQE that is handed over was written.
    Stride,
    /// A list of data segments that is shorter than its WQE ends with a terminator.
    Terminator,
    /// The consumer index in the record is not ahead of the CQEs written.
    ConsumerIndex,
    /// `ds` is at least 1 and the WQE stays inside what was posted.
    SendSize,
    /// The send queue holds all posted WQEs.
    SendOverflow,
    /// The control segment names the queue pair that it is posted to.
    SendQpn,
    /// The control segment carries the producer index of its basic block.
    SendIndex,
    /// A posted WQE does not change before it is completed.
    SendChanged,
    /// A doorbell names a queue pair of its UAR page.
    DoorbellQpn,
    /// A doorbell that arms names a CQ of its UAR page.
    ArmCqn,
    /// A doorbell is rung in a state that processes the send queue.
    DoorbellState,
    /// A register that queue pairs share holds the WQE that it was rung for.
    BlueFlame,
    /// The doorbell record of a send queue is followed by a write to the register.
    DoorbellMissing,
    /// A data segment of length 0 means 2 GiB.
    ZeroLength,
    /// A data segment is shorter than 2 GiB: bit 31 of its length marks an inline segment.
    SegmentLength,
    /// Rings and doorbell records stay mapped as long as their queues live.
    QueueMemory,
    /// A list operation has an opcode that exists, and the segments that belong to it.
    TagOperation,
    /// An append announces a free entry, and a remove names one that was appended and not removed since.
    TagIndex,
    /// Software reports no more unexpected messages than there were, and no fewer than before.
    TagPhase,
    /// A WQE of a striding receive queue has one data segment, at byte 16, that holds all strides.
    StridingWqe,
    /// The mask of a UMR WQE names only fields that exist.
    UmrMask,
    /// A list outside its UMR WQE begins at a multiple of 2,048 bytes, and has a multiple of 64 bytes that holds all
    /// entries.
    UmrList,
    /// A memory window lies inside its region.
    WindowRange,
    /// The region of a memory window gives IBV_ACCESS_MW_BIND, and IBV_ACCESS_LOCAL_WRITE where peers may write.
    WindowRights,
    /// A multi-packet WQE has an Ethernet segment without an inline header, a tag or segmentation, and at most 15 basic
    /// blocks.
    MultiPacket,
    /// No WQE uses the signature offload.
    Signature,
}

impl Rule {
    const COUNT: usize = Self::Signature as usize + 1;

    fn text(self) -> &'static str {
        match self {
            Self::SrqLink => "next_wqe_index of a posted WQE names a slot that the SRQ does not have",
            Self::SrqSlotTwice => "an SRQ slot was handed over again before its CQE was written",
            Self::ReceiveOverflow => "more receive WQEs are outstanding than the queue has slots",
            Self::ReceiveChanged => "a receive WQE changed after the doorbell record covered it",
            Self::ReceiveState => "receive WQEs were posted to a queue pair in state Reset",
            Self::Stride => {
                "nothing was written where a receive WQE begins: its first lkey is 0; is the stride another?"
            }
            Self::Terminator => {
                "a data segment that was never written (lkey 0) follows the data segments of a WQE, instead of a terminator"
            }
            Self::ConsumerIndex => "the consumer index is ahead of the CQEs that were written",
            Self::SendSize => "ds of a send WQE is 0 or reaches past the producer index",
            Self::SendOverflow => "the producer index runs ahead of the send queue's size",
            Self::SendQpn => "the control segment names another queue pair",
            Self::SendIndex => "the control segment carries another index than its place in the queue",
            Self::SendChanged => "a send WQE changed between its start and its completion",
            Self::DoorbellQpn => "a doorbell names a queue pair that does not use this UAR page",
            Self::ArmCqn => "a doorbell arms a CQ that does not use this UAR page",
            Self::DoorbellState => "a doorbell was rung in a state that drops it",
            Self::BlueFlame => "a register that queue pairs share holds another WQE than the one it was rung for",
            Self::DoorbellMissing => "WQEs that the doorbell record covers wait for a write to the register",
            Self::ZeroLength => "a data segment of length 0 stands for 2 GiB",
            Self::SegmentLength => "a data segment has a length of 2 GiB or more, which marks it as an inline segment",
            Self::QueueMemory => "a ring or doorbell record was unmapped while its queue lives",
            Self::TagOperation => "a list operation has another opcode or ds than there are",
            Self::TagIndex => "a list operation names no entry of the list, or announces one that is in use",
            Self::TagPhase => "sw_cnt is ahead of the unexpected messages that were counted, or goes back",
            Self::StridingWqe => {
                "a WQE of a striding receive queue must have one data segment after its first 16 bytes, with the length of all its strides"
            }
            Self::UmrMask => "the mkey_mask of a UMR WQE has bits of no field",
            Self::UmrList => {
                "the list of a UMR WQE must begin at a multiple of 2,048 bytes, and its length be a multiple of 64 bytes that holds all entries"
            }
            Self::WindowRange => "a memory window reaches past its region, or the region is of another domain",
            Self::WindowRights => {
                "a memory window is bound to a region without IBV_ACCESS_MW_BIND, or for writing without IBV_ACCESS_LOCAL_WRITE"
            }
            Self::MultiPacket => {
                "a multi-packet WQE has an inline header, a VLAN tag or an mss, for which its frames have no place, or more than 60 units"
            }
            Self::Signature => "a WQE uses the signature offload (SET_PSV, BSF), which the device does not have",
        }
    }
}

/// The object that broke a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// Queue pair number.
    Qp(u32),
    /// Shared receive queue number.
    Srq(u32),
    /// Number of a receive queue of frames.
    Wq(u32),
    /// Completion queue number.
    Cq(u32),
    /// UAR page index.
    Uar(u32),
}

// Environment variable that makes every judge of a test stop the program.
const STOP_IN_TESTS: &str = "SOFT_MLX5_STOP_IN_TESTS";

/// Judge of the rules.
#[derive(Debug)]
pub struct Strict {
    abort: bool,
    counts: [u64; Rule::COUNT],
}

impl Strict {
    /// Makes a judge that stops the program (`abort`) or counts.
    pub fn new(abort: bool) -> Self {
        // Lets a test that breaks a rule see in a process of its own how the program stops.
        let abort = abort || cfg!(test) && std::env::var_os(STOP_IN_TESTS).is_some();
        Self { abort, counts: [0; Rule::COUNT] }
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

    /// Returns the number of breaches of a rule so far.
    pub fn count(&self, rule: Rule) -> u64 {
        self.counts[rule as usize]
    }
}

fn paragraph(rule: Rule, object: Object, index: u32, bytes: &[u8]) -> String {
    let object = match object {
        Object::Qp(n) => format!("QP {n:#x}"),
        Object::Srq(n) => format!("SRQ {n:#x}"),
        Object::Wq(n) => format!("WQ {n:#x}"),
        Object::Cq(n) => format!("CQ {n:#x}"),
        Object::Uar(n) => format!("UAR page {n}"),
    };
    let mut text = format!("soft-mlx5: strict: {rule:?}: {} ({object}, index {index})", rule.text());
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
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Each rule with the test that breaks it. The test also sees that without `strict` the breach is counted.
    const BREAKERS: [(Rule, &str); Rule::COUNT] = [
        (Rule::SrqLink, "objects::srq::tests::a_wild_link_is_a_violation_and_stays_inside"),
        (Rule::SrqSlotTwice, "objects::srq::tests::a_slot_comes_back_only_after_its_cqe"),
        (Rule::ReceiveOverflow, "objects::rq::tests::the_running_index_wraps_at_16_bits"),
        (Rule::ReceiveChanged, "objects::srq::tests::what_was_handed_over_does_not_change"),
        (Rule::ReceiveState, "engine::tests::errors::receives_are_not_posted_in_reset"),
        (Rule::Stride, "engine::tests::errors::wqes_stand_at_the_stride_of_the_queue"),
        (Rule::Terminator, "objects::scatter::tests::unwritten_memory_is_not_a_terminator"),
        (Rule::ConsumerIndex, "objects::cq::tests::a_consumer_index_ahead_is_a_violation"),
        (Rule::SendSize, "engine::tests::errors::malformed_wqes_are_violations_and_errors"),
        (Rule::SendOverflow, "objects::sq::tests::indices_wrap_at_16_bits"),
        (Rule::SendQpn, "engine::tests::errors::a_wqe_names_its_queue_pair"),
        (Rule::SendIndex, "engine::tests::errors::a_wqe_carries_its_index"),
        (Rule::SendChanged, "engine::tests::errors::a_wqe_that_changes_under_the_device_is_a_violation"),
        (Rule::DoorbellQpn, "engine::tests::errors::doorbells_of_others_are_violations"),
        (Rule::ArmCqn, "engine::tests::errors::arms_of_others_are_violations"),
        (Rule::DoorbellState, "engine::tests::errors::doorbells_that_the_device_ignores_are_violations"),
        (Rule::BlueFlame, "engine::tests::registers::copies_that_overlap_mix_two_wqes"),
        (Rule::DoorbellMissing, "engine::tests::errors::a_record_without_a_doorbell_is_a_violation"),
        (Rule::ZeroLength, "engine::tests::errors::zero_length_segments_are_violations"),
        (Rule::SegmentLength, "engine::tests::errors::lengths_with_bit_31_are_violations_and_errors"),
        (Rule::QueueMemory, "engine::tests::unmapped::a_lost_ring_or_record_stops_its_queue_pair"),
        (Rule::TagOperation, "engine::tests::tags::misuse::each_operation_has_its_segments"),
        (Rule::TagIndex, "engine::tests::tags::misuse::a_remove_names_an_entry"),
        (Rule::TagPhase, "engine::tests::tags::misuse::no_more_messages_are_handled_than_there_were"),
        (Rule::StridingWqe, "engine::tests::frames::striding::a_wqe_holds_all_its_strides"),
        (Rule::UmrMask, "engine::tests::umr::a_mask_names_fields"),
        (Rule::UmrList, "engine::tests::umr::a_list_outside_the_wqe_is_aligned"),
        (Rule::WindowRange, "engine::tests::umr::a_window_outside_its_region"),
        (Rule::WindowRights, "engine::tests::umr::a_bind_without_rights"),
        (Rule::MultiPacket, "engine::tests::frames::multi_packet::frames_have_no_header_of_their_own"),
        (Rule::Signature, "engine::tests::umr::signatures_are_refused"),
    ];

    #[test]
    fn each_rule_stops_the_program_that_breaks_it_and_is_named() {
        for (number, (rule, breaker)) in BREAKERS.into_iter().enumerate() {
            assert_eq!(rule as usize, number);
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "--nocapture", breaker]);
            test.env(STOP_IN_TESTS, "1").stdin(Stdio::null());
            let output = test.output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{rule:?}: {output:?}");
            let paragraph = printed.lines().find(|line| line.starts_with("soft-mlx5: strict: "));
            let paragraph = paragraph.unwrap_or_else(|| panic!("{rule:?}: {printed}"));
            assert!(paragraph.contains(&format!(" {rule:?}: ")), "{rule:?}: {paragraph}");
        }
    }

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
