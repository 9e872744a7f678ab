//! Doorbells of pages that a bus traps: writes of any size, put together again.

use mlx5_wire::uar::{EQ_ARM, EQ_UPDATE};

/// A doorbell that was written in part.
#[derive(Debug, Default)]
pub struct Assembly {
    // Page and offset of the eight bytes.
    place: Option<(u32, usize)>,
    bytes: [u8; 8],
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

impl Assembly {
    /// Takes bytes that were written to a page; `rung` gets each doorbell when its last byte is written.
    pub fn write(&mut self, page: u32, offset: usize, bytes: &[u8], mut rung: impl FnMut(Doorbell)) {
        for (at, byte) in (offset..).zip(bytes) {
            let base = at & !7;
            if self.place != Some((page, base)) {
                (self.place, self.bytes) = (Some((page, base)), [0; 8]);
            }
            self.bytes[at & 7] = *byte;
            let [a, b, c, d, ..] = self.bytes;
            let doorbell = match base {
                EQ_ARM | EQ_UPDATE if at & 7 == 3 => {
                    Doorbell::EventQueue { arm: base == EQ_ARM, word: u32::from_be_bytes([a, b, c, d]) }
                }
                EQ_ARM | EQ_UPDATE => continue,
                _ if at & 7 == 7 => Doorbell::Queue { offset: base, bytes: self.bytes },
                _ => continue,
            };
            self.place = None;
            rung(doorbell);
        }
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
    fn another_place_ends_a_doorbell_in_parts() {
        let mut assembly = Assembly::default();
        assert_eq!(rung(&mut assembly, 0x10, 0x800, &[0xff; 4]), []);
        assert_eq!(rung(&mut assembly, 0x11, 0x800, &[0xff; 4]), []);
        let bytes = [0, 0, 0, 0, 1, 1, 1, 1];
        let ends = [Doorbell::Queue { offset: 0x800, bytes }];
        assert_eq!(rung(&mut assembly, 0x10, 0x804, &[1; 4]), ends);
    }
}
