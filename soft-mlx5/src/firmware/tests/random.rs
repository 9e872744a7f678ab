//! Many commands of chance: nothing panics, nothing grows, no object is lost.

use mlx5_wire::firmware::command::{Opcode, Request};

use super::Driver;
use crate::fabric::LinkLayer;
use crate::fabric::rng::Rng;
use crate::firmware::opcodes::ENTRIES;
use crate::nic::NicConfig;

/// Commands of a run; the fuzz target `firmware` makes more.
const COMMANDS: usize = 60_000;

fn below(random: &mut Rng, end: usize) -> usize {
    random.below(end as u64) as usize
}

// A command whose fields are small numbers: these name objects more often than not.
fn command(random: &mut Rng) -> Vec<u8> {
    let entry = &ENTRIES[below(random, ENTRIES.len())];
    let len = entry.input + 8 * below(random, 12);
    let mut input = vec![0; len];
    for word in input.chunks_exact_mut(4) {
        let value = match below(random, 8) {
            0 => random.next_u64() as u32,
            1 => below(random, 0x50) as u32,
            2 => 0x400 + below(random, 8) as u32,
            3 => 0x1000 * below(random, 1100) as u32,
            4 => (below(random, 4) as u32) << (8 * below(random, 4)),
            _ => 0,
        };
        word.copy_from_slice(&value.to_be_bytes());
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

#[test]
fn commands_of_chance() {
    for (seed, layer) in [(1, LinkLayer::InfiniBand), (2, LinkLayer::Ethernet)] {
        let config = NicConfig { link_layer: layer, ..NicConfig::default() };
        let mut driver = Driver::with(config);
        driver.start();
        let mut random = Rng::new(seed);
        let mut most = 0;
        for count in 0..COMMANDS {
            let input = command(&mut random);
            if ends(&input) && below(&mut random, 100) != 0 {
                continue;
            }
            let mut output = vec![0; [0, 8, 16, 0x110, 0x1010][below(&mut random, 5)]];
            driver.function.execute(&input, &mut output);
            if below(&mut random, 16) == 0 {
                let offset = 8 * below(&mut random, 512);
                driver.function.write_uar(0x10, offset, &random.next_u64().to_be_bytes());
            }
            if below(&mut random, 64) == 0 {
                driver.function.step(count as u64 * 1000);
            }
            if count % 1000 == 0 {
                assert!(driver.function.objects.is_consistent());
                driver.start_again();
            }
            most = most.max(driver.function.objects.len());
        }
        assert!(most > 100, "the commands make {most} objects at most");
        driver.start_again();
        driver.numbered(Opcode::TEARDOWN_HCA, 0).unwrap();
        assert_eq!(driver.function.objects.len(), 0);
        assert!(!driver.function.has_queue_pairs());
    }
}

impl Driver {
    /// Starts the function, unless it runs.
    fn start_again(&mut self) {
        let _ = self.numbered(Opcode::ENABLE_HCA, 0);
        let _ = self.numbered(Opcode::INIT_HCA, 0);
    }
}
