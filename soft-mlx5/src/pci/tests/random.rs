//! Many commands of chance: nothing panics, nothing grows, no object is lost.

use std::collections::BTreeSet;

use mlx5_wire::firmware::command::{Opcode, Request};

use super::templates::{CQ, templates};
use super::{Driver, PAGE};
use crate::base::rng::Rng;
use crate::commands::opcodes::ENTRIES;
use crate::engine::NicConfig;
use crate::fabric::LinkLayer;

/// Commands of a short run, for each link layer.
const COMMANDS: usize = 60_000;

fn below(random: &mut Rng, end: usize) -> usize {
    random.below(end as u64) as usize
}

fn value(random: &mut Rng) -> u32 {
    match below(random, 8) {
        0 => random.next_u64() as u32,
        1 => below(random, 0x50) as u32,
        2 => CQ + below(random, 8) as u32,
        3 => PAGE as u32 * below(random, 1100) as u32,
        4 => (below(random, 32) as u32) << (8 * below(random, 4)),
        5 => 1 << below(random, 32),
        _ => 0,
    }
}

// A command that is right but for a few words.
fn nearly_right(random: &mut Rng, templates: &[Vec<u8>]) -> Vec<u8> {
    let mut input = templates[below(random, templates.len())].clone();
    for _ in 0..below(random, 2) * below(random, 4) {
        // Words of the context are hit more often than those of the list.
        let all = input.len() / 4;
        let words = if below(random, 4) == 0 { all } else { all.min(0x44) };
        let at = 4 * (2 + below(random, words - 2));
        let word = value(random);
        input[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    if input[0] == 5 && below(random, 2) == 0 {
        // Another queue pair.
        input[11] = 0x40 + below(random, 64) as u8;
    }
    input
}

// A command whose fields are small numbers: these name objects more often than not.
fn command(random: &mut Rng) -> Vec<u8> {
    let entry = &ENTRIES[below(random, ENTRIES.len())];
    let len = entry.input + 8 * below(random, 12);
    let mut input = vec![0; len];
    for word in input.chunks_exact_mut(4) {
        if below(random, 2) == 0 {
            word.copy_from_slice(&value(random).to_be_bytes());
        }
    }
    let uid = if below(random, 4) == 0 { below(random, 4) as u16 } else { 0 };
    let op_mod = if below(random, 4) == 0 { below(random, 4) as u16 } else { 1 };
    let request = Request { opcode: entry.opcode.0, uid, op_mod };
    request.put(input.first_chunk_mut().unwrap());
    input.truncate(len - below(random, 3) * (below(random, 8) / 7));
    input
}

// Commands that end the function end the run of luck, too: they are rare.
fn ends(input: &[u8]) -> bool {
    let request = Request::from_prefix(input).unwrap_or(Request::ZERO);
    matches!(Opcode(request.opcode), Opcode::TEARDOWN_HCA | Opcode::DISABLE_HCA)
}

fn run(commands: usize, seed: u64, link_layer: LinkLayer) {
    let mut driver = Driver::with(NicConfig { link_layer, ..NicConfig::default() });
    driver.start();
    let mut random = Rng::new(seed);
    let templates = templates();
    let mut made = BTreeSet::new();
    let mut most = 0;
    for count in 0..commands {
        let whole = below(&mut random, 2) == 0;
        let input = if whole { nearly_right(&mut random, &templates) } else { command(&mut random) };
        if ends(&input) && below(&mut random, 1000) != 0 {
            continue;
        }
        let mut output = vec![0; [0, 8, 16, 16, 16, 0x110, 0x1010][below(&mut random, 7)]];
        driver.function.execute(&input, &mut output);
        if output.first() == Some(&0) {
            made.extend(Request::from_prefix(&input).map(|request| request.opcode));
        }
        if below(&mut random, 16) == 0 {
            let offset = 8 * below(&mut random, 512);
            let (page, doorbell) = (0x10 + below(&mut random, 2) as u32, random.next_u64());
            driver.function.write_uar(page, offset, &doorbell.to_be_bytes());
        }
        if below(&mut random, 64) == 0 {
            driver.function.step(count as u64 * 1000);
        }
        if count % 1000 == 0 {
            assert!(driver.function.commands.objects.is_consistent());
            driver.start_again();
        }
        most = most.max(driver.function.objects());
    }
    assert!(most > 100, "the commands make {most} objects at most");
    let creates = ["CREATE_CQ", "CREATE_QP", "CREATE_MKEY", "CREATE_RMP", "RTR2RTS_QP"];
    let frames = ["CREATE_SQ", "CREATE_RQ", "CREATE_TIR", "SET_FLOW_TABLE_ENTRY"];
    let ethernet = link_layer == LinkLayer::Ethernet;
    for name in creates.iter().chain(frames.iter().filter(|_| ethernet)) {
        let done = made.iter().any(|opcode| Opcode(*opcode).name() == Some(name));
        assert!(done, "no {name} was right");
    }
    driver.start_again();
    driver.numbered(Opcode::TEARDOWN_HCA, 0).unwrap();
    assert_eq!(driver.function.objects(), 0);
    assert!(!driver.function.has_queue_pairs());
}

#[test]
fn commands_of_chance() {
    run(COMMANDS, 1, LinkLayer::InfiniBand);
    run(COMMANDS, 2, LinkLayer::Ethernet);
}

#[test]
#[ignore = "takes minutes: a million commands"]
fn many_commands_of_chance() {
    for seed in 0..10 {
        run(50_000, seed, LinkLayer::InfiniBand);
        run(50_000, seed, LinkLayer::Ethernet);
    }
}

impl Driver {
    /// Starts the function, unless it runs.
    fn start_again(&mut self) {
        let _ = self.numbered(Opcode::ENABLE_HCA, 0);
        let _ = self.numbered(Opcode::INIT_HCA, 0);
    }
}
