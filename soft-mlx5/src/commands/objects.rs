//! Objects of a function: numbers, owners and references.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mlx5_wire::firmware::capabilities::General;

use super::Commands;
use super::capabilities::{GENERAL, GENERAL_ETHERNET};
use super::refusal::Refusal;
use super::umem::Umem;

type Result<T> = std::result::Result<T, Refusal>;

/// Kind of an object. Objects refer to kinds before their own, and flow tables to tables of higher levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// User of the function.
    User,
    /// UAR page.
    Uar,
    /// Protection domain.
    Pd,
    /// Address handle of the kernel.
    AddressHandle,
    /// Memory of the adapter.
    DeviceMemory,
    /// XRC domain.
    Xrcd,
    /// Transport domain.
    TransportDomain,
    /// Set of queue counters.
    Counters,
    /// Memory for the queues of a user.
    Umem,
    /// Event queue.
    Eq,
    /// Memory key; the number is the index.
    Mkey,
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Rmp,
    /// Shared receive queue of XRC.
    XrcSrq,
    /// Shared receive queue for tag matching.
    Xrq,
    /// Queue pair.
    Qp,
    /// Target of dynamic connections.
    Dct,
    /// Path that was mapped to a queue pair.
    PathMapping,
    /// Source of frames.
    Tis,
    /// Send queue.
    Sq,
    /// Receive queue.
    Rq,
    /// Table of receive queues.
    Rqt,
    /// Target of flow rules.
    Tir,
    /// Flow table.
    FlowTable,
    /// Group of flow entries.
    FlowGroup,
    /// Flow entry.
    FlowEntry,
}

/// Kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(pub Kind, pub u32);

/// User of completion event queues, which all users may name.
pub const SHARED_UID: u16 = 0xffff;

/// An object.
#[derive(Debug, Default)]
pub struct Entry {
    /// User that made it; 0 for the driver.
    pub uid: u16,
    /// Objects that refer to this one.
    pub users: u32,
    /// Objects that this one refers to.
    pub uses: Vec<Id>,
    /// Context as the driver gave it, with the changes since.
    pub context: Vec<u8>,
    /// Memory of a UMEM.
    pub umem: Option<Umem>,
}

/// Numbers of a kind of objects.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u32,
    count: u32,
    /// Freed numbers that are not given again yet.
    resting: usize,
}

/// UAR pages of a function, behind its bus.
const UAR_OF_FUNCTION: Range =
    Range { first: Commands::FIRST_UAR, count: Commands::BAR_PAGES - Commands::FIRST_UAR, resting: 0 };
/// UAR pages of a process. A freed page rests before it is given again, so that the doorbells of its old context are
/// long past when a new context uses it.
const UAR_OF_PROCESS: Range = Range { first: 0, count: 1 << 14, resting: 1024 };

/// Returns the numbers of a kind, or `None` for objects that the device numbers.
fn range(kind: Kind, uars: Range) -> Option<Range> {
    const ETHERNET: General = GENERAL_ETHERNET;
    let range = |first, count| Some(Range { first, count, resting: 0 });
    let objects = |log: u8| range(1, (1 << log) - 1);
    match kind {
        Kind::User => objects(GENERAL.log_max_uctx),
        Kind::Uar => Some(uars),
        Kind::AddressHandle | Kind::DeviceMemory => objects(24),
        Kind::Xrcd => objects(GENERAL.log_max_xrcd),
        Kind::TransportDomain => objects(ETHERNET.log_max_transport_domain),
        Kind::Counters => objects(8),
        Kind::Umem => objects(GENERAL.log_max_umem),
        Kind::Eq => range(Objects::FIRST_EQ, GENERAL.max_num_eqs.into()),
        Kind::PathMapping => objects(24),
        Kind::Tis => objects(ETHERNET.log_max_tis),
        Kind::Rqt => objects(ETHERNET.log_max_rqt),
        Kind::FlowTable | Kind::FlowGroup | Kind::FlowEntry => objects(16),
        Kind::Pd | Kind::Mkey | Kind::Cq | Kind::Rmp | Kind::XrcSrq | Kind::Xrq | Kind::Qp => None,
        Kind::Dct | Kind::Sq | Kind::Rq | Kind::Tir => None,
    }
}

/// Numbers that the firmware gives itself: the lowest free one, and one that rests if there is no other.
#[derive(Debug, Default)]
struct Numbers {
    given: u32,
    free: BTreeSet<u32>,
    resting: VecDeque<u32>,
}

impl Numbers {
    fn take(&mut self, count: u32) -> Option<u32> {
        if let Some(number) = self.free.pop_first() {
            return Some(number);
        }
        if self.given == count {
            return self.resting.pop_front();
        }
        self.given += 1;
        Some(self.given - 1)
    }

    fn give_back(&mut self, number: u32, resting: usize) {
        self.resting.push_back(number);
        while self.resting.len() > resting {
            self.free.extend(self.resting.pop_front());
        }
    }

    fn in_use(&self) -> usize {
        self.given as usize - self.free.len() - self.resting.len()
    }
}

/// All objects of a function.
#[derive(Debug)]
pub struct Objects {
    uars: Range,
    entries: BTreeMap<Id, Entry>,
    numbers: BTreeMap<Kind, Numbers>,
}

impl Default for Objects {
    fn default() -> Self {
        Self { uars: UAR_OF_FUNCTION, entries: BTreeMap::new(), numbers: BTreeMap::new() }
    }
}

impl Objects {
    /// Number of the first event queue.
    pub const FIRST_EQ: u32 = 0x10;

    /// Starts without objects, with the UAR pages of a process.
    pub fn of_process() -> Self {
        Self { uars: UAR_OF_PROCESS, ..Self::default() }
    }

    /// Adds an object under the lowest free number of its kind, which the firmware numbers.
    pub fn insert_new(&mut self, kind: Kind, entry: Entry) -> Result<u32> {
        let Range { first, count, .. } = range(kind, self.uars).ok_or(Refusal::NO_RESOURCES)?;
        let number = first + self.numbers.entry(kind).or_default().take(count).ok_or(Refusal::TOO_MANY)?;
        self.insert(Id(kind, number), entry);
        Ok(number)
    }

    /// Returns how many objects there are of a kind that the firmware numbers.
    pub fn count(&self, kind: Kind) -> usize {
        self.numbers.get(&kind).map_or(0, Numbers::in_use)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns an object, whoever owns it.
    pub fn get(&self, kind: Kind, number: u32) -> Option<&Entry> {
        self.entries.get(&Id(kind, number))
    }

    /// Returns an object that a command of `uid` is about. The driver itself may name every object.
    pub fn find(&self, id: Id, uid: u16) -> Result<&Entry> {
        let entry = self.entries.get(&id).ok_or(Refusal::NO_OBJECT)?;
        if uid == 0 || entry.uid == uid { Ok(entry) } else { Err(Refusal::OWNER) }
    }

    /// Does the same for a change.
    pub fn find_mut(&mut self, id: Id, uid: u16) -> Result<&mut Entry> {
        self.find(id, uid)?;
        self.entries.get_mut(&id).ok_or(Refusal::NO_OBJECT)
    }

    /// Checks that an object of `uid` may refer to this object: it exists and has the same owner. UAR pages, event
    /// queues and counters of the driver are for all users.
    pub fn check_use(&self, id: Id, uid: u16) -> Result<Id> {
        let entry = self.entries.get(&id).ok_or(Refusal::NO_OBJECT)?;
        let shared = matches!(id.0, Kind::Uar | Kind::Eq | Kind::Counters) && matches!(entry.uid, 0 | SHARED_UID);
        if uid == 0 || entry.uid == uid || shared { Ok(id) } else { Err(Refusal::OWNER) }
    }

    /// Adds an object. The objects that it uses were checked.
    pub fn insert(&mut self, id: Id, entry: Entry) {
        for used in &entry.uses {
            if let Some(used) = self.entries.get_mut(used) {
                used.users += 1;
            }
        }
        let before = self.entries.insert(id, entry);
        debug_assert!(before.is_none(), "{id:?} is given twice");
    }

    /// Gives an object a context.
    pub fn set_context(&mut self, id: Id, context: Vec<u8>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.context = context;
        }
    }

    /// Gives an object other objects to refer to, which were checked.
    pub fn set_uses(&mut self, id: Id, uses: Vec<Id>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let before = std::mem::replace(&mut entry.uses, uses.clone());
        for used in uses {
            if let Some(used) = self.entries.get_mut(&used) {
                used.users += 1;
            }
        }
        for used in before {
            if let Some(used) = self.entries.get_mut(&used) {
                used.users -= 1;
            }
        }
    }

    /// Returns the objects of a kind that refer to an object.
    pub fn users_of(&self, id: Id, kind: Kind) -> Vec<u32> {
        let all = self.entries.range(Id(kind, 0)..=Id(kind, u32::MAX));
        let users = all.filter(|(_, entry)| entry.uses.contains(&id));
        users.map(|(Id(_, number), _)| *number).collect()
    }

    /// Checks that a command of `uid` may destroy an object.
    pub fn check_unused(&self, id: Id, uid: u16) -> Result<&Entry> {
        let entry = self.find(id, uid)?;
        if entry.users == 0 { Ok(entry) } else { Err(Refusal::IN_USE) }
    }

    /// Takes an object out and ends its references.
    pub fn remove(&mut self, id: Id) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        let Id(kind, number) = id;
        if let Some(range) = range(kind, self.uars) {
            self.numbers.entry(kind).or_default().give_back(number - range.first, range.resting);
        }
        for used in &entry.uses {
            if let Some(used) = self.entries.get_mut(used) {
                used.users -= 1;
            }
        }
        Some(entry)
    }

    /// Returns an object that no other refers to: one of the last kind, since kinds refer to those before.
    pub fn unused(&self) -> Option<Id> {
        self.entries.iter().rev().find(|(_, entry)| entry.users == 0).map(|(id, _)| *id)
    }

    /// Returns `true` if a user owns an object.
    pub fn owns(&self, uid: u16) -> bool {
        self.entries.values().any(|entry| entry.uid == uid)
    }

    /// Returns `true` if each reference counts, and each counted reference exists.
    #[cfg(test)]
    pub fn is_consistent(&self) -> bool {
        let mut counts = BTreeMap::<Id, u32>::new();
        for used in self.entries.values().flat_map(|entry| &entry.uses) {
            *counts.entry(*used).or_default() += 1;
        }
        let exist = counts.keys().all(|id| self.entries.contains_key(id));
        let equal = |(id, entry): (&Id, &Entry)| entry.users == counts.get(id).copied().unwrap_or(0);
        exist && self.entries.iter().all(equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given() {
        let mut objects = Objects::default();
        let take = |objects: &mut Objects| objects.insert_new(Kind::Eq, Entry::default());
        let numbers: Vec<u32> = std::iter::from_fn(|| take(&mut objects).ok()).collect();
        assert_eq!(numbers, (0x10..0x50).collect::<Vec<_>>());
        assert_eq!(take(&mut objects), Err(Refusal::TOO_MANY));
        for number in [0x1f, 0x12] {
            assert!(objects.remove(Id(Kind::Eq, number)).is_some());
        }
        assert_eq!([take(&mut objects), take(&mut objects)], [Ok(0x12), Ok(0x1f)]);
    }

    #[test]
    fn a_page_of_a_process_rests_before_it_is_given_again() {
        let mut objects = Objects::of_process();
        let first = objects.insert_new(Kind::Uar, Entry::default()).unwrap();
        let mut number = first;
        for freed in 1..=UAR_OF_PROCESS.resting + 1 {
            assert!(objects.remove(Id(Kind::Uar, number)).is_some());
            number = objects.insert_new(Kind::Uar, Entry::default()).unwrap();
            assert_eq!(number == first, freed > UAR_OF_PROCESS.resting, "after {freed}");
        }
    }

    #[test]
    fn an_object_in_use_stays() {
        let mut objects = Objects::default();
        let (pd, qp) = (Id(Kind::Pd, 1), Id(Kind::Qp, 2));
        objects.insert(pd, Entry { uid: 5, ..Entry::default() });
        objects.insert(qp, Entry { uid: 5, uses: vec![pd, pd], ..Entry::default() });
        assert_eq!(objects.check_unused(pd, 5).err(), Some(Refusal::IN_USE));
        assert_eq!(objects.check_unused(qp, 6).err(), Some(Refusal::OWNER));
        assert_eq!(objects.check_use(pd, 6).err(), Some(Refusal::OWNER));
        assert!(objects.check_use(pd, 0).is_ok() && objects.is_consistent());
        assert!(objects.remove(qp).is_some() && objects.check_unused(pd, 5).is_ok());
        assert!(objects.is_consistent());
        assert_eq!(objects.find(qp, 0).err(), Some(Refusal::NO_OBJECT));
    }
}
