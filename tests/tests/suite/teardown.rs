//! Objects can be dropped in any order, with receives posted and messages under way.

use std::any::Any;
use std::fs;

use doorbell_tests::device;
use doorbell_tests::world::{Shared, Single};

/// Descriptors of the process. An open device has some.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Calls `each` with every order of `0..n`.
fn orders(n: usize, each: &mut impl FnMut(&[usize])) {
    fn extend(order: &mut Vec<usize>, n: usize, each: &mut impl FnMut(&[usize])) {
        if order.len() == n {
            return each(order);
        }
        for i in 0..n {
            if !order.contains(&i) {
                order.push(i);
                extend(order, n, each);
                order.pop();
            }
        }
    }
    extend(&mut Vec::new(), n, each);
}

/// Builds the same objects again and again, drops them in each order, and sees that nothing is left.
fn in_every_order(build: impl Fn() -> Vec<Box<dyn Any>>) {
    // Libraries open what they open once.
    drop(build());
    let before = descriptors();
    let count = build().len();
    orders(count, &mut |order| {
        let mut objects: Vec<Option<Box<dyn Any>>> = build().into_iter().map(Some).collect();
        for &next in order {
            objects[next] = None;
        }
        assert_eq!(descriptors(), before, "the device was not closed after the order {order:?}");
    });
}

#[test]
fn an_srq_and_what_belongs_to_it() {
    in_every_order(|| {
        let mut w = Shared::new(7, 1, 64);
        let spare = w.pool.take();
        w.receiver.fill(w.srq, &w.pool).unwrap();
        for _ in 0..3 {
            w.peers.send(0, 64);
        }
        w.peers.settle();
        let mut taken = None;
        doorbell_tests::receiving::messages(&mut w.receiver, 1, |message| {
            taken = Some(message.take())
        });
        let buffers = (spare, taken);
        vec![
            Box::new(w.receiver),
            Box::new(w.near),
            Box::new(w.peers),
            Box::new((w.pool, w.pd)),
            Box::new(buffers),
        ]
    });
}

#[test]
fn a_receive_queue_and_what_belongs_to_it() {
    in_every_order(|| {
        let mut w = Single::new(8, 64);
        let spare = w.pool.take();
        w.receiver.fill(w.rq, &w.pool).unwrap();
        // These wait for receives when the queue is gone.
        for _ in 0..20 {
            w.peers.send(0, 64);
        }
        vec![
            Box::new(w.receiver),
            Box::new(w.near),
            Box::new(w.peers),
            Box::new((w.pool, w.pd)),
            Box::new(spare),
        ]
    });
}

#[test]
fn a_context_a_domain_and_a_pool() {
    in_every_order(|| {
        let context = device::open();
        let pd = context.alloc_pd().unwrap();
        let pool = doorbell::BufferPool::new(&pd, 4, 64).unwrap();
        let buffer = pool.take();
        vec![Box::new(context), Box::new(pd), Box::new(pool), Box::new(buffer)]
    });
}

#[test]
fn buffers_left_in_a_queue_come_back_when_it_is_destroyed() {
    let mut w = Shared::new(7, 1, 64);
    w.receiver.fill(w.srq, &w.pool).unwrap();
    let all = w.pool.count() as usize;
    drop(w.receiver);
    // The queue pair still refers to the SRQ: the device may take a receive at any time.
    assert!(w.pool.available() < all);
    drop(w.near);
    assert_eq!(w.pool.available(), all);

    let mut w = Single::new(8, 64);
    w.receiver.fill(w.rq, &w.pool).unwrap();
    drop(w.near);
    assert!(w.pool.available() < w.pool.count() as usize);
    drop(w.receiver);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}

#[test]
fn a_receiver_moves_between_threads_as_a_unit() {
    let mut w = Shared::new(7, 1, 64);
    w.receiver.fill(w.srq, &w.pool).unwrap();
    for _ in 0..20 {
        let mut receiver = w.receiver;
        let mut peers = w.peers;
        (w.receiver, w.peers) = std::thread::spawn(move || {
            peers.send(0, 64);
            doorbell_tests::receiving::messages(&mut receiver, 1, |_| ());
            (receiver, peers)
        })
        .join()
        .unwrap();
    }
}
