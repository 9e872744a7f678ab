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

#[test]
fn a_wrong_length_is_reported_and_replayed() {
    let (ok, report) = run(&["--operations", "2000", "--inject"]);
    assert!(!ok, "{report}");
    let place = value(&report, "conformance: DIFFERENCE:");
    assert!(place.starts_with("seed 0x") && place.contains(", operation "), "{report}");
    assert!(value(&report, "field:").contains("segments of wr_id"), "{report}");
    assert_ne!(value(&report, "libmlx5:"), value(&report, "doorbell:"));

    // The command leads to the same difference.
    let command = value(&report, "replay:");
    let (_, arguments) = command.split_once(" -- ").unwrap();
    let arguments: Vec<_> = arguments.split(' ').collect();
    let (ok, again) = run(&arguments);
    assert!(!ok, "{again}");
    assert!(again.contains(&format!("conformance: DIFFERENCE: {place}")), "{again}");

    // One operation is enough: a post of a list of two entries.
    let (_, cut) = report.split_once("cut down to ").unwrap();
    assert!(cut.starts_with("1 operations"), "{report}");
    assert!(cut.contains("1: Post"), "{report}");
}

#[test]
fn a_wrong_mask_in_the_tag_list_is_reported() {
    // The first session of tag matching.
    let (ok, report) = run(&["--replay", "4", "--inject"]);
    assert!(!ok, "{report}");
    assert!(report.contains("conformance: DIFFERENCE: seed 0x4, operation "), "{report}");
    assert!(value(&report, "field:").contains(": WQE, byte 0x2f"), "{report}");
    let (_, cut) = report.split_once("cut down to ").unwrap();
    assert!(cut.starts_with("1 operations") && cut.contains("1: List([Add {"), "{report}");
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
