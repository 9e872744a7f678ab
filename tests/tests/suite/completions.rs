//! Fields of a completion besides the message.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::{
    BufferPool, Compression, CqConfig, DataPath, Error, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver,
    RqConfig, Timestamps, WcFlags,
};
use doorbell_tests::world::Single;
use doorbell_tests::{Peers, assert_matches, device, message, receiving, skip};
use rdma_core_sys as sys;

#[test]
fn where_a_message_came_from() {
    let mut w = Single::new(8, 64).filled();
    w.peers.qps[0].send_inline(b"with", Some(0xcafe_f00d)).unwrap();
    w.peers.send(0, 20);
    let (qp_num, sender) = (w.near[0].qp_num(), w.peers.qps[0].qp_num());
    let lid = w.peers.qps[0].address().unwrap().lid;
    let mut imm = vec![None, Some(0xcafe_f00d)];
    receiving::messages(&mut w.receiver, 2, |message| {
        let imm = imm.pop().unwrap();
        assert_eq!((message.qp_num(), message.imm()), (qp_num, imm));
        assert_eq!(message.flags().contains(WcFlags::WITH_IMM), imm.is_some());
        assert!(!message.flags().contains(WcFlags::WITH_INV));
        assert_eq!((message.invalidated_rkey(), message.written()), (None, None));
        assert_eq!(message.timestamp(), None, "it was not asked for");
        let source = message.source().unwrap();
        // Soft-RoCE reports no sender for connections.
        if lid != 0 {
            assert_eq!((source.qp_num, source.lid, source.sl), (sender, lid, 0));
        }
    });
}

/// A receiver of timestamps, with a connection. Its queue is full and has as many receives as the CQ has entries.
fn timed(pd: &ProtectionDomain, receives: u32) -> (Receiver, Vec<QueuePair>, Peers) {
    let config = CqConfig::new(receives).path(device::path()).timestamps(Timestamps::Ticks);
    let mut receiver = Receiver::new(pd, &config).unwrap();
    let qp = QpConfig::rc();
    let (near, peers) = Peers::connect(pd, &mut receiver, &qp, RqConfig::new(receives), 1, 64);
    let pool = BufferPool::new(pd, &PoolConfig::new(receives, 64)).unwrap();
    receiver.fill(near[0].receive_queue().unwrap(), &pool).unwrap();
    (receiver, near, peers)
}

#[test]
fn timestamps_are_those_of_the_clock_and_in_order() {
    let pd = device::pd();
    let (mut receiver, _near, mut peers) = timed(&pd, 16);
    let clock = match pd.context().clock() {
        Ok(clock) => Some(clock),
        Err(Error::Unsupported { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    let mut last = 0;
    for i in 0..100 {
        let pause = Duration::from_millis(if i == 50 { 20 } else { 0 });
        thread::sleep(pause);
        peers.send(0, 20);
        receiving::messages(&mut receiver, 1, |message| {
            let Some(clock) = clock else {
                return assert_eq!(message.timestamp(), None);
            };
            let timestamp = message.timestamp().expect("it was asked for");
            let now = clock.nanoseconds(timestamp).unwrap();
            let passed = Duration::from_nanos(now.checked_sub(last).expect("time goes on"));
            assert!(passed > pause, "{passed:?} for {pause:?}");
            last = now;
        });
    }
}

#[test]
fn compression_is_refused_where_it_cannot_be_read() {
    let pd = device::pd();
    let config = CqConfig::new(64).compression(Compression::Hash);
    let refused = |config: &CqConfig, reason: &str| match Receiver::new(&pd, config) {
        Err(error @ Error::Unsupported { .. }) => {
            let text = error.to_string();
            assert!(text.contains("CQE compression") && text.contains(reason), "{text}");
        }
        other => panic!("{other:?}"),
    };
    refused(&config.clone().path(DataPath::Verbs), "on the verbs path");
    refused(&config.path(device::path()).timestamps(Timestamps::Ticks), "together with timestamps");
}

#[test]
fn a_cq_is_resized_where_verbs_poll_it() {
    let mut w = Single::new(8, 64);
    let posted = w.fill();
    if device::drives_directly(w.pd.context()) {
        assert_matches!(w.receiver.resize_cq(512), Err(Error::Unsupported { .. }));
        return;
    }
    // With completions in it, larger and smaller again.
    let before = w.receiver.cq_capacity();
    let mut number = 0;
    for entries in [4 * before, before] {
        // All but one: the device ends the old buffer with an entry of its own.
        for _ in 1..posted {
            w.peers.send(0, 20);
        }
        w.peers.settle();
        w.receiver.resize_cq(entries).unwrap();
        assert!(w.receiver.cq_capacity() >= entries);
        receiving::messages(&mut w.receiver, posted - 1, |message| {
            assert_eq!(message::read(&message), (0, number));
            number += 1;
        });
    }
    assert_matches!(w.receiver.resize_cq(1), Err(Error::CqTooSmall { .. }));
}

type NextPoll = unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> c_int;

/// The driver's entry for the next completion of a batch, and how often it was called.
static NEXT_POLL: OnceLock<NextPoll> = OnceLock::new();
static NEXT_POLLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn next_poll(cq: *mut sys::ibv_cq_ex) -> c_int {
    NEXT_POLLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the arguments of the caller.
    unsafe { NEXT_POLL.get().unwrap()(cq) }
}

/// Completions of an extended CQ are fetched into memory of the library. Its size must not depend on the size of the
/// CQ.
#[test]
fn an_extended_cq_is_polled_for_as_many_completions_as_a_plain_one() {
    const RECEIVES: u32 = 100;
    let pd = device::pd();
    if device::drives_directly(pd.context()) || pd.context().clock().is_err() {
        skip!("the CQ is not polled through ibv_start_poll");
    }
    let (mut receiver, near, mut peers) = timed(&pd, RECEIVES);
    peers.arrive(RECEIVES as usize);
    // SAFETY: a live queue pair, whose CQ is extended because of the timestamps and is used by this thread only.
    unsafe {
        let cq = (*near[0].as_raw()).recv_cq.cast::<sys::ibv_cq_ex>();
        NEXT_POLL.set((*cq).next_poll.unwrap()).unwrap();
        (*cq).next_poll = Some(next_poll);
    }
    assert!(receiver.poll_up_to(1).next().is_some());
    let calls = NEXT_POLLS.load(Ordering::Relaxed);
    assert!((1..32).contains(&calls), "{calls}");
    receiving::messages(&mut receiver, RECEIVES as usize - 1, |_| {});
}
