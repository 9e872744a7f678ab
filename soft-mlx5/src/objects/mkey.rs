//! Memory keys: which accesses to which bytes are allowed.

use super::memory::Space;
use super::table::Table;
use super::{Access, Mkey, MkeyAttr, Pdn};
use crate::base::rng::Rng;

/// `IBV_ACCESS_LOCAL_WRITE`.
pub const LOCAL_WRITE: Access = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub const REMOTE_WRITE: Access = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub const REMOTE_READ: Access = 1 << 2;
/// `IBV_ACCESS_REMOTE_ATOMIC`.
pub const REMOTE_ATOMIC: Access = 1 << 3;
/// Reading through an lkey: always allowed.
pub const LOCAL_READ: Access = 0;

/// Key of memory that ignores writes and reads as zeros (`dump_fill_mkey`, the null MR).
pub const DUMP_FILL_MKEY: Mkey = Mkey(0x300);

// Index 1 is taken by the invalid lkey (0x100), index 3 by the key above.
const LOWEST_INDEX: u32 = 0x10;
// The first keys are below 1 << 28. libmlx5 reads the GRH bits of `flags_rqpn` (28 and 29) also in a CQE of 64 bytes
// into which a rendezvous header was scattered, and its RKEY lies there.
const FIRST_INDICES: u32 = 1 << 19;
const MAX_KEYS: u32 = 1 << 22;
const STREAM: u64 = 0x4d4b_4559;

/// The key does not allow the access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied;

#[derive(Debug)]
struct Entry {
    attr: MkeyAttr,
    space: Space,
    variant: u8,
}

/// Bytes that a key gave access to.
#[derive(Debug, Clone)]
pub enum Region {
    /// At an address of a space.
    Memory(Space, u64),
    /// No memory: reads give zeros, writes are ignored.
    Fill,
}

impl Region {
    /// Copies from the region.
    pub fn read(&self, dst: &mut [u8]) -> Result<(), Denied> {
        match self {
            Self::Memory(space, va) => space.read(*va, dst).map_err(|_| Denied),
            Self::Fill => {
                dst.fill(0);
                Ok(())
            }
        }
    }

    /// Copies to the region.
    pub fn write(&self, src: &[u8]) -> Result<(), Denied> {
        match self {
            Self::Memory(space, va) => {
                // SAFETY: the check that made the region found it inside a registration for writing this length.
                unsafe { space.write_in_order(*va, src) }.map_err(|_| Denied)
            }
            Self::Fill => Ok(()),
        }
    }

    /// Returns `true` if the region begins at a multiple of eight bytes, as atomics need.
    pub fn is_aligned(&self) -> bool {
        match self {
            Self::Memory(_, va) => va % 8 == 0,
            Self::Fill => true,
        }
    }

    /// Changes eight aligned bytes; returns the old value.
    pub fn fetch_update(&self, change: impl FnMut(u64) -> u64) -> Result<u64, Denied> {
        match self {
            Self::Memory(space, va) => {
                // SAFETY: the check was for writing eight bytes; the responder refuses unaligned addresses.
                unsafe { space.fetch_update(*va, change) }.map_err(|_| Denied)
            }
            Self::Fill => Ok(0),
        }
    }
}

/// All memory keys of a device.
#[derive(Debug)]
pub struct MkeyTable {
    table: Table<Entry>,
    // First index and first variants are random: nobody guesses a key.
    first: u32,
    rng: Rng,
    // Variant that each index had last.
    variants: Vec<u8>,
}

impl MkeyTable {
    /// Makes a table without keys; the first keys follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ STREAM);
        let first = LOWEST_INDEX + rng.below(FIRST_INDICES.into()) as u32;
        Self { table: Table::new(first, MAX_KEYS), first, rng, variants: Vec::new() }
    }

    /// Registers memory of this process; returns `None` if there are too many keys.
    pub fn create(&mut self, attr: MkeyAttr) -> Option<Mkey> {
        self.create_in(attr, Space::Process, None)
    }

    /// Registers memory; the driver may choose the variant. Returns `None` if there are too many keys.
    pub fn create_in(&mut self, attr: MkeyAttr, space: Space, chosen: Option<u8>) -> Option<Mkey> {
        // The variant differs from one registration to the next, so that an old key does not name the next
        // registration with its index.
        let mut variant = 0;
        let Self { first, rng, variants, .. } = self;
        let index = self.table.insert_with(|index| {
            let at = (index - *first) as usize;
            variants.resize_with(variants.len().max(at + 1), || rng.next_u64() as u8);
            variants[at] = chosen.unwrap_or_else(|| variants[at].wrapping_add(1));
            variant = variants[at];
            Entry { attr, space, variant }
        })?;
        Some(Mkey(index << 8 | u32::from(variant)))
    }

    /// Changes the attributes of a key; returns `false` if there is no such key.
    pub fn modify(&mut self, key: Mkey, attr: MkeyAttr) -> bool {
        let entry = self.table.get_mut(key.0 >> 8).filter(|entry| entry.variant == key.0 as u8);
        entry.map(|entry| entry.attr = attr).is_some()
    }

    /// Ends a registration; returns `false` if there was none.
    pub fn destroy(&mut self, key: Mkey) -> bool {
        self.find(key.0).is_some() && self.table.remove(key.0 >> 8).is_some()
    }

    fn find(&self, key: u32) -> Option<&Entry> {
        self.table.get(key >> 8).filter(|entry| entry.variant == key as u8)
    }

    /// Checks an access of `len` bytes at `addr`, as the key names it, on behalf of a queue of domain
    /// `pd`.
    #[inline]
    pub fn check(&self, key: u32, pd: Pdn, addr: u64, len: usize, access: Access) -> Result<Region, Denied> {
        if key == DUMP_FILL_MKEY.0 && access & !LOCAL_WRITE == 0 {
            return Ok(Region::Fill);
        }
        let Entry { attr, space, .. } = self.find(key).ok_or(Denied)?;
        let offset = addr.checked_sub(attr.iova).ok_or(Denied)?;
        let end = offset.checked_add(len as u64).ok_or(Denied)?;
        let allowed = attr.pd == pd && attr.access & access == access && end <= attr.length;
        if allowed { Ok(Region::Memory(space.clone(), attr.va.wrapping_add(offset))) } else { Err(Denied) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: Pdn = Pdn(1);

    fn attr(va: u64, iova: u64, length: u64, access: Access) -> MkeyAttr {
        MkeyAttr { pd: PD, va, iova, length, access }
    }

    fn va(result: Result<Region, Denied>) -> Option<u64> {
        match result {
            Ok(Region::Memory(_, va)) => Some(va),
            _ => None,
        }
    }

    #[test]
    fn bounds_and_translation() {
        let mut keys = MkeyTable::new(1);
        let key = keys.create(attr(0x7000, 0x100, 0x40, LOCAL_WRITE)).unwrap().0;
        let check = |addr, len| va(keys.check(key, PD, addr, len, LOCAL_WRITE));
        assert_eq!(check(0x100, 0x40), Some(0x7000));
        assert_eq!(check(0x13f, 1), Some(0x703f));
        assert_eq!(check(0x140, 0), Some(0x7040));
        assert_eq!(check(0xff, 1), None);
        assert_eq!(check(0x100, 0x41), None);
        assert_eq!(check(0x140, 1), None);
        assert_eq!(check(u64::MAX, 2), None);
    }

    #[test]
    fn domain_and_access() {
        let mut keys = MkeyTable::new(1);
        let key = keys.create(attr(0x7000, 0x7000, 0x40, REMOTE_READ)).unwrap().0;
        assert!(keys.check(key, PD, 0x7000, 1, LOCAL_READ).is_ok());
        assert!(keys.check(key, PD, 0x7000, 1, REMOTE_READ).is_ok());
        assert!(keys.check(key, PD, 0x7000, 1, LOCAL_WRITE).is_err());
        assert!(keys.check(key, PD, 0x7000, 1, REMOTE_WRITE).is_err());
        assert!(keys.check(key, Pdn(2), 0x7000, 1, REMOTE_READ).is_err());
    }

    #[test]
    fn keys_follow_from_the_seed_and_are_not_guessed() {
        let first = |seed| {
            let mut keys = MkeyTable::new(seed);
            [(); 2].map(|()| keys.create(attr(0x7000, 0, 0x40, 0)).unwrap().0)
        };
        assert_eq!(first(7), first(7));
        let mut seen: Vec<_> = (0..1000).map(|seed| first(seed)[0]).collect();
        seen.sort_unstable();
        let widest = seen.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(seen[0] < 1 << 22 && widest < 1 << 22, "{widest:#x}");
        assert!(seen[999] > 7 << 24 && seen[999] < 1 << 28, "{:#x}", seen[999]);
    }

    #[test]
    fn a_key_ends_for_good() {
        let mut keys = MkeyTable::new(1);
        let key = keys.create(attr(0x7000, 0, 0x40, 0)).unwrap();
        assert!(!keys.destroy(Mkey(key.0 ^ 1)));
        assert!(keys.destroy(key));
        assert!(!keys.destroy(key));
        for _ in 0..10_000 {
            let other = keys.create(attr(0x7000, 0, 0x40, 0)).unwrap();
            assert_ne!(other, key);
            assert!(keys.check(key.0, PD, 0, 1, 0).is_err());
            keys.destroy(other);
        }
    }

    #[test]
    fn a_key_changes_in_place() {
        let mut keys = MkeyTable::new(1);
        let key = keys.create(attr(0x7000, 0, 0x40, 0)).unwrap();
        assert!(!keys.modify(Mkey(key.0 ^ 1), attr(0x9000, 0, 0x80, 0)));
        assert!(keys.check(key.0, PD, 0x40, 1, 0).is_err());
        assert!(keys.modify(key, attr(0x9000, 0, 0x80, 0)));
        assert_eq!(va(keys.check(key.0, PD, 0x40, 1, 0)), Some(0x9040));
    }

    #[test]
    fn the_null_region_and_the_invalid_lkey() {
        let keys = MkeyTable::new(1);
        let fill = keys.check(DUMP_FILL_MKEY.0, PD, 0, 100, LOCAL_WRITE).unwrap();
        let mut bytes = [7; 3];
        fill.write(&bytes).unwrap();
        fill.read(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 3]);
        assert!(keys.check(DUMP_FILL_MKEY.0, PD, 0, 1, REMOTE_READ).is_err());
        assert!(keys.check(0x100, PD, 0, 1, LOCAL_READ).is_err());
    }
}
