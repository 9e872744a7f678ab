//! The skeleton of command formats: fields of some bits, at a place in a big-endian word.

/// A value that a field holds.
pub trait Value: Copy {
    /// All bits zero.
    const ZERO: Self;
    /// Bytes of a field without a range of bits.
    const SIZE: usize;
    /// Bits that the type holds.
    const BITS: u32;

    /// Reads the value from `width` bits above bit `low` of a word.
    fn read(word: &[u8], low: u32, width: u32) -> Self;
    /// Writes the value to these bits and leaves the others.
    fn write(self, word: &mut [u8], low: u32, width: u32);
}

/// Returns a word of up to eight bytes.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width.clamp(1, 64))
}

fn put(bytes: &mut [u8], low: u32, width: u32, value: u64) {
    let mask = mask(width) << low;
    let word = word_of(bytes) & !mask | value << low & mask;
    let len = bytes.len();
    bytes.copy_from_slice(&word.to_be_bytes()[8 - len..]);
}

macro_rules! integer {
    ($($int:ty),*) => { $(
        impl Value for $int {
            const ZERO: Self = 0;
            const SIZE: usize = size_of::<$int>();
            const BITS: u32 = <$int>::BITS;

            fn read(word: &[u8], low: u32, width: u32) -> Self {
                (word_of(word) >> low & mask(width)) as $int
            }

            fn write(self, word: &mut [u8], low: u32, width: u32) {
                put(word, low, width, self as u64);
            }
        }
    )* };
}

integer!(u8, u16, u32, u64);

impl Value for bool {
    const ZERO: Self = false;
    const SIZE: usize = 1;
    const BITS: u32 = 1;

    fn read(word: &[u8], low: u32, _: u32) -> Self {
        word_of(word) >> low & 1 != 0
    }

    fn write(self, word: &mut [u8], low: u32, _: u32) {
        put(word, low, 1, self.into());
    }
}

impl<const N: usize> Value for [u8; N] {
    const ZERO: Self = [0; N];
    const SIZE: usize = N;
    const BITS: u32 = 8 * N as u32;

    fn read(word: &[u8], _: u32, _: u32) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(word);
        bytes
    }

    fn write(self, word: &mut [u8], _: u32, _: u32) {
        word.copy_from_slice(&self);
    }
}

/// Place of a field: a word, and bits in it.
#[derive(Clone, Copy)]
pub struct Place {
    /// Offset of the word in bytes.
    pub offset: usize,
    /// Bytes of the word.
    pub bytes: usize,
    /// Lowest bit.
    pub low: u32,
    /// Number of bits.
    pub width: u32,
}

impl Place {
    /// Bits `high` to `low` of the word at `offset`: of 32 bits, or of 64 bits if the highest bit is above 31.
    pub const fn bits(offset: usize, high: u32, low: u32) -> Self {
        assert!(high >= low && high < 64, "the highest bit comes first");
        let bytes = if high < 32 { 4 } else { 8 };
        Self { offset, bytes, low, width: high - low + 1 }
    }

    /// `bytes` bytes at `offset`.
    pub const fn whole(offset: usize, bytes: usize) -> Self {
        Self { offset, bytes, low: 0, width: 8 * bytes as u32 }
    }

    const fn first_bit(&self) -> usize {
        8 * (self.offset + self.bytes) - (self.low + self.width) as usize
    }

    const fn end_bit(&self) -> usize {
        8 * (self.offset + self.bytes) - self.low as usize
    }
}

/// Checks at compile time that the fields of a format of `size` bytes lie in it, do not overlap, and fit their types.
pub const fn check(size: usize, fields: &[(Place, u32)]) {
    let mut i = 0;
    while i < fields.len() {
        let (field, capacity) = fields[i];
        assert!(field.offset + field.bytes <= size, "a field lies outside its format");
        assert!(field.width <= capacity, "a field has more bits than its type");
        let mut j = 0;
        while j < i {
            let (other, _) = fields[j];
            let apart = field.end_bit() <= other.first_bit() || other.end_bit() <= field.first_bit();
            assert!(apart, "two fields overlap");
            j += 1;
        }
        i += 1;
    }
}

macro_rules! place {
    ($type:ty, $offset:literal) => {
        $crate::firmware::fields::Place::whole($offset, <$type as $crate::firmware::fields::Value>::SIZE)
    };
    ($type:ty, $offset:literal [$bit:literal]) => {
        $crate::firmware::fields::Place::bits($offset, $bit, $bit)
    };
    ($type:ty, $offset:literal [$high:literal : $low:literal]) => {
        $crate::firmware::fields::Place::bits($offset, $high, $low)
    };
}

/// Declares a format of `size` bytes: each field with the offset of its big-endian word and its bits there, as
/// `mlx5_ifc.h` counts them: bit 31 is the most significant bit of a word. A field without bits takes whole bytes.
/// Places are checked at compile time.
macro_rules! fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty = $offset:literal $([ $($bits:tt)+ ])?, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        const _: () = $crate::firmware::fields::check($size, &[
            $( (
                place!($type, $offset $([ $($bits)+ ])?),
                <$type as $crate::firmware::fields::Value>::BITS,
            ), )*
        ]);

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;

            /// All bits zero.
            pub const ZERO: Self = Self {
                $( $field: <$type as $crate::firmware::fields::Value>::ZERO, )*
            };

            /// Reads the fields. Other bits are ignored.
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                <Self as $crate::firmware::fields::Value>::read(bytes, 0, 0)
            }

            /// Reads the fields from the first bytes, or returns `None` if there are too few.
            pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::from_bytes)
            }

            /// Writes the fields and leaves all other bits. A value with more bits than its field loses the upper ones.
            pub fn put(&self, bytes: &mut [u8; $size]) {
                $crate::firmware::fields::Value::write(*self, bytes, 0, 0);
            }

            /// Returns the bytes, with zeros in all other bits.
            pub fn to_bytes(self) -> [u8; $size] {
                let mut bytes = [0; $size];
                self.put(&mut bytes);
                bytes
            }
        }

        impl $crate::firmware::fields::Value for $name {
            const ZERO: Self = $name::ZERO;
            const SIZE: usize = $size;
            const BITS: u32 = 8 * $size;

            fn read(bytes: &[u8], _: u32, _: u32) -> Self {
                Self { $( $field: {
                    const PLACE: $crate::firmware::fields::Place = place!($type, $offset $([ $($bits)+ ])?);
                    <$type as $crate::firmware::fields::Value>::read(
                        &bytes[PLACE.offset..PLACE.offset + PLACE.bytes],
                        PLACE.low,
                        PLACE.width,
                    )
                }, )* }
            }

            fn write(self, bytes: &mut [u8], _: u32, _: u32) {
                $( {
                    const PLACE: $crate::firmware::fields::Place = place!($type, $offset $([ $($bits)+ ])?);
                    $crate::firmware::fields::Value::write(
                        self.$field,
                        &mut bytes[PLACE.offset..PLACE.offset + PLACE.bytes],
                        PLACE.low,
                        PLACE.width,
                    );
                } )*
            }
        }
    };
}

#[cfg(test)]
mod tests {
    fields! {
        /// A format with every kind of field.
        pub struct Inner: 8 {
            /// The highest bit.
            flag: bool = 0x00[31],
            /// Bits that cross bytes.
            number: u32 = 0x00[23:0],
            /// Half a word.
            half: u16 = 0x04[15:0],
        }
    }

    fields! {
        /// A format with a format in it.
        pub struct Outer: 0x20 {
            /// Eight bytes.
            wide: u64 = 0x00,
            /// Bits of 64.
            part: u64 = 0x08[47:4],
            /// Fields of another format.
            inner: Inner = 0x10,
            /// Bytes.
            bytes: [u8; 8] = 0x18,
        }
    }

    #[test]
    fn bits_are_counted_from_the_end_of_a_big_endian_word() {
        let inner = Inner { flag: true, number: 0x01_0203, half: 0x0405 };
        assert_eq!(inner.to_bytes(), [0x80, 1, 2, 3, 0, 0, 4, 5]);
        let outer = Outer { wide: 0x11, part: 0x123, inner, bytes: [9; 8] };
        let bytes = outer.to_bytes();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0x12, 0x30]);
        assert_eq!(bytes[16..], [0x80, 1, 2, 3, 0, 0, 4, 5, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(Outer::from_bytes(&bytes), outer);
    }

    #[test]
    fn other_bits_stay_and_larger_values_lose_bits() {
        let mut bytes = [0xff; 8];
        Inner { number: 0xff00_0001, ..Inner::ZERO }.put(&mut bytes);
        assert_eq!(bytes, [0x7f, 0, 0, 1, 0xff, 0xff, 0, 0]);
        assert_eq!((Inner::SIZE, Outer::SIZE), (8, 0x20));
        assert_eq!(Outer::from_prefix(&bytes), None);
        assert_eq!(Inner::from_prefix(&bytes[..7]), None);
        assert_eq!(Inner::from_prefix(&[0; 9]), Some(Inner::ZERO));
    }
}
