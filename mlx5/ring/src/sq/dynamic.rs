//! Requests of a DC initiator: each WQE names its target, in the 48 bytes behind the control segment.
//!
//! These fill the first basic block. What follows starts in the second one, which may be the first of the ring.

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::UNIT;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};

use super::posting::What;
use super::{Flags, Immediate, Payload, Pieces, PostError, Posting, Remote};
use crate::sge::Sge;

/// Units of the control segment and of the address of the target.
const HEAD_UNITS: usize = 1 + DatagramSegment::SIZE / UNIT;

impl<T: Copy> Posting<'_, T> {
    /// Sends a message to the DC target that `to` names (`IBV_WR_SEND`, `_WITH_IMM`, `_WITH_INV`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn send_to_target<I: Pieces>(
        &mut self,
        to: &DatagramSegment,
        payload: Payload<'_, I>,
        immediate: Immediate,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What::send(immediate), to, payload, flags, data) }
    }

    /// Writes to memory of the DC target that `to` names (`IBV_WR_RDMA_WRITE`, `_WITH_IMM`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn write_to_target<I: Pieces>(
        &mut self,
        to: &DatagramSegment,
        remote: Remote,
        payload: Payload<'_, I>,
        immediate: Option<u32>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let segments = [RemoteAddressSegment::new(remote.addr, remote.rkey).to_words()];
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post_to_target(What::write(immediate), to, segments, payload, flags, data) }
    }

    /// Reads memory of the DC target that `to` names into `sges` (`IBV_WR_RDMA_READ`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn read_from_target(
        &mut self,
        to: &DatagramSegment,
        remote: Remote,
        sges: &[Sge],
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let segments = [RemoteAddressSegment::new(remote.addr, remote.rkey).to_words()];
        let what = What(WqeOpcode::RDMA_READ, 0);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post_to_target(what, to, segments, Payload::gather(sges), flags, data) }
    }

    /// Adds to eight bytes of the DC target that `to` names, and stores what was there to `result`
    /// (`IBV_WR_ATOMIC_FETCH_AND_ADD`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn fetch_add_at_target(
        &mut self,
        to: &DatagramSegment,
        at: Remote,
        add: u64,
        result: Sge,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let segments =
            [RemoteAddressSegment::new(at.addr, at.rkey).to_words(), AtomicSegment::fetch_add(add).to_words()];
        let what = What(WqeOpcode::ATOMIC_FA, 0);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post_to_target(what, to, segments, Payload::gather(&[result]), flags, data) }
    }

    /// Stores `swap` to eight bytes of the DC target that `to` names if they say `compare`, and what was there to
    /// `result` (`IBV_WR_ATOMIC_CMP_AND_SWP`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn compare_swap_at_target(
        &mut self,
        to: &DatagramSegment,
        at: Remote,
        [compare, swap]: [u64; 2],
        result: Sge,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let operands = AtomicSegment::compare_swap(compare, swap);
        let segments = [RemoteAddressSegment::new(at.addr, at.rkey).to_words(), operands.to_words()];
        let what = What(WqeOpcode::ATOMIC_CS, 0);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post_to_target(what, to, segments, Payload::gather(&[result]), flags, data) }
    }

    /// Writes a WQE: control segment, target, `segments`, payload.
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    unsafe fn post_to_target<const N: usize, I: Pieces>(
        &mut self,
        what: What,
        to: &DatagramSegment,
        segments: [[Be64; 2]; N],
        payload: Payload<'_, I>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let (inline, units) = payload.measure()?;
        let units_of_all = HEAD_UNITS + N + units;
        let (mut wqe, begun) = self.start(what, to, units_of_all, flags, data).map_err(|error| match error {
            PostError::TooLong if inline > 0 => PostError::InlineTooLong,
            error => error,
        })?;
        let has_inline = payload.has_inline();
        // SAFETY: what is written are the units that were counted.
        unsafe {
            for segment in segments {
                wqe.unit(segment);
            }
            wqe.payload(payload, inline, units, false);
        }
        self.finish(begun, has_inline, data);
        Ok(())
    }
}
