//! A set of slot numbers with a bounded search for the next member.

use core::ptr::NonNull;

/// Slots that a bitmap can hold: an SRQ index has 16 bits.
pub const MAX_SLOTS: u32 = 1 << 16;

const SUMMARY_WORDS: usize = (MAX_SLOTS / 64 / 64) as usize;

/// Two levels: a bit per slot, and above it a bit per non-empty word. A search reads one word, at most
/// sixteen summary words and one more word, whatever the size of the queue.
#[derive(Debug)]
pub struct Bitmap {
    words: NonNull<u64>,
    summary: [u64; SUMMARY_WORDS],
    len: u32,
}

/// Words of storage that a bitmap of `slots` slots needs.
pub const fn words(slots: u32) -> usize {
    slots.div_ceil(64) as usize
}

impl Bitmap {
    /// An empty set.
    ///
    /// # Safety
    /// `storage` is valid for reads and writes of [`words`]`(slots)` words, and nobody else touches them,
    /// for as long as the bitmap exists. `slots <= MAX_SLOTS`.
    pub unsafe fn new(storage: NonNull<u64>, slots: u32) -> Self {
        for i in 0..words(slots) {
            // SAFETY: within the storage.
            unsafe { storage.add(i).write(0) }
        }
        Self { words: storage, summary: [0; SUMMARY_WORDS], len: 0 }
    }

    /// Members.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no member.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn word(&mut self, index: usize) -> &mut u64 {
        // SAFETY: callers index with a slot below the number the storage was made for; the storage is
        // ours alone.
        unsafe { self.words.add(index).as_mut() }
    }

    /// Adds `slot`.
    ///
    /// # Safety
    /// `slot` is below the number of slots given to [`new`](Self::new) and not a member.
    pub unsafe fn insert(&mut self, slot: u32) {
        let index = (slot / 64) as usize;
        *self.word(index) |= 1 << (slot % 64);
        self.summary[index / 64] |= 1 << (index % 64);
        self.len += 1;
    }

    /// Whether `slot` is a member.
    ///
    /// # Safety
    /// `slot` is below the number of slots given to [`new`](Self::new).
    pub unsafe fn contains(&mut self, slot: u32) -> bool {
        *self.word((slot / 64) as usize) >> (slot % 64) & 1 != 0
    }

    /// Takes out the members `first`, `first + 1`, ... as far as they are contiguous and lie in one word,
    /// and returns how many that were.
    ///
    /// # Safety
    /// `first` is below the number of slots given to [`new`](Self::new).
    pub unsafe fn take_run(&mut self, first: u32) -> u32 {
        let index = (first / 64) as usize;
        let bit = first % 64;
        let word = self.word(index);
        let run = (*word >> bit).trailing_ones();
        if run == 0 {
            return 0;
        }
        *word &= !((u64::MAX >> (64 - run)) << bit);
        if *word == 0 {
            self.summary[index / 64] &= !(1 << (index % 64));
        }
        self.len -= run;
        run
    }

    /// The first member at or after `slot`, around the end.
    ///
    /// # Safety
    /// `slot` is below the number of slots given to [`new`](Self::new), and the set is not empty.
    pub unsafe fn next(&mut self, slot: u32) -> u32 {
        let index = (slot / 64) as usize;
        let rest = *self.word(index) >> (slot % 64);
        if rest != 0 {
            return slot + rest.trailing_zeros();
        }
        // Words after this one, then around to this one again.
        let after = index + 1;
        let mut group = after / 64 % SUMMARY_WORDS;
        let mut candidates = if after / 64 < SUMMARY_WORDS {
            self.summary[group] & (u64::MAX << (after % 64))
        } else {
            self.summary[group]
        };
        while candidates == 0 {
            group = (group + 1) % SUMMARY_WORDS;
            candidates = self.summary[group];
        }
        let found = group * 64 + candidates.trailing_zeros() as usize;
        found as u32 * 64 + self.word(found).trailing_zeros()
    }
}

// SAFETY: the storage belongs to the bitmap alone.
unsafe impl Send for Bitmap {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A plain set that answers the same questions by looking at every slot.
    struct Model(Vec<bool>);

    impl Model {
        fn next(&self, slot: u32) -> u32 {
            let n = self.0.len() as u32;
            (0..n).map(|i| (slot + i) % n).find(|&s| self.0[s as usize]).unwrap()
        }
    }

    #[test]
    fn agrees_with_a_plain_set() {
        for slots in [2u32, 64, 128, 4096, 65536] {
            let mut storage = vec![!0u64; words(slots)];
            // SAFETY: the storage outlives the bitmap.
            let mut bitmap =
                unsafe { Bitmap::new(NonNull::new(storage.as_mut_ptr()).unwrap(), slots) };
            let mut model = Model(vec![false; slots as usize]);
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            for _ in 0..4000 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let slot = (random >> 33) as u32 % slots;
                // SAFETY: `slot` is in range; inserted only when absent.
                unsafe {
                    if !model.0[slot as usize] {
                        bitmap.insert(slot);
                        model.0[slot as usize] = true;
                    } else {
                        let run = bitmap.take_run(slot);
                        assert!(run > 0);
                        for taken in slot..slot + run {
                            assert!(model.0[taken as usize]);
                            model.0[taken as usize] = false;
                        }
                    }
                    let from = (random >> 13) as u32 % slots;
                    assert_eq!(bitmap.contains(from), model.0[from as usize]);
                    assert_eq!(bitmap.len() as usize, model.0.iter().filter(|&&m| m).count());
                    if !bitmap.is_empty() && slots <= 4096 {
                        assert_eq!(bitmap.next(from), model.next(from));
                    }
                }
            }
        }
    }

    #[test]
    fn next_wraps_to_the_same_word() {
        for slots in [64u32, 65536] {
            let mut storage = vec![0u64; words(slots)];
            // SAFETY: the storage outlives the bitmap; slots in range.
            unsafe {
                let mut bitmap = Bitmap::new(NonNull::new(storage.as_mut_ptr()).unwrap(), slots);
                bitmap.insert(slots - 10);
                assert_eq!(bitmap.next(slots - 9), slots - 10);
                assert_eq!(bitmap.next(slots - 10), slots - 10);
                assert_eq!(bitmap.next(0), slots - 10);
            }
        }
    }
}
