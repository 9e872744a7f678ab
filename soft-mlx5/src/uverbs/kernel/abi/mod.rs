//! Structures that cross the line between the libraries and the kernel, in the host's byte order
//! and without implicit padding.

pub mod mlx5;
pub mod rdma_cm;
pub mod uverbs;

/// A value with a fixed layout in command memory.
pub trait Abi: Sized {
    /// Size in bytes.
    const SIZE: usize;
    /// Reads it from the start of `bytes`, which holds at least `SIZE` bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Writes it to the start of `out`, which holds at least `SIZE` bytes.
    fn put(&self, out: &mut [u8]);

    /// Returns the bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::SIZE];
        self.put(&mut bytes);
        bytes
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Abi for $int {
            const SIZE: usize = size_of::<$int>();

            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$int>()];
                raw.copy_from_slice(&bytes[..size_of::<$int>()]);
                <$int>::from_ne_bytes(raw)
            }

            fn put(&self, out: &mut [u8]) {
                out[..size_of::<$int>()].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i32);

impl<T: Abi + Copy + Default, const N: usize> Abi for [T; N] {
    const SIZE: usize = T::SIZE * N;

    fn get(bytes: &[u8]) -> Self {
        let mut all = [T::default(); N];
        for (index, one) in all.iter_mut().enumerate() {
            *one = T::get(&bytes[index * T::SIZE..]);
        }
        all
    }

    fn put(&self, out: &mut [u8]) {
        for (index, one) in self.iter().enumerate() {
            one.put(&mut out[index * T::SIZE..]);
        }
    }
}

/// Declares a structure with its size in bytes: `struct Name = 16 { field: u32, .. }`.
macro_rules! structure {
    ($(#[$meta:meta])* struct $name:ident = $size:literal { $($field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $(pub $field: $ty,)*
        }

        const _: () = assert!(<$name as $crate::uverbs::kernel::abi::Abi>::SIZE == $size);

        impl $crate::uverbs::kernel::abi::Abi for $name {
            const SIZE: usize = 0 $(+ <$ty as $crate::uverbs::kernel::abi::Abi>::SIZE)*;

            fn get(bytes: &[u8]) -> Self {
                let mut at = 0;
                $(
                    let $field = <$ty as $crate::uverbs::kernel::abi::Abi>::get(&bytes[at..]);
                    at += <$ty as $crate::uverbs::kernel::abi::Abi>::SIZE;
                )*
                debug_assert_eq!(at, Self::SIZE);
                Self { $($field,)* }
            }

            fn put(&self, out: &mut [u8]) {
                let mut at = 0;
                $(
                    self.$field.put(&mut out[at..]);
                    at += <$ty as $crate::uverbs::kernel::abi::Abi>::SIZE;
                )*
                debug_assert_eq!(at, Self::SIZE);
            }
        }
    };
}
pub(crate) use structure;

#[cfg(test)]
mod tests {
    use super::*;

    structure! {
        struct Sample = 16 {
            long: u64,
            pair: [u16; 2],
            short: u8,
            pad: [u8; 3],
        }
    }

    #[test]
    fn fields_sit_one_after_the_other() {
        let bytes: Vec<u8> = (1..=16).collect();
        let sample = Sample::get(&bytes);
        assert_eq!(sample.long, u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(sample.pair[1], u16::from_ne_bytes([11, 12]));
        assert_eq!((sample.short, sample.pad), (13, [14, 15, 16]));
        assert_eq!(sample.to_bytes(), bytes);
    }
}
