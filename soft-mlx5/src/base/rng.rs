//! The random numbers for injected faults: small, seeded, the same on every machine.

/// Generator of the xorshift family, seeded through a mixer so that close seeds differ at once.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Makes a generator; any seed will do.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ mixed >> 31) | 1)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // An f64 holds 53 bits exactly.
        probability > 0.0 && ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.below(1000)]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn chance_is_as_likely_as_asked() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000).filter(|_| rng.chance(0.2)).count();
        assert!((19_000..21_000).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(0.0)));
        assert!((0..1000).all(|_| rng.chance(1.0)));
        assert!((0..1000).all(|_| rng.below(3) < 3));
    }
}
