//! The runner reports the result of a test, however it ended.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

/// A program that answers like a test binary.
fn fixture(name: &str, tests: &[(&str, &str)]) -> PathBuf {
    let mut script = String::from("#!/bin/sh\ncase \"$1 $2\" in\n");
    for (test, body) in tests {
        script += &format!("\"--exact {test}\")\n{body}\n;;\n");
    }
    script += "*)\n";
    for (test, _) in tests {
        let ignored = test.starts_with("ignored");
        let listed = if ignored { "" } else { "case \"$*\" in *--ignored*) ;; *) " };
        let end = if ignored { "" } else { " ;; esac" };
        script += &format!("{listed}echo '{test}: test'{end}\n");
    }
    script += "esac\n";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Exit code and output of the runner.
fn isolate(fixture: &Path, options: &[&str]) -> (Option<i32>, String) {
    let runner = env!("CARGO_BIN_EXE_xtask");
    let output = Command::new(runner).arg("isolate").args(options).arg(fixture).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), printed)
}

const OK: &str = "echo 'test result: ok. 1 passed; 0 failed;'";

#[test]
fn passes_are_counted_and_notes_shown() {
    let noted = format!("echo 'note: 5 Mmsg/s'; {OK}");
    let fixture = fixture("passes", &[("one", OK), ("two", &noted)]);
    let (code, printed) = isolate(&fixture, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("test result: ok. 2 passed; 0 failed; 0 skipped;"), "{printed}");
    assert!(printed.contains("note: 5 Mmsg/s"), "{printed}");
}

#[test]
fn a_test_that_fails_aborts_or_runs_nothing_is_a_failure_and_the_others_still_run() {
    let fixture = fixture(
        "fails",
        &[
            ("exits", "echo why; echo 'test result: FAILED. 0 passed; 9 failed;'; exit 101"),
            ("aborts", "kill -ABRT $$"),
            ("nothing", "echo 'test result: ok. 0 passed; 0 failed;'"),
            ("passes", OK),
        ],
    );
    let (code, printed) = isolate(&fixture, &[]);
    assert_eq!(code, Some(101), "{printed}");
    assert!(printed.contains("test exits ... FAILED"), "{printed}");
    assert!(printed.contains("exit code 101\n    why\n"), "{printed}");
    assert!(printed.contains("test aborts ... FAILED") && printed.contains("signal 6"), "{printed}");
    assert!(printed.contains("test nothing ... FAILED"), "{printed}");
    let totals: Vec<_> = printed.lines().filter(|line| line.starts_with("test result")).collect();
    assert_eq!(totals.len(), 1, "the output of a test is not taken for a total: {printed}");
    assert!(totals[0].starts_with("test result: FAILED. 1 passed; 3 failed;"), "{printed}");
}

#[test]
fn a_test_that_hangs_is_ended_with_its_children() {
    let pid_file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hangs.pid");
    // Busy: a sleeping test is stopped only after minutes.
    let body = format!("(while :; do :; done) & echo $! > {}; wait", pid_file.display());
    let fixture = fixture("hangs", &[("hangs", &body)]);
    let (code, printed) = isolate(&fixture, &["--limit", "1"]);
    assert_eq!(code, Some(101), "{printed}");
    assert!(printed.contains("not done after 1 s of processor time"), "{printed}");
    let pid = fs::read_to_string(&pid_file).unwrap();
    // The process was killed, and dies when it gets a processor.
    loop {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        if matches!(state, None | Some("Z" | "X")) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn skips_are_printed_with_their_reason() {
    let reported = format!("echo 'skipped: no such device'; {OK}");
    let fixture = fixture("skips", &[("told", &reported), ("passes", OK)]);
    let (code, printed) = isolate(&fixture, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("test told ... skipped, no such device"), "{printed}");
    assert!(printed.contains("ok. 1 passed; 0 failed; 1 skipped;"), "{printed}");
}

#[test]
fn what_is_marked_as_ignored_is_not_run() {
    let fixture = fixture("ignores", &[("ignored_one", "exit 1"), ("passes", OK)]);
    let (code, printed) = isolate(&fixture, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("ok. 1 passed; 0 failed; 0 skipped;"), "{printed}");
}

#[test]
fn each_test_runs_under_the_command() {
    let fixture = fixture("under", &[("one", &format!("[ \"$SEEN\" = yes ] && {OK}"))]);
    let (code, printed) = isolate(&fixture, &["--under", "env SEEN=yes"]);
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = isolate(&fixture, &[]);
    assert_eq!(code, Some(101), "{printed}");
}

#[test]
fn a_command_that_does_not_exist_is_named() {
    let (code, printed) = isolate(Path::new("/no/such/binary"), &[]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("/no/such/binary"), "{printed}");
}
