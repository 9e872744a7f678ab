//! One request: its doorbell has rung when the call returns.

use doorbell::{NotSent, QpConfig, Sender};
use doorbell_tests::assert_matches;
use doorbell_tests::receiving::{self, wait_for};
use doorbell_tests::sending::{Sending, bytes_of};
use doorbell_tests::sent::Sent;

fn world() -> Sending {
    let config = QpConfig::rc().max_send_wr(4).max_inline(16).max_send_sge(2);
    Sending::with(1, 64, &config, &doorbell::CqConfig::new(64))
}

fn over(sender: &mut Sender) -> Sent {
    let sent = wait_for("the request", || sender.poll().next().map(Sent::from));
    assert!(sent.status.is_success(), "{}", sent.status);
    sent
}

/// Temporaries of a match live until its end. The arm waits for the peer, and for the completion.
#[test]
fn a_send_is_on_its_way_before_the_arm_of_its_match_runs() {
    let Sending { sender, near, far_receiver, pool, .. } = &mut world();
    let qp = &near[0];
    for round in 0..50u64 {
        let bytes = round.to_ne_bytes();
        let mut arrived = |token: u64, sender: &mut Sender| {
            receiving::messages(far_receiver, 1, |message| assert_eq!(*message, bytes));
            assert_eq!(over(sender).token, token);
        };
        match sender.post(qp).unwrap().token(round).send(bytes) {
            Ok(()) => arrived(round, sender),
            Err(error) => panic!("{error}"),
        }
        match sender.send(qp, &bytes[..]) {
            Ok(()) => arrived(0, sender),
            Err(error) => panic!("{error}"),
        }
        let mut buffer = pool.take().unwrap();
        buffer.extend_from_slice(&bytes);
        if let Ok(()) = sender.post(qp).unwrap().solicited().fence().send(buffer) {
            arrived(0, sender);
        }
    }
    assert_eq!(pool.available(), 256);
}

#[test]
fn every_other_request_is_on_its_way_when_the_call_returns() {
    let Sending { sender, near, far_receiver, pool, memory, .. } = &mut world();
    let qp = &near[0];
    let (text, number) = (memory.region().slice(0, 4).unwrap(), memory.region().slice(8, 8).unwrap());
    memory.write(8, &40u64.to_ne_bytes());
    match sender.post(qp).unwrap().write(b"text", &text) {
        Ok(()) => wait_for("the write", || (bytes_of(memory, 0, 4) == *b"text").then_some(())),
        Err(error) => panic!("{error}"),
    }
    over(sender);
    match sender.post(qp).unwrap().write_with_imm(b"more", &text, 9) {
        Ok(()) => receiving::messages(far_receiver, 1, |message| {
            assert_eq!((message.imm(), message.written()), (Some(9), Some(4)));
        }),
        Err(error) => panic!("{error}"),
    }
    over(sender);
    match sender.post(qp).unwrap().send_with_imm(b"said", 11) {
        Ok(()) => receiving::messages(far_receiver, 1, |message| {
            assert_eq!((&message[..], message.imm()), (&b"said"[..], Some(11)));
        }),
        Err(error) => panic!("{error}"),
    }
    over(sender);
    match sender.post(qp).unwrap().read(pool.take().unwrap(), &text) {
        Ok(()) => assert_eq!(*over(sender).into_buffer(), *b"more"),
        Err(refused) => panic!("{refused}"),
    }
    match sender.post(qp).unwrap().fetch_add(pool.take().unwrap(), &number, 2) {
        Ok(()) => assert_eq!(*over(sender).into_buffer(), 40u64.to_ne_bytes()),
        Err(refused) => panic!("{refused}"),
    }
    match sender.post(qp).unwrap().compare_swap(pool.take().unwrap(), &number, 42, 7) {
        Ok(()) => assert_eq!(*over(sender).into_buffer(), 42u64.to_ne_bytes()),
        Err(refused) => panic!("{refused}"),
    }
    assert_eq!(bytes_of(memory, 8, 8), 7u64.to_ne_bytes());
    assert_eq!(pool.available(), 256);
}

/// A refused request, and one that was started only, post nothing. Token and flags are gone with them.
#[test]
fn what_was_refused_or_given_up_leaves_nothing_behind() {
    let mut w = world();
    let queue = w.queue(0);
    for round in 0..20u8 {
        let refused = w.sender.post(queue).unwrap().token(1).send([7; 4096]).unwrap_err();
        assert_matches!(refused, NotSent::InlineTooLong { len: 4096, .. });
        drop(w.sender.post(queue).unwrap().token(2).solicited());
        w.sender.post(queue).unwrap().send([round]).unwrap();
        assert_eq!(w.messages(1)[0].1, [round]);
        assert_eq!(w.done(1)[0].token, 0);
    }
    receiving::nothing(&mut w.far_receiver);
}
