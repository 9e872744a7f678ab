//! Operations with which an adapter would damage the program's memory.

use super::*;
use crate::objects::strict::Rule;

#[track_caller]
fn refused(mut world: World, rule: Option<Rule>) {
    let index = world.commands.sent.wrapping_sub(1);
    let cqe = world.cq.poll().expect("a completion");
    assert_eq!(cqe.opcode(), CqeOpcode::RequesterError);
    assert_eq!((error(&cqe).syndrome, cqe.wqe_counter.get()), (0x02, index));
    assert_eq!(cqe.srqn_uidx.get(), world.commands.attr.user_index);
    assert_eq!(world.device.state(&world.commands), QpState::Err);
    for known in [Rule::TagIndex, Rule::TagOperation, Rule::TagPhase] {
        assert_eq!(world.device.nic.violations(known), u64::from(rule == Some(known)), "{known:?}");
    }
}

#[test]
fn an_append_announces_a_free_entry() {
    for (next, busy) in [(8, false), (0, false), (0, true)] {
        let mut world = World::new(&PLAIN);
        if busy {
            world.appended(1, ALL, 0, 10);
        }
        let data = DataSegment::TERMINATOR;
        world.operate(operation(TmOpcode::Append, 0, next, 0, (1, ALL)), Some(data));
        refused(world, Some(Rule::TagIndex));
    }
}

#[test]
fn a_full_list_has_no_entry_to_announce() {
    for next in 0..8 {
        let mut world = World::new(&PLAIN);
        for tag in 0..7 {
            world.appended(tag, ALL, 0, 10);
        }
        let data = DataSegment::TERMINATOR;
        world.operate(operation(TmOpcode::Append, 0, next, 0, (9, ALL)), Some(data));
        refused(world, Some(Rule::TagIndex));
    }
}

#[test]
fn a_remove_names_an_entry() {
    // An entry outside the list, and an entry that was never appended.
    for entry in [8, 0] {
        let mut world = World::new(&PLAIN);
        world.operate(operation(TmOpcode::Remove, CQE_REQUEST, entry, 0, (0, 0)), None);
        refused(world, Some(Rule::TagIndex));
    }
}

#[test]
fn an_entry_is_removed_once() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(1, ALL, 0, 10);
    assert!(world.remove(entry));
    world.operate(operation(TmOpcode::Remove, CQE_REQUEST, entry, 0, (0, 0)), None);
    refused(world, Some(Rule::TagIndex));
}

#[test]
fn an_entry_whose_message_has_come_can_be_removed_too_late() {
    let mut world = World::new(&PLAIN);
    let entry = world.appended(1, ALL, 0, 10);
    world.send_tagged(1, b"first");
    world.expect(AppOp::CONSUMED_MSG, entry);
    assert!(!world.remove(entry));
    assert_eq!(world.device.nic.violations(Rule::TagIndex), 0);
}

#[test]
fn handled_messages_are_not_taken_back() {
    let mut world = World::new(&PLAIN);
    for _ in 0..2 {
        world.send_tagged(1, b"unexpected");
        world.expect_slot(AppOp::UNEXPECTED);
    }
    for (count, breaches) in [(2, 0), (1, 1)] {
        world.synchronize(count);
        world.expect(AppOp::NOOP, 0);
        assert_eq!(world.device.nic.violations(Rule::TagPhase), breaches);
    }
}

#[test]
fn each_operation_has_its_segments() {
    let data = Some(DataSegment::TERMINATOR);
    for (op, data) in
        [(TmOpcode::Append, None), (TmOpcode::Remove, data), (TmOpcode::Nop, data), (TmOpcode::Unknown(3), None)]
    {
        let mut world = World::new(&PLAIN);
        world.operate(operation(op, CQE_REQUEST, 1, 0, (0, 0)), data);
        refused(world, Some(Rule::TagOperation));
    }
}

#[test]
fn no_more_messages_are_handled_than_there_were() {
    let mut world = World::new(&PLAIN);
    world.send_tagged(1, b"unexpected");
    world.expect_slot(AppOp::UNEXPECTED);
    world.synchronize(1);
    world.expect(AppOp::NOOP, 0);
    assert_eq!(world.device.nic.violations(Rule::TagPhase), 0);
    world.synchronize(2);
    world.expect(AppOp::NOOP, 0);
    assert_eq!(world.device.nic.violations(Rule::TagPhase), 1);
}

#[test]
fn a_queue_pair_without_list_has_no_list_operations() {
    let mut device = Device::new();
    let mut cq = device.cq(64);
    let (mut qp, _other) = device.pair(|attr| attr, &cq, &cq);
    let segment = operation(TmOpcode::Nop, CQE_REQUEST, 0, 0, (0, 0));
    let work = Work::new(WqeOpcode::TAG_MATCHING).flags(0).bytes(&segment.to_bytes());
    let index = device.post(&mut qp, &work);
    device.settle();
    cq.expect_error(CqeOpcode::RequesterError, &qp, index, 0x02);
}

#[test]
fn a_list_needs_tags_and_its_queue() {
    let mut device = Device::new();
    let cq = device.cq(64);
    let (ring, record) = (Memory::new(64 * 32), Memory::new(8));
    let mut create = |cq, max_tags| {
        device.nic.create_srq(SrqAttr {
            pd: device.pd,
            kind: SrqKind::TagMatching { cq, max_tags, max_ops: 1 },
            buf: ring.addr(),
            dbrec: record.addr(),
            wqe_count: 64,
            wqe_shift: 5,
            user_index: 0,
            limit: 0,
            cyclic: false,
        })
    };
    assert_eq!(create(cq.number, 0), Err(Errno(libc::EINVAL)));
    assert_eq!(create(cq.number, 1 << 16), Err(Errno(libc::EINVAL)));
    assert_eq!(create(Cqn(1), 8), Err(Errno(libc::EINVAL)));
    let srq = create(cq.number, 8).unwrap();
    assert_eq!(device.nic.destroy_cq(cq.number), Err(Errno(libc::EBUSY)));
    device.nic.destroy_srq(srq).unwrap();
    device.nic.destroy_cq(cq.number).unwrap();
}

#[test]
fn only_reliable_connections_are_matched() {
    let mut world = World::new(&PLAIN);
    for (service, fits) in [(Service::Rc, true), (Service::Uc, false), (Service::Ud, false)] {
        let attr = world.device.qp_attr(service, &world.send_cq, &world.send_cq);
        let attr = QpAttr { srq: Some(world.srq.number), dbrec: 0, ..attr };
        assert_eq!(world.device.nic.create_qp(attr).is_ok(), fits, "{service:?}");
    }
}
