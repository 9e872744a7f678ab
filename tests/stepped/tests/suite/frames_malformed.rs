//! Malformed frames: each has a verdict or a clear failure, keeps its bytes, and costs no other frame.

use doorbell::frames::Flow;
use doorbell::{Cause, DataPath, WcStatus};
use doorbell_stepped_tests::frames::{ALL, GROUP, PLAIN, STRIDING, SteppedFrames, datagram};
use fastrand::Rng;

/// Where the headers of IP and UDP begin.
const IP: usize = 14;
const UDP: usize = 34;
/// Address of the receiver: its rule takes every frame to it.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Puts the checksum of the IP header right, as a sender would.
fn seal(frame: &mut [u8]) {
    let end = IP + usize::from(frame[IP] & 15) * 4;
    frame[IP + 10..IP + 12].fill(0);
    let sum = sum(&frame[IP..end]);
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
}

/// A datagram of 80 bytes for the receiver, with right checksums.
fn sound() -> Vec<u8> {
    let mut frame = datagram(GROUP, 5, 80, 1);
    frame[..6].copy_from_slice(&MAC);
    seal(&mut frame);
    // The sum of UDP also covers addresses, protocol and length.
    let length = &frame[UDP + 4..UDP + 6];
    let covered = [&frame[IP + 12..IP + 20], &[0, 17], length, &frame[UDP..]].concat();
    let sum = sum(&covered).to_be_bytes();
    frame[UDP + 6..UDP + 8].copy_from_slice(&sum);
    frame
}

fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = sound();
    change(&mut frame);
    frame
}

fn fragment(flags_and_offset: u16) -> Vec<u8> {
    changed(|frame| {
        frame[IP + 6..IP + 8].copy_from_slice(&flags_and_offset.to_be_bytes());
        seal(frame);
    })
}

/// A description of each frame, its bytes, and whether its checksums are right.
fn kinds() -> Vec<(&'static str, Vec<u8>, bool)> {
    vec![
        ("as it should be", sound(), true),
        ("a runt of headers", changed(|frame| frame.truncate(42)), false),
        ("a runt without an IP header", changed(|frame| frame.truncate(20)), false),
        ("a wrong sum of the IP header", changed(|frame| frame[IP + 8] ^= 1), false),
        ("a wrong sum of UDP", changed(|frame| frame[79] ^= 1), false),
        ("no sum of UDP", changed(|frame| frame[UDP + 6..UDP + 8].fill(0)), true),
        ("a length of UDP beyond the packet", changed(|frame| frame[UDP + 4] = 1), false),
        (
            "a length of IP beyond the frame",
            changed(|frame| {
                frame[IP + 2] = 1;
                seal(frame);
            }),
            false,
        ),
        (
            "a header of IP beyond the frame",
            changed(|frame| {
                frame.truncate(60);
                frame[IP] = 0x4f;
            }),
            false,
        ),
        ("a header of IP that is too short", changed(|frame| frame[IP] = 0x44), false),
        ("another version of IP", changed(|frame| frame[IP] = 0x55), false),
        ("the first fragment", fragment(0x2000), false),
        ("a middle fragment", fragment(0x2010), false),
        ("the last fragment", fragment(0x0020), false),
        ("no IP", changed(|frame| frame[12..14].copy_from_slice(&[0x08, 0x06])), false),
        ("a VLAN", changed(|frame| drop(frame.splice(12..12, [0x81, 0, 0, 7]))), true),
        ("a VLAN in a VLAN", changed(|frame| drop(frame.splice(12..12, [0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]))), true),
        (
            "a VLAN tag at the end",
            changed(|frame| {
                frame.truncate(12);
                frame.extend([0x81, 0].repeat(24));
            }),
            false,
        ),
    ]
}

/// Sends a frame, and checks that it arrives as it was sent, padded to 60 bytes. Returns the verdict.
fn verdict(world: &mut SteppedFrames, what: &str, sent: &[u8]) -> bool {
    world.publisher.send(&world.device, sent, false);
    let mut batch = world.receiver.poll();
    let frame = batch.next().unwrap_or_else(|| panic!("{what} is lost")).unwrap();
    assert_eq!(frame.len(), sent.len().max(60), "{what}");
    assert!(frame.starts_with(sent), "{what}: {frame:x?}");
    assert!(frame[sent.len()..].iter().all(|byte| *byte == 0), "{what}: padding is {frame:x?}");
    let verdict = frame.checksum_ok();
    assert_eq!(frame.dropped_before().unwrap_or(0), 0, "{what}");
    assert!(batch.next().is_none(), "{what} came twice");
    verdict
}

#[test]
fn every_kind_has_its_verdict() {
    for (config, path, _) in ALL {
        let mut world = SteppedFrames::new(&config, path);
        let _rule = world.receiver.attach(&Flow::mac(MAC)).unwrap();
        for (what, frame, is_sound) in kinds() {
            assert_eq!(verdict(&mut world, what, &frame), is_sound, "{what}");
            // A frame that is well comes well.
            assert!(verdict(&mut world, "the next", &sound()), "after {what}");
        }
    }
}

#[test]
fn frames_with_random_bytes_arrive() {
    for (config, path, _) in ALL {
        let mut world = SteppedFrames::new(&config, path);
        let _rule = world.receiver.attach(&Flow::mac(MAC)).unwrap();
        let kinds = kinds();
        let mut random = Rng::with_seed(0x22);
        for _ in 0..3000 {
            let (_, mut frame, _) = random.choice(&kinds).unwrap().clone();
            for _ in 0..random.usize(0..6) {
                let at = random.usize(12..frame.len());
                frame[at] = random.u8(..);
            }
            frame.resize(random.usize(20..200), 0xee);
            let is_sound = verdict(&mut world, "a random frame", &frame);
            // A frame with a wrong sum of the IP header is not reported as right.
            let header = usize::from(frame[IP] & 15) * 4;
            if is_sound && frame[12..14] == [8, 0] {
                assert_eq!(sum(&frame[IP..IP + header]), 0, "{frame:x?}");
            }
        }
    }
}

/// Tags go out of a frame one at a time: the outer one.
#[test]
fn a_vlan_in_a_vlan_loses_its_outer_tag() {
    for config in [PLAIN, STRIDING] {
        let mut world = SteppedFrames::new(&config.vlan_stripping(true), DataPath::Direct);
        let _rule = world.receiver.attach(&Flow::mac(MAC)).unwrap();
        let sent = changed(|frame| drop(frame.splice(12..12, [0x81, 0, 0, 9, 0x81, 0, 0, 7])));
        world.publisher.send(&world.device, &sent, false);
        let mut batch = world.receiver.poll();
        let frame = batch.next().unwrap().unwrap();
        assert_eq!((frame.vlan(), frame.checksum_ok()), (Some(9), true));
        assert_eq!(frame[12..18], [0x81, 0, 0, 7, 8, 0]);
        assert_eq!(frame[18..], sent[22..]);
    }
}

/// A jumbo frame fails where it does not fit, and alone; in strides it fits.
#[test]
fn jumbo_frames_fail_alone_or_fit() {
    for (config, path, each) in ALL {
        let mut world = SteppedFrames::new(&config, path);
        let _rule = world.receiver.attach(&Flow::mac(MAC)).unwrap();
        for round in 0..20 {
            let mut jumbo = datagram(GROUP, 5, 9000 - round, 1);
            jumbo[..6].copy_from_slice(&MAC);
            if each > 1 {
                verdict(&mut world, "a jumbo frame", &jumbo);
            } else {
                world.publisher.send(&world.device, &jumbo, false);
                let failure = world.receiver.poll().next().unwrap().unwrap_err();
                assert_eq!(failure.cause, Cause::Status(WcStatus::LOC_LEN_ERR));
            }
            assert!(verdict(&mut world, "the next", &sound()));
        }
    }
}

/// Frames that arrived by a rule keep its tag. The next rule in its place has another tag.
#[test]
fn the_tag_of_a_removed_rule_is_that_of_the_frames_it_brought() {
    for config in [PLAIN, STRIDING] {
        let mut world = SteppedFrames::new(&config, DataPath::Direct);
        let rule = world.receiver.attach(&Flow::mac(MAC).tag(9)).unwrap();
        let send = |world: &mut SteppedFrames| world.publisher.send(&world.device, &sound(), false);
        send(&mut world);
        drop(rule);
        // No receiver wants this frame.
        send(&mut world);
        let _rule = world.receiver.attach(&Flow::mac(MAC).tag(8)).unwrap();
        send(&mut world);
        let mut batch = world.receiver.poll();
        let tags = std::iter::from_fn(|| batch.next().map(|frame| frame.unwrap().tag()));
        assert_eq!(tags.collect::<Vec<_>>(), [Some(9), Some(8)]);
    }
}
