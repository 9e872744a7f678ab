//! Requests to a send queue.

use core::ops::BitOr;

use mlx5_wire::ctrl::{CQ_UPDATE, FENCE, SMALL_FENCE, SOLICITED};
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};

use crate::sge::Sge;

/// Flags of a request (`enum ibv_send_flags`). They are `fm_ce_se` of the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// The request asks for a CQE (`IBV_SEND_SIGNALED`).
    pub const SIGNALED: Self = Self(CQ_UPDATE);
    /// The receiver's CQE is solicited (`IBV_SEND_SOLICITED`).
    pub const SOLICITED: Self = Self(SOLICITED);
    /// The request waits for all READs and atomics before it (`IBV_SEND_FENCE`).
    pub const FENCE: Self = Self(FENCE);
    /// The request waits for the bind or invalidation before it, as libmlx5 has it wait. Not with [`Flags::FENCE`],
    /// which waits for that, too.
    pub const SMALL_FENCE: Self = Self(SMALL_FENCE);

    /// Returns `true` if all of `flags` are set.
    #[inline(always)]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns these flags and others.
    #[inline(always)]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Returns these flags without others.
    #[inline(always)]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Returns the flags of a request that waits for a bind or invalidation directly before it, if `is_fenced`.
    #[inline(always)]
    pub const fn behind(self, is_fenced: bool) -> Self {
        if is_fenced && !self.contains(Self::FENCE) { self.with(Self::SMALL_FENCE) } else { self }
    }

    /// Returns the byte of the control segment.
    #[inline(always)]
    pub(super) const fn bits(self) -> u8 {
        self.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte, as the peer's memory region names it.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Immediate data or key that a SEND carries beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Immediate {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, in the host's byte order.
    Data(u32),
    /// A key that the receiver's device invalidates.
    Invalidate(u32),
}

/// The bytes of a SEND or WRITE: those of `inline` and then those of `sges`.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a, I = &'a [&'a [u8]]> {
    /// Pieces that are copied to the WQE.
    pub inline: I,
    /// Bytes that the pieces have together; `u32::MAX` for more.
    pub inline_len: u32,
    /// Registered memory. An entry of length 0 is left out.
    pub sges: &'a [Sge],
}

impl<'a> Payload<'a> {
    /// Bytes of registered memory.
    #[inline(always)]
    pub const fn gather(sges: &'a [Sge]) -> Self {
        Self { inline: &[], inline_len: 0, sges }
    }

    /// Bytes that are copied to the WQE.
    #[inline(always)]
    pub fn inline(pieces: &'a [&'a [u8]]) -> Self {
        let len = pieces.iter().fold(0_usize, |len, piece| len.saturating_add(piece.len()));
        Self { inline: pieces, inline_len: u32::try_from(len).unwrap_or(u32::MAX), sges: &[] }
    }
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::gather(&[])
    }
}

/// Pieces that are copied to a WQE.
pub trait Pieces: Clone + IntoIterator<Item: AsRef<[u8]>> {}

impl<I: Clone + IntoIterator<Item: AsRef<[u8]>>> Pieces for I {}

impl<I: Pieces> Payload<'_, I> {
    /// Returns `true` if there are pieces that are copied, be they empty.
    #[inline(always)]
    pub fn has_inline(&self) -> bool {
        self.inline.clone().into_iter().next().is_some()
    }

    /// Returns the number of inline bytes, and of the units that the payload takes in a WQE.
    #[inline(always)]
    pub(super) fn measure(&self) -> Result<(usize, usize), PostError> {
        let len = self.inline_len as usize;
        let mut units = InlineHeader::units(len);
        for sge in self.sges {
            if sge.length >= INLINE_SEG {
                return Err(PostError::SgeTooLong);
            }
            units += usize::from(sge.length != 0);
        }
        Ok((len, units))
    }
}

/// Why a request was not posted. Nothing was written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue has not as many basic blocks free as the WQE takes: take completions.
    Full,
    /// The WQE would have more basic blocks than the queue was made for: use fewer SGEs.
    TooLong,
    /// There are more inline bytes than a WQE of this queue has room for.
    InlineTooLong,
    /// An SGE is of 2 GiB or more, which a data segment cannot say.
    SgeTooLong,
}
