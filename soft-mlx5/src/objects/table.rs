//! Numbered objects: a number is an index plus a base, so finding one is a load, not a hash.

use std::collections::VecDeque;

// A number has 24 bits.
const NUMBERS: u32 = 1 << 24;
// Slots of a table whose numbers do not repeat, as a power of two: the bits above count how often a slot was used.
const DISTINCT_SLOTS: u32 = 14;

/// Objects of one kind, found by number.
#[derive(Debug)]
pub struct Table<T> {
    base: u32,
    slots: Vec<Slot<T>>,
    // First in, first out: a number rests as long as possible before it names another object, so that
    // late packets for the old object find no object.
    free: VecDeque<u32>,
    limit: u32,
    distinct: bool,
}

#[derive(Debug)]
struct Slot<T> {
    number: u32,
    object: Option<T>,
}

impl<T> Table<T> {
    /// Makes a table whose first number is `base` and which holds at most `limit` objects.
    pub fn new(base: u32, limit: u32) -> Self {
        Self { base, slots: Vec::new(), free: VecDeque::new(), limit, distinct: false }
    }

    /// Makes a table that never gives a number twice. It is full for good after nearly 2^24 objects, and holds at most
    /// 2^14 at once.
    pub fn distinct(base: u32) -> Self {
        Self { distinct: true, ..Self::new(base, 1 << DISTINCT_SLOTS) }
    }

    /// Stores the object that `make` builds from its number; returns `None` if the table is full.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        // Numbers are used again only when 64 of them rest, or when the table is full.
        let reuse = self.free.len() >= 64 || self.slots.len() as u32 >= self.limit;
        let resting = if reuse { self.free.pop_front() } else { None };
        let index = match resting {
            Some(index) => index,
            None if (self.slots.len() as u32) < self.limit => {
                let index = self.slots.len() as u32;
                self.slots.push(Slot { number: self.base + index, object: None });
                index
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.object = Some(make(slot.number));
        Some(slot.number)
    }

    /// Takes an object out; its number rests, or is never given again.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let object = self.slots[index].object.take()?;
        let mut again = true;
        if self.distinct {
            let next = number + (1 << DISTINCT_SLOTS);
            again = next < NUMBERS;
            self.slots[index].number = next;
        }
        if again {
            self.free.push_back(index as u32);
        }
        Some(object)
    }

    // Returns the place for an object of this number.
    fn place(&self, number: u32) -> usize {
        let index = number.wrapping_sub(self.base);
        let mask = if self.distinct { (1 << DISTINCT_SLOTS) - 1 } else { u32::MAX };
        (index & mask) as usize
    }

    fn index(&self, number: u32) -> Option<usize> {
        let index = self.place(number);
        self.slots.get(index).is_some_and(|slot| slot.number == number).then_some(index)
    }

    /// Returns the object with this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots[self.index(number)?].object.as_ref()
    }

    /// Returns the object with this number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number)?;
        self.slots[index].object.as_mut()
    }

    /// Returns the object in the next slot after that of number `cursor`, and moves `cursor` there. The first slot
    /// follows the last.
    pub fn next_mut(&mut self, cursor: &mut u32) -> Option<(u32, &mut T)> {
        let from = self.place(*cursor).saturating_add(1).min(self.slots.len());
        let (before, after) = self.slots.split_at(from);
        let is_used = |slot: &Slot<T>| slot.object.is_some();
        let found = after.iter().position(is_used).map(|index| from + index);
        let index = found.or_else(|| before.iter().position(is_used))?;
        let Slot { number, object } = &mut self.slots[index];
        *cursor = *number;
        Some((*number, object.as_mut()?))
    }

    /// Returns all objects, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().filter_map(|slot| Some((slot.number, slot.object.as_ref()?)))
    }

    /// Returns all objects, in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.number, slot.object.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rest_before_they_return() {
        let mut table = Table::new(0x40, 1000);
        let first = table.insert_with(|_| 'a').unwrap();
        assert_eq!(first, 0x40);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.insert_with(|_| 'b'), Some(0x41));
        assert!(table.get(first).is_none());
        assert!(table.get(0).is_none());
        assert!(table.get(0x3f).is_none());
    }

    #[test]
    fn distinct_numbers_do_not_repeat_and_end() {
        let mut table = Table::distinct(0x40);
        let held = table.insert_with(|n| n).unwrap();
        let mut seen = std::collections::HashSet::from([held]);
        for _ in 0..200_000 {
            let number = table.insert_with(|n| n).unwrap();
            assert!(seen.insert(number) && number < NUMBERS, "{number:#x}");
            assert_eq!(table.get(number), Some(&number));
            assert_eq!(table.remove(number), Some(number));
            assert_eq!(table.get(number), None);
            assert_eq!(table.remove(number), None);
        }
        assert_eq!(table.get(held), Some(&held));
        // A device looks at all slots: they must not grow with the numbers given.
        assert!(table.slots.len() < 1000, "{}", table.slots.len());
        let mut given = seen.len();
        while let Some(number) = table.insert_with(|n| n) {
            table.remove(number);
            given += 1;
        }
        assert!(given as u32 > NUMBERS - 2 * (1 << DISTINCT_SLOTS), "{given}");
    }

    #[test]
    fn the_cursor_goes_round() {
        let mut table = Table::new(0x40, 10);
        let mut cursor = 0;
        assert!(table.next_mut(&mut cursor).is_none());
        for _ in 0..5 {
            table.insert_with(|number| number);
        }
        table.remove(0x42);
        let round: Vec<_> = (0..6).map(|_| table.next_mut(&mut cursor).unwrap().0).collect();
        assert_eq!(round, [0x40, 0x41, 0x43, 0x44, 0x40, 0x41]);
    }

    #[test]
    fn a_full_table_reuses_and_then_refuses() {
        let mut table = Table::new(1, 2);
        assert_eq!(table.insert_with(|n| n), Some(1));
        assert_eq!(table.insert_with(|n| n), Some(2));
        assert_eq!(table.insert_with(|n| n), None);
        table.remove(1);
        assert_eq!(table.insert_with(|n| n * 10), Some(1));
        assert_eq!(table.get(1), Some(&10));
    }
}
