//! The order in which a batch stores the doorbell records. Their page is protected, so that the first store faults.

use std::ffi::c_void;
use std::mem::zeroed;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_tests::world::{Shared, TwoSrqs};
use doorbell_tests::{direct_only, records};

const PAGE: usize = 4096;
/// Receives, and entries of the CQ.
const RECEIVES: u32 = 63;

/// The address of each first store to a protected page, in order.
static STORED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static STORES: AtomicUsize = AtomicUsize::new(0);

/// Takes note of a store, and lets it through.
extern "C" fn note(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's description of the fault.
    let addr = unsafe { (*info).si_addr() } as usize;
    match STORED.get(STORES.fetch_add(1, Ordering::Relaxed)) {
        Some(place) => place.store(addr, Ordering::Relaxed),
        // SAFETY: ends the process.
        None => unsafe { libc::abort() },
    }
    protect(addr, libc::PROT_READ | libc::PROT_WRITE);
}

fn protect(addr: usize, protection: libc::c_int) {
    let page = addr / PAGE * PAGE;
    // SAFETY: a page of the driver's doorbell records, which stays mapped; it is written by this thread only.
    assert_eq!(unsafe { libc::mprotect(page as *mut c_void, PAGE, protection) }, 0);
}

fn catch_stores() {
    // SAFETY: the handler calls nothing but mprotect.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
    }
}

/// A thread may be preempted between the two stores. It must not have handed over receives before the device knows of
/// room for their completions.
#[test]
fn the_consumer_index_is_stored_before_the_record_of_the_receives() {
    let mut w = Shared::new(RECEIVES, 1, 64);
    direct_only!(w.pd.context());
    w.post(RECEIVES as usize);
    let [cq, srq] = records::of(&w.near[0]);
    catch_stores();
    for count in [1, 7, RECEIVES] {
        w.peers.arrive(count as usize);
        let mut batch = w.receiver.poll();
        for _ in 0..count {
            batch.next().expect("it has arrived").unwrap();
        }
        [cq, srq].into_iter().for_each(|record| protect(record, libc::PROT_READ));
        drop(batch);
        assert!(STORES.swap(0, Ordering::Relaxed) > 0, "nothing was stored");
        let first = STORED[0].load(Ordering::Relaxed);
        assert!((cq..cq + 8).contains(&first), "{count}: {first:#x} before the consumer index {cq:#x}, SRQ {srq:#x}");
        [cq, srq].into_iter().for_each(|record| protect(record, libc::PROT_READ | libc::PROT_WRITE));
    }
}

/// Messages of two SRQs by turns are recycled with one store to each record, when their batch ends.
#[test]
fn a_batch_of_two_queues_stores_no_record_before_it_ends() {
    let mut world = TwoSrqs::new(RECEIVES);
    direct_only!(world.pd.context());
    world.send(RECEIVES);
    world.settle();
    let records = world.clients.each_ref().map(|(near, _)| records::of(&near[0]));
    let protect_all = |protection| records.iter().flatten().for_each(|&at| protect(at, protection));
    catch_stores();
    let mut batch = world.receiver.poll_up_to(2 * RECEIVES);
    protect_all(libc::PROT_READ);
    for _ in 0..2 * RECEIVES {
        batch.next().expect("it has arrived").unwrap();
    }
    let early = STORES.load(Ordering::Relaxed);
    drop(batch);
    let stores = STORES.load(Ordering::Relaxed);
    protect_all(libc::PROT_READ | libc::PROT_WRITE);
    assert!(early == 0 && stores > 0, "{early} of {stores}");
}
