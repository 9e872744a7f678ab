//! Programs of Debian, which do not know the device, run on it. docs/programs.md lists them.
//!
//! Needs: programs

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod devinfo;
mod killed;
mod management;
mod mpi;
mod own_driver;
mod perftest;
mod pingpong;
mod qperf;
mod rdma_cm;
mod rdma_tool;
mod stopped;
mod testpmd;
mod tshark;
mod ucx;

use common::{Outcome, finish, free_port, fresh_fabric, run, start, wait_for_listener};

const LINKS: [&str; 2] = ["ib", "roce"];

/// Runs a program as server and as client, two processes on one fabric. Both must succeed; returns their
/// output.
fn pair(options: &[&str], program: &[&str]) -> [String; 2] {
    let port = free_port();
    let number = port.to_string();
    let fabric = fresh_fabric(&number);
    let options = [&["--fabric", &fabric], options].concat();
    let words = [program, &["-p", &number]].concat();
    let running = start(&mut run(&options, &words));
    wait_for_listener(port);
    let client = finish(&mut run(&options, &[&words[..], &["127.0.0.1"]].concat()));
    let server = running.finish();
    let report = |outcome: &Outcome| format!("{outcome:?}").replace("\\n", "\n");
    assert!(
        server.status.success() && client.status.success(),
        "{options:?}\nserver {}\nclient {}",
        report(&server),
        report(&client)
    );
    // UCX's accelerated transports have a data path of their own.
    let has_own = words.iter().any(|word| ["rc_x", "ud_x", "dc_x"].iter().any(|own| word.contains(own)));
    if std::env::var_os("UNDER").is_some() && !has_own {
        // The server of RDMA posts no WQEs.
        used_doorbell(&server, 0);
        used_doorbell(&client, 1);
    }
    [server.stdout, client.stdout]
}

/// Fails the test unless doorbell has made at least so many posts and polls, and libmlx5 next to none, as the drop-in
/// says at the end of the program.
fn used_doorbell(outcome: &Outcome, least: u64) {
    let totals = outcome.stderr.lines().filter_map(|line| {
        let (posts, polls) = line.strip_prefix("doorbell: posts: ")?.split_once("; polls: ")?;
        Some([posts, polls].map(|part| {
            let count = |word: &str| word.split(' ').next()?.parse::<u64>().ok();
            let (ours, theirs) = part.split_once(" by doorbell, ")?;
            Some((count(ours)?, count(theirs)?))
        }))
    });
    let (mut ours, mut theirs) = (0, 0);
    for (our, their) in totals.flatten().flatten() {
        (ours, theirs) = (ours + our, theirs + their);
    }
    assert!(ours >= least && ours * 100 >= (ours + theirs) * 95, "{ours}, {theirs}: {outcome:?}");
}

/// Returns the name of the socket of a port on a fabric of this user, as the kernel lists it.
fn socket_name(fabric: &str, port: &str) -> String {
    // SAFETY: no arguments, no memory.
    let user = unsafe { libc::getuid() };
    format!("@soft-mlx5/{user}/{fabric}/{port}")
}
