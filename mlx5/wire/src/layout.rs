//! The skeleton every format of this crate follows.

/// A field that knows its own bytes.
pub trait Field {
    /// Reads the field from exactly its size.
    fn read(bytes: &[u8]) -> Self;
    /// Writes the field to exactly its size.
    fn write(&self, bytes: &mut [u8]);
}

impl Field for u8 {
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        bytes[0]
    }

    #[inline(always)]
    fn write(&self, bytes: &mut [u8]) {
        bytes[0] = *self;
    }
}

impl<const N: usize> Field for [u8; N] {
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }

    #[inline(always)]
    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

/// Declares a format: `size` bytes, each field at the offset written before it. Both are checked at
/// compile time, so a gap or an overlap does not build.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $( $(#[$field_meta:meta])* $offset:literal => $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        ::static_assertions::const_assert_eq!(size_of::<$name>(), $size);
        $( ::static_assertions::const_assert_eq!(::core::mem::offset_of!($name, $field), $offset); )*

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;

            /// Reads the format from its bytes.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self {
                    $( $field: <$type as $crate::layout::Field>::read(
                        &bytes[$offset..$offset + size_of::<$type>()],
                    ), )*
                }
            }

            /// The bytes of the format.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $( $crate::layout::Field::write(
                    &self.$field,
                    &mut bytes[$offset..$offset + size_of::<$type>()],
                ); )*
                bytes
            }

            /// All bytes zero.
            #[inline]
            pub fn zeroed() -> Self {
                Self::from_bytes(&[0; $size])
            }
        }
    };
}
