//! Objects can be dropped in any order, with receives posted and messages under way.

use std::any::Any;
use std::time::Duration;
use std::{fs, thread};

use doorbell::{BufferPool, PoolConfig, QpConfig, Receiver, SrqConfig};
use doorbell_tests::world::{Shared, Single, World};
use doorbell_tests::{Peers, device, message, receiving};

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

/// Builds the same objects again and again, drops them in each order, and checks that nothing is left.
fn in_every_order(build: impl Fn() -> Vec<Box<dyn Any>>) {
    // Libraries open some descriptors once.
    drop(build());
    let before = descriptors();
    let count = build().len();
    orders(count, &mut |order| {
        let mut objects: Vec<Option<Box<dyn Any>>> = build().into_iter().map(Some).collect();
        for &next in order {
            objects[next] = None;
        }
        // A thread of the device may have a file open just now.
        for _ in 0..1000 {
            if descriptors() <= before {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(descriptors() <= before, "the device was not closed after the order {order:?}");
    });
}

fn apart<Q>(w: World<Q>, buffers: impl Any) -> Vec<Box<dyn Any>> {
    let World { receiver, near, peers, pool, pd, .. } = w;
    vec![Box::new(receiver), Box::new(near), Box::new(peers), Box::new((pool, pd)), Box::new(buffers)]
}

#[test]
fn an_srq_and_what_belongs_to_it() {
    in_every_order(|| {
        let mut w = Shared::new(7, 1, 64);
        let spare = w.pool.take();
        w.fill();
        w.peers.arrive(3);
        let buffers = (spare, w.take(1));
        apart(w, buffers)
    });
}

#[test]
fn a_receive_queue_and_what_belongs_to_it() {
    in_every_order(|| {
        let mut w = Single::new(8, 64);
        let spare = w.pool.take();
        w.fill();
        // These messages wait for receives when the queue is destroyed.
        w.peers.burst(20);
        apart(w, spare)
    });
}

#[test]
fn a_context_a_domain_and_a_pool() {
    in_every_order(|| {
        let context = device::open();
        let pd = context.alloc_pd().unwrap();
        let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(4, 64)).unwrap();
        let buffer = pool.take();
        vec![Box::new(context), Box::new(pd), Box::new(pool), Box::new(buffer)]
    });
}

#[test]
fn buffers_left_in_a_queue_come_back_when_it_is_destroyed() {
    let mut w = Shared::new(7, 1, 64).filled();
    let all = w.pool.count() as usize;
    drop(w.receiver);
    // The queue pair still refers to the SRQ: the device may take a receive at any time.
    assert!(w.pool.available() < all);
    drop(w.near.remove(0));
    assert_eq!(w.pool.available(), all);

    let mut w = Single::new(8, 64).filled();
    drop(w.near.remove(0));
    assert!(w.pool.available() < w.pool.count() as usize);
    drop(w.receiver);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}

/// The CQ still holds completions of a destroyed SRQ. They are not reported for the next SRQ, which takes its place.
#[test]
fn messages_of_a_destroyed_srq_are_not_the_next_ones() {
    const RECEIVES: u32 = 7;
    let (pd, mut receiver) = device::start(2 * RECEIVES);
    let pool = BufferPool::new(&pd, &PoolConfig::new(2 * RECEIVES + 2, 64)).unwrap();
    let connect = |receiver: &mut Receiver| {
        let srq = receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap();
        let buffers = std::iter::from_fn(|| pool.take()).take(RECEIVES as usize);
        receiver.post(srq, buffers).unwrap();
        let (near, peers) = Peers::connect(&pd, receiver, &QpConfig::rc(), srq, 1, 64);
        (srq, near, peers)
    };
    let (gone, near, mut peers) = connect(&mut receiver);
    let (_other, _other_near, mut other_peers) = connect(&mut receiver);
    (0..RECEIVES).for_each(|_| _ = peers.send(0, 40));
    peers.settle();
    drop(near);
    receiver.destroy_srq(gone).unwrap();
    let (_next, near, mut peers) = connect(&mut receiver);
    receiving::nothing(&mut receiver);
    for round in 0..u64::from(2 * RECEIVES) {
        peers.send(0, 40);
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!((message.qp_num(), message::read(&message)), (near[0].qp_num(), (0, round)));
        });
        other_peers.exchange(&mut receiver, 0, 1);
    }
}
