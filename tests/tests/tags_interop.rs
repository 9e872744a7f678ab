//! Tag matching with a C program that uses `ibv_post_srq_ops`, in another process: each side receives what
//! the other sends.

use std::thread;
use std::time::Instant;

use doorbell::tags::{
    Offload, PeerAddress, PeerId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, Mtu, QpAddress, QpConfig};
use doorbell_tests::c_program::Program;
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::{device, skip};

const ALL: u64 = u64::MAX;

struct World {
    program: Program,
    tags: TagMatchingSrq,
    peer: PeerId,
    pool: BufferPool,
    readable: BufferPool,
}

impl World {
    fn new(offload: Offload) -> Self {
        let mut program = Program::start("tags");
        let pd = device::pd();
        let config = TagMatchingConfig::new(16).path(device::path()).offload(offload);
        let mut tags = TagMatchingSrq::new(&pd, &config).unwrap();
        tags.fill(&BufferPool::new(&pd, 128, 16384 + 64).unwrap()).unwrap();
        let peer = tags.add_peer(&QpConfig::rc().mtu(Mtu::Mtu1024)).unwrap();
        let here = tags.address(peer).unwrap();
        let line = program.hear();
        let numbers: Vec<u32> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        let [lid, incoming, outgoing, psn] = numbers[..] else { panic!("{line}") };
        let address = |qpn| {
            let mtu = Mtu::Mtu1024;
            QpAddress { lid: lid as u16, gid: [0; 16], qpn, psn, mtu }
        };
        let PeerAddress { incoming: receives, outgoing: sends } = here;
        let there = PeerAddress { incoming: address(incoming), outgoing: address(outgoing) };
        tags.connect(peer, &there).unwrap();
        let connect = format!(
            "connect {} {} {} {} {}",
            receives.lid, receives.qpn, receives.psn, sends.qpn, sends.psn
        );
        assert_eq!(program.ask(&connect), "connected");
        let pool = BufferPool::new(&pd, 32, 16384).unwrap();
        let readable = BufferPool::readable(&pd, 32, 16384).unwrap();
        Self { program, tags, peer, pool, readable }
    }

    fn event(&mut self) -> TagEvent {
        let began = Instant::now();
        loop {
            if let Some(event) = self.tags.poll() {
                return event;
            }
            assert!(began.elapsed() < PATIENCE, "no event");
            thread::yield_now();
        }
    }
}

/// What the C program computes of the bytes that it has received or sent.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()))
}

fn can_match() -> bool {
    let config = TagMatchingConfig::new(1).path(device::path());
    TagMatchingSrq::new(&device::pd(), &config).is_ok_and(|tags| tags.offload())
}

/// What is sent: tag, context, bytes, whether by rendezvous.
const MESSAGES: [(u64, u32, usize, bool); 6] = [
    (1, 10, 0, false),
    (2, 11, 100, false),
    (0xffff_0000_1234_5678, 12, 9000, false),
    (3, 13, 16000, true),
    (4, 14, 1, true),
    (5, 15, 8192, true),
];

#[test]
fn a_c_program_receives_from_doorbell() {
    if !can_match() {
        skip!("no device here matches tags");
    }
    for offload in [Offload::Required, Offload::Never] {
        let mut world = World::new(offload);
        for (tag, context, len, rendezvous) in MESSAGES {
            assert_eq!(world.program.ask(&format!("add {tag} {ALL}")), "added");
            world.program.say("receive");
            let payload: Vec<u8> = (0..len).map(|i| (i * 13) as u8).collect();
            if rendezvous {
                let mut buffer = world.readable.take().unwrap();
                buffer.set_len(len);
                buffer.copy_from_slice(&payload);
                world.tags.send_rendezvous(world.peer, tag, context, buffer).unwrap();
            } else {
                let mut message = TaggedBuffer::new(world.pool.take().unwrap()).unwrap();
                message.set_len(len);
                message.copy_from_slice(&payload);
                world.tags.send(world.peer, tag, context, message).unwrap();
            }
            let expected = format!("got {tag} {context} {len} {}", sum(&payload));
            assert_eq!(world.program.hear(), expected);
            match world.event() {
                TagEvent::Sent(sent) => {
                    assert!(sent.status.is_success() && sent.rendezvous == rendezvous);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn doorbell_receives_from_a_c_program() {
    if !can_match() {
        skip!("no device here matches tags");
    }
    for offload in [Offload::Required, Offload::Never] {
        for early in [true, false] {
            let mut world = World::new(offload);
            for (tag, context, len, rendezvous) in MESSAGES {
                let what = if rendezvous { "offer" } else { "send" };
                let buffer = world.pool.take().unwrap();
                let send = format!("{what} {tag} {context} {len}");
                if early {
                    world.tags.post(tag, ALL, buffer).unwrap();
                    world.program.say(&send);
                } else {
                    world.program.say(&send);
                    let began = Instant::now();
                    while world.tags.probe(tag, ALL).is_none() {
                        assert!(began.elapsed() < PATIENCE, "no message");
                    }
                    world.tags.post(tag, ALL, buffer).unwrap();
                }
                let TagEvent::Received(got) = world.event() else { panic!("no message") };
                assert_eq!((got.tag, got.context, got.buffer.len()), (tag, context, len));
                assert_eq!(got.by_library, !early || offload == Offload::Never);
                assert!(world.tags.poll().is_none());
                let printed = world.program.hear();
                let expected = format!("sent {}", sum(&got.buffer));
                assert_eq!(printed, expected, "{send}, {offload:?}, {early}");
            }
        }
    }
}
