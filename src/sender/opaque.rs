//! Opaque buffers as payload. A request keeps all of them in [`Gathered`], so that no completion returns one as a
//! [`Buffer`](crate::Buffer).

use mlx5_ring::sge::Sge;

use super::payload::{Answer, Payload, refused, sealed};
use super::request::{Gathered, WorkRequest};
use crate::memory::{Buffer, Opaque};
use crate::not_sent::NotSent;
use crate::pd::DomainId;
use crate::refused::Refused;

refused! { (<const N: usize>) [Buffer<Opaque>; N] }

impl<const N: usize> sealed::Payload for [Buffer<Opaque>; N] {
    const IS_READABLE: bool = false;
    type Sges = [Sge; N];

    #[inline(always)]
    fn sges(&self) -> [Sge; N] {
        std::array::from_fn(|at| self[at].sge())
    }

    #[inline(always)]
    fn inline(&self) -> Option<&[u8]> {
        None
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        self.iter().map(Buffer::len).sum()
    }

    #[inline(always)]
    fn is_of(&self, domain: DomainId) -> bool {
        self.iter().all(|buffer| buffer.domain() == domain)
    }

    #[inline(always)]
    fn request(&self, token: u64) -> WorkRequest {
        const { assert!(N > 0, "a request of no buffer: send b\"\"") }
        WorkRequest::gathered(token, N as u32)
    }

    #[inline(always)]
    fn own(self, gathered: &mut Gathered) {
        self.into_iter().for_each(|buffer| gathered.push(buffer.cast()));
    }
}

/// One opaque buffer.
trait Piece {
    fn sge(&self) -> Sge;
    fn buffer(&self) -> &Buffer<Opaque>;
    fn into_buffer(self) -> Buffer<Opaque>;
}

impl Piece for Buffer<Opaque> {
    #[inline(always)]
    fn sge(&self) -> Sge {
        self.sge()
    }

    #[inline(always)]
    fn buffer(&self) -> &Buffer<Opaque> {
        self
    }

    #[inline(always)]
    fn into_buffer(self) -> Buffer<Opaque> {
        self
    }
}

impl Piece for Answer<Buffer<Opaque>> {
    #[inline(always)]
    fn sge(&self) -> Sge {
        Sge { length: self.len, ..self.buffer.sge() }
    }

    #[inline(always)]
    fn buffer(&self) -> &Buffer<Opaque> {
        &self.buffer
    }

    #[inline(always)]
    fn into_buffer(mut self) -> Buffer<Opaque> {
        self.buffer.set_len(self.len as usize);
        self.buffer
    }
}

macro_rules! one_piece {
    ($($piece:ty)*) => {$(
        refused! { () $piece }

        impl sealed::Payload for $piece {
            const IS_READABLE: bool = false;
            type Sges = [Sge; 1];

            #[inline(always)]
            fn sges(&self) -> [Sge; 1] {
                [Piece::sge(self)]
            }

            #[inline(always)]
            fn inline(&self) -> Option<&[u8]> {
                None
            }

            #[inline(always)]
            fn bytes(&self) -> usize {
                Piece::sge(self).length as usize
            }

            #[inline(always)]
            fn is_of(&self, domain: DomainId) -> bool {
                self.buffer().domain() == domain
            }

            #[inline(always)]
            fn request(&self, token: u64) -> WorkRequest {
                WorkRequest::gathered(token, 1)
            }

            #[inline(always)]
            fn own(self, gathered: &mut Gathered) {
                gathered.push(self.into_buffer().cast());
            }
        }
    )*};
}

one_piece! { Buffer<Opaque> Answer<Buffer<Opaque>> }
