//! Doorbells of pages that a bus traps: writes of any size, put together again.

use mlx5_wire::uar::{EQ_ARM, EQ_UPDATE};

/// Doorbells that were written in part.
///
/// Processors of a machine ring beside each other, and an emulated one may write a doorbell byte by byte: its parts
/// come between doorbells of other places, and between whole ones of the same place.
#[derive(Debug, Default)]
pub struct Assembly {
    parts: Vec<Part>,
}

/// A doorbell that was written in part.
#[derive(Debug)]
struct Part {
    page: u32,
    // Offset of the eight bytes.
    base: usize,
    bytes: [u8; 8],
    // A bit for each byte that was written.
    written: u8,
}

/// A doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// Eight bytes, of a send queue or a CQ.
    Queue {
        /// Offset in the page.
        offset: usize,
        /// Bytes as written.
        bytes: [u8; 8],
    },
    /// Four bytes, of an event queue.
    EventQueue {
        /// `true` if the queue is armed, too.
        arm: bool,
        /// Number in the upper 8 bits, consumer index in the lower 24.
        word: u32,
    },
}

impl Doorbell {
    // Number of bytes that ring at this offset.
    fn size(base: usize) -> usize {
        if matches!(base, EQ_ARM | EQ_UPDATE) { 4 } else { 8 }
    }

    fn new(base: usize, bytes: [u8; 8]) -> Self {
        let [a, b, c, d, ..] = bytes;
        let word = u32::from_be_bytes([a, b, c, d]);
        match base {
            EQ_ARM | EQ_UPDATE => Self::EventQueue { arm: base == EQ_ARM, word },
            offset => Self::Queue { offset, bytes },
        }
    }
}

impl Assembly {
    /// Takes bytes that were written to a page; `rung` gets each doorbell when all of its bytes are written.
    pub fn write(&mut self, page: u32, offset: usize, bytes: &[u8], mut rung: impl FnMut(Doorbell)) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (base, first) = (at & !7, at & 7);
            let (now, later) = rest.split_at(rest.len().min(8 - first));
            (at, rest) = (at + now.len(), later);
            let size = Doorbell::size(base);
            if first == 0 && now.len() >= size {
                let mut whole = [0; 8];
                whole[..now.len()].copy_from_slice(now);
                rung(Doorbell::new(base, whole));
            } else if let Some(doorbell) = self.add(page, base, first, now) {
                rung(doorbell);
            }
        }
    }

    // Adds a part; returns the doorbell if it is whole.
    fn add(&mut self, page: u32, base: usize, first: usize, bytes: &[u8]) -> Option<Doorbell> {
        let place = self.parts.iter().position(|part| (part.page, part.base) == (page, base));
        let place = place.unwrap_or_else(|| {
            self.parts.push(Part { page, base, bytes: [0; 8], written: 0 });
            self.parts.len() - 1
        });
        let part = &mut self.parts[place];
        for (index, byte) in (first..).zip(bytes) {
            if part.written >> index & 1 != 0 {
                // The rest of an older doorbell does not come any more.
                part.written = 0;
            }
            part.bytes[index] = *byte;
            part.written |= 1 << index;
        }
        let needed = u8::MAX >> (8 - Doorbell::size(base));
        (part.written & needed == needed).then(|| {
            let part = self.parts.swap_remove(place);
            Doorbell::new(base, part.bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(assembly: &mut Assembly, page: u32, offset: usize, bytes: &[u8]) -> Vec<Doorbell> {
        let mut all = Vec::new();
        assembly.write(page, offset, bytes, |doorbell| all.push(doorbell));
        all
    }

    #[test]
    fn a_doorbell_counts_when_its_last_byte_is_written() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let whole = [Doorbell::Queue { offset: 0x800, bytes }];
        for size in [1, 2, 4, 8] {
            let mut assembly = Assembly::default();
            let mut all = Vec::new();
            for (part, at) in bytes.chunks(size).zip((0x800..).step_by(size)) {
                assert!(all.is_empty());
                all = rung(&mut assembly, 0x10, at, part);
            }
            assert_eq!(all, whole, "{size}");
        }
    }

    #[test]
    fn words_of_event_queues_are_four_bytes() {
        let mut assembly = Assembly::default();
        let armed = Doorbell::EventQueue { arm: true, word: 0x1100_0203 };
        assert_eq!(rung(&mut assembly, 0x10, 0x40, &[0x11, 0, 2, 3]), [armed]);
        let updated = Doorbell::EventQueue { arm: false, word: 0x1100_0204 };
        assert_eq!(rung(&mut assembly, 0x10, 0x48, &[0x11, 0, 2, 4]), [updated]);
    }

    #[test]
    fn doorbells_in_parts_come_between_others() {
        // Two processors write byte by byte to two places of a page, and a third one rings at both meanwhile.
        let mut assembly = Assembly::default();
        let [first, second, third] = [[1, 2, 3, 4, 5, 6, 7, 8], [0xf1; 8], [9, 10, 11, 12, 13, 14, 15, 16]];
        let whole = |offset, bytes| vec![Doorbell::Queue { offset, bytes }];
        for index in 0..7 {
            assert_eq!(rung(&mut assembly, 0x10, 0x800 + index, &[first[index]]), []);
            assert_eq!(rung(&mut assembly, 0x10, 0x20 + index, &[second[index]]), []);
            assert_eq!(rung(&mut assembly, 0x10, 0x800, &third), whole(0x800, third));
            assert_eq!(rung(&mut assembly, 0x10, 0x20, &third), whole(0x20, third));
        }
        assert_eq!(rung(&mut assembly, 0x11, 0x807, &[first[7]]), [], "another page");
        assert_eq!(rung(&mut assembly, 0x10, 0x807, &[first[7]]), whole(0x800, first));
        assert_eq!(rung(&mut assembly, 0x10, 0x27, &[second[7]]), whole(0x20, second));
    }

    #[test]
    fn bytes_of_a_doorbell_come_in_any_order() {
        let mut assembly = Assembly::default();
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(rung(&mut assembly, 0x10, 0x804, &bytes[4..]), []);
        assert_eq!(rung(&mut assembly, 0x10, 0x800, &bytes[..4]), [Doorbell::Queue { offset: 0x800, bytes }]);
        // Nothing is left of it.
        assert_eq!(rung(&mut assembly, 0x10, 0x804, &bytes[4..]), []);
    }

    #[test]
    fn a_doorbell_begins_again_with_a_byte_that_it_has() {
        let mut assembly = Assembly::default();
        assert_eq!(rung(&mut assembly, 0x10, 0x800, &[0xff; 6]), []);
        assert_eq!(rung(&mut assembly, 0x10, 0x800, &[0]), []);
        assert_eq!(rung(&mut assembly, 0x10, 0x806, &[6, 7]), []);
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(rung(&mut assembly, 0x10, 0x801, &bytes[1..6]), [Doorbell::Queue { offset: 0x800, bytes }]);
    }
}
