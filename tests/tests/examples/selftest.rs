//! `doorbell selftest` on the software device: it passes on a sound device, and finds each fault of a faulty one.

use std::process::{Command, Stdio};

use doorbell_tests::programs::{Ended, Temporary, built, on_soft_mlx5, succeed};

/// Faults of the device by the group of the check that must find each of them: `docs/selftest.md` shows this table.
const FOUND_BY: &[(&str, &str)] = &[
    ("B6", "swapped-address"),
    ("B7", "stale-record"),
    ("B8", "srq-order"),
    ("B9", "counter"),
    ("C10", "payload"),
    ("C10", "late-cqe"),
    ("C14", "segment-order"),
    ("C17", "immediate"),
    ("D20", "signature"),
    ("D20", "torn-cqe"),
    ("D21", "owner"),
    ("D23", "counter"),
    ("D23", "qp-number"),
    ("D24", "byte-count"),
    ("D25", "opcode"),
    ("D26", "clock"),
    ("E28", "syndrome"),
    ("E30", "vendor"),
    ("E33", "lost-flush"),
    ("E34", "lost-limit"),
    ("E35", "lost-last-wqe"),
    ("F36", "early-event"),
    ("F37", "lost-event"),
    ("F38", "unsolicited"),
    ("G39", "torn-cqe"),
    ("G39", "lost-write"),
    ("G39", "double-cqe"),
    ("G39", "late-cqe"),
    ("H42", "tag-order"),
    ("H43", "tag-mask"),
    ("H44", "tag-phase"),
    ("H45", "tag-order"),
];

/// Runs the checks of a group on devices with its faults. None may pass.
fn faults_are_found(group: char) {
    let mut faults: Vec<&str> = Vec::new();
    for (check, fault) in FOUND_BY.iter().filter(|(check, _)| check.starts_with(group)) {
        let report = Temporary::file(fault);
        let mut run = Command::new(built("soft-mlx5"));
        run.args(["run", "--fault", fault, "--"]).arg(built("doorbell"));
        // The checks that look back at all CQEs need others to look back at.
        let wanted = if *check == "D20" { "C10,G39,D20" } else { check };
        run.args(["selftest", "--quick", "--only", wanted, "--report"]).arg(&report);
        let ended = Ended::of(run.stdin(Stdio::null()));
        let found = ended.last_line().strip_prefix("selftest: FAILED: ");
        let found = found.and_then(|rest| rest.split(" (").next()).unwrap_or_default();
        assert!(found.split(' ').any(|found| found == *check), "{fault}: {ended}");
        assert_eq!(ended.code, Some(1), "{fault}: {ended}");
        faults.push(fault);
    }
    assert!(faults.len() >= 3, "{faults:?}");
}

macro_rules! groups {
    ($($name:ident $group:literal;)*) => {
        $(#[test] fn $name() { faults_are_found($group) })*
    };
}

groups! {
    faults_of_layouts_are_found 'B';
    faults_of_receives_are_found 'C';
    faults_of_cqes_are_found 'D';
    faults_of_errors_are_found 'E';
    faults_of_events_are_found 'F';
    faults_of_memory_order_are_found 'G';
    faults_of_tag_matching_are_found 'H';
}

/// A sound device passes on either link, and the bundle of the run replays.
#[test]
fn a_sound_device_passes_and_its_bundle_replays() {
    for link in ["ib", "roce"] {
        let [report, bundle] = ["report", "bundle"].map(Temporary::file);
        let mut run = on_soft_mlx5(&["--link", link], built("doorbell"));
        run.args(["selftest", "--quick", "--report"]).arg(&report).arg("--bundle").arg(&bundle);
        let ended = succeed(&mut run);
        let verdict = ended.last_line();
        assert!(verdict.starts_with("selftest: ok: 4"), "{ended}");
        let written = std::fs::read_to_string(&*report).unwrap();
        assert_eq!(written.lines().last(), Some(verdict), "the report ends with the verdict");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let mut words = written.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        assert!(!words.any(|word| word == host.trim()) && !written.contains("fe80"), "{written}");
        let replay = || Ended::of(Command::new(built("soft-mlx5")).arg("replay").arg(&bundle));
        let ended = replay();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert!(ended.to_string().contains(" 0 differences from the model"), "{ended}");
        let mut bytes = std::fs::read(&*bundle).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&*bundle, bytes).unwrap();
        let ended = replay();
        assert_eq!(ended.code, Some(1), "{ended}");
    }
}

/// As on a device that is not mlx5: libmlx5 writes signatures, which doorbell does not.
#[test]
fn checks_of_rings_could_not_run_without_rings() {
    let report = Temporary::file("verbs.txt");
    let mut run = on_soft_mlx5(&[], built("doorbell"));
    run.env("MLX5_SRQ_SIGNATURE", "1");
    run.args(["selftest", "--quick", "--only", "B6,C10,C13,E31,F36,D20", "--report"]).arg(&report);
    let ended = succeed(&mut run);
    assert_eq!(ended.last_line(), "selftest: ok: 4 checks, 2 could not run", "{ended}");
    for check in ["B6 ", "D20"] {
        let line = ended.printed.lines().find(|line| line.starts_with(check)).unwrap_or_default();
        assert!(line.contains("cannot") && line.contains("MLX5_SRQ_SIGNATURE"), "{ended}");
    }
}

#[test]
fn wrong_use_has_a_code_of_its_own() {
    for arguments in [&["--quick", "--only", "Z9"][..], &["mlx5_7"]] {
        let mut run = on_soft_mlx5(&[], built("doorbell"));
        let ended = Ended::of(run.arg("selftest").args(arguments));
        assert_eq!(ended.code, Some(2), "{ended}");
    }
}

/// The table in the book is this one, and has every fault that the device knows.
#[test]
fn the_book_shows_every_fault_and_what_finds_it() {
    let mut run = Command::new(built("soft-mlx5"));
    let listed = Ended::of(run.args(["run", "--fault", "none-of-them", "--", "true"])).to_string();
    let mut table = String::from("| fault | what the device does | found by |\n|---|---|---|\n");
    let mut count = 0;
    for line in listed.lines().filter(|line| line.starts_with("  ")) {
        let (name, help) = line.trim().split_once(' ').expect("a name and what it does");
        let found = FOUND_BY.iter().filter(|(_, fault)| *fault == name).map(|(check, _)| *check);
        let found: Vec<_> = found.collect();
        assert!(!found.is_empty(), "no check must find {name}");
        table += &format!("| `{name}` | {} | {} |\n", help.trim(), found.join(", "));
        count += 1;
    }
    assert!(count >= 28, "{listed}");
    let book = include_str!("../../../docs/selftest.md");
    assert!(book.contains(&table), "docs/selftest.md must show:\n{table}");
}
