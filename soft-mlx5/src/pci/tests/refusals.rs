//! Refusals of every command: lengths, states, users and numbers that do not exist.

use mlx5_wire::firmware::command::{Opcode, Request};

use super::Driver;
use crate::commands::opcodes::ENTRIES;
use crate::commands::refusal::Refusal;
use crate::commands::stage::Stage;
use crate::fabric::LinkLayer;

fn bare(opcode: Opcode, len: usize) -> Vec<u8> {
    let mut input = vec![0; len];
    if let Some(head) = input.first_chunk_mut() {
        Request::new(opcode).put(head);
    }
    input
}

#[test]
fn lengths_are_checked_before_anything_else() {
    for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let mut driver = Driver::started(layer);
        for entry in ENTRIES {
            let short = bare(entry.opcode, entry.input - 1);
            let refused = driver.execute(&short, 0x1010).err();
            assert_eq!(refused, Some(Refusal::INPUT_LENGTH), "{:?}", entry.opcode.name());
            if entry.output > 8 {
                let input = bare(entry.opcode, entry.input);
                let refused = driver.execute(&input, entry.output - 1).err();
                assert_eq!(refused, Some(Refusal::OUTPUT_LENGTH), "{:?}", entry.opcode.name());
            }
        }
        assert_eq!(driver.function.objects(), 0);
    }
}

#[test]
fn the_least_room_for_an_answer() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    driver.function.execute(&bare(Opcode::ALLOC_PD, 8), &mut []);
    for len in 1..16 {
        let mut output = vec![0xee; len];
        driver.function.execute(&bare(Opcode::ALLOC_PD, 8), &mut output);
        assert_eq!(output[0], Refusal::OUTPUT_LENGTH.status as u8);
    }
    for len in 0..8 {
        let refused = driver.execute(&bare(Opcode::ALLOC_PD, 8)[..len], 16).err();
        assert_eq!(refused, Some(Refusal::INPUT_LENGTH));
    }
}

#[test]
fn states_are_checked() {
    let mut driver = Driver::new(LinkLayer::InfiniBand);
    for entry in ENTRIES.iter().filter(|entry| entry.stage > Stage::Disabled) {
        let refused = driver.execute(&bare(entry.opcode, entry.input), 0x1010).err();
        assert_eq!(refused, Some(Refusal::STATE), "{:?}", entry.opcode.name());
    }
    driver.numbered(Opcode::ENABLE_HCA, 0).unwrap();
    for entry in ENTRIES.iter().filter(|entry| entry.stage > Stage::Enabled) {
        let refused = driver.execute(&bare(entry.opcode, entry.input), 0x1010).err();
        assert_eq!(refused, Some(Refusal::STATE), "{:?}", entry.opcode.name());
    }
}

#[test]
fn unknown_commands_and_users() {
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    for opcode in (0..=u16::MAX).map(Opcode) {
        if ENTRIES.iter().all(|entry| entry.opcode != opcode) {
            let refused = driver.execute(&bare(opcode, 16), 16).err();
            assert_eq!(refused, Some(Refusal::UNKNOWN_COMMAND));
        }
    }
    let input = Request { uid: 5, ..Request::new(Opcode::ALLOC_PD) }.to_bytes();
    assert_eq!(driver.execute(&input, 16).err(), Some(Refusal::NO_USER));
}

#[test]
fn numbers_that_name_nothing() {
    for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let mut driver = Driver::started(layer);
        let about_an_object = |name: &str| {
            ["DESTROY", "DEALLOC", "QUERY_EQ", "QUERY_CQ", "QUERY_QP", "QUERY_MKEY", "QUERY_RMP"]
                .iter()
                .chain(&["MOVE_QP", "QUERY_XR", "MODIFY_CQ", "MODIFY_RMP", "QUERY_Q_"])
                .chain(&["QUERY_SQ", "QUERY_RQ", "MODIFY_SQ", "MODIFY_RQ", "DETACH"])
                .any(|start| name.starts_with(start))
        };
        let mut count = 0;
        for entry in ENTRIES.iter().filter(|entry| about_an_object(entry.opcode.name().unwrap())) {
            for byte in [0, 1, 0xff] {
                let mut input = bare(entry.opcode, entry.input.max(0x20));
                input[9..12].fill(byte);
                let refused = driver.execute(&input, 0x1010).err();
                assert_eq!(refused, Some(Refusal::NO_OBJECT), "{:?}", entry.opcode.name());
            }
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
