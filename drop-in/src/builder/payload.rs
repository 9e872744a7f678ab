//! The payload of a request that is built: it completes the request, or is kept until its address comes.

use core::mem;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Immediate, Payload};

use super::{Begun, Destination, Draft, Kept, Operation};
use crate::objects::{Qp, Request, SendSide, Transport};
use crate::send::{errno, flags_of};

impl SendSide {
    /// Returns `true` if a payload has to wait for the address of its datagram.
    #[inline(always)]
    pub(super) fn lacks_address(&self, qp: &Qp) -> bool {
        qp.transport == Transport::Ud && self.draft.to.is_none()
    }

    /// Returns `true` if the batch has no error, and this payload makes none.
    #[inline(always)]
    fn accepts(&mut self, list: &[Sge], len: usize) -> bool {
        let too_many = list.len() > self.limits.sges as usize;
        if too_many || len > self.limits.inline as usize {
            self.draft.fail(libc::ENOMEM);
        }
        if self.draft.error != 0 {
            self.draft.begun = None;
        }
        self.draft.error == 0
    }

    /// Keeps a payload until the address comes.
    #[inline(never)]
    pub(super) fn keep(&mut self, payload: Payload<'_>, len: usize) {
        if !self.accepts(payload.sges, len) {
            return;
        }
        let Draft { kept, sges, bytes, .. } = &mut self.draft;
        if payload.inline.is_empty() {
            *kept = Kept::Gather;
            sges.clear();
            sges.extend_from_slice(payload.sges);
        } else {
            *kept = Kept::Inline;
            bytes.clear();
            payload.inline.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
    }

    /// Posts the request that was begun, whose address is there if it is a datagram.
    ///
    /// # Safety
    /// [verbs]
    #[inline(always)]
    pub(super) unsafe fn put(&mut self, qp: &Qp, payload: Payload<'_>, len: usize) {
        let list = payload.sges;
        if !self.accepts(list, len) {
            return;
        }
        let Some(Begun { operation, wr_id, flags }) = self.draft.begun.take() else {
            return self.draft.fail(libc::EINVAL);
        };
        let flags = flags_of(flags, qp.signal_all);
        let data = Request { wr_id, number: self.posted };
        let mut posting = self.queue.posting();
        let one = |list: &[Sge]| {
            list.first()
                .map_or(Sge { addr: 0, length: 8, lkey: 0 }, |sge| Sge { length: 8, ..*sge })
        };
        // SAFETY: [memory] is what verbs ask of the caller; [ready]: the doorbell waits for `wr_complete`, which looks.
        let posted = unsafe {
            match (operation, self.draft.to) {
                (Operation::Send(imm), Some(Destination { av, qpn, qkey })) => {
                    let imm = if let Immediate::Data(data) = imm { Some(data) } else { None };
                    let to = av.read_unaligned().to(qpn, qkey);
                    posting.send_to(&to, payload, imm, flags, data)
                }
                (Operation::Send(imm), None) => posting.send(payload, imm, flags, data),
                (Operation::Write(to, imm), _) => posting.write(to, payload, imm, flags, data),
                (Operation::Read(from), _) => posting.read(from, list, flags, data),
                (Operation::FetchAdd(at, add), _) => {
                    posting.fetch_add(at, add, one(list), flags, data)
                }
                (Operation::CompareSwap(at, values), _) => {
                    posting.compare_swap(at, values, one(list), flags, data)
                }
            }
        };
        // The doorbell rings at the end of the batch.
        mem::forget(posting);
        self.draft.to = None;
        match posted {
            Ok(()) => self.posted = self.posted.wrapping_add(1),
            Err(why) => self.draft.fail(errno(why)),
        }
    }
}

/// Puts the payload that was kept.
///
/// # Safety
/// [verbs]
#[inline(never)]
pub(super) unsafe fn put_kept(side: &mut SendSide, qp: &Qp) {
    let kept = mem::replace(&mut side.draft.kept, Kept::Nothing);
    let (sges, bytes) = (mem::take(&mut side.draft.sges), mem::take(&mut side.draft.bytes));
    // SAFETY: the caller's contract.
    unsafe {
        match kept {
            Kept::Gather => side.put(qp, Payload::gather(&sges), 0),
            Kept::Inline => side.put(qp, Payload::inline(&[&bytes]), bytes.len()),
            Kept::Nothing => {}
        }
    }
    (side.draft.sges, side.draft.bytes) = (sges, bytes);
}
