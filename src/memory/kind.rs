//! Kinds of memory that buffers are in.

/// Kind of memory that buffers are in: the type parameter of [`Buffer`](crate::Buffer),
/// [`BufferPool`](crate::BufferPool), [`Receiver`](crate::Receiver) and [`Message`](crate::Message), [`Host`] by
/// default.
///
/// ```
/// use doorbell::{Buffer, Memory};
///
/// fn room<M: Memory>(buffer: &Buffer<M>) -> usize {
///     buffer.capacity() - buffer.len()
/// }
/// # let _ = room::<doorbell::Host>;
/// ```
pub trait Memory: sealed::Memory + 'static {}

impl<M: sealed::Memory + 'static> Memory for M {}

/// Memory of the host: the program reads and writes the bytes of buffers and messages.
///
/// ```
/// fn first(message: &doorbell::Message<'_, doorbell::Host>) -> u8 {
///     message[0]
/// }
/// # let _ = first;
/// ```
#[derive(Debug)]
pub enum Host {}

/// Memory that the processor does not read or write, as that of a GPU: there is no way to the bytes.
///
/// ```
/// use doorbell::Buffer;
/// use doorbell::opaque::Opaque;
///
/// fn len(buffer: &Buffer<Opaque>) -> usize {
///     buffer.len()
/// }
/// # let _ = len;
/// ```
#[derive(Debug)]
pub enum Opaque {}

pub(crate) mod sealed {
    pub trait Memory: Send + Sync {
        /// The processor reads and writes it, libmlx5 included.
        const HAS_BYTES: bool;
    }

    impl Memory for super::Host {
        const HAS_BYTES: bool = true;
    }

    impl Memory for super::Opaque {
        const HAS_BYTES: bool = false;
    }
}
