//! Panics of the program's code in the middle of the library's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell_tests::world::{Shared, World, both};
use doorbell_tests::{message, receiving};

/// Every third message makes the program panic; each is seen once.
#[test]
fn a_panic_in_a_batch_loses_no_message_and_no_slot() {
    for mut w in both(16, 64).map(World::filled) {
        let mut expected = 0;
        for _ in 0..40 {
            w.peers.arrive(10);
            let end = w.peers.sent(0);
            receiving::wait("messages", || {
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    let mut batch = w.receiver.poll();
                    while let Some(message) = batch.next() {
                        let message = message.unwrap();
                        assert_eq!(message::read(&message), (0, expected), "lost, or twice");
                        expected += 1;
                        if expected % 3 == 0 {
                            std::panic::resume_unwind(Box::new("in the middle of a batch"));
                        }
                    }
                }));
                if let Err(panic) = polled {
                    let deliberate = panic.downcast_ref() == Some(&"in the middle of a batch");
                    assert!(deliberate, "another panic");
                }
                expected == end
            });
        }
        assert_eq!(w.free_slots(), 0);
    }
}

#[test]
fn a_panic_with_a_message_in_hand_that_was_taken() {
    let mut w = Shared::new(15, 1, 64).filled();
    w.peers.send(0, 40);
    w.peers.settle();
    let before = w.pool.available();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        receiving::messages(&mut w.receiver, 1, |message| {
            let _buffer = message.take();
            std::panic::resume_unwind(Box::new(()));
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(w.free_slots(), 1);
    assert_eq!(w.pool.available(), before + 1);
}

/// The iterator gives five buffers and panics: exactly these five are with the device.
#[test]
fn a_panic_while_posting() {
    for mut w in both(16, 64) {
        let panicking = std::iter::from_fn(|| w.pool.take())
            .take(5)
            .chain(std::iter::from_fn(|| std::panic::resume_unwind(Box::new("from the iterator"))));
        let post = AssertUnwindSafe(|| w.receiver.post(w.queue, panicking).map(drop).is_ok());
        assert!(catch_unwind(post).is_err());
        assert_eq!(w.free_slots(), w.capacity() - 5);

        w.peers.burst(6);
        drop(w.take(5));
        receiving::nothing(&mut w.receiver);
        assert_eq!(w.free_slots(), w.capacity());
        assert_eq!(w.pool.available(), w.pool.count() as usize);
    }
}
