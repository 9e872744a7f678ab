//! Panics of the program's code in the middle of the library's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell::{Buffer, QueueId, Receiver};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{Peers, message, receiving};

/// Receives while every `every`th message makes the program panic, and sees each message once.
fn receive_with_panics(receiver: &mut Receiver, peers: &mut Peers, every: u64) {
    let mut expected = 0;
    for _ in 0..40 {
        peers.burst(10);
        peers.settle();
        let end = peers.sent(0);
        receiving::wait("messages", || {
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let mut batch = receiver.poll();
                while let Some(message) = batch.next() {
                    let message = message.unwrap();
                    assert_eq!(message::read(&message), (0, expected), "lost, or twice");
                    expected += 1;
                    if expected % every == 0 {
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
}

#[test]
fn a_panic_in_a_batch_of_an_srq_loses_no_message_and_no_slot() {
    let mut w = Shared::new(15, 1, 64).filled();
    receive_with_panics(&mut w.receiver, &mut w.peers, 3);
    assert_eq!(w.receiver.free_slots(w.queue), 0);
}

#[test]
fn a_panic_in_a_batch_of_a_receive_queue_loses_no_message_and_no_slot() {
    let mut w = Single::new(16, 64).filled();
    receive_with_panics(&mut w.receiver, &mut w.peers, 4);
    assert_eq!(w.receiver.free_slots(w.queue), 0);
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
    assert_eq!(w.receiver.free_slots(w.queue), 1);
    assert_eq!(w.pool.available(), before + 1);
}

/// The iterator gives five buffers and panics: the five are with the device, all of them and no more.
fn post_with_panic(
    receiver: &mut Receiver,
    queue: QueueId,
    peers: &mut Peers,
    buffers: Vec<Buffer>,
) {
    assert_eq!(buffers.len(), 5);
    let free_slots = receiver.free_slots(queue);
    let panicking = buffers
        .into_iter()
        .chain(std::iter::from_fn(|| std::panic::resume_unwind(Box::new("from the iterator"))));
    let panicked =
        catch_unwind(AssertUnwindSafe(|| receiver.post(queue, panicking).map(drop).is_ok()));
    assert!(panicked.is_err());
    assert_eq!(receiver.free_slots(queue), free_slots - 5);

    peers.burst(6);
    receiving::messages(receiver, 5, |message| drop(message.take()));
    receiving::nothing(receiver);
    assert_eq!(receiver.free_slots(queue), free_slots);
}

#[test]
fn a_panic_while_posting_to_an_srq() {
    let mut w = Shared::new(15, 1, 64);
    let buffers = (0..5).map(|_| w.pool.take().unwrap()).collect();
    post_with_panic(&mut w.receiver, w.queue.into(), &mut w.peers, buffers);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}

#[test]
fn a_panic_while_posting_to_a_receive_queue() {
    let mut w = Single::new(16, 64);
    let buffers = (0..5).map(|_| w.pool.take().unwrap()).collect();
    post_with_panic(&mut w.receiver, w.queue.into(), &mut w.peers, buffers);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}
