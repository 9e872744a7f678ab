//! A program of MPI (MPICH, whose transport is UCX): two ranks, each in a process of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{finish, run};

/// Runs the program, and returns the remote keys with which its ranks read each other's messages.
fn rkeys(hooks: &str) -> BTreeSet<String> {
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi-{hooks}"));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mpi.py");
    let hooks = format!("UCX_MEM_MMAP_HOOK_MODE={hooks}");
    let ranks = ["mpiexec.mpich", "-n", "2", "env", &hooks, "UCX_TLS=rc_x,self", "python3", program];
    let outcome = finish(&mut run(&["--strict", "--trace", trace.to_str().unwrap()], &ranks));
    assert!(outcome.status.success(), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("20 messages").count(), 2, "{outcome:?}");
    let trace = fs::read_to_string(trace).unwrap();
    let reads = trace.lines().filter(|line| line.contains("opcode=RDMA_READ"));
    reads.filter_map(|line| Some(line.split_once(" rkey=")?.1.split(' ').next()?.to_owned())).collect()
}

/// A rank sends from the same memory again and again, which is registered once, or, without a cache, each time.
#[test]
fn memory_is_registered_through_the_cache() {
    let (cached, each) = (rkeys("bistro"), rkeys("none"));
    assert!((1..=2).contains(&cached.len()) && each.len() > 20, "{cached:?}, {each:?}");
}
