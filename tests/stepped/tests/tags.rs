//! Messages that arrive at any step between the operations on the tag list.

use doorbell::tags::{
    Offload, PeerId, ReceiveId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, Path, QpConfig};
use soft_mlx5::Device;

const ALL: u64 = u64::MAX;
/// More than a message needs to arrive.
const STEPS: u32 = 12;

struct World {
    near: TagMatchingSrq,
    far: TagMatchingSrq,
    to_near: PeerId,
    pool: BufferPool,
    sent: u32,
    device: Device,
}

impl World {
    fn new(path: Path) -> Self {
        let device = Device::builder().stepped().build().expect("a stepped device");
        let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
        let config = TagMatchingConfig::new(8).path(path).offload(Offload::Required);
        let slots = BufferPool::new(&pd, 256, 256).unwrap();
        let mut sides = [(); 2].map(|()| {
            let mut tags = TagMatchingSrq::new(&pd, &config).unwrap();
            tags.fill(&slots).unwrap();
            let peer = tags.add_peer(&QpConfig::rc()).unwrap();
            (tags, peer)
        });
        let addresses = sides.each_mut().map(|(tags, peer)| tags.address(*peer).unwrap());
        for ((tags, peer), there) in sides.iter_mut().zip(addresses.iter().rev()) {
            tags.connect(*peer, there).unwrap();
        }
        let [(near, _), (far, to_near)] = sides;
        let pool = BufferPool::new(&pd, 64, 256).unwrap();
        Self { near, far, to_near, pool, sent: 0, device }
    }

    /// Sends a message; its context is its number. The device has not seen it yet.
    fn send(&mut self, tag: u64) -> u32 {
        while self.far.poll().is_some() {}
        let message = TaggedBuffer::new(self.pool.take().unwrap()).unwrap();
        self.sent += 1;
        self.far.send(self.to_near, tag, self.sent, message).unwrap();
        self.sent
    }

    fn post(&mut self, tag: u64, mask: u64) -> ReceiveId {
        self.near.post(tag, mask, self.pool.take().unwrap()).unwrap()
    }

    fn step(&mut self, count: u32) {
        for _ in 0..count {
            self.device.step();
        }
    }

    /// What ends, until nothing more happens.
    fn ends(&mut self) -> Vec<(ReceiveId, Option<u32>)> {
        let mut ends = Vec::new();
        for _ in 0..4 {
            self.device.settle();
            while let Some(event) = self.near.poll() {
                ends.push(match event {
                    TagEvent::Received(got) => (got.receive, Some(got.context)),
                    TagEvent::Cancelled { receive, .. } => (receive, None),
                    other => panic!("{other:?}"),
                });
            }
        }
        ends
    }
}

/// Two receives are appended while messages for both are on their way to software; a third message must not
/// take what belongs to the second, whenever it comes.
fn claimed(path: Path) {
    for steps in 0..STEPS {
        let mut world = World::new(path);
        let (first, second) = (world.send(1), world.send(2));
        world.device.settle();
        let receives = [world.post(1, ALL), world.post(2, ALL)];
        world.device.settle();
        let third = world.send(2);
        world.step(steps);
        // Both messages are claimed here; the third one may have arrived, or not.
        assert!(world.near.poll().is_none());
        let mut ends = world.ends();
        ends.sort_by_key(|(_, message)| *message);
        assert_eq!(
            ends,
            [(receives[0], Some(first)), (receives[1], Some(second))],
            "{steps} steps"
        );
        let last = world.post(0, 0);
        assert_eq!(world.ends(), [(last, Some(third))], "{steps} steps");
    }
}

#[test]
fn a_message_does_not_take_a_claimed_receive() {
    claimed(Path::Direct);
}

#[test]
fn a_message_does_not_take_a_claimed_receive_through_verbs() {
    claimed(Path::Verbs);
}

/// A message arrives at any step of the removal of its receive.
fn cancelled(path: Path) {
    let (mut in_time, mut late) = (0, 0);
    for steps in 0..STEPS {
        let mut world = World::new(path);
        let receive = world.post(1, ALL);
        world.device.settle();
        while world.near.poll().is_some() {}
        let message = world.send(1);
        world.step(steps);
        world.near.cancel(receive).unwrap();
        let ends = world.ends();
        if ends == [(receive, None)] {
            in_time += 1;
            let next = world.post(1, ALL);
            assert_eq!(world.ends(), [(next, Some(message))], "{steps} steps");
        } else {
            late += 1;
            assert_eq!(ends, [(receive, Some(message))], "{steps} steps");
        }
        assert_eq!((world.near.outstanding(), world.near.unexpected()), (0, 0));
    }
    assert!(in_time > 0 && late > 0, "{in_time} {late}");
}

#[test]
fn a_message_and_a_cancellation_meet() {
    cancelled(Path::Direct);
}

#[test]
fn a_message_and_a_cancellation_meet_through_verbs() {
    cancelled(Path::Verbs);
}

/// An unexpected message at any step of an append: the receive gets it, and the next one goes to the
/// next receive.
fn appended(path: Path) {
    for steps in 0..STEPS {
        let mut world = World::new(path);
        let first = world.send(1);
        world.step(steps);
        let one = world.post(0, 0);
        world.step(3);
        let second = world.send(1);
        let two = world.post(1, ALL);
        let ends = world.ends();
        assert_eq!(ends, [(one, Some(first)), (two, Some(second))], "{steps} steps");
        assert!(!world.near.needs_synchronization());
    }
}

#[test]
fn a_message_and_an_append_meet() {
    appended(Path::Direct);
}

#[test]
fn a_message_and_an_append_meet_through_verbs() {
    appended(Path::Verbs);
}
