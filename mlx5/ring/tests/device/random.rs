//! Random numbers, and the property tests' configuration.

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::test_runner::{Config, RngSeed};

/// xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// The seed of this run: `RING_SEED`, or one of its own. It is printed, and shown when a test fails.
pub fn seed() -> u64 {
    let seed =
        std::env::var("RING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 >> 10
        });
    println!("RING_SEED={seed}");
    seed
}

/// Property tests of `cases` cases, fewer where the CPU is likely to be emulated. `PROPTEST_CASES` overrides.
pub fn config(cases: u32) -> Config {
    let cases = if cfg!(target_arch = "aarch64") { cases / 8 } else { cases };
    let from_env = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config {
        cases: from_env.unwrap_or(cases),
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Steps of a long run.
pub fn steps(steps: u32) -> u32 {
    if cfg!(target_arch = "aarch64") { steps / 4 } else { steps }
}
