//! Memory keys: which accesses to which bytes are allowed.

use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::mkey::MkeyContext;
use mlx5_wire::umr::{self, mask};

use super::key_list::KeyList;
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
/// `IBV_ACCESS_MW_BIND`: of a region, for the rules of memory windows. A context has no such bit.
pub const MW_BIND: Access = 1 << 4;
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

/// Value of the field that names the only queue pair of a key: every queue pair of the domain may use the key.
pub const ANY_QP: u32 = 0xff_ffff;

/// Levels of keys below a key. No public source says how many an adapter goes down.
const MAX_INDIRECTION: u32 = 4;
/// log2 of the smallest and of the largest page of a list.
const LOG_PAGES: std::ops::RangeInclusive<u32> = 12..=52;

/// The key does not allow the access or the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied;

/// Kind of a key's translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// One range of a space.
    #[default]
    Direct,
    /// A list of pages (MTT).
    Pages,
    /// A list of other keys, with lengths (KLM).
    Klm,
    /// A list of other keys, of one length each (KSM).
    Ksm,
}

/// State of a key that UMR changes, and what UMR may change.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Kind of the translation.
    pub mode: Mode,
    /// UMR may change the key.
    pub umr: bool,
    /// The key is free: it refuses each access.
    pub free: bool,
    /// A peer may invalidate the key.
    pub remote_invalidate: bool,
    /// The only queue pair that may use the key, or [`ANY_QP`].
    pub qpn: u32,
    /// log2 of the bytes of a page or of a KSM entry.
    pub log_size: u8,
    /// Most bytes of the list.
    pub capacity: usize,
    /// The key is that of a memory window.
    pub window: bool,
}

/// Rule of memory windows that an adapter does not check at the bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowFault {
    /// The region does not cover the window.
    Range,
    /// The region lacks a right.
    Rights,
}

impl Default for Form {
    fn default() -> Self {
        Self {
            mode: Mode::Direct,
            umr: false,
            free: false,
            remote_invalidate: false,
            qpn: ANY_QP,
            log_size: 0,
            capacity: 0,
            window: false,
        }
    }
}

impl Form {
    /// Returns the form that a context describes, of a key with this kind of translation.
    pub fn of(context: &MkeyContext, mode: Mode) -> Self {
        Self {
            mode,
            umr: context.umr_en,
            free: context.free,
            remote_invalidate: context.remote_invalidate,
            qpn: context.qpn,
            log_size: context.log_page_size,
            // A list is written in units of 64 bytes.
            capacity: (context.translations as usize).saturating_mul(16).next_multiple_of(64),
            window: false,
        }
    }
}

/// Returns the rights that a context gives.
pub fn rights(context: &MkeyContext) -> Access {
    let rights = [
        (context.local_write, LOCAL_WRITE),
        (context.remote_write, REMOTE_WRITE),
        (context.remote_read, REMOTE_READ),
        (context.atomic, REMOTE_ATOMIC),
    ];
    rights.iter().filter(|(given, _)| *given).map(|(_, right)| right).sum()
}

/// A queue pair that changes a key.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// Domain.
    pub pd: Pdn,
    /// Number.
    pub qpn: u32,
}

/// A change of a key by UMR.
#[derive(Debug)]
pub struct Change<'a> {
    /// The key; its lower eight bits do not count.
    pub key: u32,
    /// Flags of the WQE.
    pub flags: u8,
    /// Fields of the context that count.
    pub mask: u64,
    /// New context.
    pub context: MkeyContext,
    /// New part of the list, and its place there in bytes.
    pub list: Option<(&'a [u8], u64)>,
}

#[derive(Debug)]
enum Translation {
    Space(Space),
    Keys(KeyList),
}

#[derive(Debug)]
struct Entry {
    attr: MkeyAttr,
    translation: Translation,
    variant: u8,
    form: Form,
    // The list as it was written, of a key that UMR may change.
    list: Vec<u8>,
}

impl Entry {
    // Makes the translation of the list, as it is now.
    fn translate(&mut self) -> Result<(), Denied> {
        match self.form.mode {
            Mode::Direct => {}
            Mode::Klm => self.translation = Translation::Keys(KeyList::klm(&self.list)),
            Mode::Ksm => self.translation = Translation::Keys(KeyList::ksm(&self.list, self.form.log_size)),
            Mode::Pages => {
                let Translation::Space(space) = &self.translation else { return Err(Denied) };
                let log_size = u32::from(self.form.log_size);
                if !LOG_PAGES.contains(&log_size) {
                    return Err(Denied);
                }
                let pages = self.list.chunks_exact(8).filter_map(<[u8]>::first_chunk);
                let pages = pages.map(|entry| umr::mtt_page(u64::from_be_bytes(*entry))).collect();
                let start = self.attr.iova & ((1 << log_size) - 1);
                let list = space.page_list(log_size, start, pages).ok_or(Denied)?;
                self.translation = Translation::Space(Space::Pages(list));
                self.attr.va = 0;
            }
        }
        Ok(())
    }

    fn may_change(&self, change: &Change, by: Owner) -> bool {
        let state = match change.flags & umr::CHECK {
            umr::CHECK_FREE => self.form.free,
            umr::CHECK_VALID => !self.form.free,
            _ => true,
        };
        let owned = change.flags & umr::CHECK_QPN == 0 || self.is_for(by.qpn);
        let fits = change.list.is_none_or(|(list, at)| {
            let end = at.checked_add(list.len() as u64);
            self.form.mode != Mode::Direct && end.is_some_and(|end| end <= self.form.capacity as u64)
        });
        self.form.umr && by.pd.reaches(self.attr.pd) && state && owned && fits
    }

    fn is_bound_window(&self) -> bool {
        self.form.window && !self.form.free
    }

    fn is_for(&self, qpn: u32) -> bool {
        self.form.qpn == ANY_QP || self.form.qpn == qpn
    }

    fn change(&mut self, change: &Change) -> Result<(), Denied> {
        let (mask, new) = (change.mask, &change.context);
        let counts = |field: u64| mask & field != 0;
        if let Some((list, at)) = change.list {
            let at = at as usize;
            if change.flags & umr::TRANSLATION_OFFSET == 0 {
                self.list.clear();
            }
            self.list.resize(self.list.len().max(at + list.len()), 0);
            self.list[at..at + list.len()].copy_from_slice(list);
        }
        for (field, right) in [
            (mask::LOCAL_WRITE, LOCAL_WRITE),
            (mask::REMOTE_WRITE, REMOTE_WRITE),
            (mask::REMOTE_READ, REMOTE_READ),
            (mask::ATOMIC, REMOTE_ATOMIC),
        ] {
            if counts(field) {
                self.attr.access = self.attr.access & !right | rights(new) & right;
            }
        }
        if counts(mask::LEN) {
            // libmlx5's bind of a window leaves the bit as it was in the queue, beside a length.
            self.attr.length = if new.length64 && new.len == 0 { u64::MAX } else { new.len };
        }
        if counts(mask::START) {
            self.attr.iova = new.start;
        }
        if counts(mask::PD) {
            self.attr.pd = Pdn(new.pd);
        }
        if counts(mask::PAGE_SIZE) {
            self.form.log_size = new.log_page_size;
        }
        if counts(mask::REMOTE_INVALIDATE) {
            self.form.remote_invalidate = new.remote_invalidate;
        }
        if counts(mask::QPN) {
            self.form.qpn = new.qpn;
        }
        if counts(mask::KEY) {
            self.variant = new.variant;
        }
        if counts(mask::FREE) {
            self.form.free = new.free;
        }
        if change.list.is_some() || counts(mask::START | mask::PAGE_SIZE) { self.translate() } else { Ok(()) }
    }
}

/// Bytes that a key gave access to.
#[derive(Debug, Clone)]
pub enum Region {
    /// At an address of a space.
    Memory(Space, u64),
    /// No memory: reads give zeros, writes are ignored.
    Fill,
    /// Pieces one after the other, each with its length.
    Pieces(Vec<(Region, usize)>),
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
            Self::Pieces(pieces) => {
                let mut rest = dst;
                for (region, len) in pieces {
                    let (now, later) = rest.split_at_mut(rest.len().min(*len));
                    region.read(now)?;
                    rest = later;
                }
                if rest.is_empty() { Ok(()) } else { Err(Denied) }
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
            Self::Pieces(pieces) => {
                let mut rest = src;
                for (region, len) in pieces {
                    let (now, later) = rest.split_at(rest.len().min(*len));
                    region.write(now)?;
                    rest = later;
                }
                if rest.is_empty() { Ok(()) } else { Err(Denied) }
            }
        }
    }

    /// Returns `true` if the region begins at a multiple of eight bytes, as atomics need.
    pub fn is_aligned(&self) -> bool {
        match self {
            Self::Memory(_, va) => va % 8 == 0,
            Self::Fill => true,
            // Eight bytes in two pieces are in no one word.
            Self::Pieces(_) => false,
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
            Self::Pieces(_) => Err(Denied),
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
        self.create_formed(attr, Form::default(), Space::Process, &[], None)
    }

    /// Makes a key of this form with a list, or with room for one. Pages of the list are pages of `space`. The driver
    /// may choose the variant. Returns `None` if there are too many keys.
    pub fn create_formed(
        &mut self,
        attr: MkeyAttr,
        form: Form,
        space: Space,
        list: &[u8],
        chosen: Option<u8>,
    ) -> Option<Mkey> {
        let translation = match form.mode {
            Mode::Direct | Mode::Pages => Translation::Space(space),
            Mode::Klm => Translation::Keys(KeyList::klm(list)),
            Mode::Ksm => Translation::Keys(KeyList::ksm(list, form.log_size)),
        };
        // The variant differs from one registration to the next, so that an old key does not name the next
        // registration with its index.
        let mut variant = 0;
        let Self { first, rng, variants, .. } = self;
        let index = self.table.insert_with(|index| {
            let at = (index - *first) as usize;
            variants.resize_with(variants.len().max(at + 1), || rng.next_u64() as u8);
            variants[at] = chosen.unwrap_or_else(|| variants[at].wrapping_add(1));
            variant = variants[at];
            Entry { attr, translation, variant, form, list: list.to_vec() }
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

    /// Ends the registration with this index, whatever its variant is now; returns `false` if there was none.
    pub fn destroy_index(&mut self, index: u32) -> bool {
        let Some(entry) = self.table.remove(index) else { return false };
        if let Some(variant) = self.variants.get_mut((index - self.first) as usize) {
            *variant = entry.variant;
        }
        true
    }

    /// Changes a key by UMR, on behalf of a queue pair.
    pub fn change(&mut self, change: &Change, by: Owner) -> Result<(), Denied> {
        let entry = self.table.get_mut(change.key >> 8).ok_or(Denied)?;
        if entry.may_change(change, by) { entry.change(change) } else { Err(Denied) }
    }

    /// Checks the rules of a bound memory window; returns the entry that breaks one.
    pub fn check_window(&self, index: u32) -> Result<(), (WindowFault, DataSegment)> {
        let Some(Entry { attr, list, .. }) = self.table.get(index).filter(|entry| entry.is_bound_window()) else {
            return Ok(());
        };
        let Some(entry) = list.first_chunk().map(DataSegment::from_bytes) else { return Ok(()) };
        let Some(region) = self.find(entry.lkey.get()).map(|region| &region.attr) else {
            return Err((WindowFault::Range, entry));
        };
        let offset = entry.addr.get().checked_sub(region.iova);
        let end = offset.and_then(|offset| offset.checked_add(attr.length));
        if region.pd != attr.pd || end.is_none_or(|end| end > region.length) {
            return Err((WindowFault::Range, entry));
        }
        let writes = attr.access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
        let needed = MW_BIND | if writes { LOCAL_WRITE } else { 0 };
        if region.access & needed == needed { Ok(()) } else { Err((WindowFault::Rights, entry)) }
    }

    /// Frees a key, as a peer asks for by a SEND to a queue pair.
    pub fn invalidate(&mut self, key: u32, by: Owner) -> Result<(), Denied> {
        let entry = self.table.get_mut(key >> 8).ok_or(Denied)?;
        let named = entry.variant == key as u8 && !entry.form.free;
        if !named || !entry.form.remote_invalidate || entry.attr.pd != by.pd || !entry.is_for(by.qpn) {
            return Err(Denied);
        }
        entry.form.free = true;
        Ok(())
    }

    fn find(&self, key: u32) -> Option<&Entry> {
        self.table.get(key >> 8).filter(|entry| entry.variant == key as u8)
    }

    /// Checks an access of `len` bytes at `addr`, as the lkey names it, on behalf of a queue of domain `pd`. A key of
    /// one queue pair is for peers only.
    #[inline]
    pub fn check(&self, key: u32, pd: Pdn, addr: u64, len: usize, access: Access) -> Result<Region, Denied> {
        self.check_for(key, Owner { pd, qpn: ANY_QP }, addr, len, access)
    }

    /// Checks an access by a peer of a queue pair.
    #[inline]
    pub fn check_for(&self, key: u32, by: Owner, addr: u64, len: usize, access: Access) -> Result<Region, Denied> {
        self.check_at(key, by, addr, len, access, MAX_INDIRECTION)
    }

    fn check_at(
        &self,
        key: u32,
        by: Owner,
        addr: u64,
        len: usize,
        access: Access,
        levels: u32,
    ) -> Result<Region, Denied> {
        if key == DUMP_FILL_MKEY.0 && access & !LOCAL_WRITE == 0 {
            return Ok(Region::Fill);
        }
        let entry = self.find(key).ok_or(Denied)?;
        let Entry { attr, form, .. } = entry;
        let offset = addr.checked_sub(attr.iova).ok_or(Denied)?;
        let end = offset.checked_add(len as u64).ok_or(Denied)?;
        let allowed = by.pd.reaches(attr.pd) && attr.access & access == access && end <= attr.length;
        if !allowed || form.free || !entry.is_for(by.qpn) {
            return Err(Denied);
        }
        match &entry.translation {
            Translation::Space(space) => Ok(Region::Memory(space.clone(), attr.va.wrapping_add(offset))),
            Translation::Keys(list) => self.pieces(list, by.pd, offset, len, access, levels),
        }
    }

    // Checks the keys of a list. The rights of peers are those of the outer key: the others need local rights only.
    #[cold]
    fn pieces(
        &self,
        list: &KeyList,
        pd: Pdn,
        offset: u64,
        len: usize,
        access: Access,
        levels: u32,
    ) -> Result<Region, Denied> {
        let levels = levels.checked_sub(1).ok_or(Denied)?;
        let writes = access & (LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC) != 0;
        let access = if writes { LOCAL_WRITE } else { LOCAL_READ };
        let by = Owner { pd, qpn: ANY_QP };
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let piece = list.piece(offset + done as u64).ok_or(Denied)?;
            let here = piece.len.min((len - done) as u64) as usize;
            pieces.push((self.check_at(piece.key, by, piece.addr, here, access, levels)?, here));
            done += here;
        }
        match (pieces.len(), pieces.pop()) {
            (1, Some((whole, _))) => Ok(whole),
            (_, last) => {
                pieces.extend(last);
                Ok(Region::Pieces(pieces))
            }
        }
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

    #[test]
    fn a_list_of_pages_of_a_host() {
        use std::sync::Arc;

        use crate::base::dma::{Dma, Piece};

        /// A host whose addresses are other ones in this process.
        #[derive(Debug)]
        struct Shifted;

        // SAFETY: the test reads no memory, but translates only.
        unsafe impl Dma for Shifted {
            fn translate(&self, address: u64, _: crate::base::dma::Access) -> Option<Piece> {
                Some(Piece { address: address + (1 << 40), len: 4096 - address % 4096 })
            }
        }

        let mut keys = MkeyTable::new(1);
        let form = Form { mode: Mode::Pages, umr: true, free: true, capacity: 64, ..Form::default() };
        let free = attr(0, 0, 0, 0);
        let key = keys.create_formed(free, form, Space::Host(Arc::new(Shifted)), &[], Some(7)).unwrap().0;
        let by = Owner { pd: PD, qpn: 1 };
        let context = MkeyContext {
            local_write: true,
            start: 0x1800,
            len: 0x1800,
            log_page_size: 12,
            variant: 8,
            ..MkeyContext::ZERO
        };
        let list: Vec<u8> = [0x7000u64 | 3, 0x3000 | 3].iter().flat_map(|page| page.to_be_bytes()).collect();
        let mask = mask::FREE | mask::KEY | mask::LEN | mask::START | mask::PAGE_SIZE | mask::LOCAL_WRITE;
        let list = Some((&list[..], 0));
        let change = Change { key, flags: umr::CHECK_FREE, mask, context, list };
        assert_eq!(keys.change(&change, by), Ok(()));
        // The key is no longer free.
        assert_eq!(keys.change(&change, by), Err(Denied));
        let place = |addr| match keys.check(key + 1, PD, addr, 1, LOCAL_WRITE) {
            Ok(Region::Memory(Space::Pages(list), va)) => list.piece(va, crate::base::dma::Access::Write),
            _ => None,
        };
        let address = |addr| place(addr).map(|piece| piece.address - (1 << 40));
        assert_eq!(address(0x1800), Some(0x7800));
        assert_eq!(address(0x2000), Some(0x3000));
        assert_eq!(address(0x2fff), Some(0x3fff));
        assert_eq!(address(0x3000), None);
        assert_eq!(address(0x17ff), None);
        // Keys of this process have no pages.
        let own = keys.create_formed(free, form, Space::Process, &[], None).unwrap().0;
        assert_eq!(keys.change(&Change { key: own, ..change }, by), Err(Denied));
    }
}
