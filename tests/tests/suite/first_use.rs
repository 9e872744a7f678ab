//! What a program gets wrong at first: it is refused with the reason, on both paths alike.

use std::error::Error as StdError;

use doorbell::{BufferPool, Error, PostFailure, QpConfig, RecvBuffer, SrqConfig};
use doorbell_tests::world::Shared;
use doorbell_tests::{device, receiving};

const QKEY: u32 = 0x1111;

#[test]
fn a_fill_that_cannot_be_is_refused_with_the_reason() {
    let mut w = Shared::new(15, 1, 64);
    let foreign = BufferPool::new(&device::pd(), 4, 64).unwrap();
    let refused = w.receiver.fill(w.srq, &foreign).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (0, PostFailure::Foreign));
    // A pool that has no buffer left is one of another domain still.
    let taken: Vec<_> = std::iter::from_fn(|| foreign.take()).collect();
    let refused = w.receiver.fill(w.srq, &foreign).unwrap_err();
    assert_eq!(refused.reason, PostFailure::Foreign);
    drop(taken);

    let mut other = device::receiver(&w.pd, 64);
    let refused = other.fill(w.srq, &w.pool).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (0, PostFailure::NoQueue));
    assert_eq!(w.pool.available(), w.pool.count() as usize);

    // A full queue and an empty pool are what `fill` is for.
    let two = BufferPool::new(&w.pd, 2, 64).unwrap();
    assert_eq!(w.receiver.fill(w.srq, &two).unwrap(), 2);
    assert_eq!(w.receiver.fill(w.srq, &two).unwrap(), 0);
    assert_eq!(w.receiver.fill(w.srq, &w.pool).unwrap() as u32, w.receiver.capacity(w.srq) - 2);
    assert_eq!(w.receiver.fill(w.srq, &w.pool).unwrap(), 0);
}

/// Posts with `?` from an iterator that borrows: the error outlives it, and has what was not posted.
fn post_what_is_lent(w: &mut Shared, buffers: Vec<RecvBuffer>) -> Result<usize, Box<dyn StdError>> {
    let mut buffers = buffers;
    Ok(w.receiver.post(w.srq, buffers.drain(..))?)
}

#[test]
fn the_error_of_a_post_outlives_the_iterator_and_has_its_buffers() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.srq) as usize;
    let buffers: Vec<_> = std::iter::from_fn(|| w.pool.take()).take(capacity + 5).collect();
    let rest: Vec<_> = buffers[capacity..].iter().map(|buffer| buffer.as_ptr()).collect();
    let error = post_what_is_lent(&mut w, buffers).unwrap_err();
    let error = error.downcast::<doorbell::PostError>().unwrap();
    assert_eq!((error.posted, error.reason), (capacity, PostFailure::Full));
    let back: Vec<_> = error.buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(back, rest, "in order, those that were not taken from the iterator included");
}

#[test]
fn there_is_room_for_at_most_the_capacity_of_a_queue() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.srq);
    // A queue that was filled keeps a spare buffer on the direct path.
    w.receiver.fill(w.srq, &w.pool).unwrap();
    let mut held = Vec::new();
    for _ in 0..w.pool.count() as usize - w.pool.available() {
        w.peers.send(0, 40);
        receiving::messages(&mut w.receiver, 1, |message| held.push(message.take()));
        assert!(w.receiver.vacant(w.srq) <= capacity);
    }
    assert_eq!(w.receiver.vacant(w.srq), capacity);
    // And so many can be posted.
    let again = held.drain(..).take(capacity as usize);
    assert_eq!(w.receiver.post(w.srq, again).unwrap(), capacity as usize);
}

#[test]
fn the_low_water_mark_sees_what_has_completed_and_was_not_polled() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.srq);
    w.receiver.fill(w.srq, &w.pool).unwrap();
    w.receiver.keep_filled(w.srq, &w.pool, 1).unwrap();
    drop(w.receiver.poll());
    assert_eq!(w.receiver.statistics().unwrap().low_water, Some(capacity));
    // The device uses up all but two, and the program does not look.
    for _ in 0..capacity - 2 {
        w.peers.send(0, 40);
    }
    w.peers.settle();
    // Batches that take less than what waits: each message goes back to the queue at once.
    let mut seen = 0;
    while seen < capacity - 2 {
        let mut batch = w.receiver.poll_up_to(1);
        while let Some(message) = batch.next() {
            message.unwrap();
            seen += 1;
        }
    }
    assert_eq!(w.receiver.statistics().unwrap().low_water, Some(2));
}

#[test]
fn receives_for_datagrams_need_room_for_the_header() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let qp = receiver.create_qp(&QpConfig::ud(QKEY).receives(8, 2)).unwrap();
    let queue = qp.receive_queue().unwrap();
    let (small, large) =
        (BufferPool::new(&pd, 8, 39).unwrap(), BufferPool::new(&pd, 8, 40).unwrap());
    let short = PostFailure::NoRoomForHeader { capacity: 39 };
    let refused = receiver.post(queue, [large.take().unwrap(), small.take().unwrap()]).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (1, short));
    assert!(refused.to_string().contains("40 bytes"), "{refused}");
    assert_eq!(refused.buffers.len(), 1);
    drop(refused);
    assert_eq!(receiver.fill(queue, &small).unwrap_err().reason, short);
    let both = vec![small.take().unwrap(), large.take().unwrap()];
    assert_eq!(receiver.post_scatter(queue, both).unwrap_err().reason, short);
    match receiver.keep_filled(queue, &small, 4) {
        Err(Error::NoRoomForHeader { capacity: 39 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(small.available(), 8);
    receiver.post_scatter(queue, vec![large.take().unwrap(), small.take().unwrap()]).unwrap();
    receiver.fill(queue, &large).unwrap();
}

#[test]
fn an_srq_takes_datagrams_when_its_buffers_have_room_for_the_header() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let small = BufferPool::new(&pd, 8, 39).unwrap();
    let large = BufferPool::new(&pd, 64, 512).unwrap();
    let datagrams = |srq| QpConfig::ud(QKEY).srq(srq);

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    // For a connection they are fine.
    receiver.post(srq, small.take()).unwrap();
    drop(receiver.create_qp(&QpConfig::rc().srq(srq)).unwrap());
    match receiver.create_qp(&datagrams(srq)) {
        Err(error @ Error::NoRoomForHeader { capacity: 39 }) => {
            assert!(error.to_string().contains("GRH_SIZE"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Nothing was changed.
    receiver.post(srq, small.take()).unwrap();
    receiver.destroy_srq(srq).unwrap();

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let qp = receiver.create_qp(&datagrams(srq)).unwrap();
    let refused = receiver.post(srq, small.take()).unwrap_err();
    assert_eq!(refused.reason, PostFailure::NoRoomForHeader { capacity: 39 });
    assert!(receiver.fill(srq, &large).unwrap() > 0);
    drop(qp);
}
