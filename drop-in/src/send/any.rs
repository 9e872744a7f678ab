//! Requests of any form.

use core::ffi::c_int;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Payload, Pieces, Posting, Remote};
use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_DRIVER1,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_send_wr,
};

use super::{bytes, errno, flags_of, len_of, result_of_atomic};
use crate::av;
use crate::objects::{Qp, Request, SendLimits, SendSide, Transport};
use crate::receive::sges;

impl SendSide {
    /// Posts requests of any form.
    ///
    /// # Safety
    /// [verbs]; this is the send queue of `qp`.
    #[inline(never)]
    pub(super) unsafe fn post_any(
        &mut self,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, mut error, mut room) = (self.posted, 0, self.room(qp));
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list can be read.
        while let Some(request) = unsafe { wr.as_ref() } {
            let number = self.posted;
            // SAFETY: [verbs]; `posting` is of the send queue of `qp`, in which `check` has found room.
            let posted = unsafe {
                check(request, room, &self.limits).and_then(|()| {
                    post_one(&mut posting, qp, request, number, &self.limits, self.has_atomics)
                })
            };
            if let Err(why) = posted {
                error = why;
                // SAFETY: [verbs] `bad_wr` can be written.
                unsafe { *bad_wr = wr };
                break;
            }
            self.posted = number.wrapping_add(1);
            room -= 1;
            wr = request.next;
        }
        posting.hand_over(&qp.send_completer.progress);
        drop(posting);
        qp.sends_posted.add(self.posted.wrapping_sub(first).into());
        error
    }
}

/// Makes the checks of libmlx5, in its order. There is room for `room` requests.
#[inline(always)]
fn check(request: &ibv_send_wr, room: u32, limits: &SendLimits) -> Result<(), c_int> {
    if request.opcode > IBV_WR_DRIVER1 {
        return Err(libc::EINVAL);
    }
    if room == 0 || request.num_sge > limits.sges as c_int {
        return Err(libc::ENOMEM);
    }
    Ok(())
}

/// Posts one request.
///
/// # Safety
/// [verbs]; `posting` is of the send queue of `qp`, and [`check`] has passed the request.
#[inline(always)]
unsafe fn post_one(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    wr: &ibv_send_wr,
    number: u32,
    limits: &SendLimits,
    has_atomics: bool,
) -> Result<(), c_int> {
    let flags = flags_of(wr.send_flags, qp.signal_all);
    let data = Request { wr_id: wr.wr_id, number };
    // SAFETY: [verbs] the list of the request can be read; `check` has passed the request.
    unsafe {
        let list = sges(wr.sg_list, wr.num_sge);
        if wr.send_flags & IBV_SEND_INLINE != 0 && !list.is_empty() {
            return post_inline(posting, qp, wr, list, flags, data, limits);
        }
        post_payload(posting, qp, wr, Payload::gather(list), list, flags, data, has_atomics)
    }
}

/// Copies the bytes of a request to its WQE.
///
/// # Safety
/// As [`post_one`].
#[inline(never)]
unsafe fn post_inline(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    wr: &ibv_send_wr,
    list: &[Sge],
    flags: Flags,
    data: Request,
    limits: &SendLimits,
) -> Result<(), c_int> {
    let len = len_of(list);
    if len > limits.inline {
        return Err(libc::ENOMEM);
    }
    // SAFETY: [verbs] inline data can be read during the call.
    let pieces = list.iter().map(|sge| unsafe { bytes(sge) });
    let payload = Payload { inline: pieces, inline_len: len, sges: &[] };
    // SAFETY: [verbs]; `check` has passed the request. No READ or atomic has inline data.
    unsafe { post_payload(posting, qp, wr, payload, &[], flags, data, false) }
}

/// Posts a request with its payload. `list` are the SGEs of a READ or an atomic.
///
/// # Safety
/// As [`post_one`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined: what one request is made of")]
unsafe fn post_payload<I: Pieces>(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    wr: &ibv_send_wr,
    payload: Payload<'_, I>,
    list: &[Sge],
    flags: Flags,
    data: Request,
    has_atomics: bool,
) -> Result<(), c_int> {
    // SAFETY: [verbs] the program keeps [memory]; [ready] `check` has found room, which there is not before RTS. Fields of
    // unions are those that the opcode names, or integers.
    let posted = unsafe {
        let imm = u32::from_be(wr.__bindgen_anon_1.imm_data);
        if qp.transport == Transport::Ud {
            let imm = match wr.opcode {
                IBV_WR_SEND => None,
                IBV_WR_SEND_WITH_IMM => Some(imm),
                _ => return Err(libc::EINVAL),
            };
            let ud = &wr.wr.ud;
            let av = av::of(ud.ah).ok_or(libc::EINVAL)?.read_unaligned();
            let to = av.to(ud.remote_qpn, ud.remote_qkey);
            posting.send_to(&to, payload, imm, flags, data)
        } else {
            let remote = Remote { addr: wr.wr.rdma.remote_addr, rkey: wr.wr.rdma.rkey };
            match wr.opcode {
                IBV_WR_SEND => posting.send(payload, Immediate::None, flags, data),
                IBV_WR_SEND_WITH_IMM => posting.send(payload, Immediate::Data(imm), flags, data),
                IBV_WR_SEND_WITH_INV => {
                    let rkey = wr.__bindgen_anon_1.invalidate_rkey;
                    posting.send(payload, Immediate::Invalidate(rkey), flags, data)
                }
                IBV_WR_RDMA_WRITE => posting.write(remote, payload, None, flags, data),
                IBV_WR_RDMA_WRITE_WITH_IMM => {
                    posting.write(remote, payload, Some(imm), flags, data)
                }
                _ if qp.transport != Transport::Rc
                    || payload
                        .inline
                        .clone()
                        .into_iter()
                        .any(|piece| !piece.as_ref().is_empty()) =>
                {
                    return Err(libc::EINVAL);
                }
                IBV_WR_RDMA_READ => posting.read(remote, list, flags, data),
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD if !has_atomics => {
                    return Err(libc::EOPNOTSUPP);
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = &wr.wr.atomic;
                    let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
                    let result = result_of_atomic(list)?;
                    if wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
                        posting.fetch_add(at, atomic.compare_add, result, flags, data)
                    } else {
                        posting.compare_swap(
                            at,
                            [atomic.compare_add, atomic.swap],
                            result,
                            flags,
                            data,
                        )
                    }
                }
                _ => return Err(libc::EOPNOTSUPP),
            }
        }
    };
    posted.map_err(errno)
}
