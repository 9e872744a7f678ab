//! The bytes of a fuzzer, taken apart.

/// The rest of the bytes. Numbers are little-endian; `None` is the end.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Up to `len` bytes: fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// `N` bytes, filled up with zeros at the end; `None` if there is no byte.
    pub fn block<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.0.is_empty() {
            return None;
        }
        let mut block = [0; N];
        let bytes = self.bytes(N);
        block[..bytes.len()].copy_from_slice(bytes);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_none_and_blocks_are_filled_up() {
        let mut input = Input(&[1, 2, 0, 3, 0, 0, 0, 9, 9]);
        assert_eq!((input.u8(), input.u16(), input.u32()), (Some(1), Some(2), Some(3)));
        assert_eq!(input.u64(), None);
        assert_eq!(input.block::<4>(), Some([9, 9, 0, 0]));
        assert_eq!(input.block::<4>(), None);
    }
}
