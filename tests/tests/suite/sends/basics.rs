//! Messages arrive whole and in order, and their buffers come back.

use std::thread;
use std::time::Duration;

use doorbell::{
    BufferPool, Completions, CqConfig, DataPath, Error, NotSent, PoolConfig, QpConfig, Timestamps, WcStatus,
};
use doorbell_tests::sending::{Done, RECEIVES, Sending};
use doorbell_tests::{assert_matches, message};

const LENGTHS: [usize; 12] = [12, 31, 32, 33, 63, 64, 65, 255, 257, 4095, 4097, 65_536];

#[test]
fn messages_of_any_length_arrive_whole_and_their_buffers_come_back() {
    let mut w = Sending::new(2, 4, 65_536);
    for (i, len) in LENGTHS.into_iter().cycle().take(100).enumerate() {
        let queue = w.queue(i % 2);
        let mut buffer = w.pool.take().unwrap();
        buffer.set_len(len);
        message::write(&mut buffer, 7, i as u64);
        w.sender.post(queue).unwrap().token(i as u64).send(buffer).unwrap();
        let (far, bytes, imm) = w.messages(1).remove(0).unwrap();
        assert_eq!((far, bytes.len(), imm), (i % 2, len, None));
        assert_eq!(message::read(&bytes), (7, i as u64));
        let done = w.done(1).remove(0);
        assert_eq!((done.qp, done.token, done.status), (i % 2, i as u64, WcStatus::SUCCESS));
        assert_eq!(done.buffers, [bytes]);
    }
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}

#[test]
fn many_requests_of_one_posting_complete_in_order() {
    // The CQ is exactly as large as it must be.
    let config = QpConfig::rc().max_send_wr(16).max_inline(16);
    let mut w = Sending::with(3, 64, &config, &CqConfig::new(3 * 32));
    for round in 0..50_u64 {
        for qp in 0..3 {
            let buffers: Vec<_> = (0..8).map(|i| w.buffer(&[qp as u8, i, round as u8])).collect();
            let queue = w.queue(qp);
            let mut posting = w.sender.post_many(queue).unwrap();
            for (i, buffer) in buffers.into_iter().enumerate() {
                posting.token(round << 8 | i as u64).send(buffer).unwrap();
            }
        }
        let messages = w.messages(24);
        for qp in 0..3 {
            let of_qp = messages.iter().filter(|message| message.0 == qp);
            let bytes: Vec<_> = of_qp.map(|(_, bytes, _)| bytes.clone()).collect();
            let expected: Vec<_> = (0..8).map(|i| vec![qp as u8, i, round as u8]).collect();
            assert_eq!(bytes, expected);
        }
        let done = w.done(24);
        for qp in 0..3 {
            let tokens: Vec<_> = done.iter().filter(|done| done.qp == qp).map(|done| done.token & 0xff).collect();
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        assert!(done.iter().all(|done| done.status.is_success() && done.buffers.len() == 1));
    }
}

#[test]
fn inline_messages_have_exactly_the_bytes_given() {
    let config = QpConfig::rc().max_send_wr(4).max_inline(200);
    let mut w = Sending::with(1, 256, &config, &CqConfig::new(4096));
    let queue = w.queue(0);
    let bytes: Vec<u8> = (0..200).map(|i| i as u8).collect();
    for len in (0..=200).chain([0, 0, 1]) {
        w.sender.post(queue).unwrap().send(&bytes[..len]).unwrap();
        assert_eq!(w.messages(1)[0].1, bytes[..len]);
        assert_eq!(w.done(1), [Done { qp: 0, token: 0, status: WcStatus::SUCCESS, buffers: vec![] }]);
    }
}

/// The default of `max_inline` is what a SEND of one basic block holds.
#[test]
fn small_messages_need_no_setting() {
    for sends in [1, 2, 4] {
        let mut w = Sending::with(1, 256, &QpConfig::rc().max_send_wr(sends), &CqConfig::new(4096));
        let (queue, bytes) = (w.queue(0), [7; 45]);
        let direct = w.sender.path() == DataPath::Direct;
        // An RDMA WRITE of so many bytes takes two blocks, and the queue may have one.
        let most = if direct && sends == 1 { 28 } else { 44 };
        assert!(w.near[0].max_inline() >= most);
        let remote = w.remote().slice(0, 44).unwrap();
        for _ in 0..20 {
            w.sender.send(queue, &bytes[..most]).unwrap();
            assert_eq!(w.messages(1)[0].1, bytes[..most]);
            w.succeed(1);
            w.sender.post(queue).unwrap().write(&bytes[..most], &remote).unwrap();
            w.succeed(1);
        }
        if direct {
            let refused = w.sender.send(queue, &bytes[..=most]).unwrap_err();
            assert_matches!(refused, NotSent::InlineTooLong { len, max } if (len, max) == (most + 1, most));
        }
    }
}

#[test]
fn immediate_data_arrives_as_it_was_given() {
    let mut w = Sending::with(1, 64, &QpConfig::rc().max_inline(8), &CqConfig::new(4096));
    let queue = w.queue(0);
    for imm in [0x0102_0304, 0, u32::MAX] {
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.send_with_imm(b"bytes", imm).unwrap();
        posting.send(b"").unwrap();
        drop(posting);
        let expected = [(0, b"bytes".to_vec(), Some(imm)), (0, vec![], None)];
        assert_eq!(w.messages(2), expected);
        w.succeed(2);
    }
}

#[test]
fn what_is_said_in_front_of_a_request_holds_for_this_one() {
    let mut w = Sending::with(1, 64, &QpConfig::rc().max_inline(8), &CqConfig::new(4096));
    let queue = w.queue(0);
    let mut posting = w.sender.post_many(queue).unwrap();
    posting.token(5).own_cqe().send(b"1").unwrap();
    posting.send(b"2").unwrap();
    posting.token(6).fence().solicited().send(b"3").unwrap();
    drop(posting);
    let tokens: Vec<_> = w.done(3).iter().map(|done| done.token).collect();
    assert_eq!(tokens, [5, 0, 6]);
    assert_eq!(w.messages(3).len(), 3);
}

#[test]
fn several_buffers_and_parts_make_one_message() {
    let config = QpConfig::rc().max_send_wr(4).max_send_sge(4);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let pool = BufferPool::new(&w.pd, &PoolConfig::new(4, 64).headroom(16)).unwrap();
    let queue = w.queue(0);
    for _ in 0..20 {
        let all = [w.buffer(b"one "), w.buffer(b""), w.buffer(b"two "), w.buffer(b"three")];
        let parts = [w.buffer(b"..ab..").part(2..4), w.buffer(b"cd").part(..), w.buffer(b"x").part(1..)];
        let mut headed = pool.take().unwrap();
        headed.extend_from_slice(b"body");
        headed.headroom_mut()[12..].copy_from_slice(b"head");
        let mut posting = w.sender.post_many(queue).unwrap();
        posting.send(all).unwrap();
        posting.send(parts).unwrap();
        posting.send(headed.part_with_headroom(4)).unwrap();
        drop(posting);
        let messages = w.messages(3);
        let bytes: Vec<_> = messages.iter().map(|(_, bytes, _)| &bytes[..]).collect();
        assert_eq!(bytes, [&b"one two three"[..], b"abcd", b"headbody"]);
        let done = w.done(3);
        assert_eq!(done[0].buffers, [&b"one "[..], b"", b"two ", b"three"]);
        assert_eq!(done[1].buffers, [&b"..ab.."[..], b"cd", b"x"]);
        assert_eq!(done[2].buffers, [b"body"]);
    }
    assert_eq!((w.pool.available(), pool.available()), (256, 4));
}

/// Buffers that the program does not take from a completion go back to their pools, and none goes to the next one.
#[test]
fn buffers_that_are_not_taken_go_back() {
    let config = QpConfig::rc().max_send_wr(4).max_send_sge(3);
    let mut w = Sending::with(1, 64, &config, &CqConfig::new(4096));
    let queue = w.queue(0);
    for forget in [false, true] {
        for name in [b"a", b"b"] {
            let buffers = [w.buffer(name), w.buffer(name), w.buffer(name)];
            w.sender.post(queue).unwrap().send(buffers).unwrap();
        }
        assert_eq!(w.messages(2).len(), 2);
        let mut seen = 0;
        doorbell_tests::receiving::wait("two sends", || {
            let mut batch = w.sender.poll();
            while let Some(done) = batch.next() {
                let mut done = done.unwrap();
                let name = if seen == 0 { b"a" } else { b"b" };
                assert_eq!(done.buffer.as_deref(), Some(&name[..]));
                assert_eq!(done.next_buffer().as_deref(), Some(&name[..]));
                seen += 1;
                if forget && seen == 1 {
                    drop(done.buffer.take());
                    std::mem::forget(done);
                }
            }
            seen == 2
        });
        assert_eq!(w.pool.available(), 256);
    }
}

/// More WQEs than 16 bits count, on a queue of few blocks, with sizes of one to four blocks.
#[test]
fn the_ring_and_its_counters_wrap() {
    let config = QpConfig::rc().max_send_wr(4).max_inline(200).rnr_retry(7);
    let mut w = Sending::with(2, 256, &config, &CqConfig::new(2 * 16));
    let bytes: Vec<u8> = (0..200).map(|i| i as u8).collect();
    let (mut posted, mut over, mut number) = (0_usize, 0_usize, 0_usize);
    let count = doorbell_tests::share(60_000) as usize;
    while over < count {
        let queue = w.queue(number % 2);
        let mut posting = w.sender.post_many(queue).unwrap();
        for _ in 0..3 {
            let len = number * 7 % 200;
            if posted == count || posted - over >= RECEIVES as usize / 2 {
                break;
            }
            match posting.send(&bytes[..len]) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert!(matches!(error, NotSent::Full { .. }), "{error}");
                    break;
                }
            }
            number += 1;
        }
        drop(posting);
        number += 1;
        let mut batch = w.sender.poll();
        while let Some(done) = batch.next() {
            done.unwrap();
            over += 1;
        }
        drop(batch);
        let mut batch = w.far_receiver.poll();
        while let Some(message) = batch.next() {
            let message = message.unwrap();
            assert_eq!(*message, bytes[..message.len()]);
        }
    }
}

/// A CQE completes all requests before it, and they have its time. A sender without timestamps has none.
#[test]
fn completions_have_the_time_of_their_cqe() {
    let config = QpConfig::rc().max_send_wr(8).max_inline(8);
    let mut w = Sending::with(2, 64, &config, &CqConfig::new(64).timestamps(Timestamps::Ticks));
    let clock = match w.pd.context().clock() {
        Ok(clock) => Some(clock),
        Err(Error::Unsupported { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    let mut last = 0;
    // More than two laps of the queues.
    for round in 0..10 {
        for qp in 0..2 {
            let pause = Duration::from_millis(if round == 5 { 20 } else { 0 });
            thread::sleep(pause);
            let queue = w.queue(qp);
            let mut posting = w.sender.post_many(queue).unwrap();
            (0..2).for_each(|_| posting.send(b"one").unwrap());
            posting.own_cqe().send(b"two").unwrap();
            posting.ring();
            let mut times = Vec::new();
            while times.len() < 3 {
                w.sender.wait(None).unwrap();
                while let Some(done) = w.sender.next() {
                    times.push(done.unwrap().timestamp());
                }
            }
            let Some(clock) = &clock else {
                assert_eq!(times, [None; 3]);
                continue;
            };
            let [first, second, third] = times[..] else { panic!("{times:?}") };
            let time = clock.nanoseconds(third.expect("it was asked for")).unwrap();
            assert!(time - last > pause.as_nanos() as u64, "{last} {time}");
            // Verbs write a CQE for each request.
            if w.sender.path() == DataPath::Direct {
                assert_eq!((first, second), (third, third));
            }
            last = time;
        }
    }
    let mut w = Sending::new(1, 8, 64);
    let queue = w.queue(0);
    w.sender.send(queue, w.pool.take().unwrap()).unwrap();
    w.sender.wait(None).unwrap();
    assert_eq!(w.sender.next().unwrap().unwrap().timestamp(), None);
}
