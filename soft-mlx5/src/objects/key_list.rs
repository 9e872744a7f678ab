//! Lists of an indirect memory key: where its bytes are, by address and key of other keys.

use mlx5_wire::data::DataSegment;
use mlx5_wire::umr::{REPEAT, RepeatBlock, RepeatEntry};

const ENTRY: usize = DataSegment::SIZE;

/// A piece of another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The key.
    pub key: u32,
    /// First byte, as that key names it.
    pub addr: u64,
    /// Bytes from there on that follow each other.
    pub len: u64,
}

// An entry that begins where the entry before it ends.
#[derive(Debug, Clone, Copy)]
struct Block {
    end: u64,
    len: u64,
    stride: u64,
    key: u32,
    addr: u64,
}

/// A list.
#[derive(Debug)]
pub enum KeyList {
    /// Entries of one length, a power of two (KSM).
    Equal(KsmList),
    /// Entries with lengths of their own (KLM), gone through once or, as a repeating block, in cycles.
    Blocks(KlmList),
}

/// Entries of a KSM key.
#[derive(Debug)]
pub struct KsmList {
    log_size: u8,
    entries: Vec<(u32, u64)>,
}

/// Entries of a KLM key.
#[derive(Debug)]
pub struct KlmList {
    blocks: Vec<Block>,
    // Bytes of a cycle, and the number of cycles.
    cycle: u64,
    cycles: u64,
}

fn entries(list: &[u8]) -> impl Iterator<Item = &[u8; ENTRY]> {
    list.chunks_exact(ENTRY).filter_map(<[u8]>::first_chunk)
}

impl KeyList {
    /// Reads the list of a KSM key, whose entries have `1 << log_size` bytes.
    pub fn ksm(list: &[u8], log_size: u8) -> Self {
        let entries = entries(list).map(DataSegment::from_bytes).map(|entry| (entry.lkey.get(), entry.addr.get()));
        Self::Equal(KsmList { log_size, entries: entries.collect() })
    }

    /// Reads the list of a KLM key. A repeating block is its only content.
    pub fn klm(list: &[u8]) -> Self {
        let head = list.first_chunk().map(RepeatBlock::from_bytes).filter(|head| head.op.get() == REPEAT);
        let mut end = 0;
        let mut block = |len: u64, stride: u64, key: u32, addr: u64| {
            end += len;
            Block { end, len, stride, key, addr }
        };
        let Some(head) = head else {
            let blocks = entries(list).map(DataSegment::from_bytes);
            let blocks =
                blocks.map(|entry| block(entry.byte_count.get().into(), 0, entry.lkey.get(), entry.addr.get()));
            let blocks: Vec<_> = blocks.collect();
            return Self::Blocks(KlmList { blocks, cycle: end, cycles: 1 });
        };
        let repeated = entries(&list[ENTRY..]).take(head.num_ent.get().into()).map(RepeatEntry::from_bytes);
        let blocks = repeated.map(|entry| {
            block(entry.byte_count.get().into(), entry.stride.get().into(), entry.memkey.get(), entry.va.get())
        });
        let blocks = blocks.collect();
        Self::Blocks(KlmList { blocks, cycle: head.byte_count.get().into(), cycles: head.repeat_count.get().into() })
    }

    /// Returns the piece that begins `offset` bytes after the first byte of the key, or `None` behind the end of the
    /// list.
    pub fn piece(&self, offset: u64) -> Option<Piece> {
        match self {
            Self::Equal(list) => list.piece(offset),
            Self::Blocks(list) => list.piece(offset),
        }
    }
}

impl KsmList {
    fn piece(&self, offset: u64) -> Option<Piece> {
        let size = 1u64.checked_shl(self.log_size.into())?;
        let (key, addr) = *self.entries.get(usize::try_from(offset >> self.log_size).ok()?)?;
        let within = offset & (size - 1);
        Some(Piece { key, addr: addr.wrapping_add(within), len: size - within })
    }
}

impl KlmList {
    fn piece(&self, offset: u64) -> Option<Piece> {
        let number = offset.checked_div(self.cycle)?;
        let within = offset % self.cycle;
        // Entries without bytes are passed over: they end where the entry before them ends.
        let block = self.blocks.get(self.blocks.partition_point(|block| block.end <= within))?;
        let skip = within - (block.end - block.len);
        let addr = block.addr.wrapping_add(number.wrapping_mul(block.stride)).wrapping_add(skip);
        // A cycle may be shorter than its entries.
        let len = (block.len - skip).min(self.cycle - within);
        (number < self.cycles).then_some(Piece { key: block.key, addr, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[[u8; ENTRY]]) -> Vec<u8> {
        entries.concat()
    }

    fn piece(key: u32, addr: u64, len: u64) -> Option<Piece> {
        Some(Piece { key, addr, len })
    }

    #[test]
    fn lengths_add_up() {
        let entries = [
            DataSegment::new(0x100, 10, 1).to_bytes(),
            DataSegment::new(0x200, 0, 2).to_bytes(),
            DataSegment::new(0x300, 1 << 31, 3).to_bytes(),
        ];
        let list = KeyList::klm(&list(&entries));
        assert_eq!(list.piece(0), piece(1, 0x100, 10));
        assert_eq!(list.piece(9), piece(1, 0x109, 1));
        assert_eq!(list.piece(10), piece(3, 0x300, 1 << 31));
        assert_eq!(list.piece((1 << 31) + 9), piece(3, 0x300 + (1 << 31) - 1, 1));
        assert_eq!(list.piece((1 << 31) + 10), None);
        assert_eq!(KeyList::klm(&[]).piece(0), None);
    }

    #[test]
    fn equal_entries_are_counted_from_the_start() {
        let entries = [DataSegment::new(0x7008, 0, 1).to_bytes(), DataSegment::new(0x9008, 0, 2).to_bytes()];
        let list = KeyList::ksm(&list(&entries), 12);
        assert_eq!(list.piece(0), piece(1, 0x7008, 4096));
        assert_eq!(list.piece(4095), piece(1, 0x8007, 1));
        assert_eq!(list.piece(4096), piece(2, 0x9008, 4096));
        assert_eq!(list.piece(8192), None);
        assert_eq!(KeyList::ksm(&[0; 16], 64).piece(0), None);
    }

    #[test]
    fn a_block_repeats() {
        let block = |cycle: u32, count: u32| {
            let head = RepeatBlock {
                byte_count: cycle.into(),
                op: REPEAT.into(),
                repeat_count: count.into(),
                reserved12: [0; 2],
                num_ent: 2.into(),
            };
            let entry = |stride: u16, byte_count: u16, memkey: u32, va: u64| RepeatEntry {
                stride: stride.into(),
                byte_count: byte_count.into(),
                memkey: memkey.into(),
                va: va.into(),
            };
            let entries = [head.to_bytes(), entry(16, 8, 1, 0x1000).to_bytes(), entry(4, 4, 2, 0x2000).to_bytes()];
            KeyList::klm(&list(&entries))
        };
        let list = block(12, 3);
        assert_eq!(list.piece(0), piece(1, 0x1000, 8));
        assert_eq!(list.piece(8), piece(2, 0x2000, 4));
        assert_eq!(list.piece(13), piece(1, 0x1011, 7));
        assert_eq!(list.piece(35), piece(2, 0x200b, 1));
        assert_eq!(list.piece(36), None);
        // Cycles that are shorter or longer than their entries, and a block without cycles.
        assert_eq!(block(10, 2).piece(9), piece(2, 0x2001, 1));
        assert_eq!(block(16, 2).piece(12), None);
        assert_eq!(block(0, 2).piece(0), None);
    }
}
