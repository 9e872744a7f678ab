//! A receiver has one owner, which may be another thread, and is never shared.

use std::thread;

use doorbell::{QueuePair, Receiver};

pub fn right(mut receiver: Receiver, mut qp: QueuePair) {
    thread::spawn(move || drop(receiver.poll()));
    thread::spawn(move || qp.send_inline(b"", None));
}

pub fn polled_by_two(receiver: &Receiver) {
    fn shared<T: Sync>(_: &T) {}
    shared(receiver); //~ E0277
}

pub fn posted_by_two(mut qp: QueuePair) {
    thread::scope(|scope| {
        scope.spawn(|| qp.send_inline(b"", None));
        scope.spawn(|| qp.send_inline(b"", None)); //~ E0499
    });
}
