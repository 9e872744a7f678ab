//! The data path makes no heap call and no system call.

mod heap;
#[cfg(target_arch = "x86_64")]
mod system_calls;

use std::time::{Duration, Instant};

use system_calls::Watch;

/// What a thread did besides computing.
#[derive(Debug, PartialEq)]
struct Did {
    heap_calls: u64,
    system_calls: Vec<u64>,
}

const NOTHING: Did = Did { heap_calls: 0, system_calls: Vec::new() };

/// Runs `work` on this thread and says what it did.
fn observe(watch: &Watch, work: impl FnOnce()) -> Did {
    let (heap, system) = (heap::calls(), watch.calls());
    work();
    let (heap_calls, system_calls) = (heap::calls() - heap, watch.calls() - system);
    Did { heap_calls, system_calls: watch.latest(system_calls) }
}

#[test]
fn a_loop_that_computes_does_nothing_else() {
    let watch = Watch::this_thread().unwrap();
    let mut words = [0_u64; 512];
    let did = observe(&watch, || {
        for round in 0..100_000_u64 {
            words[round as usize % 512] += std::hint::black_box(round);
        }
    });
    assert_eq!(did, NOTHING);
    assert_ne!(words[511], 0);
}

#[test]
fn one_allocation_of_rust_is_seen() {
    let watch = Watch::this_thread().unwrap();
    let did = observe(&watch, || drop(std::hint::black_box(Box::new(1))));
    assert_eq!(did.heap_calls, 2, "{did:?}");
}

#[test]
fn one_allocation_inside_a_shared_library_is_seen() {
    let watch = Watch::this_thread().unwrap();
    let did = observe(&watch, || {
        // SAFETY: a string; the copy is leaked.
        let copy = unsafe { libc::strdup(c"libc calls malloc by name".as_ptr()) };
        // Otherwise the compiler does without it.
        assert!(!std::hint::black_box(copy).is_null());
    });
    assert_eq!(did.heap_calls, 1, "{did:?}");
}

#[test]
fn one_system_call_is_seen_and_still_does_its_work() {
    let watch = Watch::this_thread().unwrap();
    let mut parent = 0;
    let did = observe(&watch, || {
        // SAFETY: takes nothing and cannot fail.
        parent = unsafe { libc::getppid() };
    });
    assert_eq!(did, Did { heap_calls: 0, system_calls: vec![libc::SYS_getppid as u64] });
    assert_eq!(parent as u32, std::os::unix::process::parent_id());

    let began = Instant::now();
    let did = observe(&watch, || std::thread::sleep(Duration::from_millis(5)));
    assert_eq!(did.system_calls, [libc::SYS_clock_nanosleep as u64]);
    assert!(began.elapsed() >= Duration::from_millis(5));
}
