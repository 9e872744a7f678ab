//! Messages that arrive at any step between the operations on the tag list.

use doorbell::tags::{
    Offload, PeerId, ReceiveId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer, TaggedReceive,
};
use doorbell::{BufferPool, Completions, DataPath, Error, PoolConfig};
use doorbell_stepped_tests::{cq, is_readable, on_each_path, open, tag_lists};
use mlx5_wire::ctrl::SEND_WQE_BB;
use mlx5_wire::opcode::WqeOpcode;
use soft_mlx5::{Builder, Device, LinkLayer};

on_each_path! {
    a_message_does_not_take_a_claimed_receive
    a_message_and_a_cancellation_meet
    a_message_and_an_append_meet
    a_receive_that_waits_alone_is_left_to_the_device
    a_batch_rings_once
    one_call_takes_the_events_of_both_queues
    on_roce_commands_make_the_queues
    without_devx_the_library_matches_on_roce
}

const ALL: u64 = u64::MAX;
/// Small steps, more than a message needs to arrive, or a few list operations to be executed.
const STEPS: u32 = 12;

/// Which of two things is done first, and how many small steps of the device are between them.
#[derive(Clone, Copy, Debug)]
struct Gap {
    message_first: bool,
    steps: u32,
}

impl Gap {
    fn all() -> impl Iterator<Item = Self> {
        let both = [true, false].into_iter();
        both.flat_map(|message_first| (0..STEPS).map(move |steps| Self { message_first, steps }))
    }

    /// Sends a message for `tag` and does something else.
    fn apply<T>(self, world: &mut TagLists, tag: u64, other: impl FnOnce(&mut TagLists) -> T) -> (u32, T) {
        if self.message_first {
            let message = world.send(tag);
            world.step(self.steps);
            return (message, other(world));
        }
        let other = other(world);
        world.step(self.steps);
        (world.send(tag), other)
    }
}

/// Two tag lists on a device that works in small steps. Messages go from one to the other.
struct TagLists {
    near: TagMatchingSrq,
    far: TagMatchingSrq,
    to_near: PeerId,
    pool: BufferPool,
    sent: u32,
    device: Device,
}

impl TagLists {
    fn new(path: DataPath) -> Self {
        Self::on(Device::builder(), path, Offload::Required)
    }

    fn on(device: Builder, path: DataPath, offload: Offload) -> Self {
        let (device, pd) = open(device.small_steps().strict(true));
        let config = TagMatchingConfig::new(8).cq(cq(path)).offload(offload);
        let [(near, _), (far, to_near)] = tag_lists(&pd, &config);
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 256)).unwrap();
        Self { near, far, to_near, pool, sent: 0, device }
    }

    /// Sends a message; its context is its number. The device has not seen it yet.
    fn send(&mut self, tag: u64) -> u32 {
        while self.far.next().is_some() {}
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

    /// Receives that end until nothing more happens.
    fn ends(&mut self) -> Vec<(ReceiveId, Option<u32>)> {
        let mut ends = Vec::new();
        for _ in 0..4 {
            self.device.settle();
            while let Some(event) = self.near.next() {
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

/// Returns the receive of the next event, and the number of its message.
fn matched_by_the_device(world: &mut TagLists) -> (ReceiveId, u32) {
    match world.near.next() {
        Some(TagEvent::Received(got)) if !got.by_library => (got.receive, got.context),
        other => panic!("{other:?}"),
    }
}

/// Two receives are appended while messages for both are on their way to software. A third message must not
/// take the second receive, whenever it comes: also between the two removes of one doorbell. The first remove
/// must not report both messages to the device as handled.
fn a_message_does_not_take_a_claimed_receive(path: DataPath) {
    for gap in Gap::all() {
        let mut world = TagLists::new(path);
        let (first, second) = (world.send(1), world.send(2));
        world.device.settle();
        let receives = [world.post(1, ALL), world.post(2, ALL)];
        world.device.settle();
        let (third, ()) = gap.apply(&mut world, 2, |world| {
            // The device is busy with these before it comes to the removes.
            for _ in 0..3 {
                world.post(9, ALL);
            }
            // Both messages are claimed here; the third one may have arrived, or not.
            assert!(world.near.next().is_none());
        });
        let mut ends = world.ends();
        ends.sort_by_key(|(_, message)| *message);
        assert_eq!(ends, [(receives[0], Some(first)), (receives[1], Some(second))], "{gap:?}");
        let last = world.post(0, 0);
        assert_eq!(world.ends(), [(last, Some(third))], "{gap:?}");
    }
}

/// A message arrives at any step of the removal of its receive.
fn a_message_and_a_cancellation_meet(path: DataPath) {
    let (mut in_time, mut late) = (0, 0);
    for gap in Gap::all() {
        let mut world = TagLists::new(path);
        let receive = world.post(1, ALL);
        world.device.settle();
        while world.near.next().is_some() {}
        let cancel = |world: &mut TagLists| world.near.cancel(receive).unwrap();
        let (message, ()) = gap.apply(&mut world, 1, cancel);
        let ends = world.ends();
        if ends == [(receive, None)] {
            in_time += 1;
            let next = world.post(1, ALL);
            assert_eq!(world.ends(), [(next, Some(message))], "{gap:?}");
        } else {
            late += 1;
            assert_eq!(ends, [(receive, Some(message))], "{gap:?}");
        }
        assert_eq!((world.near.outstanding(), world.near.unexpected()), (0, 0));
    }
    assert!(in_time > 0 && late > 0, "{in_time} {late}");
}

/// An unexpected message at any step of an append: the receive gets it, and the next message goes to the
/// next receive. Then the device matches by itself again, as it does when the counts agree.
fn a_message_and_an_append_meet(path: DataPath) {
    for gap in Gap::all() {
        let mut world = TagLists::new(path);
        let (first, one) = gap.apply(&mut world, 1, |world| world.post(0, 0));
        world.step(3);
        let second = world.send(1);
        let two = world.post(1, ALL);
        let ends = world.ends();
        assert_eq!(ends, [(one, Some(first)), (two, Some(second))], "{gap:?}");
        assert!(!world.near.needs_synchronization());

        let three = world.post(1, ALL);
        world.device.settle();
        assert!(world.near.next().is_none());
        world.device.settle();
        let third = world.send(1);
        world.device.settle();
        assert_eq!(matched_by_the_device(&mut world), (three, third), "{gap:?}");
    }
}

/// A receive is appended while a message for no receive is on its way to software, and no operation follows:
/// the library synchronises by itself, or the device would leave the receive to it for ever.
fn a_receive_that_waits_alone_is_left_to_the_device(path: DataPath) {
    let mut world = TagLists::new(path);
    let other = world.send(9);
    world.device.settle();
    let receive = world.post(1, ALL);
    assert_eq!(world.ends(), []);
    let message = world.send(1);
    world.device.settle();
    assert_eq!(matched_by_the_device(&mut world), (receive, message));
    let last = world.post(9, ALL);
    assert_eq!(world.ends(), [(last, Some(other))]);
}

/// The doorbells of list operations in a trace: the index of the last WQE of each.
fn list_doorbells(trace: &str) -> Vec<&str> {
    let rung = trace.lines().filter(|line| line.contains(" doorbell uar="));
    let list = rung.filter(|line| line.contains("opcode=TAG_MATCHING"));
    list.filter_map(|line| line.split_once("wqe_index=")?.1.split(' ').next()).collect()
}

/// The channel has an event of the CQ of receives and one of that of sends.
fn one_call_takes_the_events_of_both_queues(path: DataPath) {
    let mut world = TagLists::new(path);
    assert!(!world.far.arm().unwrap());
    world.far.post(9, ALL, world.pool.take().unwrap()).unwrap();
    world.send(1);
    world.device.settle();
    assert!(is_readable(world.far.channel().unwrap()));
    assert!(matches!(world.far.next(), Some(TagEvent::Sent(_))));
    assert!(world.far.next().is_none() && !world.far.arm().unwrap());
    assert!(!is_readable(world.far.channel().unwrap()), "an event was left");
}

/// Receives of one call are handed over with one doorbell.
fn a_batch_rings_once(path: DataPath) {
    let file = std::env::temp_dir().join(format!("doorbell-batch-{}-{path}", std::process::id()));
    let mut world = TagLists::on(Device::builder().trace(&file), path, Offload::Required);
    let pool = world.pool.clone();
    let receives = |tags: std::ops::Range<u64>| {
        let pool = pool.clone();
        tags.map(move |tag| TaggedReceive::new(tag, ALL, pool.take().unwrap()))
    };
    world.near.post_all(receives(0..5)).unwrap();
    world.device.settle();
    assert_eq!(list_doorbells(&std::fs::read_to_string(&file).unwrap()), ["4"]);
    // A batch that fails: the doorbell rings for the part that was posted.
    let error = world.near.post_all(receives(5..10)).unwrap_err();
    assert_eq!(error.posted.len(), 3);
    drop(error);
    world.device.settle();
    assert_eq!(list_doorbells(&std::fs::read_to_string(&file).unwrap()), ["4", "7"]);
    while world.near.next().is_some() {}
    assert_eq!(world.near.outstanding(), 8);
    std::fs::remove_file(&file).unwrap();
}

/// On RoCE libmlx5 cannot connect the queue pair for the list. On the direct path the library makes the queues by
/// commands and the device matches; on the verbs path the library matches, and says why.
fn on_roce_commands_make_the_queues(path: DataPath) {
    let roce = Device::builder().link_layer(LinkLayer::Ethernet);
    let mut world = TagLists::on(roce, path, Offload::Auto);
    assert_eq!((world.near.offload(), world.near.path()), (path == DataPath::Direct, path));
    // The list of libmlx5 knows InfiniBand only.
    assert_eq!(world.near.offload_refused().is_some(), path == DataPath::Verbs);
    let receive = world.post(1, ALL);
    let message = world.send(1);
    assert_eq!(world.ends(), [(receive, Some(message))]);
    let cancelled = world.post(2, ALL);
    world.near.cancel(cancelled).unwrap();
    assert_eq!(world.ends(), [(cancelled, None)]);
}

fn without_devx_the_library_matches_on_roce(path: DataPath) {
    let roce = Device::builder().link_layer(LinkLayer::Ethernet).devx(false);
    let mut world = TagLists::on(roce, path, Offload::Auto);
    assert!(!world.near.offload());
    let refuses = |error: &Error| match path {
        DataPath::Direct => matches!(error, Error::Unsupported { operation: "mlx5dv_devx_umem_reg", .. }),
        _ => matches!(error, Error::Verbs { operation: "ibv_create_srq_ex", .. }),
    };
    assert!(world.near.offload_refused().is_some_and(refuses));
    let receive = world.post(1, ALL);
    let message = world.send(1);
    assert_eq!(world.ends(), [(receive, Some(message))]);
    let config = TagMatchingConfig::new(8).cq(cq(path)).offload(Offload::Required);
    assert!(refuses(&TagMatchingSrq::new(world.near.pd(), &config).unwrap_err()));
}

/// Returns the WQEs of some list operations, without number of the queue pair, keys and addresses, and without what
/// libmlx5 leaves of older WQEs.
fn list_operations(device: Builder, path: DataPath) -> Vec<[u8; SEND_WQE_BB]> {
    let mut world = TagLists::on(device, path, Offload::Required);
    let receives = [(1, ALL), (2, 0xff), (3, ALL)].map(|(tag, mask)| world.post(tag, mask));
    world.near.cancel(receives[1]).unwrap();
    assert_eq!(world.ends(), [(receives[1], None)]);
    // An unexpected message, which the device learns of by a synchronisation.
    let message = world.send(9);
    assert_eq!(world.ends(), []);
    let last = world.post(9, ALL);
    assert_eq!(world.ends(), [(last, Some(message))]);
    world.post(10, ALL);
    let opcode = |wqe: &[u8; SEND_WQE_BB]| wqe[3];
    let qps = world.device.queues().qps;
    let rings = qps.iter().filter(|qp| qp.attr.sq.count > 0).map(|qp| {
        let first = qp.attr.sq.buf as *const [u8; SEND_WQE_BB];
        // SAFETY: the ring of a queue pair that is alive; neither program nor device writes meanwhile.
        (0..8).map(|block| unsafe { first.add(block).read() }).collect::<Vec<_>>()
    });
    let mut list = rings.into_iter().find(|ring| opcode(&ring[0]) == WqeOpcode::TAG_MATCHING.get()).expect("a list");
    list.retain(|wqe| opcode(wqe) == WqeOpcode::TAG_MATCHING.get());
    for wqe in &mut list {
        const APPEND: u8 = 1;
        let append = wqe[16] >> 4 == APPEND;
        wqe[4..7].fill(0);
        wqe[if append { 52 } else { 32 }..].fill(0);
    }
    list
}

#[test]
fn commands_on_roce_and_libmlx5_on_infiniband_post_the_same() {
    let libmlx5 = list_operations(Device::builder(), DataPath::Verbs);
    let commands = list_operations(Device::builder().link_layer(LinkLayer::Ethernet), DataPath::Direct);
    assert!(libmlx5.len() >= 5, "{}", libmlx5.len());
    assert_eq!(commands, libmlx5);
}
