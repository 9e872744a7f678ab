//! A refused request gives everything back, and changes nothing.

use std::thread;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, Error, NotSent, PoolConfig, QpConfig, QpState, QueuePair, Refused,
    RqConfig, Sender, SqId, WcStatus,
};
use doorbell_tests::peers::join;
use doorbell_tests::sending::Sending;
use doorbell_tests::{assert_matches, device};

#[test]
fn a_full_queue_gives_the_buffer_back_and_has_room_again_after_completions() {
    let mut w = Sending::new(1, 4, 64);
    let queue = w.queue(0);
    let capacity = w.sender.capacity(queue) as usize;
    for _ in 0..3 {
        let buffers: Vec<_> = (0..=capacity).map(|i| w.buffer(&[i as u8])).collect();
        let mut posting = w.sender.post_many(queue).unwrap();
        let mut refused = Vec::new();
        for buffer in buffers {
            if let Err(error) = posting.send(buffer) {
                assert_matches!(error.reason, NotSent::Full { .. });
                refused.push(error.payload.to_vec());
            }
        }
        drop(posting);
        assert_eq!(refused, [[capacity as u8]]);
        assert_eq!(w.messages(capacity).len(), capacity);
        w.succeed(capacity);
    }
    assert_eq!(w.pool.available(), 256);
}

/// The first refusal begins to count; completions end the count, and so does a reset.
#[test]
fn a_full_queue_says_how_long_its_oldest_request_waits() {
    let mut w = Sending::new(1, 4, 64);
    let queue = w.queue(0);
    let waited = |w: &mut Sending| loop {
        if let Err(error) = w.sender.send(queue, b"") {
            let NotSent::Full { waited } = error else { panic!("{error}") };
            assert_eq!(error.to_string().contains(", and its oldest request has waited for "), !waited.is_zero());
            break waited;
        }
    };
    let capacity = w.sender.capacity(queue) as usize;
    for is_reset in [true, false, false] {
        assert_eq!(waited(&mut w), Duration::ZERO);
        let time = Duration::from_millis(3);
        thread::sleep(time);
        let first = waited(&mut w);
        assert!(first >= time && waited(&mut w) >= first, "{first:?}");
        w.messages(capacity);
        if is_reset {
            w.near_receiver.reset_qp(&mut w.near[0]).unwrap();
            w.far_receiver.reset_qp(&mut w.far[0]).unwrap();
            assert_eq!(w.done(capacity).len(), capacity);
            assert!(w.sender.poll().next().is_none());
            join(&mut w.near[0], &mut w.far[0]);
            w.far_receiver.fill(w.far[0].receive_queue().unwrap(), &w.pool).unwrap();
        } else {
            w.succeed(capacity);
        }
    }
}

/// Sends borrowed bytes, which end with the function, and a buffer.
fn both<E: From<NotSent> + From<Refused<Buffer>>>(w: &mut Sending, queue: SqId) -> Result<(), E> {
    let text = String::from("text");
    w.sender.send(queue, text.as_bytes())?;
    let buffer = w.buffer(b"buffer");
    w.sender.send(queue, buffer)?;
    Ok(())
}

#[test]
fn a_question_mark_returns_the_error_of_each_payload() {
    // With one request before, the other of the two payloads is refused.
    for has_one_more in [false, true] {
        let mut w = Sending::new(1, 4, 64);
        let queue = w.queue(0);
        if has_one_more {
            w.sender.send(queue, b"one more").unwrap();
        }
        let full = loop {
            if let Err(error) = both::<NotSent>(&mut w, queue) {
                break error;
            }
        };
        assert_matches!(full, NotSent::Full { .. });
        let boxed = both::<Box<dyn std::error::Error>>(&mut w, queue).unwrap_err();
        assert_matches!(boxed.downcast_ref(), Some(NotSent::Full { .. }));
    }
}

#[test]
fn wrong_requests_are_refused_with_their_payload() {
    let config = QpConfig::rc().max_send_wr(4).max_inline(8).max_send_sge(2);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let other_pd = w.pd.context().alloc_pd().unwrap();
    let foreign = BufferPool::new(&other_pd, &PoolConfig::new(4, 64)).unwrap();
    let (queue, remote) = (w.queue(0), w.remote());
    let max_inline = w.near[0].max_inline();
    let long = vec![0; max_inline + 1];
    let [a, b, c, d, e, f] = [0; 6].map(|_| w.buffer(b"bytes"));

    let mut posting = w.sender.post_many(queue).unwrap();
    {
        let error = posting.send(&long[..]).unwrap_err();
        assert_matches!(error, NotSent::InlineTooLong { len, max } if len == max + 1);
        let error = posting.send(foreign.take().unwrap()).unwrap_err();
        assert_matches!(error.reason, NotSent::WrongDomain);
        let error = posting.send([a, foreign.take().unwrap()]).unwrap_err();
        assert_matches!(error.reason, NotSent::WrongDomain);
        let error = posting.send([b, c, d]).unwrap_err();
        assert_matches!(error.reason, NotSent::TooManyBuffers { max: 2 });
        assert_eq!(*error.payload[2], *b"bytes");
        let error = posting.write(e, &remote.slice(0, 4).unwrap()).unwrap_err();
        assert_matches!(error.reason, NotSent::OutOfBounds { len: 5, max: 4 });
        let error = posting.read(error.payload, &remote.slice(0, 65).unwrap()).unwrap_err();
        assert_matches!(error.reason, NotSent::BufferTooSmall { len: 65, capacity: 64 });
        assert_eq!(*error.payload, *b"bytes");
        for (offset, len) in [(4, 8), (8, 4), (8, 16)] {
            let at = remote.slice(offset, len).unwrap();
            let error = posting.fetch_add(w.pool.take().unwrap(), &at, 1).unwrap_err();
            assert_matches!(error.reason, NotSent::NotANumber);
        }
    }
    // The refused request is not in the queue, and its token does not apply to this request.
    posting.token(9).send(f).unwrap();
    drop(posting);
    assert_eq!(w.messages(1)[0].1, b"bytes");
    let done = w.done(1);
    assert_eq!((done[0].token, done[0].status), (9, WcStatus::SUCCESS));
    assert_eq!((w.pool.available(), foreign.available()), (256, 4));
}

#[test]
fn only_a_connected_queue_pair_of_the_sender_sends() {
    let mut w = Sending::new(1, 4, 64);
    let mut other = device::sender(&w.pd, 64);
    let queue = w.queue(0);
    assert_matches!(other.post(queue).err(), Some(NotSent::NoQueue));
    let config = QpConfig::rc().max_send_wr(4);
    let fresh =
        QueuePair::builder(&config).receive(&mut w.near_receiver, RqConfig::new(1)).send(&mut other).build().unwrap();
    let fresh_queue = fresh.send_queue().unwrap();
    assert_matches!(other.post(fresh_queue).err(), Some(NotSent::State(QpState::Init)));
    w.near[0].to_error().unwrap();
    assert_matches!(w.sender.post(queue).err(), Some(NotSent::State(QpState::Error)));
}

/// The sender says before it is made what its queue pairs will need.
#[test]
fn a_cq_of_the_entries_that_were_counted_is_large_enough() {
    let (pd, mut receiver) = device::start(64);
    let transports = [QpConfig::rc(), QpConfig::ud(1)];
    let sizes = [1, 3, 64, 100].into_iter().flat_map(|sends| [1, 2, 5].map(|buffers| (sends, buffers)));
    for (config, (sends, buffers)) in transports.iter().flat_map(|config| sizes.clone().map(move |size| (config, size)))
    {
        let config = config.clone().max_send_wr(sends).max_send_sge(buffers);
        for config in
            [config.clone(), config.clone().max_inline(0), config.clone().max_inline(13), config.max_inline(200)]
        {
            // Queues are powers of two on the direct path, as CQs are: two of them fill their CQ.
            for queue_pairs in [1, 2, 3] {
                let mut sender = device::sender_with(&pd, &CqConfig::for_sends(&config, queue_pairs));
                let mut build =
                    || QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(1)).send(&mut sender).build();
                let qps: Vec<_> = (0..queue_pairs).map(|_| build().unwrap()).collect();
                let taken: u32 = qps.iter().map(|qp| sender.capacity(qp)).sum();
                if sender.path() == DataPath::Direct && queue_pairs < 3 {
                    assert_eq!(taken.max(2), sender.cq_capacity(), "{config:?}");
                }
            }
        }
    }
    let boundless = QpConfig::rc().max_send_wr(u32::MAX).max_inline(u32::MAX);
    let refused = Sender::new(&pd, &CqConfig::for_sends(&boundless, u32::MAX).path(device::path()));
    assert_matches!(refused.err(), Some(Error::OutOfRange { .. }));
}

/// Queue pairs of two configurations share a CQ that was described as the sum of both.
#[test]
fn entries_of_two_configurations_add_up() {
    let pd = device::pd();
    let (few, many) = (QpConfig::rc().max_send_wr(64), QpConfig::rc().max_send_wr(256));
    let config = CqConfig::for_sends(&few, 4).and(&CqConfig::for_sends(&many, 1));
    let mut sender = device::sender_with(&pd, &config);
    let qps = [&few, &many, &few, &few, &few].map(|one| QueuePair::builder(one).send(&mut sender).build().unwrap());
    assert!(qps.iter().map(|qp| sender.capacity(qp)).sum::<u32>() >= 4 * 64 + 256);
}

#[test]
fn a_cq_that_is_too_small_and_a_foreign_sender_are_refused() {
    let mut w = Sending::new(1, 4, 64);
    let config = QpConfig::rc().max_send_wr(64);
    let mut small = device::sender(&w.pd, 64);
    let fits =
        QueuePair::builder(&config).receive(&mut w.near_receiver, RqConfig::new(1)).send(&mut small).build().unwrap();
    let refused = QueuePair::builder(&config)
        .receive(&mut w.near_receiver, RqConfig::new(1))
        .send(&mut small)
        .build()
        .unwrap_err();
    assert_matches!(refused, Error::CqTooSmall { needed: 128, new: 64, .. });
    assert!(refused.to_string().contains("64 of them the new queue"), "{refused}");
    // The room of a queue pair is free again after it is dropped.
    let queue = fits.send_queue().unwrap();
    drop(fits);
    let again =
        QueuePair::builder(&config).receive(&mut w.near_receiver, RqConfig::new(1)).send(&mut small).build().unwrap();
    assert_ne!(again.send_queue(), Some(queue));
    assert_matches!(small.post(queue).err(), Some(NotSent::NoQueue));

    let pd = w.pd.context().alloc_pd().unwrap();
    let mut foreign = Sender::new(&pd, &CqConfig::new(4096).path(w.sender.path())).unwrap();
    let refused = QueuePair::builder(&config)
        .receive(&mut w.near_receiver, RqConfig::new(1))
        .send(&mut foreign)
        .build()
        .unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
}
