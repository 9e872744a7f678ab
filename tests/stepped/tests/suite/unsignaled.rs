//! Unsignaled requests: those that succeed make room and are not returned, those that fail are.

use doorbell::{BufferPool, DataPath, NotSent, PoolConfig, QpConfig, WcStatus};
use doorbell_stepped_tests::sent::Sent;
use doorbell_stepped_tests::{Sending, join, on_each_path, open, two_buffers};
use soft_mlx5::Device;

on_each_path! {
    a_full_queue_makes_room
    the_index_of_a_wqe_wraps
    the_peer_dies_between_two_cqes
    only_signaled_requests_are_returned
    what_no_cqe_has_covered_comes_back_in_error_and_reset
    what_no_cqe_has_covered_comes_back_with_its_queue_pair
    a_full_queue_of_a_queue_pair_in_error
}
// Through verbs each request has a CQE, and makes room with the next poll.
on_each_path!(direct_only, Direct, buffers_return_with_the_request_that_has_a_cqe each_completion_makes_room a_forgotten_batch_makes_room);

/// Receives of each far end.
const RECEIVES: u32 = 256;

/// Two connections from one sender, whose far ends have receives.
fn connections(path: DataPath, config: &QpConfig) -> Sending {
    let mut w = Sending::new(open(Device::builder().strict(true).stepped()), path, config, 2, RECEIVES);
    for far in &w.far {
        w.far_receiver.fill(far.receive_queue().unwrap(), &w.receives).unwrap();
    }
    w
}

/// Posts an unsignaled request of copied bytes, which are its token; returns `false` if the queue is full.
fn post(w: &mut Sending, qp: usize, token: u32) -> bool {
    let request = w.sender.post(w.queue(qp)).unwrap().token(token.into());
    match request.unsignaled().send(token.to_ne_bytes()) {
        Ok(()) => true,
        Err(NotSent::Full { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Posts the same from two buffers.
fn post_buffers(w: &mut Sending, qp: usize, token: u32) {
    let buffers = two_buffers(&w.pool, &(token as u16).to_ne_bytes());
    let request = w.sender.post(w.queue(qp)).unwrap().token(token.into());
    request.unsignaled().send(buffers).unwrap();
}

/// Returns the messages that arrive, the first four bytes of each.
fn receive(w: &mut Sending) -> Vec<u32> {
    w.device.settle();
    let mut batch = w.far_receiver.poll_up_to(u32::MAX);
    let mut messages = Vec::new();
    while let Some(message) = batch.next() {
        messages.push(u32::from_ne_bytes(*message.unwrap().first_chunk().unwrap()));
    }
    messages
}

fn tokens(over: &[Sent]) -> Vec<u64> {
    over.iter().map(|sent| sent.token).collect()
}

fn config(sends: u32) -> QpConfig {
    QpConfig::rc().max_send_wr(sends).max_inline(8).max_send_sge(2)
}

/// Posts until the queue is full, and takes what has arrived, again and again.
fn fill_again(path: DataPath, sends: u32, count: u32) {
    let mut w = connections(path, &config(sends));
    let (queue, mut sent) = (w.queue(0), 0_u32);
    while sent < count {
        let before = sent;
        while post(&mut w, 0, sent) {
            sent += 1;
        }
        assert!(before < sent, "a full queue of {sends} makes no room after {sent} requests");
        assert!(before > 0 || sent == w.sender.capacity(queue));
        assert!(receive(&mut w).into_iter().eq(before..sent));
        assert!(!w.sender.is_busy(queue) && w.sender.next().is_none());
    }
    assert!(w.over().is_empty());
}

/// A queue of any size, with a CQ of exactly its size.
fn a_full_queue_makes_room(path: DataPath) {
    for (sends, count) in [(1, 200), (2, 200), (4, 1000)] {
        fill_again(path, sends, count);
    }
}

/// The CQ has room for the requests of a full queue: also for one that is posted after a single completion was taken.
fn each_completion_makes_room(path: DataPath) {
    for has_signal in [true, false] {
        let mut w = connections(path, &config(4).max_unsignaled(0));
        let queue = w.queue(0);
        let send = |w: &mut Sending| {
            let request = w.sender.post(queue).unwrap();
            let request = if has_signal { request } else { request.unsignaled() };
            request.send(*b"four").unwrap();
        };
        (0..w.sender.capacity(queue)).for_each(|_| send(&mut w));
        for _ in 0..100 {
            assert!(!receive(&mut w).is_empty());
            let is_returned = w.sender.next().is_some_and(|done| done.is_ok());
            assert_eq!(is_returned, has_signal);
            send(&mut w);
        }
    }
}

/// The CQEs of a forgotten batch are consumed as far as its requests make room. Each of those was of two blocks, in
/// which two requests fit.
fn a_forgotten_batch_makes_room(path: DataPath) {
    let mut w = connections(path, &config(8).max_send_sge(4).max_unsignaled(0));
    let (queue, other) = (w.queue(0), w.queue(1));
    for _ in 0..8 {
        let [[a, b], [c, d]] = [(); 2].map(|()| two_buffers(&w.pool, b"16 bytes of text"));
        w.sender.send(queue, [a, b, c, d]).unwrap();
    }
    assert_eq!(receive(&mut w).len(), 8);
    let mut batch = w.sender.poll();
    assert!((0..8).all(|_| batch.next().is_some_and(|done| done.is_ok())));
    std::mem::forget(batch);
    let mut sent = 0;
    for queue in [queue, other] {
        while w.sender.send(queue, b"four").is_ok() {
            sent += 1;
        }
    }
    assert!(sent > 24, "{sent}");
    assert_eq!(receive(&mut w).len(), sent);
    assert_eq!(w.over().len(), sent);
}

fn the_index_of_a_wqe_wraps(path: DataPath) {
    fill_again(path, 16, 70_000);
}

/// Requests up to the last one that the peer acknowledged have succeeded, although no CQE says so.
fn the_peer_dies_between_two_cqes(path: DataPath) {
    let mut w = connections(path, &config(64));
    (0..3).for_each(|token| assert!(post(&mut w, 0, token)));
    post_buffers(&mut w, 0, 3);
    assert_eq!(receive(&mut w).len(), 4);
    let far = w.far.remove(0);
    w.far_receiver.destroy_qp(far).unwrap();
    assert!(post(&mut w, 0, 4));
    post_buffers(&mut w, 0, 5);
    assert!(post(&mut w, 0, 6) && post(&mut w, 1, 100));
    let over = w.over();
    assert_eq!(tokens(&over), [4, 5, 6]);
    let (queue, flushed) = (w.queue(0), WcStatus::WR_FLUSH_ERR);
    let expected = [WcStatus::RETRY_EXC_ERR, flushed, flushed];
    assert!(over.iter().map(|sent| (sent.queue, sent.status)).eq(expected.map(|status| (queue, status))));
    assert!(over.iter().map(|sent| sent.buffers.len()).eq([0, 2, 0]));
    assert!(matches!(w.sender.post(queue).err(), Some(NotSent::State(_))));
    drop(over);
    assert_eq!(w.pool.available(), Sending::BUFFERS as usize);
    // The other queue pair is not concerned.
    assert!(post(&mut w, 1, 101));
    assert_eq!(receive(&mut w), [100, 101]);
    // Nothing is left for the reset.
    w.near_receiver.reset_qp(&mut w.near[0]).unwrap();
    assert!(w.sender.is_busy(queue));
    assert!(w.over().is_empty() && !w.sender.is_busy(queue));
}

/// Signaled and unsignaled requests, and batches, on two queues.
fn only_signaled_requests_are_returned(path: DataPath) {
    let mut w = connections(path, &config(16));
    for round in 0..100 {
        let queue = w.queue(round % 2);
        for token in 0..2 {
            assert!(post(&mut w, round % 2, token));
            post_buffers(&mut w, round % 2, token);
        }
        post_buffers(&mut w, 1 - round % 2, 0);
        let [first, second] = [b"one", b"two"].map(|bytes| {
            let mut buffer = w.pool.take().unwrap();
            buffer.extend_from_slice(bytes);
            buffer
        });
        assert!(!w.sender.is_busy(queue));
        w.sender.post(queue).unwrap().token(7).send([first, second]).unwrap();
        assert!(w.sender.is_busy(queue));
        post_buffers(&mut w, round % 2, 1);
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.token(8).send(*b"eight").unwrap();
        posting.token(9).send(*b"nine").unwrap();
        posting.ring();
        assert_eq!(receive(&mut w).len(), 9);
        let mut batch = w.sender.poll_up_to(2);
        let sent = Sent::from(batch.next().unwrap());
        assert_eq!((sent.queue, sent.token, sent.buffers.len()), (queue, 7, 2));
        assert_eq!((&sent.buffers[0][..], &sent.buffers[1][..]), (&b"one"[..], &b"two"[..]));
        assert_eq!(batch.next().unwrap().unwrap().token, 8);
        assert!(batch.next().is_none());
        drop(batch);
        assert_eq!(tokens(&w.over()), [9]);
        assert!(!w.sender.is_busy(queue));
        drop(sent);
        // Each connection has its own CQEs: the buffers of the other one are outstanding.
        let outstanding = if path == DataPath::Verbs { 0 } else { 2 };
        assert_eq!(w.pool.available(), Sending::BUFFERS as usize - outstanding, "round {round}");
    }
}

/// Every order of four requests with and without buffers, of which the last has a CQE.
fn buffers_return_with_the_request_that_has_a_cqe(path: DataPath) {
    let mut w = connections(path, &config(64).max_unsignaled(3));
    for with_buffers in (0..16_u32).chain((0..16).rev()) {
        let mut outstanding = 0;
        for request in 0..4 {
            if with_buffers >> request & 1 != 0 {
                post_buffers(&mut w, 0, 0);
                outstanding += 2;
            } else {
                assert!(post(&mut w, 0, 0));
            }
            assert_eq!(receive(&mut w).len(), 1);
            assert!(w.sender.next().is_none());
            let outstanding = if request == 3 { 0 } else { outstanding };
            assert_eq!(w.pool.available(), Sending::BUFFERS as usize - outstanding, "{with_buffers:04b}");
        }
    }
}

/// Posts requests that arrive, of which no CQE tells on the direct path; returns those tokens.
fn uncovered(w: &mut Sending) -> Vec<u64> {
    post_buffers(w, 0, 0);
    assert!(post(w, 0, 1) && post(w, 0, 2));
    assert_eq!(receive(w).len(), 3);
    assert!(w.sender.next().is_none());
    if w.sender.path() == DataPath::Direct { vec![0, 1, 2] } else { Vec::new() }
}

/// The device reports the requests that it has not executed in ERROR, and none in RESET.
fn what_no_cqe_has_covered_comes_back_in_error_and_reset(path: DataPath) {
    for has_failed in [false, true] {
        let mut w = connections(path, &config(64));
        let queue = w.queue(0);
        for _ in 0..3 {
            let mut expected = uncovered(&mut w);
            if has_failed {
                w.near[0].to_error().unwrap();
                // Each of them has succeeded.
                assert!(w.over().is_empty() && !w.sender.is_busy(queue));
                assert_eq!(w.pool.available(), Sending::BUFFERS as usize);
                expected.clear();
            }
            w.near_receiver.reset_qp(&mut w.near[0]).unwrap();
            assert!(w.sender.is_busy(queue));
            let over = w.over();
            assert_eq!(tokens(&over), expected);
            assert!(over.iter().all(|sent| sent.status == WcStatus::WR_FLUSH_ERR));
            drop(over);
            assert_eq!(w.pool.available(), Sending::BUFFERS as usize);
            assert!(!w.sender.is_busy(queue));
            w.far_receiver.reset_qp(&mut w.far[0]).unwrap();
            join(&mut w.near[0], &mut w.far[0]);
            let receives = BufferPool::new(w.sender.pd(), &PoolConfig::new(RECEIVES, 64)).unwrap();
            w.far_receiver.fill(w.far[0].receive_queue().unwrap(), &receives).unwrap();
        }
    }
}

/// A queue pair that fails with a full queue, of which the device has executed any number of requests.
fn a_full_queue_of_a_queue_pair_in_error(path: DataPath) {
    for sends in [1, 4] {
        for executed in [0, 1, 5] {
            let mut w = connections(path, &config(sends));
            let queue = w.queue(0);
            let capacity = w.sender.capacity(queue);
            let executed = executed.min(capacity);
            (0..executed).for_each(|token| assert!(post(&mut w, 0, token)));
            assert_eq!(receive(&mut w).len(), executed as usize);
            (executed..capacity).for_each(|token| assert!(post(&mut w, 0, token)));
            assert!(!post(&mut w, 0, 0), "the queue is not full");
            w.near[0].to_error().unwrap();
            let expected: Vec<_> = (executed..capacity).map(u64::from).collect();
            assert_eq!(tokens(&w.over()), expected, "{executed} of {capacity} executed");
            // Nothing is left to flush.
            w.near_receiver.reset_qp(&mut w.near[0]).unwrap();
            assert!(w.over().is_empty() && !w.sender.is_busy(queue));
        }
    }
}

fn what_no_cqe_has_covered_comes_back_with_its_queue_pair(path: DataPath) {
    for is_dropped in [false, true] {
        let mut w = connections(path, &config(64));
        let mut expected = uncovered(&mut w);
        let qp = w.near.remove(0);
        let queue = qp.send_queue().unwrap();
        if is_dropped {
            // A queue pair that is dropped is in ERROR.
            drop(qp);
            expected.clear();
        } else {
            w.near_receiver.destroy_qp(qp).unwrap();
        }
        let over = w.over();
        assert_eq!(tokens(&over), expected);
        assert!(over.iter().all(|sent| sent.queue == queue && sent.status == WcStatus::WR_FLUSH_ERR));
        drop(over);
        assert_eq!(w.pool.available(), Sending::BUFFERS as usize);
        assert_eq!(w.sender.capacity(queue), 0, "the queue is not closed");
    }
    // A sender that is dropped leaves the buffers to the queue pair.
    let mut w = connections(path, &config(64));
    uncovered(&mut w);
    let Sending { sender, near, mut near_receiver, pool, .. } = w;
    drop(sender);
    for qp in near {
        near_receiver.destroy_qp(qp).unwrap();
    }
    assert_eq!(pool.available(), Sending::BUFFERS as usize);
}
