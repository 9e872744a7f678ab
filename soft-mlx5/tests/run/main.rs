//! `soft-mlx5 run` and `serve`: options, exit codes, signals, processes, and files that remain.

#[path = "../common/mod.rs"]
mod common;
mod serve;
mod sysfs;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{SOFT_MLX5, finish, free_port, fresh_fabric, run, start};

fn complaint(arguments: &[&str]) -> String {
    let outcome = finish(Command::new(SOFT_MLX5).args(arguments));
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.starts_with("soft-mlx5: "), "{outcome:?}");
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    outcome.stderr
}

#[test]
fn what_keeps_a_command_from_running_is_said_in_one_line() {
    for (arguments, word) in [
        (&["run"][..], "no command"),
        (&["run", "--fabric", "a", "--"], "no command"),
        (&["run", "--", "/no/such/program"], "/no/such/program"),
        (&["run", "--", "/"], "cannot start"),
        (&["run", "--loss", "1.5", "--", "true"], "from 0 to 1"),
        (&["run", "--loss", "much", "--", "true"], "--loss"),
        (&["run", "--fail-destroy", "uar", "--", "true"], "mr, qp, srq, cq, ah or pd"),
        (&["run", "--port-flap", "5", "--", "true"], "UP:DOWN"),
        (&["run", "--fail-send", "0", "--", "true"], "from 1 on"),
        (&["run", "--seed", "-1", "--", "true"], "-1"),
        (&["run", "--link", "token-ring", "--", "true"], "token-ring"),
        (&["run", "--timing", "lunar", "--", "true"], "must be adapter"),
        (&["run", "--fabric", "a/b", "--", "true"], "fabric"),
        (&["run", "--fabric", "", "--", "true"], "fabric"),
        (&["run", "--no-such-option", "--", "true"], "--no-such-option"),
        (&["serve"], "--socket"),
        (&["serve", "--socket", "/no/such/directory"], "cannot listen on /no/such/directory"),
        (&["serve", "--socket", "/no/such/directory", "--link", "token-ring"], "token-ring"),
        (&["walk"], "walk"),
        (&[], "subcommand"),
    ] {
        let line = complaint(arguments);
        assert!(line.contains(word), "{arguments:?}: {line}");
    }
}

#[test]
fn faults_of_the_command_line_reach_the_device() {
    let script = common::pingpong("-n 100");
    let waiting = format!("{script}; wait $!");
    let outcome = finish(&mut run(&["--fail-destroy", "mr"], &["sh", "-c", &waiting]));
    assert_eq!(outcome.stdout.matches("100 iters in").count(), 2, "{outcome:?}");
    assert_eq!(outcome.stderr.matches("Couldn't deregister MR").count(), 2, "{outcome:?}");
    // The server waits for a message that does not come.
    let killing = format!("{script}; kill $!");
    let outcome = finish(&mut run(&["--fail-send", "50"], &["sh", "-c", &killing]));
    assert!(outcome.stderr.contains("local QP operation error"), "{outcome:?}");
}

#[test]
fn a_run_says_what_could_not_be_created() {
    for (options, environment, said) in [
        (["--fail-create", "cq:1"], "A=", "Couldn't create CQ"),
        (["--max-qps", "0"], "A=", "Couldn't create QP"),
        (["--max-mkeys", "0"], "A=", "Couldn't register MR"),
        (["--max-map-count", "1"], "RDMAV_FORK_SAFE=1", "Couldn't register MR"),
    ] {
        let outcome = finish(&mut run(&options, &["env", environment, "ibv_rc_pingpong", "-g", "0"]));
        assert!(outcome.stderr.contains(said), "{options:?}: {outcome:?}");
        assert!(outcome.stderr.ends_with("soft-mlx5: injected: 1 creations failed\n"), "{options:?}: {outcome:?}");
    }
}

#[test]
fn a_program_that_sleeps_runs_at_the_pace_of_an_adapter() {
    let script = format!("{}; wait $!", common::pingpong("-e -n 300"));
    let outcome = finish(&mut run(&["--timing", "adapter", "--strict"], &["sh", "-c", &script]));
    assert_eq!(outcome.stdout.matches("300 iters in").count(), 2, "{outcome:?}");
}

#[test]
fn a_run_with_faults_says_at_its_end_what_was_injected() {
    let waiting = format!("{}; wait $!", common::pingpong("-n 100"));
    let script = ["sh", "-c", &waiting];
    let outcome = finish(&mut run(&["--loss", "0.1", "--rnr", "0.1"], &script));
    let line = outcome.stderr.lines().last().unwrap_or_default();
    let counts = line.strip_prefix("soft-mlx5: injected: ").unwrap_or_else(|| panic!("{outcome:?}"));
    let words: Vec<_> = counts.split([' ', ',']).collect();
    let [lost, "of", packets, "packets", "lost", "", rnr, "RNR"] = words[..] else { panic!("{line}") };
    let [lost, packets, rnr] = [lost, packets, rnr].map(|word| word.parse::<u64>().unwrap());
    // The count is that of both processes: each message is a packet and has an acknowledgement.
    assert!(packets >= 400 && lost >= 1 && lost < packets / 2 && rnr >= 1, "{line}");
    // A process that is killed has counted, too.
    let killed = "ibv_devices >/dev/null; kill -KILL $$";
    let outcome = finish(&mut run(&["--fail-send", "7"], &["sh", "-c", killed]));
    assert_eq!(outcome.stderr, "soft-mlx5: injected: 0 sends failed\n");
    assert_eq!(finish(&mut run(&[], &["ibv_devices"])).stderr, "");
}

/// A program that waits for events for ever, killed after the last one of a device. Its code is that of the program.
const WATCH: &str = "pipe=$(mktemp -u); mkfifo $pipe; timeout 240 stdbuf -oL ibv_asyncwatch >$pipe & watch=$!; \
     sed /DEVICE_FATAL/q <$pipe; rm $pipe; kill $watch; wait $watch";

#[test]
fn a_program_that_waits_for_events_sees_the_port_and_the_device_go() {
    // A busy machine may open the device after the port has changed: each attempt has more time than the last.
    let mut seen = Vec::new();
    let all_seen = [1, 4, 16, 64].into_iter().any(|slower| {
        let flap = format!("{0}:{0}", 100 * slower);
        let options = ["--port-flap", &flap, "--remove-after", &format!("{}", 250 * slower)];
        let outcome = finish(&mut run(&options, &["sh", "-c", WATCH]));
        assert_ne!(outcome.status.code(), Some(124), "{outcome:?}");
        let events = outcome.stdout.lines().filter(|line| line.contains("event_type"));
        let words = ["PORT_ERR", "PORT_ACTIVE", "DEVICE_FATAL"];
        let all_seen =
            events.clone().count() == words.len() && events.zip(words).all(|(line, word)| line.contains(word));
        seen.push(outcome);
        all_seen
    });
    assert!(all_seen, "{seen:?}");
}

/// The directory of the run does not exist any more when the port changes and the device is removed.
#[test]
fn a_program_that_outlives_the_run_sees_them_go_too() {
    let log = std::env::temp_dir().join(format!("soft-mlx5-outlives-{}", std::process::id()));
    // A busy machine may end the run before the program has opened the device.
    let seen = [1, 4, 16].into_iter().any(|slower| {
        let flap = format!("{0}:{0}", 200 * slower);
        let options = ["--port-flap", &flap, "--remove-after", &format!("{}", 500 * slower)];
        let script =
            format!("({WATCH}; echo ended with $?) > {} 2>&1 & sleep {}", log.display(), 0.1 * f64::from(slower));
        finish(&mut run(&options, &["sh", "-c", &script]));
        let text = loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("ended with") {
                break text;
            }
            thread::sleep(Duration::from_millis(50));
        };
        assert!(!text.contains("ended with 124"), "it hangs: {text}");
        text.contains("DEVICE_FATAL")
    });
    fs::remove_file(&log).unwrap();
    assert!(seen);
}

/// Whoever creates the directory first, under a name that is easy to guess, keeps nobody from running the device.
#[test]
fn a_directory_of_another_user_is_passed_over() {
    use std::os::unix::fs::{DirBuilderExt, symlink};
    let dir = std::env::temp_dir().join(fresh_fabric("taken"));
    // SAFETY: no arguments, no memory.
    let name = format!("soft-mlx5-{}", unsafe { libc::geteuid() });
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(&name), "").unwrap();
    symlink(std::env::temp_dir(), dir.join(format!("{name}-1"))).unwrap();
    fs::DirBuilder::new().mode(0o777).create(dir.join(format!("{name}-2"))).unwrap();
    finish(run(&[], &["ibv_devices"]).env("TMPDIR", &dir)).succeeded();
    assert!(dir.join(format!("{name}-3")).is_dir());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_library_must_be_beside_the_program() {
    let beside = Path::new(SOFT_MLX5).parent().unwrap();
    // Two levels down, because it also looks in the directory above its own.
    let alone = beside.join(format!("soft-mlx5-alone-{}", std::process::id()));
    let dir = alone.join("bin");
    fs::create_dir_all(&dir).unwrap();
    let copy = dir.join("soft-mlx5");
    // Linked, not copied: a process that another test starts in between would hold the copy open for
    // writing, and the copy could not be executed then.
    fs::hard_link(SOFT_MLX5, &copy).unwrap();
    let outcome = finish(Command::new(&copy).args(["run", "--", "true"]));
    fs::remove_dir_all(&alone).unwrap();
    assert_eq!(outcome.status.code(), Some(2));
    assert!(outcome.stderr.contains("libsoft_mlx5.so"), "{outcome:?}");
}

#[test]
fn the_exit_status_of_the_command_is_passed_through() {
    let status = |script: &str| finish(&mut run(&[], &["sh", "-c", script])).status;
    assert_eq!(status("exit 0").code(), Some(0));
    assert_eq!(status("exit 7").code(), Some(7));
    assert_eq!(status("kill -KILL $$").code(), Some(128 + libc::SIGKILL));
    assert_eq!(status("kill -ABRT $$").code(), Some(128 + libc::SIGABRT));
}

#[test]
fn arguments_are_the_commands_own() {
    let outcome = finish(Command::new(SOFT_MLX5).args(["run", "echo", "-n", "--loss", "x"]));
    assert_eq!(outcome.succeeded(), "--loss x");
}

#[test]
fn signals_reach_the_command() {
    let script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let marker = std::env::temp_dir().join(format!("soft-mlx5-ready-{}", std::process::id()));
    let script = script.replace("echo ready", &format!("touch {}", marker.display()));
    let running = start(&mut run(&[], &["sh", "-c", &script]));
    wait_until(|| marker.exists());
    fs::remove_file(&marker).unwrap();
    running.signal(libc::SIGTERM);
    let outcome = running.finish();
    assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(5), "got it\n"));
}

#[test]
fn the_command_starts_with_no_signal_blocked() {
    let status = finish(&mut run(&[], &["grep", "SigBlk", "/proc/self/status"])).succeeded();
    assert_eq!(status.split_whitespace().last(), Some("0000000000000000"), "{status}");
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + common::PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain");
        thread::sleep(Duration::from_millis(5));
    }
}

// Directory of a run, from the environment of a process in it.
fn run_dir(environment: &str) -> PathBuf {
    let options = environment.lines().find(|line| line.starts_with("SOFT_MLX5=")).unwrap();
    options.split_once("dir=").unwrap().1.into()
}

#[test]
fn a_run_leaves_no_files() {
    let outcome = finish(&mut run(&[], &["sh", "-c", "ibv_devices >/dev/null; env"]));
    let dir = run_dir(&outcome.succeeded());
    assert!(!dir.exists() && !dir.with_extension("lock").exists());
}

#[test]
fn a_killed_run_takes_the_command_along_and_is_swept_up() {
    // A directory of its own: the runs of other tests remove stale files in theirs.
    let place = std::env::temp_dir().join(format!("soft-mlx5-killed-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let marker = place.join("marker");
    let script = format!(
        "ibv_devices >/dev/null; env >{0}.tmp; echo PID=$$ >>{0}.tmp; mv {0}.tmp {0}; sleep 60",
        marker.display()
    );
    let running = start(run(&[], &["sh", "-c", &script]).env("TMPDIR", &place));
    wait_until(|| marker.exists());
    let environment = fs::read_to_string(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    let dir = run_dir(&environment);
    assert!(dir.is_dir());
    running.signal(libc::SIGKILL);
    let shell = environment.lines().find_map(|line| line.strip_prefix("PID=")).unwrap();
    let shell = Path::new("/proc").join(shell);
    wait_until(|| !shell.exists() || is_zombie(&shell));
    assert!(dir.is_dir(), "the process that would remove it was killed");
    finish(run(&[], &["true"]).env("TMPDIR", &place)).succeeded();
    assert!(!dir.exists(), "the next run removes it");
    fs::remove_dir_all(&place).unwrap();
}

fn is_zombie(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}

#[test]
fn runs_nest() {
    let inner = [SOFT_MLX5, "run", "--link", "roce", "--", "ibv_devinfo"];
    let info = finish(&mut run(&[], &inner)).succeeded();
    assert_eq!(info.matches("hca_id").count(), 1, "{info}");
    assert!(info.contains("Ethernet"), "{info}");
}

#[test]
fn the_lid_of_a_killed_process_is_free_again() {
    let fabric = fresh_fabric("dead");
    let options = ["--fabric", &fabric];
    let port = free_port();
    let killed = start(&mut run(&options, &["ibv_rc_pingpong", "-p", &port.to_string()]));
    common::wait_for_listener(port);
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.finish().status.signal(), Some(libc::SIGKILL));
    let lid = |info: String| {
        let line = info.lines().find(|line| line.contains("port_lid")).unwrap().to_owned();
        line.split_whitespace().last().unwrap().to_owned()
    };
    // The address of the dead device is free again, at the latest when its process has ended.
    wait_until(|| lid(finish(&mut run(&options, &["ibv_devinfo"])).succeeded()) == "1");
}

#[test]
fn a_program_that_uses_no_device_notices_nothing() {
    let script = "cat /proc/self/maps >/dev/null; ls / >/dev/null; echo fine; exec 3>/dev/null; echo x >&3";
    let outcome = finish(&mut run(&[], &["sh", "-c", script]));
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.succeeded(), "fine\n");
}

/// Most programs call it before anything else, and stop if it fails.
#[test]
fn ibv_fork_init_succeeds() {
    let script = "import ctypes; print(ctypes.CDLL('libibverbs.so.1').ibv_fork_init())";
    let printed = finish(&mut run(&[], &["/usr/bin/python3", "-c", script])).succeeded();
    assert_eq!(printed, "0\n");
}
