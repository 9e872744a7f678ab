//! Big-endian integers in memory, with the alignment of the integer they hold.

use core::fmt;

macro_rules! big_endian {
    ($name:ident, $int:ty, $what:literal) => {
        #[doc = concat!("A ", $what, "-bit unsigned integer, most significant byte first in memory.")]
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Stores a value of the host's byte order.
            #[inline(always)]
            pub const fn new(value: $int) -> Self {
                Self(value.to_be())
            }

            /// The value in the host's byte order.
            #[inline(always)]
            pub const fn get(self) -> $int {
                <$int>::from_be(self.0)
            }
        }

        impl From<$int> for $name {
            #[inline(always)]
            fn from(value: $int) -> Self {
                Self::new(value)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.get(), f)
            }
        }

        impl crate::layout::Field for $name {
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut int = [0; size_of::<$int>()];
                int.copy_from_slice(bytes);
                Self(<$int>::from_ne_bytes(int))
            }

            #[inline(always)]
            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.0.to_ne_bytes());
            }
        }
    };
}

big_endian!(Be16, u16, "16");
big_endian!(Be32, u32, "32");
big_endian!(Be64, u64, "64");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Field;

    #[test]
    fn most_significant_byte_is_first() {
        let mut bytes = [0; 4];
        Be32::new(0x0102_0304).write(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(Be16::read(&[0xab, 0xcd]).get(), 0xabcd);
        assert_eq!(Be64::read(&[0, 0, 0, 0, 0, 0, 1, 2]).get(), 0x102);
    }
}
