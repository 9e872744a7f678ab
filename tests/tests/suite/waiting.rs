//! Waiting for completions: no wake-up is lost, and none comes without a request.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{hint, thread};

use doorbell::{CompletionChannel, Completions, CqConfig, Error, Receiver};
use doorbell_tests::by_hand::plain_cq;
use doorbell_tests::descriptor::is_readable;
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{assert_matches, device, receiving};
use fastrand::Rng;
use rdma_core_sys as sys;

fn channel(receiver: &Receiver) -> &CompletionChannel {
    receiver.channel().expect("a receiver has a channel")
}

#[test]
fn nothing_arrives_and_the_time_runs_out() {
    let mut w = Single::new(8, 64).filled();
    assert!(!w.receiver.wait(Duration::ZERO).unwrap());
    let began = Instant::now();
    assert!(!w.receiver.wait(Duration::from_millis(30)).unwrap());
    assert!(began.elapsed() >= Duration::from_millis(30), "{:?}", began.elapsed());
}

#[test]
fn what_has_arrived_is_not_waited_for() {
    let mut w = Single::new(8, 64).filled();
    w.peers.send(0, 20);
    assert!(w.receiver.wait(PATIENCE).unwrap());
    assert!(w.receiver.arm().unwrap(), "it was not polled yet");
    receiving::messages(&mut w.receiver, 1, |_| ());
    assert!(!w.receiver.arm().unwrap());
}

#[test]
fn an_armed_receiver_makes_its_channel_readable_once() {
    let mut w = Shared::new(16, 2, 64).filled();
    w.peers.send(0, 20);
    receiving::messages(&mut w.receiver, 1, |_| ());
    let soon = Duration::from_millis(20);
    assert!(!is_readable(channel(&w.receiver), soon), "no event was asked for");

    assert!(!w.receiver.arm().unwrap());
    assert!(!is_readable(channel(&w.receiver), soon), "nothing has arrived");
    w.peers.send(1, 20);
    assert!(is_readable(channel(&w.receiver), PATIENCE));
    receiving::messages(&mut w.receiver, 1, |_| ());

    // The event was not taken, and the CQ is not armed: arming handles both.
    for _ in 0..10 {
        assert!(!w.receiver.arm().unwrap());
        assert!(!is_readable(channel(&w.receiver), Duration::ZERO));
        w.peers.send(0, 20);
        assert!(is_readable(channel(&w.receiver), PATIENCE));
        receiving::messages(&mut w.receiver, 1, |_| ());
    }
}

/// Sends an empty message with an event or without.
fn send_empty(qp: &mut SendingQp, solicited: bool) {
    let queue = qp.send_queue().unwrap();
    let mut posting = qp.sender.post_many(queue).unwrap();
    if solicited {
        posting.solicited();
    }
    posting.send(b"").unwrap();
}

#[test]
fn solicited_arms_wait_for_solicited_messages() {
    let mut w = Single::new(8, 64).filled();
    assert!(!w.receiver.arm_solicited().unwrap());
    send_empty(&mut w.peers.qps[0], false);
    receiving::messages(&mut w.receiver, 1, |_| ());
    assert!(!is_readable(channel(&w.receiver), Duration::from_millis(20)));
    send_empty(&mut w.peers.qps[0], true);
    assert!(is_readable(channel(&w.receiver), PATIENCE));
    receiving::messages(&mut w.receiver, 1, |_| ());
    assert!(!w.receiver.arm().unwrap());
    assert!(!is_readable(channel(&w.receiver), Duration::ZERO));
}

/// A message for each wait, sent at any time from before the arming until after the sleep begins.
#[test]
fn a_message_at_any_time_ends_the_wait() {
    let mut w = Single::new(64, 64).filled();
    let rounds = device::share(10_000);
    let (go, start) = mpsc::channel();
    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        let mut random = Rng::with_seed(7);
        for () in start {
            let longest = if random.u64(..4) == 0 { 40_000 } else { 2_000 };
            for _ in 0..random.u64(..longest) {
                hint::spin_loop();
            }
            peers.send(0, 12);
        }
        peers
    });
    for round in 0..rounds {
        go.send(()).unwrap();
        // The time is far longer than the delay: only a lost wake-up lets it run out.
        let began = Instant::now();
        assert!(w.receiver.wait(PATIENCE).unwrap(), "round {round}");
        assert!(began.elapsed() < PATIENCE / 2, "round {round}: {:?}", began.elapsed());
        receiving::messages(&mut w.receiver, 1, |_| ());
    }
    drop(go);
    drop(sender.join().unwrap());
}

#[test]
fn waiting_without_a_channel_is_an_error() {
    let pd = device::pd();
    let (cq, config) = (plain_cq(&pd), CqConfig::new(4096).path(device::path()));
    // SAFETY: a fresh CQ that no other code uses, destroyed below, after the receiver.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, cq, &config) }.unwrap();
    assert!(receiver.channel().is_none());
    for result in [receiver.arm(), receiver.wait(Duration::ZERO)] {
        assert_matches!(result, Err(Error::Unsupported { .. }));
    }
    drop(receiver);
    // SAFETY: made above, and its users were destroyed.
    assert_eq!(unsafe { sys::ibv_destroy_cq(cq) }, 0);
}
