//! Receives that are not over, in the order of posting.

use super::arrival::ListHandle;
use super::ids::{GENERATIONS, Key, ReceiveId};
use super::unexpected::Message;
use crate::memory::Buffer;

/// How far a receive is.
#[derive(Debug)]
pub(super) enum State {
    /// The receive waits for a message.
    Posted,
    /// The receive waits for the device to say whether the cancellation was in time.
    Cancelling,
    /// A message that the device found unexpected belongs to it, and is delivered when the device has
    /// given up the buffer.
    Claimed(Message),
    /// The device has matched it, and brings the data.
    Matched,
    /// As `Matched`, by a rendezvous that the library must finish.
    Incomplete,
    /// The library reads the data of a rendezvous into it.
    Reading,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) tag: u64,
    pub(super) mask: u64,
    pub(super) state: State,
    pub(super) handle: ListHandle,
    /// Tag and context of the message that matched.
    pub(super) header: (u64, u32),
    /// The message came before it.
    pub(super) late: bool,
    /// `None` while a read has it.
    pub(super) buffer: Option<Buffer>,
    /// The receive takes only messages without payload; its buffer is the library's, for headers.
    pub(super) empty: bool,
}

impl Receive {
    /// Bytes of payload that it takes.
    pub(super) fn room(&self) -> usize {
        match &self.buffer {
            Some(buffer) if !self.empty => buffer.capacity(),
            _ => 0,
        }
    }

    pub(super) fn matches(&self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    receive: Option<Receive>,
    /// The neighbours in the order of posting, among the receives that wait; or the next free slot.
    before: u32,
    after: u32,
    waits: bool,
}

const NONE: u32 = u32::MAX;

/// All receives of a queue that are not over.
#[derive(Debug)]
pub(super) struct Receives {
    owner: u32,
    slots: Vec<Slot>,
    free: u32,
    len: u32,
    first: u32,
    last: u32,
}

impl Receives {
    pub(super) const fn new(owner: u32) -> Self {
        Self { owner, slots: Vec::new(), free: NONE, len: 0, first: NONE, last: NONE }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Adds a receive; one that is `Posted` waits after all others.
    pub(super) fn add(&mut self, receive: Receive) -> ReceiveId {
        let waits = matches!(receive.state, State::Posted);
        if self.free == NONE {
            self.slots.push(Slot { generation: 0, receive: None, before: NONE, after: NONE, waits: false });
            self.free = self.slots.len() as u32 - 1;
        }
        let index = self.free;
        let last = self.last;
        let slot = &mut self.slots[index as usize];
        self.free = slot.after;
        slot.receive = Some(receive);
        slot.waits = waits;
        (slot.before, slot.after) = (NONE, NONE);
        let key = Key { index, generation: slot.generation };
        if waits {
            slot.before = last;
            match self.slots.get_mut(last as usize) {
                Some(before) => before.after = index,
                None => self.first = index,
            }
            self.last = index;
        }
        self.len += 1;
        ReceiveId { owner: self.owner, key }
    }

    /// The receive, if it is not over.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Receive> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        slot.receive.as_mut()
    }

    /// The oldest one that waits for a message with this tag.
    pub(super) fn oldest(&self, tag: u64) -> Option<Key> {
        let mut at = self.first;
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.receive.as_ref().is_some_and(|receive| receive.matches(tag)) {
                return Some(Key { index: at, generation: slot.generation });
            }
            at = slot.after;
        }
        None
    }

    /// Sets the state of a receive that waits no longer.
    pub(super) fn set_state(&mut self, key: Key, state: State) {
        if let Some(receive) = self.get_mut(key) {
            receive.state = state;
            self.unlink(key.index);
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if !std::mem::take(&mut slot.waits) {
            return;
        }
        let (before, after) = (slot.before, slot.after);
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.after = after,
            None => self.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(slot) => slot.before = before,
            None => self.last = before,
        }
    }

    /// Removes a receive that is over.
    pub(super) fn take(&mut self, key: Key) -> Option<(ReceiveId, Receive)> {
        self.get_mut(key)?;
        self.unlink(key.index);
        let slot = self.slots.get_mut(key.index as usize)?;
        let receive = slot.receive.take()?;
        slot.generation = (slot.generation + 1) & GENERATIONS;
        slot.after = self.free;
        self.free = key.index;
        self.len -= 1;
        Some((ReceiveId { owner: self.owner, key }, receive))
    }

    /// Takes all of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Receive> {
        (self.first, self.last, self.len) = (NONE, NONE, 0);
        self.slots.iter_mut().filter_map(|slot| slot.receive.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(receives: &mut Receives, tag: u64, mask: u64) -> Key {
        let (handle, state) = (ListHandle::None, State::Posted);
        let receive = Receive { tag, mask, state, handle, header: (0, 0), late: false, buffer: None, empty: true };
        receives.add(receive).key
    }

    /// Whichever receive ends: the oldest of the others that matches is found, and a place in the list has a new name.
    #[test]
    fn the_oldest_that_matches_is_found_whichever_ends() {
        for ends in 0..4 {
            let mut receives = Receives::new(0);
            let mut keys = [(7, u64::MAX), (8, u64::MAX), (0, 0), (7, u64::MAX)].map(|(t, m)| add(&mut receives, t, m));
            assert_eq!([7, 8, 9].map(|tag| receives.oldest(tag)), [0, 1, 2].map(|at| Some(keys[at])));
            // Matched first, or at once.
            if ends % 2 == 0 {
                receives.set_state(keys[ends], State::Matched);
            }
            assert!(receives.take(keys[ends]).is_some() && receives.take(keys[ends]).is_none());
            let next = add(&mut receives, 7, u64::MAX);
            assert_eq!((next.index, receives.len()), (keys[ends].index, 4));
            assert_ne!(next, keys[ends]);
            assert!(receives.get_mut(keys[ends]).is_none());
            keys[ends..].rotate_left(1);
            keys[3] = next;
            let order: Vec<_> = std::iter::from_fn(|| {
                let oldest = receives.oldest(7)?;
                receives.take(oldest).map(|_| oldest)
            })
            .collect();
            let expected: Vec<_> = keys.into_iter().filter(|key| key.index != 1 || *key == next).collect();
            assert_eq!(order, expected, "{ends}");
        }
    }
}
