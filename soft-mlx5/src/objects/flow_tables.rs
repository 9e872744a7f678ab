//! Flow tables as firmware keeps them: entries in the order of their places, each with the mask of its group, that lead
//! to receive queues or to other tables.

use std::collections::BTreeMap;

use super::Tirn;
use super::flow::{Fields, Target};

/// Tables that a frame may pass.
const LEVELS: usize = 64;

/// Where an entry leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// To receive queues.
    Tir(Tirn),
    /// To a table.
    Table(u32),
}

/// An entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Mask of its group; `None` if the device does not know the fields, so that no frame matches.
    pub mask: Option<Fields>,
    /// Values that the masked bits must have.
    pub value: Fields,
    /// Tag in the CQE.
    pub tag: u32,
    /// Where its frames go; nowhere if empty.
    pub next: Vec<Next>,
}

impl Entry {
    fn matches(&self, fields: &Fields) -> bool {
        let Some(mask) = &self.mask else { return false };
        let bytes = fields.iter().zip(&self.value).zip(mask);
        bytes.into_iter().all(|((field, value), mask)| (field ^ value) & mask == 0)
    }
}

/// A table.
#[derive(Debug, Default)]
pub struct FlowTable {
    /// Table of the frames that match no entry.
    pub miss: Option<u32>,
    /// Entries by their places.
    pub entries: BTreeMap<u32, Entry>,
}

/// The tables of the receive side.
#[derive(Debug, Default)]
pub struct Tables {
    /// First table.
    pub root: Option<u32>,
    /// All tables.
    pub tables: BTreeMap<u32, FlowTable>,
}

impl Tables {
    /// Appends the targets of a frame, each once with its tag.
    pub fn find(&self, fields: &Fields, found: &mut Vec<(Target, u32)>) {
        if let Some(root) = self.root {
            self.walk(root, fields, found, 0);
        }
    }

    fn walk(&self, number: u32, fields: &Fields, found: &mut Vec<(Target, u32)>, level: usize) {
        let Some(table) = self.tables.get(&number).filter(|_| level < LEVELS) else { return };
        let Some(entry) = table.entries.values().find(|entry| entry.matches(fields)) else {
            if let Some(miss) = table.miss {
                self.walk(miss, fields, found, level + 1);
            }
            return;
        };
        for next in &entry.next {
            match *next {
                Next::Table(number) => self.walk(number, fields, found, level + 1),
                Next::Tir(tirn) => {
                    let target = Target::Tir(tirn);
                    if !found.iter().any(|(other, _)| *other == target) {
                        found.push((target, entry.tag));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::{FIELDS, at, put};
    use super::*;

    fn entry(last: Option<u8>, next: &[Next]) -> Entry {
        let (mut mask, mut value) = ([0; FIELDS], [0; FIELDS]);
        if let Some(last) = last {
            put(&mut mask, at::DESTINATION_IP + 12, [0xff; 4]);
            put(&mut value, at::DESTINATION_IP + 12, [239, 1, 2, last]);
        }
        Entry { mask: Some(mask), value, tag: 5, next: next.to_vec() }
    }

    fn frame(last: u8) -> Fields {
        let mut fields = [0x11; FIELDS];
        put(&mut fields, at::DESTINATION_IP + 12, [239, 1, 2, last]);
        fields
    }

    const TIR: [Next; 2] = [Next::Tir(Tirn(1)), Next::Tir(Tirn(2))];

    fn found(tables: &Tables, last: u8) -> Vec<u32> {
        let mut found = Vec::new();
        tables.find(&frame(last), &mut found);
        found
            .iter()
            .map(|(target, _)| match target {
                Target::Tir(tirn) => tirn.0,
                Target::Drop => 0,
            })
            .collect()
    }

    #[test]
    fn the_first_entry_that_matches_leads_on() {
        let mut tables = Tables { root: Some(1), ..Tables::default() };
        let mut first = FlowTable { miss: Some(3), ..FlowTable::default() };
        first.entries.insert(7, entry(Some(3), &TIR[1..]));
        first.entries.insert(2, entry(Some(3), &[Next::Table(2), TIR[1]]));
        first.entries.insert(1, Entry { mask: None, ..entry(None, &TIR) });
        first.entries.insert(3, entry(Some(4), &[]));
        let mut second = FlowTable::default();
        second.entries.insert(0, entry(None, &TIR));
        let mut miss = FlowTable::default();
        miss.entries.insert(0, entry(Some(5), &TIR[..1]));
        tables.tables.extend([(1, first), (2, second), (3, miss)]);
        assert_eq!(found(&tables, 3), [1, 2], "each target once");
        assert_eq!(found(&tables, 4), [], "an entry without target drops");
        assert_eq!(found(&tables, 5), [1], "a frame without entry goes to the next table");
        assert_eq!(found(&tables, 6), []);
    }

    #[test]
    fn a_ring_of_tables_ends() {
        let mut tables = Tables { root: Some(1), ..Tables::default() };
        tables.tables.insert(1, FlowTable { miss: Some(1), ..FlowTable::default() });
        assert_eq!(found(&tables, 3), []);
    }
}
