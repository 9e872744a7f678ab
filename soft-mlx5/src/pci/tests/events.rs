//! Event queues, and the events of commands, ports and completions.

use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::eq::{CommandData, CreateEq, EqContext, PortData, QueryEqReply, QueueData, event};

use super::{Driver, with_pages};
use crate::commands::refusal::Refusal;
use crate::fabric::LinkLayer;

const COMMANDS: u64 = 1 << event::COMMAND;
const PORTS: u64 = 1 << event::PORT_CHANGE;

fn command(opcode: Opcode, number: u32) -> Vec<u8> {
    let request = Request::new(opcode);
    let input = mlx5_wire::firmware::command::Numbered { request, number, parameter: 0 };
    input.to_bytes().to_vec()
}

#[test]
fn commands_report_to_the_queue_that_was_there_when_they_were_posted() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let before = driver.function.command_events();
    let mut eq = driver.eq(6, COMMANDS, 3, uar);
    driver.function.report_commands(before, 1);
    assert!(driver.next_event(&mut eq).is_none() && driver.raised.take().is_empty());

    let now = driver.function.command_events();
    driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
    driver.function.report_commands(now, 1 << 5);
    let eqe = driver.next_event(&mut eq).unwrap();
    assert_eq!(eqe.event, event::COMMAND);
    assert_eq!(CommandData::from_bytes(&eqe.data).slots, 1 << 5);
    assert_eq!(driver.raised.take(), [3]);

    // The end of the queue itself is not reported.
    let last = driver.function.command_events();
    driver.execute(&command(Opcode::DESTROY_EQ, eq.number), 16).unwrap();
    driver.function.report_commands(last, 1);
    assert!(driver.next_event(&mut eq).is_none() && driver.raised.take().is_empty());
    assert!(driver.function.command_events().is_none());
}

#[test]
fn the_owner_bit_follows_the_laps() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let mut eq = driver.eq(7, COMMANDS, 0, uar);
    for count in 0..1000 {
        let events = driver.function.command_events();
        driver.function.report_commands(events, count);
        let eqe = driver.next_event(&mut eq).unwrap();
        assert_eq!(CommandData::from_bytes(&eqe.data).slots, count);
        assert!(driver.next_event(&mut eq).is_none());
    }
}

#[test]
fn a_full_queue_keeps_events_until_the_driver_has_taken_some() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let mut eq = driver.eq(6, COMMANDS, 0, uar);
    let ring = |driver: &mut Driver, offset, taken: u32| {
        let word = eq.number << 24 | taken & 0xff_ffff;
        driver.function.write_uar(uar, offset, &word.to_be_bytes());
    };
    ring(&mut driver, 0x40, 0);
    let events = driver.function.command_events();
    for slot in 0..100 {
        driver.function.report_commands(events, slot);
        // An event that waits already does not wait twice.
        driver.function.report_commands(events, slot.max(64));
    }
    let number = eq.number;
    let mut seen = Vec::new();
    for _ in 0..4 {
        while let Some(eqe) = driver.next_event(&mut eq) {
            seen.push(CommandData::from_bytes(&eqe.data).slots);
        }
        let word = number << 24 | eq.taken & 0xff_ffff;
        driver.function.write_uar(uar, 0x48, &word.to_be_bytes());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

#[test]
fn ports_tell_every_queue_that_asked() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let mut first = driver.eq(6, PORTS, 1, uar);
    let mut second = driver.eq(6, PORTS, 2, uar);
    let mut deaf = driver.eq(6, COMMANDS, 3, uar);
    driver.function.set_link(false);
    driver.function.set_link(true);
    for eq in [&mut first, &mut second] {
        for state in [event::PORT_DOWN, event::PORT_ACTIVE] {
            let eqe = driver.next_event(eq).unwrap();
            assert_eq!((eqe.event, eqe.sub_type), (event::PORT_CHANGE, state));
            assert_eq!(PortData::from_bytes(&eqe.data).port, 1);
        }
    }
    assert!(driver.next_event(&mut deaf).is_none());
    assert_eq!(driver.raised.take(), [1, 2, 1, 2]);
}

#[test]
fn a_queue_without_memory_fails_and_says_so() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let context = EqContext { log_size: 6, uar_page: uar, ..EqContext::ZERO };
    let request = Request::new(Opcode::CREATE_EQ);
    let create = CreateEq { request, context, event_mask: COMMANDS };
    let eqn = driver.create(&with_pages(&create.to_bytes(), &[1 << 40])).unwrap();
    let events = driver.function.command_events();
    driver.function.report_commands(events, 1);
    assert!(driver.raised.take().is_empty());
    let answer = driver.execute(&command(Opcode::QUERY_EQ, eqn), 0x110).unwrap();
    assert_eq!(QueryEqReply::from_prefix(&answer).unwrap().context.status, 10);
}

#[test]
fn contexts_that_are_refused() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let good = EqContext { log_size: 7, uar_page: uar, ..EqContext::ZERO };
    let mut refused = |context: EqContext, pages: &[u64]| {
        let request = Request::new(Opcode::CREATE_EQ);
        let create = CreateEq { request, context, event_mask: 0 };
        driver.create(&with_pages(&create.to_bytes(), pages)).err()
    };
    let pages = [0x1000, 0x2000, 0x3000];
    assert_eq!(refused(good, &pages[..2]), None);
    assert_eq!(refused(good, &pages[..1]), Some(Refusal::PAGE_LIST));
    assert_eq!(refused(EqContext { page_offset: 1, ..good }, &pages[..2]), Some(Refusal::PAGE_LIST));
    assert_eq!(refused(EqContext { page_offset: 1, ..good }, &pages), None);
    assert_eq!(refused(EqContext { log_page_size: 1, ..good }, &pages[..1]), None);
    let vector = EqContext { interrupt: 16, ..good };
    assert_eq!(refused(vector, &pages), Some(Refusal::VECTOR));
    let unknown = EqContext { uar_page: uar + 1, ..good };
    assert_eq!(refused(unknown, &pages), Some(Refusal::NO_OBJECT));
    let large = EqContext { log_size: 31, ..good };
    assert_eq!(refused(large, &pages), Some(Refusal::QUEUE_SIZE));
}

#[test]
fn a_completion_is_one_event_for_each_arm() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    let pd = driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
    let mut eq = driver.eq(6, 0, 5, uar);
    let mut cq = driver.cq(6, eq.number, uar);
    let mut qp = driver.qp(pd, uar, &cq, 0, None);
    driver.connect(&qp, qp.number);
    for sequence in 0..6u32 {
        // The first arm of a queue is a word of zeros.
        let arm = (sequence & 3) << 28 | cq.taken;
        driver.host.set_word(cq.record + 4, arm);
        let doorbell = u64::from(arm) << 32 | u64::from(cq.number);
        // Kernels ring in words of any size.
        for (at, byte) in (0x20..).zip(doorbell.to_be_bytes()) {
            driver.function.write_uar(uar, at, &[byte]);
        }
        assert!(driver.next_event(&mut eq).is_none());
        driver.nop(&mut qp, uar);
        driver.nop(&mut qp, uar);
        driver.settle();
        let eqe = driver.next_event(&mut eq).unwrap();
        assert_eq!(eqe.event, event::COMPLETION);
        assert_eq!(QueueData::from_bytes(&eqe.data).number, cq.number);
        assert!(driver.next_event(&mut eq).is_none());
        assert_eq!(driver.raised.take(), [5]);
        assert!(driver.poll(&mut cq).is_some() && driver.poll(&mut cq).is_some());
    }
}
