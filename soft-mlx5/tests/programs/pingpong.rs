//! The pingpong programs of ibverbs-utils.

use crate::common::{finish, run};
use crate::{LINKS, pair};

fn pingpong(options: &[&str], program: &str, arguments: &[&str]) {
    for output in pair(options, &[&[program], arguments].concat()) {
        assert!(output.contains(" iters in "), "{program} {arguments:?}: {output}");
        assert!(!output.contains("invalid data"), "{program} {arguments:?}: {output}");
    }
}

// Polling and by events, on both link layers; `-c` compares every byte that was received.
fn everywhere(program: &str, arguments: &[&str]) {
    for link in LINKS {
        for events in [&[][..], &["-e"]] {
            let arguments = [&["-g", "0", "-c", "-n", "300"], events, arguments].concat();
            pingpong(&["--strict", "--link", link], program, &arguments);
        }
    }
}

#[test]
fn rc() {
    everywhere("ibv_rc_pingpong", &[]);
}

#[test]
fn rc_with_a_send_queue_of_the_new_interface() {
    everywhere("ibv_rc_pingpong", &["-N"]);
}

#[test]
fn rc_with_timestamps() {
    // Not with events: the program takes an event for a failure if it has already polled the completion.
    for link in LINKS {
        pingpong(&["--strict", "--link", link], "ibv_rc_pingpong", &["-g", "0", "-c", "-t"]);
    }
}

#[test]
fn uc() {
    everywhere("ibv_uc_pingpong", &[]);
}

#[test]
fn ud() {
    everywhere("ibv_ud_pingpong", &[]);
}

#[test]
fn every_entry_of_the_gid_table() {
    for index in ["1", "2", "3"] {
        for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
            let arguments = ["-g", index, "-c", "-n", "300"];
            pingpong(&["--strict", "--link", "roce"], program, &arguments);
        }
    }
}

#[test]
fn one_srq_for_sixteen_queue_pairs() {
    everywhere("ibv_srq_pingpong", &["-q", "16"]);
}

#[test]
fn rc_over_a_lossy_link() {
    let options = ["--loss", "0.02", "--seed", "5"];
    pingpong(&options, "ibv_rc_pingpong", &["-g", "0", "-c", "-n", "300"]);
}

#[test]
fn rc_by_lid_without_gid() {
    pingpong(&["--strict"], "ibv_rc_pingpong", &["-c", "-e"]);
}

#[test]
fn xrc_is_refused() {
    for link in LINKS {
        let program = ["ibv_xsrq_pingpong", "-g", "0"];
        let outcome = finish(&mut run(&["--strict", "--link", link], &program));
        assert_eq!(outcome.status.code(), Some(1));
        assert!(outcome.stderr.contains("XRC Domain"), "{outcome:?}");
    }
}
