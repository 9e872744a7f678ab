//! Queue pairs that fail, are reset or destroyed with sends outstanding, and senders that end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use doorbell::{
    BufferPool, Cause, Completions, CqConfig, Error, NotSent, PoolConfig, QpConfig, QpState, QueuePair, RqConfig,
    Sender, SrqConfig, WcStatus,
};
use doorbell_tests::sending::{RECEIVES, Sending, completions};
use doorbell_tests::{assert_matches, device, peers::join, receiving};

use crate::failures::too_long;

/// A connection with a far end that has no receives left: sends wait.
fn blocked(sends: u32) -> Sending {
    let config = QpConfig::rc().max_send_wr(sends).max_inline(8);
    let mut w = Sending::with(2, 64, &config, &CqConfig::new(4096));
    for _ in 0..RECEIVES {
        let queue = w.queue(0);
        w.sender.post(queue).unwrap().send(b"fill").unwrap();
        w.succeed(1);
    }
    // The far receiver never polls, so the receives are not given back.
    w
}

fn post(w: &mut Sending, qp: usize, count: u64) {
    let queue = w.queue(qp);
    let buffers: Vec<_> = (0..count).map(|i| w.buffer(&[i as u8])).collect();
    let mut posting = w.sender.post_many(queue).unwrap();
    for (i, buffer) in buffers.into_iter().enumerate() {
        posting.token(i as u64).send(buffer).unwrap();
    }
}

#[test]
fn requests_of_a_queue_pair_that_fails_come_back_in_order() {
    let mut w = blocked(8);
    post(&mut w, 0, 5);
    post(&mut w, 1, 3);
    w.near[0].to_error().unwrap();
    let done = w.done(8);
    let failed: Vec<_> = done.iter().filter(|done| done.qp == 0).collect();
    assert_eq!(failed.len(), 5);
    for (i, done) in failed.into_iter().enumerate() {
        assert_eq!((done.token, done.status), (i as u64, WcStatus::WR_FLUSH_ERR));
        assert_eq!(done.buffers, [[i as u8]]);
    }
    // The other queue pair is not concerned.
    assert!(done.iter().filter(|done| done.qp == 1).all(|done| done.status.is_success()));
    post(&mut w, 1, 1);
    w.succeed(1);
    assert_eq!(w.pool.available(), 256);
}

#[test]
fn a_completion_that_says_that_the_queue_pair_failed_ends_posting() {
    let config = QpConfig::rc().max_send_wr(8).rnr_retry(0).max_inline(8);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let queue = w.queue(0);
    for _ in 1..RECEIVES {
        w.sender.post(queue).unwrap().send(b"fill").unwrap();
        w.succeed(1);
    }
    post(&mut w, 0, 3);
    let statuses: Vec<_> = w.done(3).iter().map(|done| done.status).collect();
    let flushed = WcStatus::WR_FLUSH_ERR;
    // The first, which still finds a receive, asks for no completion of its own.
    assert_eq!(statuses, [WcStatus::SUCCESS, WcStatus::RNR_RETRY_EXC_ERR, flushed]);
    assert_matches!(w.sender.post(queue).err(), Some(NotSent::State(QpState::Error)));
}

#[test]
fn a_reset_gives_back_what_is_outstanding_before_the_queue_pair_connects_again() {
    let mut w = blocked(8);
    for round in 0..3 {
        post(&mut w, 0, 5);
        let Sending { near_receiver, far_receiver, near, far, .. } = &mut w;
        near_receiver.reset_qp(&mut near[0]).unwrap();
        far_receiver.reset_qp(&mut far[0]).unwrap();
        let queue = near[0].send_queue().unwrap();
        let refused = near[0].connect(&far[0].address().unwrap()).unwrap_err();
        assert_matches!(refused, Error::InUse { .. });
        assert_matches!(w.sender.post(queue).err(), Some(NotSent::State(QpState::Init)));
        let done = w.done(5);
        assert!(done.iter().all(|done| done.status == WcStatus::WR_FLUSH_ERR), "{done:?}");
        let tokens: Vec<_> = done.iter().map(|done| done.token).collect();
        assert_eq!(tokens, [0, 1, 2, 3, 4], "round {round}");
        assert_eq!(w.pool.available(), 256);

        let Sending { far_receiver, near, far, pool, .. } = &mut w;
        join(&mut near[0], &mut far[0]);
        far_receiver.fill(far[0].receive_queue().unwrap(), pool).unwrap();
        let posted = 256 - w.pool.available();
        post(&mut w, 0, 3);
        assert_eq!(w.messages(3).len(), 3);
        w.succeed(3);
        // Without receives again.
        let Sending { far_receiver, near_receiver, near, far, .. } = &mut w;
        near_receiver.reset_qp(&mut near[0]).unwrap();
        far_receiver.reset_qp(&mut far[0]).unwrap();
        assert!(w.sender.is_busy(queue), "nothing is outstanding, and the sender has not polled");
        assert!(w.sender.poll().next().is_none() && !w.sender.is_busy(queue));
        join(&mut w.near[0], &mut w.far[0]);
        assert_eq!((posted, w.pool.available()), (RECEIVES as usize, 256));
    }
}

#[test]
fn requests_of_a_queue_pair_that_is_destroyed_or_dropped_come_back() {
    for dropped in [false, true] {
        println!("dropped: {dropped}");
        let mut w = blocked(8);
        post(&mut w, 0, 5);
        let queue = w.queue(0);
        let qp = w.near.remove(0);
        if dropped {
            drop(qp);
        } else {
            w.near_receiver.destroy_qp(qp).unwrap();
        }
        let tokens = completions(&mut w.sender, 5, |done| {
            assert_eq!((done.queue, done.status), (queue, WcStatus::WR_FLUSH_ERR));
            done.token
        });
        assert_eq!(tokens, [0, 1, 2, 3, 4]);
        assert_eq!(w.pool.available(), 256);
        assert!(w.sender.poll().next().is_none());
        assert_eq!(w.sender.capacity(queue), 0, "the queue pair is destroyed");
        assert!(!w.sender.wait(Duration::ZERO).unwrap());
    }
}

#[test]
fn an_srq_is_in_use_until_the_sender_of_its_queue_pair_was_polled() {
    let mut w = Sending::new(1, 8, 64);
    let srq = w.near_receiver.create_srq(&SrqConfig::new(7)).unwrap();
    let config = QpConfig::rc();
    let qp = QueuePair::builder(&config).receive(&mut w.near_receiver, srq).send(&mut w.sender).build().unwrap();
    let dropped = QueuePair::builder(&config).receive(&mut w.near_receiver, srq).send(&mut w.sender).build().unwrap();
    w.near_receiver.destroy_qp(qp).unwrap();
    let refused = |w: &mut Sending| {
        let refused = w.near_receiver.destroy_srq(srq).unwrap_err();
        assert_matches!(refused, Error::InUse { .. });
        assert!(w.sender.poll().next().is_none());
    };
    refused(&mut w);
    // A queue pair that is dropped keeps the SRQ in use like one that is destroyed.
    drop(dropped);
    refused(&mut w);
    w.near_receiver.destroy_srq(srq).unwrap();
}

#[test]
fn buffers_of_a_dropped_sender_return_with_their_queue_pair() {
    let mut w = blocked(8);
    post(&mut w, 0, 5);
    drop(w.sender);
    // The device may still read them.
    assert_eq!(w.pool.available(), 251);
    drop((w.near, w.near_receiver));
    assert_eq!(w.pool.available(), 256);
}

#[test]
fn a_posting_that_is_forgotten_is_handed_over_with_the_next_one() {
    let config = QpConfig::rc().max_send_wr(8).max_inline(8);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let queue = w.queue(0);
    let mut posting = w.sender.post_many(queue).unwrap();
    posting.send(b"one").unwrap();
    std::mem::forget(posting);
    w.sender.post(queue).unwrap().send(b"two").unwrap();
    let messages = w.messages(2);
    assert_eq!((&messages[0].1[..], &messages[1].1[..]), (&b"one"[..], &b"two"[..]));
    w.succeed(2);
}

#[test]
fn a_panic_between_requests_hands_over_those_before_it() {
    let config = QpConfig::rc().max_send_wr(8).max_inline(8);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let queue = w.queue(0);
    let sender = &mut w.sender;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut posting = sender.post_many(queue).unwrap();
        posting.send(b"one").unwrap();
        posting.send(b"two").unwrap();
        panic!("a panic of the test");
    }));
    assert!(panicked.is_err());
    assert_eq!(w.messages(2)[1].1, b"two");
    w.succeed(2);
}

#[test]
fn a_queue_pair_connects_again_after_its_sender_is_dropped() {
    let mut w = blocked(4);
    post(&mut w, 0, 4);
    drop(std::mem::replace(&mut w.sender, doorbell_tests::device::sender(&w.pd, 4)));
    let queue = w.queue(0);
    assert_matches!(w.sender.post(queue).err(), Some(NotSent::NoQueue));
    assert_eq!(w.pool.available(), 252, "the device has what was posted");
    let (near, far) = (&mut w.near[0], &mut w.far[0]);
    w.near_receiver.reset_qp(near).unwrap();
    w.far_receiver.reset_qp(far).unwrap();
    join(near, far);
    w.near_receiver.destroy_qp(w.near.remove(0)).unwrap();
    assert_eq!(w.pool.available(), 256);
}

/// The failures that a poll of the sender returns: status, and the cause of a flush.
fn failures(sender: &mut Sender, count: usize) -> Vec<(WcStatus, Option<WcStatus>)> {
    let mut failures = Vec::new();
    while failures.len() < count {
        receiving::wait("a failure", || {
            let mut batch = sender.poll();
            let before = failures.len();
            while let Some(done) = batch.next() {
                if let Err(failure) = done {
                    assert_eq!(failure.first.is_some(), failure.to_string().contains("failed before"), "{failure}");
                    failures.push((failure.status, failure.first));
                }
            }
            failures.len() > before
        });
    }
    failures
}

/// Connects a queue pair again that has failed.
fn connect_again(w: &mut Sending) {
    let Sending { near_receiver, far_receiver, near, far, sender, .. } = w;
    near_receiver.reset_qp(&mut near[0]).unwrap();
    far_receiver.reset_qp(&mut far[0]).unwrap();
    receiving::wait("the sender", || {
        while sender.poll().next().is_some() {}
        !sender.is_busy(&near[0])
    });
    join(&mut near[0], &mut far[0]);
}

/// The peer has no receives: requests fail, and with them the receives of the queue pair.
#[test]
fn what_is_flushed_names_the_request_that_failed() {
    let config = QpConfig::rc().max_send_wr(8).rnr_retry(0).max_inline(8);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let (rnr, flushed) = (WcStatus::RNR_RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR);
    for _ in 0..2 {
        connect_again(&mut w);
        let queue = w.near[0].receive_queue().unwrap();
        w.near_receiver.post(queue, w.pool.take()).unwrap();
        post(&mut w, 0, 3);
        let expected = [(rnr, None), (flushed, Some(rnr)), (flushed, Some(rnr))];
        assert_eq!(failures(&mut w.sender, 3), expected);
        let failure = receiving::failures(&mut w.near_receiver, 1).remove(0);
        assert_eq!((failure.cause, failure.first), (Cause::Status(flushed), Some(rnr)));
        assert!(failure.to_string().contains("no receive posted"), "{failure}");
    }
    // The program ends it: there is no other cause, and none is left of the connection before.
    connect_again(&mut w);
    let queue = w.near[0].receive_queue().unwrap();
    w.near_receiver.post(queue, w.pool.take()).unwrap();
    w.near[0].to_error().unwrap();
    let failure = receiving::failures(&mut w.near_receiver, 1).remove(0);
    assert_eq!((failure.cause, failure.first), (Cause::Status(flushed), None));
}

/// A message is longer than the receive: the requests of the queue pair, which wait for receives, are flushed.
#[test]
fn what_is_flushed_names_the_receive_that_failed() {
    let (pd, mut near_receiver) = device::start(64);
    let mut far_receiver = device::receiver(&pd, 64);
    let [mut near_sender, mut far_sender] = [(); 2].map(|()| device::sender(&pd, 512));
    let (config, own) = (QpConfig::rc().max_send_wr(8).max_inline(64), RqConfig::new(4));
    let mut near = QueuePair::builder(&config).receive(&mut near_receiver, own).send(&mut near_sender).build().unwrap();
    let mut far = QueuePair::builder(&config).receive(&mut far_receiver, own).send(&mut far_sender).build().unwrap();
    join(&mut near, &mut far);
    let small = BufferPool::new(&pd, &PoolConfig::new(1, 8)).unwrap();
    near_receiver.post(near.receive_queue().unwrap(), small.take()).unwrap();
    (0..2).for_each(|_| near_sender.send(&near, b"waits").unwrap());
    far_sender.send(&far, [7; 40]).unwrap();
    let failure = receiving::failures(&mut near_receiver, 1).remove(0);
    let (long, _) = too_long(pd.context());
    assert_eq!((failure.cause, failure.first), (Cause::Status(long), None));
    let flushed = (WcStatus::WR_FLUSH_ERR, Some(long));
    assert_eq!(failures(&mut near_sender, 2), [flushed, flushed]);
}

/// A queue pair that only sends is replaced after its peer has failed, and with requests outstanding: each request
/// comes back once.
#[test]
fn a_queue_pair_that_only_sends_is_replaced() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let mut sender = device::sender(&pd, 64);
    let config = QpConfig::rc().max_send_wr(8).max_inline(8).rnr_retry(0);
    let mut near = QueuePair::builder(&config).send(&mut sender).build().unwrap();
    let mut far = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(4, 8)).unwrap();
    for round in 0..4 {
        join(&mut near, &mut far);
        receiver.post(far.receive_queue().unwrap(), pool.take()).unwrap();
        let posted = if round % 2 == 0 { 8 } else { 3 };
        (0..posted).for_each(|_| sender.send(&near, b"one").unwrap());
        let mut ended = Vec::new();
        if round % 2 == 0 {
            ended = completions(&mut sender, posted, |sent| sent.status);
        }
        drop(near);
        near = QueuePair::builder(&config).send(&mut sender).build().unwrap();
        receiver.reset_qp(&mut far).unwrap();
        ended.extend(completions(&mut sender, posted - ended.len(), |sent| sent.status));
        // The second request finds no receive.
        assert!(ended[1..].iter().all(|status| !status.is_success()), "{ended:?}");
        assert!(sender.poll().next().is_none());
    }
    join(&mut near, &mut far);
    receiver.post(far.receive_queue().unwrap(), pool.take()).unwrap();
    sender.send(&near, b"last").unwrap();
    receiving::messages(&mut receiver, 1, |message| assert_eq!(&message[..], b"last"));
}
