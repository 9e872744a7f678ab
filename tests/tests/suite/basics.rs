//! Messages arrive whole, in the right buffer, with the right completion.

use std::collections::VecDeque;

use doorbell::{
    Buffer, BufferPool, PoolConfig, PostFailure, QpConfig, QueueId, ReceiveFrom, RqConfig, Scattered, SrqConfig,
};
use doorbell_tests::world::{Shared, Single, World, both};
use doorbell_tests::{Peers, device, message, receiving};
use fastrand::Rng;

/// Around the sizes at which devices behave differently: inline in a CQE, one packet, several packets.
const LENGTHS: [usize; 14] = [12, 31, 32, 33, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 65_536];

#[test]
fn messages_of_any_length_arrive_whole() {
    let worlds = [Shared::new(7, 2, 65_536).any(), Single::new(8, 65_536).any()];
    for mut w in worlds.map(World::filled) {
        for (i, len) in LENGTHS.into_iter().cycle().take(100).enumerate() {
            let from = i % w.near.len();
            let number = w.peers.send(from, len);
            receiving::messages(&mut w.receiver, 1, |message| {
                assert_eq!(message.len(), len);
                assert_eq!(message::read(&message), (from as u32, number));
                assert_eq!(message.qp_num(), w.near[from].qp_num());
            });
        }
    }
}

#[test]
fn short_messages_have_exactly_the_bytes_sent() {
    let mut w = Shared::new(15, 1, 64).filled();
    let bytes: Vec<u8> = (1..=64).collect();
    for len in (0..=64).chain([0, 0, 1]) {
        w.peers.reap(0);
        w.peers.qps[0].send_inline(&bytes[..len], None).unwrap();
        receiving::messages(&mut w.receiver, 1, |message| assert_eq!(*message, bytes[..len]));
    }
}

#[test]
fn a_message_is_scattered_over_buffers_of_several_pools() {
    let (pd, mut receiver) = device::start(256);
    let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(3)).unwrap();
    let (small, large) = (
        BufferPool::new(&pd, &PoolConfig::new(8, 16)).unwrap(),
        BufferPool::new(&pd, &PoolConfig::new(8, 100)).unwrap(),
    );
    let config = QpConfig::rc();
    let (_near, mut peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 256);

    // All three, two and a part, exactly one, part of one.
    for (len, parts) in [(132, [16, 100, 16]), (110, [16, 94, 0]), (16, [16, 0, 0]), (13, [13, 0, 0])] {
        let buffers = [&small, &large, &small].map(|pool| pool.take().unwrap());
        receiver.post_scatter(srq, buffers.into()).unwrap();
        let number = peers.send(0, len);
        receiving::messages(&mut receiver, 1, |message| {
            assert!(message.is_scattered());
            assert_eq!(message.len(), len);
            let whole: Vec<u8> = message.segments().flatten().copied().collect();
            assert_eq!(message::read(&whole), (0, number));
            assert_eq!(*message, whole[..parts[0]]);
            let buffers = message.into_buffers();
            assert_eq!(buffers.iter().map(|b| b.len()).collect::<Vec<_>>(), parts);
            assert!(buffers.iter().flat_map(|b| b.iter()).eq(&whole));
        });
        assert_eq!((small.available(), large.available()), (8, 8));
    }
}

/// Taking is refused even if the message fits into the first buffer: the others would be lost to their pool.
#[test]
fn a_scattered_message_is_neither_taken_nor_replaced_by_one_buffer_and_no_buffer_is_lost() {
    let (pd, mut receiver) = device::start(64);
    let srq = receiver.create_srq(&SrqConfig::new(3).max_sge(3)).unwrap();
    let config = QpConfig::rc().min_rnr_timer(1);
    let (_near, mut peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 200);
    let small = BufferPool::new(&pd, &PoolConfig::new(2, 16)).unwrap();
    let large = BufferPool::new(&pd, &PoolConfig::new(2, 200)).unwrap();
    let buffers = vec![small.take().unwrap(), small.take().unwrap(), large.take().unwrap()];
    let free = receiver.free_slots(srq);
    receiver.post_scatter(srq, buffers).unwrap();
    for (len, parts) in [(40, [16, 16, 8]), (16, [16, 0, 0]), (200, [16, 16, 168])] {
        let number = peers.send(0, len);
        // Recycled: the next message takes the same buffers.
        receiving::messages(&mut receiver, 1, |message| {
            let refused = message.replace(large.take().unwrap()).unwrap_err();
            assert_eq!((refused.reason, large.available()), (PostFailure::Scattered, 0));
        });
        assert_eq!((receiver.free_slots(srq), large.available()), (free - 1, 1));
        peers.send(0, len);
        let mut back = None;
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(message.take().unwrap_err(), Scattered);
        });
        assert_eq!((receiver.free_slots(srq), small.available(), large.available()), (free - 1, 0, 1));
        peers.send(0, len);
        receiving::messages(&mut receiver, 1, |message| {
            back = Some(message.into_buffers());
        });
        let back = back.unwrap();
        let whole: Vec<u8> = back.iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert_eq!(back.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), parts);
        assert_eq!(message::read(&whole), (0, number + 2));
        assert_eq!((receiver.free_slots(srq), small.available(), large.available()), (free, 0, 1));
        receiver.post_scatter(srq, back).unwrap();
    }
}

#[test]
fn a_scattered_receive_is_recycled_with_all_its_buffers() {
    let (pd, mut receiver) = device::start(256);
    let qp = QpConfig::rc();
    let (near, mut peers) = Peers::connect(&pd, &mut receiver, &qp, RqConfig::new(4).max_sge(2), 1, 128);
    let rq = near[0].receive_queue().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(2, 64)).unwrap();
    let buffers = vec![pool.take().unwrap(), pool.take().unwrap()];
    receiver.post_scatter(rq, buffers).unwrap();
    for len in [128, 20, 127, 65, 64] {
        let number = peers.send(0, len);
        receiving::messages(&mut receiver, 1, |message| {
            let whole: Vec<u8> = message.segments().flatten().copied().collect();
            assert_eq!(message::read(&whole), (0, number));
        });
    }
}

#[test]
fn a_taken_buffer_keeps_its_bytes_and_goes_back_to_its_pool() {
    let mut w = Shared::new(7, 1, 256);
    let capacity = w.capacity();
    w.post(capacity);
    let free = w.pool.available();

    let mut taken = Vec::new();
    for len in [20, 200, 100] {
        w.peers.send(0, len);
        taken.extend(w.take(1));
    }
    // Later messages use the other buffers.
    w.exchange(100);
    let seen: Vec<_> = taken.iter().map(|buffer| (message::read(buffer), buffer.len())).collect();
    assert_eq!(seen, [((0, 0), 20), ((0, 1), 200), ((0, 2), 100)]);
    assert_eq!(w.pool.available(), free);
    drop(taken);
    assert_eq!(w.pool.available(), free + 3);
}

#[test]
fn several_queues_share_a_cq_and_keep_their_buffers_apart() {
    let (pd, mut receiver) = device::start(1024);
    let one = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let two = receiver.create_srq(&SrqConfig::new(31)).unwrap();
    // The buffers of each queue have another size.
    let sizes = [64, 128, 192, 256];
    let pools = sizes.map(|size| BufferPool::new(&pd, &PoolConfig::new(64, size)).unwrap());
    let mut near = Vec::new();
    let mut far = Vec::new();
    let sources: [ReceiveFrom; 4] = [one.into(), two.into(), RqConfig::new(8).into(), RqConfig::new(16).into()];
    for from in sources {
        let (qps, peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc(), from, 2, 64);
        near.extend(qps);
        far.push(peers);
    }
    let queues: [QueueId; 8] = std::array::from_fn(|to| match to / 2 {
        0 => one.into(),
        1 => two.into(),
        _ => near[to].receive_queue().unwrap().into(),
    });
    for (to, queue) in queues.into_iter().enumerate() {
        receiver.fill(queue, &pools[to / 2]).unwrap();
    }

    let mut random = Rng::with_seed(1);
    let mut expected = [0_u64; 8];
    for _ in 0..200 {
        let burst: Vec<usize> = (0..6).map(|_| random.u64(..8) as usize).collect();
        for &to in &burst {
            far[to / 2].send(to % 2, 64);
        }
        let mut back = Vec::new();
        receiving::messages(&mut receiver, burst.len(), |message| {
            let to = near.iter().position(|qp| qp.qp_num() == message.qp_num()).unwrap();
            assert_eq!(message::read(&message), ((to % 2) as u32, expected[to]));
            expected[to] += 1;
            // Some are posted again, some leave their slot to another buffer.
            let posted_again = message.len() % 2 == 0 && to % 3 != 0;
            let buffer = match posted_again {
                true => message.take().unwrap(),
                false => message.replace(pools[to / 2].take().unwrap()).unwrap(),
            };
            assert_eq!(buffer.capacity(), sizes[to / 2] as usize);
            assert_eq!(message::read(&buffer).1, expected[to] - 1);
            if posted_again {
                back.push((to, buffer));
            }
        });
        for (to, buffer) in back {
            receiver.post(queues[to], [buffer]).unwrap();
        }
    }
}

/// A batch is asked for messages until there are none, and again when new messages have come.
#[test]
fn a_batch_that_found_nothing_may_be_asked_again() {
    for mut w in both(32, 64).map(World::filled) {
        let mut kept: Vec<Buffer> = Vec::new();
        for count in [0, 3, 1, 4, 2] {
            w.peers.arrive(count);
            let mut batch = w.receiver.poll();
            for _ in 0..2 {
                while let Some(message) = batch.next() {
                    let message = message.unwrap();
                    assert_eq!(message::read(&message), (0, kept.len() as u64));
                    kept.push(message.take().unwrap());
                }
                w.peers.arrive(1);
            }
            drop(batch);
            // The batch may have ended when there was nothing.
            kept.extend(w.take(w.peers.sent(0) as usize - kept.len()));
        }
        let numbers = kept.iter().map(|buffer| message::read(buffer));
        assert!(numbers.eq((0..w.peers.sent(0)).map(|number| (0, number))));
    }
}

/// On an SRQ one buffer waits for a slot. The device gets it as soon as a message was taken.
#[test]
fn what_waits_for_a_slot_is_rung_for_when_messages_of_several_queues_are_taken() {
    let (pd, mut receiver) = device::start(64);
    let srqs = [1, 2].map(|receives| receiver.create_srq(&SrqConfig::new(receives)).unwrap());
    for srq in srqs {
        let (_qps, mut peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc(), srq, 1, 64);
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 64)).unwrap();
        receiver.fill(srq, &pool).unwrap();
        let count = 64 - pool.available();
        let mut taken = Vec::new();
        for number in 0..count as u64 {
            peers.send(0, 64);
            taken.extend(receiving::take(&mut receiver, 1));
            assert_eq!(message::read(taken.last().unwrap()), (0, number));
        }
        assert_eq!(pool.available(), 64 - count);
    }
}

/// The last eight messages are kept, and the buffer of the oldest one goes into the slot of each new one.
#[test]
fn a_message_leaves_its_slot_to_another_buffer() {
    let mut with_room = Shared::new(15, 1, 64).any();
    with_room.post(9);
    for mut w in both(8, 64).map(World::filled).chain([with_room]) {
        // Another size, so that a slot also gets a buffer of another pool.
        let other = BufferPool::new(&w.pd, &PoolConfig::new(3, 256)).unwrap();
        let mut kept: VecDeque<_> =
            (0..8).map(|i| (if i % 3 == 0 { other.take() } else { w.pool.take() }.unwrap(), None)).collect();
        let free = w.pool.available() + other.available();
        let mut random = Rng::with_seed(1);
        let mut next = 0;
        for _ in 0..100 {
            let count = 1 + random.u64(..6) as usize;
            w.peers.burst(count);
            receiving::messages(&mut w.receiver, count, |message| {
                let (buffer, number) = kept.pop_front().unwrap();
                if let Some(number) = number {
                    assert_eq!(message::read(&buffer), (0, number), "somebody has written a kept buffer");
                }
                let buffer = message.replace(buffer).unwrap();
                assert_eq!(message::read(&buffer), (0, next));
                kept.push_back((buffer, Some(next)));
                next += 1;
            });
        }
        assert_eq!(w.pool.available() + other.available(), free);
        // A buffer of another domain comes back, and the message is recycled.
        let foreign = BufferPool::new(&device::pd(), &PoolConfig::new(1, 64)).unwrap();
        w.peers.send(0, 64);
        receiving::messages(&mut w.receiver, 1, |message| {
            let error = message.replace(foreign.take().unwrap()).unwrap_err();
            assert_eq!((error.reason, foreign.available()), (PostFailure::WrongDomain, 0));
            drop(error.payload);
        });
        assert_eq!((w.pool.available() + other.available(), foreign.available()), (free, 1));
        drop(kept);
        assert_eq!(w.pool.available() + other.available(), free + 8);
    }
}

#[test]
fn a_batch_ends_at_its_budget_and_the_rest_comes_later() {
    let mut w = Shared::new(63, 1, 64).filled();
    w.peers.arrive(10);
    for (budget, expected) in [(0, 0), (3, 3), (1, 1), (100, 6), (100, 0)] {
        let mut batch = w.receiver.poll_up_to(budget);
        let mut seen = 0;
        while let Some(message) = batch.next() {
            message.unwrap();
            seen += 1;
        }
        assert_eq!(seen, expected, "budget {budget}");
        assert!(batch.next().is_none());
    }
}
