//! Receives of an SRQ that wait for one that has not completed: that of a message of which only the first packet has
//! arrived.

use std::time::Duration;

use doorbell::{
    AddressHandle, BufferPool, Completions, CqConfig, DataPath, Mtu, PoolConfig, QpConfig, QueuePair, Receiver,
    RqConfig, SrqConfig, SrqId, WcStatus,
};
use doorbell_stepped_tests::sending_qp::SendingQp;
use doorbell_stepped_tests::{join, on_each_path, open};
use soft_mlx5::{Device, Faults};

on_each_path! {
    a_peer_finds_four_fifths_of_the_receives
    datagrams_find_four_fifths_of_the_receives
    a_queue_without_patience_posts_each_receive_at_once
}
on_each_path!(direct_only, Direct, an_idle_receiver_hands_all_receives_over a_receiver_that_sleeps_hands_all_receives_over);

/// Receives of the SRQ. The CQ has as many entries.
const RECEIVES: u32 = 31;
/// Polls that find nothing until no receive waits.
const IDLE_POLLS: u32 = 4096;
/// Queue key of datagrams.
const QKEY: u32 = 7;

struct World {
    receiver: Receiver,
    srq: SrqId,
    /// Its first message is half received.
    slow: SendingQp,
    fast: SendingQp,
    /// Where datagrams of the fast peer go. Without, it is a connected one.
    to: Option<AddressHandle>,
    _near: [QueuePair; 2],
    _far_receiver: Receiver,
    _pools: [BufferPool; 2],
    device: Device,
}

impl World {
    fn new(path: DataPath, patience: u32, datagrams: bool) -> Self {
        let (device, pd) = open(Device::builder().small_steps());
        let mut receiver = Receiver::new(&pd, &CqConfig::new(RECEIVES).path(path)).unwrap();
        let mut far_receiver = Receiver::new(&pd, &CqConfig::new(16).path(path)).unwrap();
        let srq = receiver.create_srq(&SrqConfig::new(RECEIVES).patience(patience)).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 1, 1024)).unwrap();
        assert_eq!(receiver.fill(srq, &pool).unwrap(), RECEIVES as usize);
        let config = QpConfig::rc().mtu(Mtu::Mtu256).max_inline(64);
        let of_datagrams = QpConfig::ud(QKEY).max_inline(64);
        let mut pair = |config| {
            let near = QueuePair::builder(config).receive(&mut receiver, srq).build().unwrap();
            (near, SendingQp::create(&mut far_receiver, config, RqConfig::new(1)).unwrap())
        };
        let (mut near, mut slow) = pair(&config);
        join(&mut near, &mut slow);
        let (mut other, mut fast) = pair(if datagrams { &of_datagrams } else { &config });
        let to = if datagrams {
            other.activate().unwrap();
            fast.activate().unwrap();
            Some(fast.address_handle(&other.address().unwrap(), QKEY).unwrap())
        } else {
            join(&mut other, &mut fast);
            None
        };
        let payloads = BufferPool::new(&pd, &PoolConfig::new(1, 1024)).unwrap();
        let mut payload = payloads.take().unwrap();
        payload.set_len(1024);
        payload.fill(7);
        slow.send(payload, None).unwrap();
        // The first packet arrives, and the others are lost.
        while device.counters().port.rcv_packets == 0 {
            assert!(device.step(), "no packet arrives");
        }
        device.set_faults(Faults { loss: 1.0, ..Faults::default() });
        device.settle();
        device.set_faults(Faults::default());
        let (_near, _pools, _far_receiver) = ([near, other], [pool, payloads], far_receiver);
        Self { receiver, srq, slow, fast, to, _near, _far_receiver, _pools, device }
    }

    /// Sends messages as long as the device has receives for them, and `most`; returns how many. One more is lost if
    /// they are datagrams, and is retried else.
    fn send(&mut self, most: u32) -> u32 {
        let mut sent = 0;
        while sent < most && self.send_one() {
            sent += 1;
        }
        sent
    }

    /// Sends a message. Returns `true` if the device had a receive for it.
    fn send_one(&mut self) -> bool {
        let lost = self.device.counters().hardware.out_of_buffer;
        match &self.to {
            Some(to) => self.fast.send_to(&[1; 64][..], to, None).unwrap(),
            None => self.fast.send_inline(&[1; 64], None).unwrap(),
        }
        self.device.settle();
        let done = self.fast.poll_send().is_some_and(|done| done.status == WcStatus::SUCCESS);
        done && self.device.counters().hardware.out_of_buffer == lost
    }

    /// Takes the messages that have arrived; returns their number.
    fn take(&mut self) -> u32 {
        let mut batch = self.receiver.poll();
        let mut taken = 0;
        while let Some(message) = batch.next() {
            message.unwrap();
            taken += 1;
        }
        taken
    }

    fn waiting(&self) -> u32 {
        self.receiver.srq_statistics(self.srq).map_or(0, |statistics| statistics.waiting)
    }

    /// The message of the slow peer arrives when it sends again.
    fn end(mut self) {
        for _ in 0..1000 {
            self.device.advance(Duration::from_millis(10));
            self.device.settle();
            let mut batch = self.receiver.poll();
            while let Some(message) = batch.next() {
                if message.unwrap()[..] == [7; 1024] {
                    return;
                }
            }
        }
        panic!("the slow message does not arrive: {:?}", self.slow.poll_send());
    }
}

/// A peer that sends more meets RNR, and goes on.
fn a_peer_finds_four_fifths_of_the_receives(path: DataPath) {
    four_fifths(World::new(path, u32::MAX, false));
}

/// The next datagram is lost.
fn datagrams_find_four_fifths_of_the_receives(path: DataPath) {
    four_fifths(World::new(path, u32::MAX, true));
}

fn four_fifths(mut world: World) {
    for _ in 0..20 {
        let sent = world.send(5);
        assert_eq!((sent, world.take()), (5, 5));
        // One is with the slow peer.
        assert!(world.waiting() <= (RECEIVES + 1) / 5, "{} wait", world.waiting());
    }
    let (waiting, found) = (world.waiting(), world.send(RECEIVES));
    assert_eq!(found, RECEIVES - 1 - waiting);
    assert!(found >= RECEIVES * 4 / 5 - 1, "{found}");
    // Nothing is left with the device, so nothing waits.
    assert_eq!(world.take(), found);
    world.end();
}

/// As many receives are posted as there were, at the end of each batch.
fn a_queue_without_patience_posts_each_receive_at_once(path: DataPath) {
    let mut world = World::new(path, 0, false);
    for _ in 0..20 {
        let sent = world.send(5);
        assert_eq!((sent, world.take(), world.waiting()), (5, 5, 0));
    }
    assert_eq!(world.send(RECEIVES), RECEIVES - 1);
    world.end();
}

fn an_idle_receiver_hands_all_receives_over(path: DataPath) {
    for polls in [false, true] {
        let mut world = World::new(path, u32::MAX, false);
        let sent = world.send(3);
        assert_eq!((sent, world.take(), world.waiting()), (3, 3, 3));
        for _ in 0..IDLE_POLLS {
            assert_eq!(world.waiting(), 3);
            assert!(if polls { world.take() == 0 } else { world.receiver.next().is_none() });
        }
        assert_eq!(world.waiting(), 0);
        assert_eq!(world.send(RECEIVES), RECEIVES - 1);
        world.end();
    }
}

fn a_receiver_that_sleeps_hands_all_receives_over(path: DataPath) {
    let mut world = World::new(path, u32::MAX, false);
    let sent = world.send(3);
    assert_eq!((sent, world.take(), world.waiting()), (3, 3, 3));
    assert!(!world.receiver.arm().unwrap());
    assert_eq!(world.waiting(), 0);
    world.end();
}
