//! Numbered objects: a number is an index plus a base, so finding one is a load, not a hash.

use std::collections::VecDeque;

/// Objects of one kind, found by number.
#[derive(Debug)]
pub struct Table<T> {
    base: u32,
    slots: Vec<Option<T>>,
    // First in, first out: a number rests as long as possible before it names another object, so
    // that what arrives late for the old one finds nothing.
    free: VecDeque<u32>,
    limit: u32,
}

impl<T> Table<T> {
    /// A table whose first number is `base` and which holds at most `limit` objects.
    pub fn new(base: u32, limit: u32) -> Self {
        Self { base, slots: Vec::new(), free: VecDeque::new(), limit }
    }

    /// Stores the object that `make` builds from its number; `None` when the table is full.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        // Numbers come back into use only when a good part of the table is resting.
        let reuse = self.free.len() >= 64 || self.slots.len() as u32 >= self.limit;
        let resting = if reuse { self.free.pop_front() } else { None };
        let index = match resting {
            Some(index) => index,
            None if (self.slots.len() as u32) < self.limit => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let number = self.base + index;
        self.slots[index as usize] = Some(make(number));
        Some(number)
    }

    /// Takes an object out; its number rests.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = number.wrapping_sub(self.base);
        let object = self.slots.get_mut(index as usize)?.take()?;
        self.free.push_back(index);
        Some(object)
    }

    /// The object with this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number.wrapping_sub(self.base) as usize)?.as_ref()
    }

    /// The object with this number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.wrapping_sub(self.base) as usize)?.as_mut()
    }

    /// The next object after number `cursor`, which moves there, and after the last one the first.
    pub fn next_mut(&mut self, cursor: &mut u32) -> Option<(u32, &mut T)> {
        let from =
            (cursor.wrapping_sub(self.base) as usize).saturating_add(1).min(self.slots.len());
        let (before, after) = self.slots.split_at(from);
        let found = after.iter().position(Option::is_some).map(|index| from + index);
        let index = found.or_else(|| before.iter().position(Option::is_some))?;
        *cursor = self.base + index as u32;
        Some((*cursor, self.slots[index].as_mut()?))
    }

    /// All objects, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(index, slot)| Some((self.base + index as u32, slot.as_ref()?)))
    }

    /// All objects, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let base = self.base;
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(move |(index, slot)| Some((base + index as u32, slot.as_mut()?)))
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
