//! Messages that carry their data.

use super::*;
use crate::objects::strict::Rule;

#[test]
fn a_message_goes_into_the_oldest_buffer_that_its_tag_matches() {
    let mut world = World::new(&PLAIN);
    let exact = world.appended(0x15, ALL, 0, 100);
    let wild = world.appended(0x10, 0xf0, 1000, 100);
    let late = world.appended(0x15, ALL, 2000, 100);
    assert_eq!((exact, wild, late), (0, 1, 2));
    for (seed, tag, entry, at) in [(1, 0x15, exact, 0), (2, 0x15, wild, 1000), (3, 0x15, late, 2000)] {
        let payload = pattern(seed, 100);
        world.send_tagged(tag, &payload);
        let cqe = world.expect(AppOp::CONSUMED_MSG, entry);
        assert_eq!(cqe.byte_cnt.get(), 100);
        let tmh = header(&cqe);
        assert_eq!((tmh.app_ctx.get(), tmh.tag.get()), (0x1234, tag));
        assert_eq!(world.tagged(at, 100), payload);
    }
    world.cq.expect_nothing();
    world.fin_cq.expect_nothing();
    assert_eq!(world.send_cq.drain().len(), 3);
}

#[test]
fn a_long_message_matches_first_and_is_there_later() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(9, ALL, 3, 5000);
    let payload = pattern(1, 2000);
    world.send_tagged(9, &payload);
    let cqe = world.expect(AppOp::CONSUMED, entry);
    assert_eq!(header(&cqe).tag.get(), 9);
    let cqe = world.expect(AppOp::EXPECTED, entry);
    assert_eq!(cqe.byte_cnt.get(), 2000);
    assert_eq!(world.tagged(3, 2000), payload);
    world.cq.expect_nothing();
}

#[test]
fn an_empty_message_needs_no_buffer() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(9, ALL, 0, 0);
    world.send_tagged(9, &[]);
    assert_eq!(world.expect(AppOp::CONSUMED_MSG, entry).byte_cnt.get(), 0);
}

#[test]
fn a_buffer_of_length_0_is_empty() {
    // UCX appends with the address of the buffer and a key, or with none.
    for keyed in [true, false] {
        let mut world = World::new(&PLAIN);
        let data = DataSegment::new(world.memory.addr(), 0, if keyed { world.key } else { 0 });
        for next in [1, 2] {
            let append = operation(TmOpcode::Append, CQE_REQUEST, next, 0, (9, ALL));
            world.operate(append, Some(data));
            world.expect(AppOp::APPEND, next - 1);
        }
        world.memory.set(0, &[0xee; 8]);
        world.send_tagged(9, &[]);
        assert_eq!(world.expect(AppOp::CONSUMED_MSG, 0).byte_cnt.get(), 0);
        // The buffer has no room, unlike one of 2 GiB.
        world.send_tagged(9, b"payload!");
        world.expect(AppOp::MSG_COMPLETION_CANCELED, 1);
        assert_eq!(world.memory.get(0, 8), [0xee; 8]);
        for rule in [Rule::ZeroLength, Rule::Stride] {
            assert_eq!(world.device.nic.violations(rule), 0);
        }
    }
}

#[test]
fn unexpected_messages_stop_the_matching_of_new_tags_until_they_are_handled() {
    let mut world = World::new(&PLAIN);
    let before = world.appended(1, ALL, 0, 100);
    let payload = pattern(1, 20);
    world.send_tagged(5, &payload);
    let whole = message(TmhOpcode::Eager, 0x1234, 5, &payload);
    assert_eq!(world.expect_slot(AppOp::UNEXPECTED), whole);
    let after = world.append(2, ALL, 200, 100);
    assert_eq!(result(&world.expect(AppOp::APPEND, after)).hw_phase_cnt.get(), 1);
    world.send_tagged(2, b"late");
    world.expect_slot(AppOp::UNEXPECTED);
    world.send_tagged(1, b"posted in phase");
    world.expect(AppOp::CONSUMED_MSG, before);
    world.synchronize(1);
    assert_eq!(result(&world.expect(AppOp::NOOP, 0)).hw_phase_cnt.get(), 2);
    world.send_tagged(2, b"still late");
    world.expect_slot(AppOp::UNEXPECTED);
    world.synchronize(3);
    world.expect(AppOp::NOOP, 0);
    world.send_tagged(2, b"now");
    world.expect(AppOp::CONSUMED_MSG, after);
    assert_eq!(world.tagged(200, 3), b"now");
}

#[test]
fn messages_without_tag_are_not_matched_and_not_counted() {
    let mut world = World::new(&PLAIN);
    world.appended(7, 0, 0, 100);
    let plain = message(TmhOpcode::NoTag, 1, 7, b"plain");
    let fin = message(TmhOpcode::Fin, 1, 7, &[]);
    let strange = message(TmhOpcode::Unknown(9), 1, 7, b"what");
    let cut = message(TmhOpcode::Rendezvous, 1, 7, &[0; 15]);
    for bytes in [&plain[..], &fin, &strange, &cut, &plain[..15], &[]] {
        world.send(bytes);
        world.device.finish();
        assert_eq!(world.expect_slot(AppOp::NO_TAG), bytes);
    }
    world.synchronize(0);
    assert_eq!(result(&world.expect(AppOp::NOOP, 0)).hw_phase_cnt.get(), 0);
}

#[test]
fn a_removed_entry_matches_nothing_and_a_matched_one_is_not_removed() {
    let mut world = World::new(&PLAIN);
    let first = world.appended(7, ALL, 0, 100);
    let second = world.appended(7, ALL, 200, 100);
    assert!(world.remove(first));
    world.send_tagged(7, b"second");
    world.expect(AppOp::CONSUMED_MSG, second);
    assert!(!world.remove(second));
    world.cq.expect_nothing();
}

#[test]
fn operations_without_request_are_silent() {
    let mut world = World::new(&PLAIN);
    let data = DataSegment::TERMINATOR;
    world.operate(operation(TmOpcode::Append, 0, 1, 0, (5, ALL)), Some(data));
    world.operate(operation(TmOpcode::Nop, SW_CNT_VALID, 0, 0, (0, 0)), None);
    world.operate(operation(TmOpcode::Remove, 0, 0, 0, (0, 0)), None);
    world.cq.expect_nothing();
    world.send_tagged(5, &[]);
    world.expect_slot(AppOp::UNEXPECTED);
}

#[test]
fn short_messages_are_inlined_only_where_the_tag_has_room_too() {
    for (cqe_size, matched, unexpected) in [(64, 0, 32), (128, 64, 64)] {
        let mut world = World::new(&Shape { cqe_size, ..PLAIN });
        for len in [1, 16, 17, 64, 65] {
            let entry = world.appended(7, ALL, 0, 100);
            world.free.push_back(entry);
            world.memory.set(TAGGED, &[0; 100]);
            let payload = pattern(1, len);
            world.send_tagged(7, &payload);
            let (cqe, front) = world.cq.poll_both().unwrap();
            assert_eq!(AppOp::new(cqe.app_op), AppOp::CONSUMED_MSG);
            assert_eq!(header(&cqe).tag.get(), 7);
            let bytes = if len <= matched { &front[..len] } else { &world.tagged(0, len) };
            assert_eq!(bytes, payload);
            assert_eq!(world.tagged(0, len) == vec![0; len], len <= matched);
        }
        let whole = message(TmhOpcode::Eager, 0x1234, 8, &[5; 16]);
        world.send_tagged(8, &[5; 16]);
        let (cqe, front) = world.cq.poll_both().unwrap();
        assert_eq!(AppOp::new(cqe.app_op), AppOp::UNEXPECTED);
        let inlined = if unexpected == 64 { front[..32].to_vec() } else { cqe.to_bytes()[..32].to_vec() };
        assert_eq!(inlined, whole);
    }
}

#[test]
fn nothing_flows_before_33_receives_are_posted() {
    let mut world = World::new(&Shape { posted: 32, ..PLAIN });
    let entry = world.appended(7, ALL, 0, 100);
    world.send(&message(TmhOpcode::Eager, 0, 7, b"early"));
    world.device.finish_within(1_000_000);
    world.cq.expect_nothing();
    world.post_slot();
    world.device.finish();
    world.expect(AppOp::CONSUMED_MSG, entry);
}

#[test]
fn unexpected_messages_wait_for_a_receive() {
    let mut world = World::new(&Shape { posted: 33, ..PLAIN });
    for n in 0..34u8 {
        world.send(&message(TmhOpcode::Eager, 0, u64::from(n), b"x"));
    }
    world.device.finish_within(1_000_000);
    for _ in 0..33 {
        world.expect_slot(AppOp::UNEXPECTED);
    }
    world.cq.expect_nothing();
    world.post_slot();
    world.device.finish();
    world.expect_slot(AppOp::UNEXPECTED);
    world.synchronize(34);
    assert_eq!(result(&world.expect(AppOp::NOOP, 0)).hw_phase_cnt.get(), 34);
}

#[test]
fn an_entry_ends_when_its_message_does_not_fit() {
    for len in [101, 1000] {
        let mut world = World::new(&PLAIN);
        let entry = world.appended(7, ALL, 0, 100);
        world.send_tagged(7, &pattern(1, len));
        world.expect(AppOp::MSG_COMPLETION_CANCELED, entry);
        world.cq.expect_nothing();
        assert_eq!(world.tagged(100, 1000), vec![0; 1000]);
        assert_eq!(world.device.state(&world.receiver), QpState::Err);
        assert_eq!(error(&world.send_cq.poll().unwrap()).syndrome, 0x12);
    }
}

#[test]
fn an_entry_ends_when_its_queue_pair_stops_or_goes() {
    for destroy in [false, true] {
        let mut world = World::new(&PLAIN);
        let entry = world.appended(7, ALL, 0, 1 << 18);
        world.send(&message(TmhOpcode::Eager, 0, 7, &pattern(1, 1 << 18)));
        let World { device, cq, .. } = &mut world;
        device.run_until(|| cq.peek().is_some());
        world.expect(AppOp::CONSUMED, entry);
        if destroy {
            world.device.nic.destroy_qp(world.receiver.number).unwrap();
        } else {
            world.device.set_state(&world.receiver, QpState::Err);
        }
        world.device.settle();
        world.expect(AppOp::MSG_COMPLETION_CANCELED, entry);
        world.cq.expect_nothing();
        assert!(!world.remove(entry));
    }
}
