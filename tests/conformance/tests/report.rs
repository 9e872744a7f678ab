//! The report of a difference, which can be shown again.

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
    field: String,
    /// The operations of the session when it is cut down.
    cut: Vec<String>,
}

impl Report {
    /// Checks that few operations are left, and that the last one shows the difference.
    #[track_caller]
    fn shows(&self, field: &str, operation: &str) {
        assert!(self.field.contains(field), "{}", self.field);
        let last = self.cut.last().expect("an operation");
        assert!(last.starts_with(operation), "{last}");
        assert!(self.cut.len() <= 10, "{:?}", self.cut);
    }
}

/// Checks that a difference is reported completely, and that the printed command leads to the same difference.
fn reported(session: &[&str; 2], fault: &str) -> Report {
    let (ok, report) = run(&[&session[..], &["--inject", fault]].concat());
    assert!(!ok, "{report}");
    let place = value(&report, "conformance: DIFFERENCE:");
    let seed = match session {
        ["--replay", number] => format!("{:#x}", number.parse::<u64>().unwrap()),
        _ => "0x".into(),
    };
    assert!(place.starts_with(&format!("seed {seed}")) && place.contains(", operation "), "{report}");
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
    Report { field, cut }
}

/// The field and both values, without the addresses of scatter lists, which differ in each process.
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

/// A session of queues, the first one of tag matching, and the first one of sends.
const QUEUES: [&str; 2] = ["--operations", "2000"];
const TAGS: [&str; 2] = ["--replay", "4"];
const SENDS: [&str; 2] = ["--replay", "10"];

macro_rules! faults {
    ($($test:ident: $fault:literal, $session:ident, $field:literal, $operation:literal;)*) => {
        $(#[test]
        fn $test() {
            reported(&$session, $fault).shows($field, $operation);
        })*
    };
}

faults! {
    a_wrong_length_in_a_wqe: "length", QUEUES, ": segments of wr_id", "Post";
    a_wrong_doorbell_record: "record", QUEUES, ": doorbell record, word 0", "Post";
    a_wrong_arm: "arm", QUEUES, "UAR: doorbell of the CQ, byte 0x0", "Arm";
    an_arm_without_its_record: "arm-record", QUEUES, "CQ: doorbell record, word 1", "Arm";
    a_wrong_field_of_a_completion: "completion", QUEUES, ": byte_len", "Poll {";
    a_wrong_mask_in_a_list_operation: "mask", TAGS, ": WQE, byte 0x2f", "List([";
    a_wrong_record_of_the_command_queue: "command-record", TAGS, "command queue: doorbell record, word 1", "List([";
    a_wrong_record_of_a_send_queue: "send-record", SENDS, "send queue: doorbell record, word 1", "Post {";
}

#[test]
fn a_run_says_how_much_it_compared() {
    let (ok, report) = run(&["--operations", "500", "--seed", "7"]);
    assert!(ok, "{report}");
    let last = report.lines().last().unwrap();
    let compared = last.strip_prefix("conformance: ok: 500 operations, ").unwrap();
    let bytes = compared.strip_suffix(" bytes compared, 0 differences").unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 0);
}

#[test]
fn equal_numbers_make_equal_runs() {
    let first = run(&["--operations", "500", "--seed", "11"]);
    assert_eq!(first, run(&["--operations", "500", "--seed", "11"]));
}
