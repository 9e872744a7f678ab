//! `doorbell selftest` on the software device: it passes on a sound device, and finds each fault of a faulty one.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use doorbell_tests::programs::{Ended, Temporary, built, on_soft_mlx5, succeed};

const CAP_IPC_LOCK: libc::c_int = 14;

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
    ("C19", "qp-number"),
    ("D20", "few-signatures"),
    ("D20", "torn-cqe"),
    ("D21", "owner"),
    ("D23", "counter"),
    ("D23", "qp-number"),
    ("D24", "byte-count"),
    ("D25", "opcode"),
    ("D26", "clock"),
    ("E28", "syndrome"),
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
    ("G39", "few-signatures"),
    ("K55", "write-bytes"),
    ("K55", "read-bytes"),
    ("K56", "swap"),
    ("K56", "fetch"),
    ("K57", "fence"),
    ("K58", "gather-order"),
    ("K59", "ring-end"),
    ("K60", "silent-flush"),
    ("K61", "no-retry"),
    ("K62", "lost-resize"),
    ("K67", "kept-key"),
    ("L63", "verdict"),
    ("L64", "payload"),
    ("L65", "hash"),
    ("L66", "vlan"),
    ("H42", "tag-order"),
    ("H43", "tag-mask"),
    ("H44", "tag-phase"),
    ("H45", "tag-order"),
];

/// Devices on which nothing can run, by the check that says why.
const STOPPED_BY: &[(&str, &str)] = &[("A4", "port-down")];

/// Differences that decide nothing, by the check that must note each of them.
const NOTED_BY: &[(&str, &str)] =
    &[("D20", "signature"), ("D28", "mini-cqes"), ("E30", "vendor"), ("L64", "masked-id")];

/// The checks that run to get the result of one: those that look back at all CQEs need others to look back at.
fn with_others(check: &str) -> &str {
    if check == "D20" { "C10,G39,D20" } else { check }
}

fn selftest_with(options: &[&str], check: &str) -> (Ended, Temporary) {
    let link = if check.starts_with('L') { "roce" } else { "ib" };
    let report = Temporary::file(check);
    let mut run = Command::new(built("soft-mlx5"));
    run.args(["run", "--link", link]).args(options).arg("--").arg(built("doorbell"));
    run.args(["selftest", "--quick", "--only", with_others(check), "--report"]).arg(&report);
    (Ended::of(run.stdin(Stdio::null())), report)
}

#[test]
fn differences_that_decide_nothing_are_noted() {
    for (check, fault) in NOTED_BY {
        let (ended, report) = selftest_with(&["--fault", fault], check);
        assert_eq!(ended.code, Some(0), "{fault}: {ended}");
        assert!(ended.last_line().ends_with(&format!("; noted: {check}")), "{fault}: {ended}");
        let report = std::fs::read_to_string(&*report).unwrap();
        assert!(report.contains(&format!("\n{check}  noted  ")), "{fault}: {report}");
    }
}

/// A device that signs otherwise is still examined for stale messages.
#[test]
fn messages_are_checked_without_signatures() {
    let (ended, _report) = selftest_with(&["--fault", "signature"], "G39");
    assert!(ended.printed.contains("payload, counter and owner only"), "{ended}");
}

/// A machine without a device gets one answer that says what to do, and not a failure of each check.
#[test]
fn what_the_machine_lacks_is_one_answer() {
    let (ended, _report) = selftest_with(&["--fault", "port-down"], "A1,A4,C10");
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.last_line().starts_with("selftest: could not run: A4: port 1 of mlx5_0 is down"), "{ended}");
    let checks: Vec<_> = ended.printed.lines().filter_map(|line| line.get(..2)).take(2).collect();
    assert_eq!(checks, ["A1", "A4"], "{ended}");

    let report = Temporary::file("memlock");
    let mut run = on_soft_mlx5(&["--memlock"], built("doorbell"));
    run.args(["selftest", "--quick", "--only", "C10", "--report"]).arg(&report);
    // SAFETY: two system calls between fork and exec. Without the capability, root has the limit, too.
    unsafe {
        run.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
            let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
            Ok(())
        });
    }
    let ended = Ended::of(&mut run);
    assert_eq!(ended.code, Some(2), "{ended}");
    let verdict = ended.last_line();
    assert!(verdict.starts_with("selftest: could not run: A3: 4 MiB of memory cannot be registered"), "{ended}");
    assert!(verdict.contains("RLIMIT_MEMLOCK allows 64 KiB") && verdict.contains("ulimit -l"), "{ended}");
}

/// Firmware takes short ACK timeouts as code 16 or as code 17. Both are sound, and the check says how long a try took.
#[test]
fn firmware_may_lengthen_ack_timeouts() {
    for (lowest, milliseconds) in [("16", 268.0), ("17", 536.0)] {
        let (ended, _report) = selftest_with(&["--lowest-timeout", lowest], "E32");
        assert_eq!(ended.code, Some(0), "{ended}");
        let line = ended.printed.lines().find(|line| line.starts_with("E32"));
        let times = line.and_then(|line| line.strip_suffix(" for each of two tries; code 10 is 4.2ms"));
        let time = times.and_then(|line| line.split(' ').next_back()).unwrap_or_default();
        let (number, unit) = time.split_at(time.trim_end_matches(char::is_alphabetic).len());
        let unit = if unit == "s" { 1000.0 } else { 1.0 };
        assert!(number.parse::<f64>().is_ok_and(|number| number * unit >= milliseconds), "{lowest}: {ended}");
    }
}

/// Runs the checks of a group on devices with its faults. None may pass.
fn faults_are_found(group: char) {
    let mut faults: Vec<&str> = Vec::new();
    for (check, fault) in FOUND_BY.iter().filter(|(check, _)| check.starts_with(group)) {
        let (ended, _report) = selftest_with(&["--fault", fault], check);
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
    faults_of_requests_are_found 'K';
    faults_of_frames_are_found 'L';
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
        let result = verdict.strip_prefix("selftest: ").unwrap_or_default();
        assert!(result.starts_with("ok: "), "{ended}");
        // On a single processor G40 cannot run.
        if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
            let numbers: Vec<&str> = result.split(' ').filter(|word| word.parse::<u32>().is_ok()).collect();
            let [passed, cannot] = numbers[..] else { panic!("{ended}") };
            let text = match link {
                "ib" => format!("{passed} checks ok on InfiniBand and {cannot} could not run"),
                _ => format!("{passed} and {cannot} on RoCE"),
            };
            assert!(include_str!("../../../README.md").contains(&text), "README.md must say: {text}");
        }
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
        let found = FOUND_BY.iter().filter(|(_, fault)| *fault == name).map(|(check, _)| (*check).to_owned());
        let noted = NOTED_BY.iter().filter(|(_, fault)| *fault == name);
        let noted = noted.map(|(check, _)| format!("noted by {check}"));
        let stopped = STOPPED_BY.iter().filter(|(_, fault)| *fault == name);
        let stopped = stopped.map(|(check, _)| format!("{check}: could not run"));
        let found: Vec<_> = found.chain(noted).chain(stopped).collect();
        assert!(!found.is_empty(), "no check must find {name}");
        table += &format!("| `{name}` | {} | {} |\n", help.trim(), found.join(", "));
        count += 1;
    }
    assert!(count >= 28, "{listed}");
    let book = include_str!("../../../docs/selftest.md");
    assert!(book.contains(&table), "docs/selftest.md must show:\n{table}");
}
