//! Buffers that the answer of a READ or an atomic goes into.

use super::payload::{Answer, Payload};
use crate::memory::{Buffer, OpaqueBuffer};

/// A buffer for the answer of a READ or an atomic: a [`Buffer`] or an
/// [`OpaqueBuffer`](crate::opaque::OpaqueBuffer).
pub trait Target: sealed::Target {}

impl<B: sealed::Target> Target for B {}

pub(super) mod sealed {
    use super::Payload;

    pub trait Target: Sized {
        /// The buffer as the payload of a request.
        type Answer: Payload;
        fn capacity(&self) -> usize;
        /// Makes the payload of a request whose answer has `len` bytes.
        fn answer(self, len: u32) -> Self::Answer;
        fn back(answer: Self::Answer) -> Self;
    }
}

macro_rules! target {
    ($($buffer:ty)*) => {$(
        impl sealed::Target for $buffer {
            type Answer = Answer<Self>;

            #[inline(always)]
            fn capacity(&self) -> usize {
                self.capacity()
            }

            #[inline(always)]
            fn answer(self, len: u32) -> Answer<Self> {
                Answer { buffer: self, len }
            }

            #[inline(always)]
            fn back(answer: Answer<Self>) -> Self {
                answer.buffer
            }
        }
    )*};
}

target! { Buffer OpaqueBuffer }
