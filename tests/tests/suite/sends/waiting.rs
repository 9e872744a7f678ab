//! Sleeping until sends are over.

use std::time::Duration;

use doorbell::Completions;
use doorbell_tests::descriptor::is_readable;
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::sending::Sending;

#[test]
fn a_sleeper_wakes_when_a_send_is_over() {
    let mut w = Sending::new(1, 4, 64);
    let queue = w.queue(0);
    assert!(!w.sender.wait(Duration::ZERO).unwrap(), "nothing was sent");
    for i in 0..20 {
        let buffer = w.buffer(&[i]);
        w.sender.post(queue).unwrap().send(buffer).unwrap();
        assert!(w.sender.wait(PATIENCE).unwrap());
        w.succeed(1);
        assert_eq!(w.messages(1)[0].1, [i]);
    }
}

#[test]
fn the_channel_of_an_armed_sender_becomes_readable() {
    let mut w = Sending::new(1, 4, 64);
    let queue = w.queue(0);
    for _ in 0..5 {
        assert!(!w.sender.arm().unwrap());
        let buffer = w.buffer(b"hello");
        w.sender.post(queue).unwrap().send(buffer).unwrap();
        assert!(is_readable(w.sender.channel().unwrap(), PATIENCE));
        w.succeed(1);
    }
}

#[test]
fn a_reset_is_something_to_poll() {
    let mut w = Sending::new(1, 4, 64);
    assert!(!w.sender.wait(Duration::ZERO).unwrap());
    w.near_receiver.reset_qp(&mut w.near[0]).unwrap();
    assert!(w.sender.wait(PATIENCE).unwrap());
    assert!(w.sender.poll().next().is_none());
    assert!(!w.sender.wait(Duration::ZERO).unwrap());
}
