//! Asynchronous events, and how a receiver handles them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use doorbell::{
    BufferPool, Cause, Completions, CqConfig, DataPath, DeviceEvent, DeviceEvents, Error, PoolConfig, QpConfig, QpEnd,
    QueuePair, Receiver, RqConfig, SrqConfig, WcStatus,
};
use doorbell_stepped_tests::{PATHS, Stepped, join, open};
use soft_mlx5::Device;
use soft_mlx5::engine::inspect::CompletionQueue;

/// All events that there are now.
fn all(events: &mut DeviceEvents) -> Vec<DeviceEvent> {
    std::iter::from_fn(|| events.try_next().unwrap()).collect()
}

#[test]
fn a_port_that_goes_down_and_up_again() {
    let world = Stepped::new(DataPath::Auto, 16);
    let mut events = world.pd.context().events().unwrap();
    assert_eq!(all(&mut events), []);
    world.device.set_link(false);
    assert_eq!(all(&mut events), [DeviceEvent::PortError { port: 1 }]);
    world.device.set_link(true);
    assert_eq!(all(&mut events), [DeviceEvent::PortActive { port: 1 }]);
}

#[test]
fn there_is_one_reader_at_a_time() {
    let world = Stepped::new(DataPath::Auto, 16);
    let context = world.pd.context();
    let events = context.events().unwrap();
    assert!(matches!(context.events(), Err(Error::InUse { .. })));
    drop(events);
    context.events().unwrap();
}

#[test]
fn a_queue_pair_that_fails_gives_every_posted_buffer_back_flagged() {
    for path in PATHS {
        let mut world = Stepped::new(path, 16);
        let mut events = world.pd.context().events().unwrap();
        let qp_num = world.near.qp_num();
        let posted = world.receiver.capacity(world.queue) as usize;
        assert_eq!(world.pool.available(), world.pool.count() as usize - posted);
        assert!(world.device.fail_qp(qp_num));
        world.device.settle();
        let found = all(&mut events);
        assert_eq!(found, [DeviceEvent::QpFatal { qp_num }]);
        assert!(world.receiver.handle_event(&found[0]).unwrap());

        let mut back = BTreeSet::new();
        for _ in 0..4 {
            let mut batch = world.receiver.poll();
            while let Some(next) = batch.next() {
                let failure = next.unwrap_err();
                assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
                assert_eq!(failure.qp_num, qp_num);
                for mut buffer in failure.buffers {
                    buffer.set_len(1);
                    back.insert(buffer.as_ptr() as usize);
                }
            }
            drop(batch);
            world.device.settle();
        }
        assert_eq!(back.len(), posted, "{path}: a buffer is missing or came twice");
        assert_eq!(world.pool.available(), world.pool.count() as usize);
        let other = DeviceEvent::QpFatal { qp_num: world.far.qp_num() };
        assert!(!world.receiver.handle_event(&other).unwrap());
    }
}

#[test]
fn a_removed_device_raises_an_event_and_ends_the_events() {
    for path in PATHS {
        let mut world = Stepped::new(path, 16);
        let mut events = world.pd.context().events().unwrap();
        world.device.remove();
        let seen: Vec<_> = events.by_ref().map(|event| event.unwrap()).collect();
        assert_eq!(seen.last(), Some(&DeviceEvent::DeviceFatal));
        assert!(events.next().is_none());
        // Nothing waits for messages that cannot come, and everything can be dropped.
        assert!(world.receiver.poll().next().is_none());
        let refused = world.receiver.create_srq(&SrqConfig::new(8)).unwrap_err();
        assert!(matches!(refused, Error::Verbs { .. }), "{refused:?}");
        assert!(refused.to_string().contains("the device failed or was removed"), "{refused}");
    }
}

/// A connection with an empty SRQ.
fn on_srq(path: DataPath, receives: u32) -> Stepped {
    Stepped::empty(open(Device::builder().stepped()), &CqConfig::new(64).path(path), receives, true)
}

#[test]
fn a_receiver_recognizes_events_of_its_queue_pairs_on_an_srq() {
    for path in PATHS {
        let mut world = on_srq(path, 7);
        let qp_num = world.near.qp_num();
        let mut events = world.pd.context().events().unwrap();
        assert!(world.device.fail_qp(qp_num));
        world.device.settle();
        let (fatal, last) = (DeviceEvent::QpFatal { qp_num }, DeviceEvent::LastWqeReached { qp_num });
        assert_eq!(all(&mut events), [fatal, last]);
        for event in [fatal, last] {
            assert!(world.receiver.handle_event(&event).unwrap(), "{path}: {event:?}");
            assert!(!world.far_receiver.handle_event(&event).unwrap(), "{path}: {event:?}");
        }
    }
}

/// Every kind of queue, with messages that were not polled and receives that never completed.
#[test]
fn a_removed_device_gives_every_posted_buffer_back_flagged() {
    for path in PATHS {
        let config = CqConfig::new(64).path(path);
        let mut world = Stepped::empty(open(Device::builder().stepped()), &config, 8, false);
        let srq = world.receiver.create_srq(&SrqConfig::new(7).max_sge(2)).unwrap();
        let (_on_srq, mut to_srq) = world.connect(srq);
        let Stepped { mut receiver, queue: rq, near: own, far: mut to_own, far_receiver: _far, pd, device, .. } = world;
        // None is left in the pool.
        let pool = BufferPool::new(&pd, &PoolConfig::new(8 + 7 + 1, 64)).unwrap();
        receiver.fill(rq, &pool).unwrap();
        let two = vec![pool.take().unwrap(), pool.take().unwrap()];
        receiver.post_scatter(srq, two).unwrap();
        receiver.fill(srq, &pool).unwrap();
        assert_eq!(pool.available(), 0);
        let posted = 8 + 7;

        let mut events = pd.context().events().unwrap();
        for _ in 0..3 {
            to_srq.send_inline(b"", None).unwrap();
            to_own.send_inline(b"", None).unwrap();
        }
        device.settle();
        let early = receiver.reclaim().unwrap_err();
        assert!(matches!(early, Error::Unsupported { .. }), "{early:?}");
        device.remove();
        let fatal = events.next().unwrap().unwrap();
        assert_eq!(fatal, DeviceEvent::DeviceFatal);
        assert!(receiver.handle_event(&fatal).unwrap());
        // The device may be at work still, as far as the program knows.
        assert!(receiver.reclaim().is_err());
        while !events.has_ended() {
            assert_eq!(events.try_next().unwrap(), None);
        }
        assert!(events.next().is_none());

        // Messages that have arrived can still be read. One of them is kept.
        let mut batch = receiver.poll_up_to(4);
        let kept = batch.next().unwrap().unwrap().into_buffers();
        while let Some(message) = batch.next() {
            message.unwrap();
        }
        drop(batch);

        let failures = receiver.reclaim().unwrap();
        assert_eq!(failures.len(), posted - 1, "{path}");
        assert!(failures.iter().all(|failure| failure.cause == Cause::DeviceRemoved));
        assert!(failures[0].to_string().contains("the device was removed"), "{}", failures[0]);
        let of_qp = failures.iter().filter(|failure| failure.qp_num == own.qp_num()).count();
        let of_srq = failures.iter().filter(|failure| failure.qp_num == 0).count();
        assert_eq!(of_qp + of_srq, posted - 1);
        assert!((7..=8).contains(&of_qp), "{of_qp}");
        let mut back = BTreeSet::new();
        for mut buffer in failures.into_iter().flat_map(|failure| failure.buffers) {
            buffer.set_len(1);
            assert!(back.insert(buffer.as_ptr() as usize), "a buffer came twice");
        }
        assert_eq!(back.len() + kept.len(), pool.count() as usize, "{path}: a buffer is missing");
        drop(kept);
        assert_eq!(pool.available(), pool.count() as usize);
        assert!(receiver.reclaim().unwrap().is_empty());
        // Completions that were not polled name receives that are not posted any more.
        assert!(receiver.poll().next().is_none());
    }
}

#[test]
fn an_srq_below_its_limit_is_refilled_and_armed_again() {
    for path in PATHS {
        let Stepped { mut receiver, srq, near: _near, mut far, mut far_receiver, pd, device, .. } = on_srq(path, 15);
        let srq = srq.unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 64)).unwrap();
        receiver.keep_filled(srq, &pool).unwrap();
        receiver.refill();
        receiver.arm_srq_limit(srq, 8).unwrap();
        let mut events = pd.context().events().unwrap();

        for round in 0..5 {
            let mut held = Vec::new();
            for sent in 1..=10u32 {
                far.send_inline(&[], None).unwrap();
                device.settle();
                while far.poll_send().is_some() {}
                let mut batch = receiver.poll();
                held.push(batch.next().expect("the message").unwrap().take());
                drop(batch);
                let found = all(&mut events);
                // 15 receives: the eighth message leaves seven. On the direct path there is one in a spare
                // slot, so it is the ninth.
                let last = if path == DataPath::Direct { 9 } else { 8 };
                if sent < last {
                    assert_eq!(found, [], "{path}: round {round}, message {sent}");
                } else if sent == last {
                    assert!(
                        matches!(found[..], [DeviceEvent::SrqLimitReached { .. }]),
                        "{path}: round {round}: {found:?}"
                    );
                    assert_eq!(receiver.free_slots(srq), last);
                    assert!(receiver.handle_event(&found[0]).unwrap());
                    assert!(!far_receiver.handle_event(&found[0]).unwrap());
                    assert_eq!(receiver.free_slots(srq), 0);
                }
            }
            receiver.refill();
        }
        let refused = receiver.arm_srq_limit(srq, 16).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { .. }), "{refused:?}");
        receiver.arm_srq_limit(srq, 0).unwrap();
    }
}

/// A queue pair fails by itself, and again after it was reset, before an event is read.
#[test]
fn a_drain_of_what_has_failed_twice_waits_for_the_event_of_the_second_failure() {
    for path in PATHS {
        let Stepped { mut receiver, mut near, mut far, mut far_receiver, pd, device, .. } = on_srq(path, 15);
        let mut events = pd.context().events().unwrap();
        let qp_num = near.qp_num();
        assert!(device.fail_qp(qp_num));
        device.settle();
        assert_eq!(receiver.reset_qp(&mut near).unwrap(), QpEnd::Complete);
        far.reset(&mut far_receiver).unwrap();
        join(&mut near, &mut far);
        assert!(device.fail_qp(qp_num));
        // The device has not come to it.
        let late = receiver.drain_qp(&near, &mut events, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(late, Error::TimedOut { .. }), "{path}: {late}");
        assert!(late.to_string().contains("LAST_WQE"), "{late}");
        device.settle();
        receiver.drain_qp(&near, &mut events, Duration::ZERO).unwrap();
        assert_eq!(all(&mut events), [DeviceEvent::QpFatal { qp_num }; 2], "{path}");
    }
}

/// A device that never reports a last WQE: the wait ends, the result and the count report it, and the next wait is
/// shorter.
#[test]
fn a_last_wqe_that_is_not_reported_is_counted() {
    for path in PATHS {
        let mut world = on_srq(path, 15);
        let (mut other, _other_far) = world.connect(world.srq.unwrap());
        let Stepped { mut receiver, mut near, far: _far, device: _device, .. } = world;
        receiver.enable_statistics();
        // The device is not stepped.
        let took = [&mut near, &mut other].map(|qp| {
            let began = Instant::now();
            assert_eq!(receiver.reset_qp(qp).unwrap(), QpEnd::LastWqeMissing, "{path}");
            began.elapsed()
        });
        assert!(took[1] < took[0], "{path}: {took:?}");
        assert_eq!(receiver.statistics().unwrap().last_wqe_missing, 2, "{path}");
    }
}

#[test]
fn connecting_over_a_port_that_is_down_is_a_clear_error() {
    let mut world = Stepped::new(DataPath::Auto, 16);
    world.device.set_link(false);
    world.receiver.reset_qp(&mut world.near).unwrap();
    let peer = world.far.address().unwrap();
    let refused = world.near.connect(&peer).unwrap_err();
    assert!(matches!(refused, Error::PortDown { port: 1, .. }), "{refused:?}");
    assert!(refused.to_string().contains("down: check the cable"), "{refused}");
    world.device.set_link(true);
    world.near.connect(&peer).unwrap();
}

/// The CQ of the receiver of `world`, as the device knows it.
fn cq_of(world: &Stepped) -> CompletionQueue {
    let queues = world.device.queues();
    let qp = queues.qps.iter().find(|qp| qp.number == world.near.qp_num()).unwrap();
    *queues.cqs.iter().find(|cq| cq.number == qp.attr.recv_cq.0).unwrap()
}

/// Sets the consumer index back by a lap, as if the program had not taken the CQEs of the last lap.
fn overrun(world: &Stepped) {
    let cq = cq_of(world);
    let index = cq.produced.wrapping_sub(cq.attr.cqe_count) & 0xff_ffff;
    // SAFETY: the doorbell record of a live CQ, which the device reads with atomics.
    unsafe { (cq.attr.dbrec as *mut u32).write_volatile(index.to_be()) };
}

#[test]
fn an_overrun_cq_is_an_event_and_loses_no_buffer() {
    for path in PATHS {
        let mut world = Stepped::new(path, 16);
        let mut events = world.pd.context().events().unwrap();
        let qp_num = world.near.qp_num();
        // The device reads the consumer index once in a lap. Until the end of the lap there is no overrun.
        for _ in 5..cq_of(&world).attr.cqe_count {
            world.send();
            world.device.settle();
            assert_eq!(world.take(), 1);
        }
        for number in 0..5u8 {
            world.send_bytes(&[number; 9]);
        }
        world.device.settle();
        overrun(&world);
        for number in 5..8u8 {
            world.send_bytes(&[number; 9]);
        }
        world.device.settle();

        let found = all(&mut events);
        let failed = found.iter().find(|event| matches!(event, DeviceEvent::CqError { .. })).unwrap();
        assert!(found.contains(&DeviceEvent::QpFatal { qp_num }), "{path}: {found:?}");
        let mut other = Receiver::new(&world.pd, &CqConfig::new(4096).path(path)).unwrap();
        assert!(!other.handle_event(failed).unwrap());
        assert!(!other.arm().unwrap());
        for event in &found {
            assert!(world.receiver.handle_event(event).unwrap(), "{path}: {event:?}");
        }

        // The messages that arrived before are there, once and in order; none has come after them.
        assert!(world.receiver.arm().unwrap() && world.receiver.wait(None).unwrap());
        let mut kept = Vec::new();
        let mut batch = world.receiver.poll();
        for number in 0..5u8 {
            let message = batch.next().unwrap().unwrap();
            assert_eq!(message[..], [number; 9], "{path}");
            kept.push(message.take().unwrap());
        }
        assert!(batch.next().is_none());
        drop(batch);
        for refused in [
            world.receiver.arm().map(drop),
            world.receiver.wait(None).map(drop),
            world.receiver.create_srq(&SrqConfig::new(4)).map(drop),
            QueuePair::builder(&QpConfig::rc()).receive(&mut world.receiver, RqConfig::new(4)).build().map(drop),
        ] {
            assert!(matches!(refused, Err(Error::CqFailed)), "{path}: {refused:?}");
        }

        // All buffers come back, each once.
        let Stepped { receiver, pool, near, device: _device, .. } = world;
        drop((near, receiver));
        kept.extend(std::iter::from_fn(|| pool.take()));
        let places: BTreeSet<_> = kept.iter().map(|buffer| buffer.as_ptr() as usize).collect();
        assert_eq!((places.len(), kept.len()), (pool.count() as usize, pool.count() as usize));
    }
}
