//! What is printed about a difference, and that it can be shown again.

use std::process::Command;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_conformance");

fn run(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(CONFORMANCE).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

fn value<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find_map(|line| line.trim().strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{report}")).trim()
}

/// A difference, as it is reported.
struct Report {
    /// Seed and operation.
    place: String,
    field: String,
    /// What is left of the operations when the session is cut down.
    cut: Vec<String>,
}

impl Report {
    /// Few operations are enough, of which the last one shows it. How few, depends on the time that there was.
    #[track_caller]
    fn shows(&self, field: &str, operation: &str) {
        assert!(self.field.contains(field), "{}", self.field);
        let last = self.cut.last().expect("an operation");
        assert!(last.starts_with(operation), "{last}");
        assert!(self.cut.len() <= 10, "{:?}", self.cut);
    }
}

/// Sees that a difference is reported with all that it should have, and that the command which is printed leads to
/// the same one.
fn reported(arguments: &[&str]) -> Report {
    let (ok, report) = run(arguments);
    assert!(!ok, "{report}");
    let place = value(&report, "conformance: DIFFERENCE:");
    assert!(place.starts_with("seed 0x") && place.contains(", operation "), "{report}");
    let [field, theirs, ours] = difference(&report);
    assert_ne!(theirs, ours);

    let (_, arguments) = value(&report, "replay:").split_once(" -- ").unwrap();
    let arguments: Vec<_> = arguments.split(' ').collect();
    let (ok, again) = run(&arguments);
    assert!(!ok, "{again}");
    assert_eq!(value(&again, "conformance: DIFFERENCE:"), place);
    assert_eq!(difference(&again), [field.clone(), theirs, ours]);

    let (_, cut) = report.split_once("cut down to ").unwrap();
    let operations = cut.lines().skip(1).map_while(|line| line.trim().split_once(": "));
    let operations = operations.take_while(|(number, _)| number.parse::<u32>().is_ok());
    let cut = operations.map(|(_, operation)| operation.to_owned()).collect();
    Report { place: place.into(), field, cut }
}

/// The field and both values. Of scatter lists without the addresses, which are others in each process.
fn difference(report: &str) -> [String; 3] {
    let [field, theirs, ours] = ["field:", "libmlx5:", "doorbell:"].map(|name| value(report, name));
    let lists = field.contains("segments");
    let without = |value: &str| {
        let segments = value.split(" | ");
        let length_and_key = |segment: &str| segment.chars().take(8 * 3).collect::<String>();
        if lists { segments.map(length_and_key).collect() } else { value.to_owned() }
    };
    [field.to_owned(), without(theirs), without(ours)]
}

/// In a session of queues.
#[track_caller]
fn in_a_queue(fault: &str, field: &str, operation: &str) {
    reported(&["--operations", "2000", "--inject", fault]).shows(field, operation);
}

#[test]
fn a_wrong_length_in_a_wqe() {
    in_a_queue("length", ": segments of wr_id", "Post");
}

#[test]
fn a_wrong_doorbell_record() {
    in_a_queue("record", ": doorbell record, word 0", "Post");
}

#[test]
fn a_wrong_arm() {
    in_a_queue("arm", "UAR: doorbell of the CQ, byte 0x0", "Arm");
}

#[test]
fn an_arm_without_its_record() {
    in_a_queue("arm-record", "CQ: doorbell record, word 1", "Arm");
}

#[test]
fn a_wrong_field_of_a_completion() {
    in_a_queue("completion", ": byte_len", "Poll {");
}

/// In the first session of tag matching.
#[track_caller]
fn in_the_tag_list(fault: &str, field: &str, operation: &str) {
    let report = reported(&["--replay", "4", "--inject", fault]);
    assert!(report.place.starts_with("seed 0x4, operation "), "{}", report.place);
    report.shows(field, operation);
}

#[test]
fn a_wrong_mask_in_a_list_operation() {
    in_the_tag_list("mask", ": WQE, byte 0x2f", "List([");
}

#[test]
fn a_wrong_record_of_the_command_queue() {
    in_the_tag_list("command-record", "command queue: doorbell record, word 1", "List([");
}

#[test]
fn a_wrong_record_of_a_send_queue() {
    let report = reported(&["--replay", "10", "--inject", "send-record"]);
    assert!(report.place.starts_with("seed 0xa, operation "), "{}", report.place);
    report.shows("send queue: doorbell record, word 1", "Post {");
}

#[test]
fn a_run_says_how_much_it_compared() {
    let (ok, report) = run(&["--operations", "500", "--seed", "7"]);
    assert!(ok, "{report}");
    let last = report.lines().last().unwrap();
    let words: Vec<_> = last.split(' ').collect();
    let [
        "conformance:",
        "ok:",
        "500",
        "operations,",
        bytes,
        "bytes",
        "compared,",
        "0",
        "differences",
    ] = words[..]
    else {
        panic!("{last}")
    };
    assert!(bytes.parse::<u64>().unwrap() > 0);
}

#[test]
fn equal_numbers_make_equal_runs() {
    let first = run(&["--operations", "500", "--seed", "11"]);
    assert_eq!(first, run(&["--operations", "500", "--seed", "11"]));
}
