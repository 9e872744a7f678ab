//! Ethernet frames on a stepped device: matched by a rule, read in place, taken, dropped, spread.

use std::collections::VecDeque;
use std::net::IpAddr;

use doorbell::frames::{Flow, FrameConfig, FrameReceiver, TakenFrame};
use doorbell::{Cause, DataPath, Error, NotSent, Timestamps, WcStatus};
use doorbell_stepped_tests::frames::{
    GROUP, OTHER, PLAIN, PORT, Publisher, SOURCE, STRIDING, SteppedFrames, datagram, ethernet, feed, is_datagram,
};
use doorbell_stepped_tests::{PATHS, cq, open, with_each_receiver};
use etherparse::PacketBuilder;
use soft_mlx5::{Device, LinkLayer};

with_each_receiver! {
    a_rule_brings_what_matches_and_nothing_else
    taken_frames_stay_as_they_are
    bursts_fill_the_queue
    frames_one_at_a_time_with_and_without_a_pause
}

fn a_rule_brings_what_matches_and_nothing_else(config: &FrameConfig, path: DataPath, _: u32) {
    let mut world = SteppedFrames::new(config, path);
    world.send(100, 0);
    world.expect_nothing();
    let rule = world.attach();
    // Every length, through all laps of the queues: lengths of inline and of gathered frames.
    for (round, len) in (60..1500).chain([60; 300]).enumerate() {
        world.send(len, round as u8);
        if round % 3 == 0 {
            world.publisher.send(&world.device, &datagram(OTHER, 5, 80, 1), true);
        }
        world.expect(len, round as u8);
    }
    world.expect_nothing();
    drop(rule);
    world.send(100, 0);
    world.expect_nothing();
}

/// Taken frames keep their bytes while others arrive. When all buffers are taken the device drops and counts frames,
/// and goes on when some buffers are back.
fn taken_frames_stay_as_they_are(config: &FrameConfig, path: DataPath, per_buffer: u32) {
    let mut world = SteppedFrames::new(config, path);
    let _rule = world.attach();
    let mut taken: VecDeque<(TakenFrame, u8)> = VecDeque::new();
    // After this number of frames the striding queue starts a buffer.
    for round in 0..598 {
        let first = round as u8;
        world.send(1400, first);
        let mut batch = world.receiver.poll();
        let frame = batch.next().expect("a frame").unwrap();
        if round % 2 == 0 {
            taken.push_back((frame.take(), first));
        }
        drop(batch);
        if taken.len() > 3 {
            let (frame, first) = taken.pop_front().unwrap();
            assert!(is_datagram(&frame, 1400, first));
        }
    }
    taken.clear();
    // These fill eight buffers. Later frames find none.
    for round in 0..8 * per_buffer {
        world.send(1400, round as u8);
        let mut batch = world.receiver.poll();
        let frame = batch.next().unwrap_or_else(|| panic!("frame {round}")).unwrap();
        taken.push_back((frame.take(), round as u8));
    }
    for _ in 0..5 {
        world.send(1400, 0);
    }
    world.expect_nothing();
    assert!(taken.iter().all(|(frame, first)| is_datagram(frame, 1400, *first)));
    std::thread::spawn(move || drop(taken)).join().unwrap();
    // The receiver looks for buffers when a batch ends.
    world.expect_nothing();
    world.send(1400, 77);
    let mut batch = world.receiver.poll();
    let frame = batch.next().expect("a frame").unwrap();
    let counted = if path == DataPath::Verbs { None } else { Some(5) };
    assert_eq!((frame.dropped_before(), is_datagram(&frame, 1400, 77)), (counted, true));
    // A frame outlives its receiver.
    let frame = frame.take();
    drop(batch);
    drop(world);
    assert!(is_datagram(&frame, 1400, 77));
}

/// Batches that end late and are forgotten, with exactly sized queues.
fn bursts_fill_the_queue(config: &FrameConfig, path: DataPath, _: u32) {
    let mut world = SteppedFrames::new(config, path);
    let _rule = world.attach();
    let (mut sent, mut received) = (0u32, 0u32);
    for round in 0..300 {
        for _ in 0..1 + round % 4 {
            world.send(1400, sent as u8);
            sent += 1;
        }
        let mut batch = world.receiver.poll_up_to(3);
        while let Some(frame) = batch.next() {
            let frame = frame.unwrap();
            assert_eq!(frame.dropped_before(), (path == DataPath::Direct).then_some(0));
            assert!(is_datagram(&frame, 1400, received as u8));
            received += 1;
        }
        if round % 5 == 0 {
            std::mem::forget(batch);
            // The doorbell that was forgotten.
            drop(world.receiver.poll());
        } else {
            drop(batch);
        }
        while sent - received > 0 {
            world.expect(1400, received as u8);
            received += 1;
        }
    }
}

/// With exactly sized queues. No frame finds the queue without a buffer, though some are kept and there is not always a
/// call that finds nothing.
fn frames_one_at_a_time_with_and_without_a_pause(config: &FrameConfig, path: DataPath, _: u32) {
    let mut world = SteppedFrames::new(config, path);
    let _rule = world.attach();
    let mut kept: VecDeque<(TakenFrame, u8)> = VecDeque::new();
    let (mut sent, mut received) = (0u32, 0u32);
    for round in 0..600 {
        // The buffer of the frame before comes back with the next call.
        while sent - received < 3 {
            world.send(1400, sent as u8);
            sent += 1;
        }
        for _ in 0..1 + round % 3 {
            let frame = world.receiver.next().expect("a frame").unwrap();
            assert_eq!(frame.dropped_before(), (path == DataPath::Direct).then_some(0));
            assert!(is_datagram(&frame, 1400, received as u8));
            if round % 2 == 0 {
                kept.push_back((frame.take(), received as u8));
            }
            received += 1;
            while kept.len() > 3 {
                let (frame, first) = kept.pop_front().unwrap();
                assert!(is_datagram(&frame, 1400, first));
            }
        }
        if round % 5 == 0 {
            while received < sent {
                world.expect(1400, received as u8);
                received += 1;
            }
            assert!(world.receiver.next().is_none());
        }
    }
}

/// All 64 buffers are full. The calls post those of 16 frames at a time, so that as many new frames find room.
#[test]
fn frames_one_at_a_time_give_their_buffers_back_in_time() {
    for path in PATHS {
        let mut world = SteppedFrames::new(&FrameConfig::new().plain(64, 2048), path);
        let _rule = world.attach();
        (0..64).for_each(|first| world.send(100, first));
        let mut next = 0u8;
        let mut expect_next = |world: &mut SteppedFrames| {
            let frame = world.receiver.next().expect("a frame").unwrap();
            assert!(is_datagram(&frame, 100, next));
            next = next.wrapping_add(1);
        };
        expect_next(&mut world);
        for lap in 4..40u8 {
            // The last of these calls posts what the 16 before have read.
            (0..16).for_each(|_| expect_next(&mut world));
            (0..16).for_each(|at| world.send(100, lap.wrapping_mul(16) + at));
        }
        // The call that finds nothing posts the rest, be it as little as three buffers.
        for left in [63, 3] {
            assert_eq!(std::iter::from_fn(|| world.receiver.next().map(|frame| frame.unwrap().len())).count(), left);
            (0..3).for_each(|first| world.send(100, first));
        }
        (3..64).for_each(|first| world.send(100, first));
        (0..64).for_each(|first| world.expect(100, first));
    }
}

#[test]
fn the_device_says_what_it_found() {
    for config in [PLAIN, STRIDING] {
        let config = config.vlan_stripping(true).cq(cq(DataPath::Direct).timestamps(Timestamps::Ticks));
        let (device, pd) = ethernet();
        let mut receiver = FrameReceiver::new(&pd, &config).unwrap();
        let mut publisher = Publisher::new(&device, DataPath::Direct);
        let tagged = feed().vlan(100).tag(7);
        let plain = Flow::udp(OTHER, PORT).tag(0xff_ffff).source(SOURCE);
        let _rules = [tagged, plain].map(|flow| receiver.attach(&flow).unwrap());
        let mut frame = datagram(GROUP, 5, 200, 1);
        frame.splice(12..12, [0x81, 0x00, 0x60, 100]);
        publisher.send(&device, &frame, true);
        // Frames of another VLAN, of none, and with a wrong checksum.
        frame[15] = 101;
        publisher.send(&device, &frame, true);
        publisher.send(&device, &datagram(GROUP, 5, 200, 1), true);
        let mut wrong = datagram(OTHER, 5, 300, 2);
        wrong[40] = 0x55;
        publisher.send(&device, &wrong, false);

        let clock = receiver.clock().unwrap();
        let mut batch = receiver.poll();
        let frame = batch.next().unwrap().unwrap();
        assert_eq!((frame.vlan(), frame.tag(), frame.checksum_ok()), (Some(0x6064), Some(7), true));
        assert!(is_datagram(&frame, 200, 1), "the tag is out of the frame");
        let first = clock.nanoseconds(frame.timestamp().unwrap()).unwrap();
        let frame = batch.next().unwrap().unwrap();
        assert_eq!((frame.vlan(), frame.tag()), (None, Some(0xff_ffff)));
        assert!(!frame.checksum_ok());
        assert!(clock.nanoseconds(frame.timestamp().unwrap()).unwrap() >= first);
        assert!(batch.next().is_none());
        drop(batch);
    }
}

/// A frame that is longer than the buffers costs one buffer for a moment, and nothing else.
#[test]
fn a_frame_that_is_too_long_fails_alone() {
    let mut world = SteppedFrames::new(&FrameConfig::new().plain(4, 128).spare(0), DataPath::Direct);
    let _rule = world.attach();
    for round in 0..20 {
        world.send(128, round);
        world.send(129, round);
        world.send(100, round);
        world.expect(128, round);
        let failure = world.receiver.poll().next().unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::Status(WcStatus::LOC_LEN_ERR));
        world.expect(100, round);
    }
    for round in 0..4 {
        world.send(100, round);
    }
    (0..4).for_each(|round| world.expect(100, round));
}

/// A packet from port 5 of one host to `port` of another, with its checksums.
fn packet(hosts: [IpAddr; 2], tcp: bool, port: u16) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]);
    let network = match hosts {
        [IpAddr::V4(from), IpAddr::V4(to)] => link.ipv4(from.octets(), to.octets(), 16),
        [IpAddr::V6(from), IpAddr::V6(to)] => link.ipv6(from.octets(), to.octets(), 16),
        _ => panic!("{hosts:?}"),
    };
    let mut frame = Vec::new();
    match tcp {
        true => network.tcp(5, port, 1, 1024).write(&mut frame, b"payload").unwrap(),
        false => network.udp(5, port).write(&mut frame, b"payload").unwrap(),
    }
    frame
}

/// A rule for each version of IP and each protocol: nothing else comes, and a rule for the MAC address gets the rest.
#[test]
fn ports_of_this_host() {
    let hosts = |[a, b]: [&str; 2]| [a, b].map(|host| host.parse::<IpAddr>().unwrap());
    let versions = [hosts(["192.0.2.7", "192.0.2.10"]), hosts(["2001:db8::7", "2001:db8::a"])];
    for path in PATHS {
        let mut world = SteppedFrames::new(&PLAIN, path);
        let mut rest = FrameReceiver::new(world.receiver.pd(), &PLAIN.cq(cq(path))).unwrap();
        let _rest = rest.attach(&Flow::mac([2, 0, 0, 0, 0, 9]).priority(1)).unwrap();
        for [from, to] in versions {
            for tcp in [false, true] {
                let flow = if tcp { Flow::tcp(to, 443) } else { Flow::udp(to, 443) };
                let rule = world.receiver.attach(&flow.source(from)).unwrap();
                let mine = packet([from, to], tcp, 443);
                let others = versions.into_iter().flat_map(|[source, host]| {
                    let elsewhere = packet([host, host], tcp, 443);
                    [packet([source, host], !tcp, 443), packet([source, host], tcp, 444), elsewhere]
                });
                for other in others {
                    world.publisher.send(&world.device, &other, false);
                    assert!(rest.poll().next().is_some_and(|frame| frame.unwrap().starts_with(&other)));
                    world.expect_nothing();
                }
                world.publisher.send(&world.device, &mine, false);
                let mut batch = world.receiver.poll();
                let frame = batch.next().expect("the rule has the port").unwrap();
                assert!(frame.starts_with(&mine), "{frame:?}");
                // libibverbs reports those of IPv4 only.
                assert_eq!(frame.checksum_ok(), path == DataPath::Direct || from.is_ipv4(), "{frame:?}");
                drop(batch);
                assert!(rest.poll().next().is_none());
                drop(rule);
            }
        }
    }
}

#[test]
fn a_hash_spreads_frames_over_receivers() {
    for config in [PLAIN, STRIDING] {
        let (device, pd) = ethernet();
        let mut receivers = FrameReceiver::spread(&pd, &config, 4).unwrap();
        let mut publisher = Publisher::new(&device, DataPath::Direct);
        let rule = receivers[1].attach(&feed()).unwrap();
        let mut counts = [0; 4];
        for port in 0..200 {
            // Two frames of each source come to the same receiver.
            let mut at = [usize::MAX; 2];
            for at in &mut at {
                publisher.send(&device, &datagram(GROUP, port, 300, port as u8), true);
                for (i, receiver) in receivers.iter_mut().enumerate() {
                    let mut batch = receiver.poll();
                    while let Some(frame) = batch.next() {
                        assert!(is_datagram(&frame.unwrap(), 300, port as u8));
                        assert_eq!(std::mem::replace(at, i), usize::MAX);
                        counts[i] += 1;
                    }
                }
                assert_ne!(*at, usize::MAX, "a frame is lost");
            }
            assert_eq!(at[0], at[1]);
        }
        assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
        // The rule leads to all of them until it is dropped.
        drop(receivers.remove(0));
        publisher.send(&device, &datagram(GROUP, 1, 300, 1), true);
        drop((receivers, publisher));
        drop(rule);
    }
}

#[test]
fn what_is_not_possible_is_refused_in_words() {
    let world = SteppedFrames::new(&PLAIN, DataPath::Direct);
    let pd = world.receiver.pd().clone();
    let refused = |config: &FrameConfig| FrameReceiver::new(&pd, config).unwrap_err().to_string();
    assert!(refused(&STRIDING.cq(cq(DataPath::Verbs))).contains("FrameConfig::plain"));
    assert!(refused(&PLAIN.cq(cq(DataPath::Verbs)).vlan_stripping(true)).contains("verbs path"));
    assert!(refused(&PLAIN.striding(4, 16384, 64)).contains("strides of a buffer"));
    let here = std::net::Ipv4Addr::LOCALHOST;
    for flow in [Flow::mac([2; 6]).source(here), Flow::mac([2; 6]).tag(1).join_on(here)] {
        let refused = world.receiver.attach(&flow).unwrap_err().to_string();
        assert!(refused.contains("use Flow::udp"), "{refused}");
    }
    let few = FrameReceiver::spread(&pd, &PLAIN, 3).unwrap_err();
    assert!(few.to_string().contains("power of two"), "{few}");
    let spread = FrameReceiver::spread(&pd, &PLAIN.cq(cq(DataPath::Verbs)), 2).unwrap_err();
    assert!(matches!(spread, Error::Unsupported { .. }), "{spread}");
}

#[test]
fn an_infiniband_port_is_refused() {
    let (_device, pd) = open(Device::builder());
    for config in [PLAIN, STRIDING, PLAIN.cq(cq(DataPath::Verbs))] {
        let refused = FrameReceiver::new(&pd, &config).unwrap_err();
        assert!(refused.to_string().contains("use an Ethernet port"), "{refused}");
    }
}

#[test]
fn two_rules_of_one_match_need_one_tag() {
    let world = SteppedFrames::new(&PLAIN, DataPath::Direct);
    let other = FrameReceiver::new(world.receiver.pd(), &PLAIN).unwrap();
    let flow = feed();
    let _rule = world.receiver.attach(&flow.clone().tag(1)).unwrap();
    let refused = other.attach(&flow.clone().tag(2)).unwrap_err().to_string();
    assert!(refused.contains("ibv_create_flow") && refused.contains("File exists"), "{refused}");
    let _same = other.attach(&flow.tag(1)).unwrap();
}

#[test]
fn frames_are_not_messages() {
    let mut world = SteppedFrames::new(&PLAIN, DataPath::Direct);
    let Publisher { sender, frames, .. } = &mut world.publisher;
    let queue = frames.send_queue().unwrap();
    let mut posting = sender.post_many(queue).unwrap();
    assert!(matches!(posting.send(b"hello").unwrap_err(), NotSent::Transport));
    let runt = posting.token(7).send_frame(&[0; 18], false).unwrap_err();
    assert!(matches!(runt, NotSent::Runt { len: 18, min: 19 }), "{runt}");
    // The token was that of the refused request.
    posting.own_cqe().send_frame(&[0; 60], false).unwrap();
    drop(posting);
    world.device.settle();
    assert_eq!(sender.poll().next().unwrap().unwrap().token, 0);
}

#[test]
fn the_missing_capability_is_named() {
    let builder = Device::builder().link_layer(LinkLayer::Ethernet).refuse_raw(true);
    let (_device, pd) = open(builder.stepped());
    for config in [PLAIN, STRIDING, PLAIN.cq(cq(DataPath::Verbs))] {
        let refused = FrameReceiver::new(&pd, &config).unwrap_err();
        assert!(matches!(refused, Error::NeedsNetRaw { .. }), "{refused}");
        assert!(refused.to_string().contains("CAP_NET_RAW"), "{refused}");
    }
}

/// A frame is taken from a buffer that has strides left, and the others are lent and given back. The buffer is posted
/// again when the frame was dropped, and not before.
#[test]
fn a_frame_taken_from_a_buffer_that_is_not_full_stays_when_the_queue_goes_round() {
    let mut world = SteppedFrames::new(&STRIDING, DataPath::Direct);
    let _rule = world.attach();
    // The first, a middle and the last frame of a buffer.
    for (before, number) in [(0, 0xa0), (10, 0xa1), (22, 0xa2)] {
        let lend = |world: &mut SteppedFrames, count: u32| {
            for number in 0..count {
                world.send(1400, number as u8);
                world.expect(1400, number as u8);
            }
        };
        lend(&mut world, before);
        world.send(1400, number);
        let taken = world.receiver.poll().next().expect("a frame").unwrap().take();
        // More than all buffers hold, to the start of one.
        lend(&mut world, 6 * 23 - before - 1);
        assert!(is_datagram(&taken, 1400, number), "the frame after {before} others of its buffer is overwritten");
    }
}
