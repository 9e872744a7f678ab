//! Random numbers, the same for the same seed.

use std::time::{SystemTime, UNIX_EPOCH};

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

    /// Returns `true` once in `n` times.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}

/// Returns the seed of this run, and prints it: `RING_SEED`, or one of its own.
pub fn seed() -> u64 {
    let given = std::env::var("RING_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 >> 10);
    std::println!("RING_SEED={seed}");
    seed
}

/// Returns how often a random test runs: `PROPTEST_CASES`, or `count`, less where the CPU is likely to be emulated.
pub fn cases(count: u32) -> u32 {
    let given = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    given.unwrap_or(if cfg!(target_arch = "aarch64") { count.div_ceil(8) } else { count })
}
