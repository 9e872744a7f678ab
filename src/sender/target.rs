//! Buffers that the answer of a READ or an atomic goes into.

use super::payload::{Answer, Payload};
use crate::memory::{Buffer, Opaque};

/// A buffer for the answer of a READ or an atomic: a [`Buffer`], also of [`Opaque`] memory.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool, remote) = (world.queue(), world.pool.clone(), world.remote());
/// # let sender = &mut world.sender;
/// use doorbell::{Refused, RemoteRegion, Sender, SqId, Target};
///
/// /// Reads a record into whatever buffer the caller has.
/// fn read<B: Target>(
///     sender: &mut Sender,
///     queue: SqId,
///     buffer: B,
///     record: &RemoteRegion,
/// ) -> Result<(), Refused<B>> {
///     match sender.post(queue) {
///         Ok(request) => request.read(buffer, record),
///         Err(reason) => Err(Refused { payload: buffer, reason }),
///     }
/// }
///
/// read(sender, queue, pool.take().expect("a free buffer"), &remote.slice(0, 16)?)?;
/// # doorbell_doc::finish(sender, queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Target: sealed::Target {}

impl<B: sealed::Target> Target for B {}

pub(super) mod sealed {
    use super::Payload;
    use crate::refused::Refused;

    pub trait Target: Sized {
        /// The buffer as the payload of a request.
        type Answer: Payload<Error = Refused<Self::Answer>>;
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

target! { Buffer Buffer<Opaque> }
