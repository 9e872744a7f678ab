//! Scatter lists: the memory for the bytes of a message.

use mlx5_wire::data::DataSegment;
use mlx5_wire::inline::INLINE_SEG;

use super::Pdn;
use super::mkey::{LOCAL_WRITE, MkeyTable};
use super::strict::{Object, Rule, Strict};

const SEGMENT: usize = DataSegment::SIZE;
/// Meaning of a length of 0 in a data segment.
pub const ZERO_MEANS: u32 = 1 << 31;

/// Reason why bytes could not be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScatterError {
    /// The list is too short.
    Length,
    /// A key does not allow it.
    Protection,
}

/// The data segments of a receive WQE.
#[derive(Debug, Default)]
pub struct ScatterList {
    // Kept from WQE to WQE for its capacity.
    segments: Vec<DataSegment>,
    capacity: u64,
}

impl ScatterList {
    /// Reads the segments of a WQE, up to the terminator or the end of the stride.
    pub fn parse(&mut self, wqe: &[u8], owner: Object, index: u32, strict: &mut Strict) {
        self.segments.clear();
        self.capacity = 0;
        for bytes in wqe.chunks_exact(SEGMENT) {
            let mut array = [0; SEGMENT];
            array.copy_from_slice(bytes);
            let mut segment = DataSegment::from_bytes(&array);
            if segment.is_terminator() {
                break;
            }
            if segment.lkey.get() == 0 {
                let first = self.segments.is_empty();
                let rule = if first { Rule::Stride } else { Rule::Terminator };
                strict.violation(rule, owner, index, bytes);
            } else if segment.byte_count.get() == 0 {
                strict.violation(Rule::ZeroLength, owner, index, bytes);
            }
            // In a receive queue of frames the bit asks for room before a frame (`MLX5_HW_START_PADDING` of Linux).
            // This device does not need it.
            if matches!(owner, Object::Wq(_)) {
                segment.byte_count = (segment.byte_count.get() & !INLINE_SEG).into();
            }
            if segment.byte_count.get() & INLINE_SEG != 0 {
                // No public source says what an adapter does with this segment. Here it has no room for bytes.
                strict.violation(Rule::SegmentLength, owner, index, bytes);
                continue;
            }
            if segment.byte_count.get() == 0 {
                segment.byte_count = ZERO_MEANS.into();
            }
            self.capacity += u64::from(segment.byte_count.get());
            self.segments.push(segment);
        }
    }

    /// Uses the segments in the other order: a [defect](super::defects).
    #[cold]
    pub fn reverse(&mut self) {
        self.segments.reverse();
    }

    /// Swaps the halves of each address: a [defect](super::defects).
    #[cold]
    pub fn swap_address_halves(&mut self) {
        for segment in &mut self.segments {
            segment.addr = segment.addr.get().rotate_left(32).into();
        }
    }

    /// Returns the number of bytes that fit.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the segments.
    pub fn segments(&self) -> &[DataSegment] {
        &self.segments
    }

    /// Places bytes at `offset` of the message.
    pub fn write(&self, keys: &MkeyTable, pd: Pdn, offset: u64, bytes: &[u8]) -> Result<(), ScatterError> {
        scatter(&self.segments, keys, pd, offset, bytes)
    }
}

/// Places bytes at `offset` of the memory that `segments` describe.
pub fn scatter<'a>(
    segments: impl IntoIterator<Item = &'a DataSegment>,
    keys: &MkeyTable,
    pd: Pdn,
    offset: u64,
    bytes: &[u8],
) -> Result<(), ScatterError> {
    let mut skip = offset;
    let mut rest = bytes;
    for segment in segments {
        if rest.is_empty() {
            return Ok(());
        }
        let len = u64::from(segment.byte_count.get());
        if skip >= len {
            skip -= len;
            continue;
        }
        let here = rest.len().min((len - skip) as usize);
        let (now, later) = rest.split_at(here);
        let addr = segment.addr.get().wrapping_add(skip);
        let region =
            keys.check(segment.lkey.get(), pd, addr, here, LOCAL_WRITE).map_err(|_| ScatterError::Protection)?;
        region.write(now).map_err(|_| ScatterError::Protection)?;
        rest = later;
        skip = 0;
    }
    if rest.is_empty() { Ok(()) } else { Err(ScatterError::Length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::MkeyAttr;

    const PD: Pdn = Pdn(1);

    fn wqe(segments: &[DataSegment]) -> Vec<u8> {
        segments.iter().flat_map(DataSegment::to_bytes).collect()
    }

    fn parse(segments: &[DataSegment]) -> (ScatterList, Strict) {
        let mut strict = Strict::new(false);
        let mut list = ScatterList::default();
        list.parse(&wqe(segments), Object::Qp(1), 0, &mut strict);
        (list, strict)
    }

    #[test]
    fn the_list_ends_at_the_terminator_or_with_the_stride() {
        let segment = DataSegment::new(0, 10, 1);
        let junk = DataSegment::new(0, 1000, 1);
        assert_eq!(parse(&[segment, DataSegment::TERMINATOR, junk]).0.capacity(), 10);
        assert_eq!(parse(&[segment, segment]).0.capacity(), 20);
        assert_eq!(parse(&[DataSegment::TERMINATOR]).0.capacity(), 0);
        let (list, strict) = parse(&[DataSegment::new(0, 0, 1)]);
        assert_eq!(list.capacity(), 1 << 31);
        assert_eq!(strict.count(Rule::ZeroLength), 1);
    }

    #[test]
    fn unwritten_memory_is_not_a_terminator() {
        let segment = DataSegment::new(0, 10, 1);
        let (_, strict) = parse(&[segment, DataSegment::new(0, 0, 0)]);
        assert_eq!((strict.count(Rule::Terminator), strict.count(Rule::ZeroLength)), (1, 0));
    }

    #[test]
    fn bytes_go_where_the_segments_say() {
        let mut memory = [0u8; 16];
        let base = memory.as_mut_ptr() as u64;
        let mut keys = MkeyTable::new(1);
        let attr = MkeyAttr { pd: PD, va: base, iova: 0x1000, length: 16, access: LOCAL_WRITE };
        let key = keys.create(attr).unwrap().0;
        let (list, _) = parse(&[DataSegment::new(0x1008, 3, key), DataSegment::new(0x1000, 5, key)]);
        assert_eq!(list.write(&keys, PD, 0, b"ab"), Ok(()));
        assert_eq!(list.write(&keys, PD, 2, b"cdefgh"), Ok(()));
        assert_eq!(list.write(&keys, PD, 8, b""), Ok(()));
        assert_eq!(list.write(&keys, PD, 7, b"xy"), Err(ScatterError::Length));
        let mut now = [0; 16];
        crate::objects::memory::Space::Process.read(base, &mut now).unwrap();
        assert_eq!(&now, b"defgx\0\0\0abc\0\0\0\0\0");
        assert_eq!(list.write(&keys, Pdn(2), 0, b"z"), Err(ScatterError::Protection));
    }

    #[test]
    fn segments_of_frames_may_ask_for_padding() {
        let padded = DataSegment::new(0x1000, INLINE_SEG | 2048, 7);
        let mut strict = Strict::new(false);
        let mut list = ScatterList::default();
        list.parse(&wqe(&[padded]), Object::Wq(1), 0, &mut strict);
        assert_eq!((list.capacity(), list.segments().len()), (2048, 1));
        assert_eq!(strict.count(Rule::SegmentLength), 0);
        let (list, strict) = parse(&[padded]);
        assert_eq!((list.capacity(), strict.count(Rule::SegmentLength)), (0, 1));
    }
}
