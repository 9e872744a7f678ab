//! Payload of a request.

use std::error::Error;
use std::ops::RangeBounds;

use mlx5_ring::sge::Sge;

use super::request::{self, Gathered, WorkRequest};
use crate::memory::{self, Buffer};
use crate::not_sent::NotSent;
use crate::pd::DomainId;
use crate::refused::Refused;

/// Payload of a request: bytes, buffers, or parts of buffers.
///
/// | | |
/// |---|---|
/// | `&[u8]`, `&[u8; N]`, `[u8; N]` | a copy of the bytes in the WQE; they need no registered memory ([`QpConfig::max_inline`](crate::QpConfig::max_inline)) |
/// | [`Buffer`] | its bytes in use |
/// | [`BufferPart`] | a part of its bytes |
/// | `[Buffer; N]`, `[BufferPart; N]` | several, in order ([`QpConfig::max_send_sge`](crate::QpConfig::max_send_sge)) |
/// | [`Buffer<Opaque>`](crate::opaque), `[Buffer<Opaque>; N]` | the same, in memory that the processor does not read |
///
/// The request owns its buffers until its completion. A buffer of length 0 adds nothing to the message, which may be
/// empty.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// sender.send(queue, b"a copy of these bytes")?;
/// sender.send(queue, pool.take().expect("a free buffer"))?;
/// sender.send(queue, [0; 2].map(|_| pool.take().expect("a free buffer")))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: sealed::Payload + Sized {
    /// Error of a refused request: [`NotSent`] for bytes, which are the caller's, and [`Refused`] with the payload for
    /// buffers.
    type Error: Error + Into<NotSent> + Send + Sync + 'static;

    /// Returns the error of a request with this payload that was not posted.
    fn refuse(self, reason: NotSent) -> Self::Error;
}

pub(super) mod sealed {
    use super::{DomainId, Gathered, Sge, WorkRequest};

    pub trait Payload {
        /// The processor can read the bytes.
        const IS_READABLE: bool = true;
        /// Registered memory.
        type Sges: AsRef<[Sge]>;
        fn sges(&self) -> Self::Sges;
        /// Bytes to copy.
        fn inline(&self) -> Option<&[u8]>;
        /// Bytes of the message.
        fn bytes(&self) -> usize;
        /// Returns `true` if the device may use the memory in this domain.
        fn is_of(&self, domain: DomainId) -> bool;
        /// Describes the request to the queue.
        fn request(&self, token: u64) -> WorkRequest;
        /// Gives the buffers to the request.
        fn own(self, gathered: &mut Gathered);
    }
}

/// A part of a buffer, for a request. The completion returns the whole buffer.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let pool = world.pool.clone();
/// # let queue = world.queue();
/// # let sender = &mut world.sender;
/// let (mut header, mut payload) = (pool.take().expect("free"), pool.take().expect("free"));
/// header.extend_from_slice(b"GET ");
/// payload.extend_from_slice(b"....index.html....");
/// // The peer receives `GET index.html`.
/// sender.send(queue, [header.part(..), payload.part(4..14)])?;
/// # assert_eq!(world.received(), b"GET index.html");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BufferPart {
    buffer: Buffer,
    /// First byte, counted from the start of its headroom.
    start: u32,
    len: u32,
}

impl Buffer {
    /// Selects a part of the bytes in use for a request.
    ///
    /// # Panics
    /// If the range is not inside the bytes in use.
    pub fn part(self, range: impl RangeBounds<usize>) -> BufferPart {
        let (start, end) = memory::bounds(&range, self.len());
        let inside = start <= end && end <= self.len();
        assert!(inside, "bytes {start}..{end} of a buffer with {} in use", self.len());
        let headroom = self.headroom().len();
        BufferPart { start: (headroom + start) as u32, len: (end - start) as u32, buffer: self }
    }

    /// Selects the last `bytes` bytes of the headroom and the bytes in use for a request, see
    /// [`headroom_mut`](Self::headroom_mut).
    ///
    /// # Panics
    /// If the headroom has fewer than `bytes` bytes.
    pub fn part_with_headroom(self, bytes: usize) -> BufferPart {
        let headroom = self.headroom().len();
        assert!(bytes <= headroom, "{bytes} bytes of a headroom of {headroom}");
        let len = (bytes + self.len()) as u32;
        BufferPart { start: (headroom - bytes) as u32, len, buffer: self }
    }
}

impl BufferPart {
    /// Returns the whole buffer.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

/// The buffer that an answer of `len` bytes goes into.
pub struct Answer<B = Buffer> {
    pub(super) buffer: B,
    pub(super) len: u32,
}

/// One piece of registered memory.
trait Piece {
    fn sge(&self) -> Sge;
    fn buffer(&self) -> &Buffer;
    fn into_buffer(self) -> Buffer;

    /// Bytes in use of the buffer that comes back.
    #[inline(always)]
    fn len_after(&self) -> u32 {
        self.buffer().len() as u32
    }
}

impl Piece for Buffer {
    #[inline(always)]
    fn sge(&self) -> Sge {
        let addr = self.addr().as_ptr().expose_provenance() as u64;
        Sge { addr, length: self.len() as u32, lkey: self.pool().lkey() }
    }

    #[inline(always)]
    fn buffer(&self) -> &Buffer {
        self
    }

    #[inline(always)]
    fn into_buffer(self) -> Buffer {
        self
    }
}

impl Piece for BufferPart {
    #[inline(always)]
    fn sge(&self) -> Sge {
        let first = self.buffer.headroom().as_ptr().expose_provenance() as u64;
        let lkey = self.buffer.pool().lkey();
        Sge { addr: first + u64::from(self.start), length: self.len, lkey }
    }

    #[inline(always)]
    fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    #[inline(always)]
    fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Piece for Answer {
    #[inline(always)]
    fn sge(&self) -> Sge {
        Sge { length: self.len, ..self.buffer.sge() }
    }

    #[inline(always)]
    fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    #[inline(always)]
    fn into_buffer(self) -> Buffer {
        self.buffer
    }

    #[inline(always)]
    fn len_after(&self) -> u32 {
        self.len
    }
}

/// Declares payloads that a refused request gives back.
macro_rules! refused {
    ($(($($parameter:tt)*) $payload:ty),*) => {$(
        impl $($parameter)* Payload for $payload {
            type Error = Refused<Self>;

            #[inline(always)]
            fn refuse(self, reason: NotSent) -> Refused<Self> {
                Refused { payload: self, reason }
            }
        }
    )*};
}

pub(super) use refused;

macro_rules! one_piece {
    ($($piece:ty)*) => {$(
        refused! { () $piece, (<const N: usize>) [$piece; N] }

        impl sealed::Payload for $piece {
            type Sges = [Sge; 1];

            #[inline(always)]
            fn sges(&self) -> [Sge; 1] {
                [self.sge()]
            }

            #[inline(always)]
            fn inline(&self) -> Option<&[u8]> {
                None
            }

            #[inline(always)]
            fn bytes(&self) -> usize {
                self.sge().length as usize
            }

            #[inline(always)]
            fn is_of(&self, domain: DomainId) -> bool {
                self.buffer().pool().pd().id() == domain
            }

            #[inline(always)]
            fn request(&self, token: u64) -> WorkRequest {
                WorkRequest::of(token, self.buffer(), self.len_after(), 0)
            }

            #[inline(always)]
            fn own(self, _: &mut Gathered) {
                request::own(self.into_buffer());
            }
        }

        impl<const N: usize> sealed::Payload for [$piece; N] {
            type Sges = [Sge; N];

            #[inline(always)]
            fn sges(&self) -> [Sge; N] {
                std::array::from_fn(|piece| self[piece].sge())
            }

            #[inline(always)]
            fn inline(&self) -> Option<&[u8]> {
                None
            }

            #[inline(always)]
            fn bytes(&self) -> usize {
                self.iter().map(|piece| piece.sge().length as usize).sum()
            }

            #[inline(always)]
            fn is_of(&self, domain: DomainId) -> bool {
                self.iter().all(|piece| piece.buffer().pool().pd().id() == domain)
            }

            #[inline(always)]
            fn request(&self, token: u64) -> WorkRequest {
                const { assert!(N > 0, "a request of no buffer: send b\"\"") }
                WorkRequest::of(token, self[0].buffer(), self[0].len_after(), N as u32 - 1)
            }

            #[inline(always)]
            fn own(self, gathered: &mut Gathered) {
                let mut pieces = self.into_iter();
                pieces.next().map(Piece::into_buffer).into_iter().for_each(request::own);
                pieces.for_each(|piece| gathered.push(piece.into_buffer()));
            }
        }
    )*};
}

one_piece! { Buffer BufferPart Answer }

macro_rules! inline {
    ($(($($parameter:tt)*) $bytes:ty),*) => {$(
        impl $($parameter)* Payload for $bytes {
            type Error = NotSent;

            #[inline(always)]
            fn refuse(self, reason: NotSent) -> NotSent {
                reason
            }
        }

        impl $($parameter)* sealed::Payload for $bytes {
            type Sges = [Sge; 0];

            #[inline(always)]
            fn sges(&self) -> [Sge; 0] {
                []
            }

            #[inline(always)]
            fn inline(&self) -> Option<&[u8]> {
                Some(&self[..])
            }

            #[inline(always)]
            fn bytes(&self) -> usize {
                self.len()
            }

            #[inline(always)]
            fn is_of(&self, _: DomainId) -> bool {
                true
            }

            #[inline(always)]
            fn request(&self, token: u64) -> WorkRequest {
                WorkRequest::from_wr_id(token)
            }

            #[inline(always)]
            fn own(self, _: &mut Gathered) {}
        }
    )*};
}

inline! { () &[u8], (<const N: usize>) &[u8; N], (<const N: usize>) [u8; N] }
