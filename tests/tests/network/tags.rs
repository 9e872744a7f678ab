//! Tag matching with a C program that uses `ibv_post_srq_ops`, in another process: each side receives
//! messages of the other.

use doorbell::tags::{Offload, PeerAddress, TagEvent};
use doorbell::{Mtu, QpAddress, QpConfig};
use doorbell_tests::c_program::Program;
use doorbell_tests::tags::{ALL, SHAPE, Shape, Side, ways};
use doorbell_tests::{assert_matches, device, receiving, skip};

/// A connection between a side and the program.
fn connect(offload: Offload) -> (Program, Side) {
    let mut program = Program::start("tags");
    let shape = Shape { spare: 64, buffer_size: 16_384, ..SHAPE };
    let mut side = Side::new(&device::pd(), offload, &shape);
    let peer = side.tags.add_peer(&QpConfig::rc().mtu(Mtu::Mtu1024)).unwrap();
    let line = program.hear();
    let numbers: Vec<u32> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let [lid, incoming, outgoing, psn] = numbers[..] else { panic!("{line}") };
    let address = |qpn| QpAddress { lid: lid as u16, gid: [0; 16], qpn, psn, mtu: Mtu::Mtu1024 };
    let there = PeerAddress { incoming: address(incoming), outgoing: address(outgoing) };
    let PeerAddress { incoming: receives, outgoing: sends } = side.tags.address(peer).unwrap();
    side.tags.connect(peer, &there).unwrap();
    side.peers.push(peer);
    let connect = format!("connect {} {} {} {} {}", receives.lid, receives.qpn, receives.psn, sends.qpn, sends.psn);
    assert_eq!(program.ask(&connect), "connected");
    (program, side)
}

/// The sum that the C program computes of the bytes that it has received or sent.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()))
}

/// The messages: tag, context, bytes, whether by rendezvous.
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
    if !ways().contains(&Offload::Required) {
        skip!("no device here matches tags");
    }
    for offload in ways() {
        let (mut program, mut side) = connect(offload);
        for (tag, context, len, rendezvous) in MESSAGES {
            assert_eq!(program.ask(&format!("add {tag} {ALL}")), "added");
            program.say("receive");
            let payload: Vec<u8> = (0..len).map(|i| (i * 13) as u8).collect();
            if rendezvous {
                side.offer(0, tag, context, &payload);
            } else {
                side.send(0, tag, context, &payload);
            }
            let expected = format!("got {tag} {context} {len} {}", sum(&payload));
            assert_eq!(program.hear(), expected);
            assert_eq!(side.sent(), rendezvous);
        }
    }
}

#[test]
fn doorbell_receives_from_a_c_program() {
    if !ways().contains(&Offload::Required) {
        skip!("no device here matches tags");
    }
    for (offload, early) in ways().into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let (mut program, mut side) = connect(offload);
        for (tag, context, len, rendezvous) in MESSAGES {
            let what = if rendezvous { "offer" } else { "send" };
            let send = format!("{what} {tag} {context} {len}");
            if early {
                side.post(tag, ALL);
                program.say(&send);
            } else {
                program.say(&send);
                receiving::wait("a message", || side.tags.probe(tag, ALL).is_some());
                side.post(tag, ALL);
            }
            assert_matches!(side.event(), TagEvent::Received(got) => {
                assert_eq!((got.tag, got.context, got.buffer.len()), (tag, context, len));
                assert_eq!(got.by_library, !early || offload == Offload::Never);
                assert!(side.tags.next().is_none());
                let expected = format!("sent {}", sum(&got.buffer));
                assert_eq!(program.hear(), expected, "{send}, {offload:?}, {early}");
            });
        }
    }
}
