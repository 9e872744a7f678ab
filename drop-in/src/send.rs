//! `ibv_post_send`.

use core::ffi::c_int;
use core::iter;
use core::mem::zeroed;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::Ordering;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Payload, Pieces, PostError, Posting, Remote};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::INLINE_SEG;
use rdma_core_sys::{
    IBV_QPT_RC, IBV_QPT_UD, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_DRIVER1, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, MLX5DV_OBJ_AH, ibv_ah, ibv_qp,
    ibv_send_wr, mlx5dv_ah, mlx5dv_obj,
};

use crate::context::{self, Context};
use crate::log::{self, DOORBELL};
use crate::objects::{Qp, Request, SendLimits, SendSide};
use crate::sge::sges;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        if let Some(record) = context.qps.get((*qp).qp_num) {
            if let Some(side) = &mut *record.send.lock() {
                return side.post_list::<false>(context, record, wr, bad_wr);
            }
            // It has no send queue.
            *bad_wr = wr;
            return libc::ENOMEM;
        }
        let Some(post_send) = context.ops.post_send else { return libc::EOPNOTSUPP };
        let error = post_send(qp, wr, bad_wr);
        log::count_posts(wr, bad_wr, error, |wr| wr.next);
        error
    }
}

impl SendSide {
    /// Returns the number of requests that can be posted. As in libmlx5, the queue is as if it was full before RTS.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        let outstanding = self.posted.wrapping_sub(self.retired);
        if self.can_send { self.limits.requests.saturating_sub(outstanding) } else { 0 }
    }

    /// Posts a list, and rings the doorbell; returns the errno. If `IS_CHECKED`, [`check`] has passed all requests.
    ///
    /// # Safety
    /// [verbs]; this is the send queue of `qp`.
    #[inline(always)]
    pub(crate) unsafe fn post_list<const IS_CHECKED: bool>(
        &mut self,
        context: &Context,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, mut room, mut error) = (self.posted, self.room(), 0);
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list can be read, and `bad_wr` can be written.
        unsafe {
            while let Some(request) = wr.as_ref() {
                if !IS_CHECKED {
                    error = check(qp, &self.limits, request, room);
                }
                if error == 0 {
                    let data = Request { wr_id: request.wr_id, number: self.posted };
                    // [ready]: there is no room before RTS.
                    error = post_one(context, qp, &mut posting, request, data);
                }
                if error != 0 {
                    *bad_wr = wr;
                    break;
                }
                self.posted = self.posted.wrapping_add(1);
                room = room.wrapping_sub(1);
                wr = request.next;
            }
        }
        drop(posting);
        DOORBELL.add_posts(self.posted.wrapping_sub(first));
        error
    }
}

/// Returns the errno of a request that is refused, in the order of libmlx5; 0 if it can be posted. There is room for
/// `room` requests.
///
/// # Safety
/// [verbs]
#[inline(always)]
pub(crate) unsafe fn check(qp: &Qp, limits: &SendLimits, wr: &ibv_send_wr, room: u32) -> c_int {
    if wr.opcode > IBV_WR_DRIVER1 {
        return libc::EINVAL;
    }
    if room == 0 || wr.num_sge > limits.sges as c_int {
        return libc::ENOMEM;
    }
    // SAFETY: [verbs] the list of the request can be read.
    let list = unsafe { sges(wr.sg_list, wr.num_sge) };
    let is_inline = wr.send_flags & IBV_SEND_INLINE != 0;
    if is_inline && len_of(list) > limits.inline {
        return libc::ENOMEM;
    }
    if !is_inline && list.iter().any(|sge| sge.length >= INLINE_SEG) {
        return libc::EINVAL;
    }
    let has_inline = is_inline && list.iter().any(|sge| sge.length != 0);
    match wr.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => 0,
        _ if qp.transport == IBV_QPT_UD => libc::EINVAL,
        IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => 0,
        _ if qp.transport != IBV_QPT_RC || has_inline => libc::EINVAL,
        IBV_WR_RDMA_READ => 0,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => match list {
            _ if !limits.has_atomics => libc::EOPNOTSUPP,
            [sge] if sge.length != 0 => 0,
            _ => libc::EINVAL,
        },
        _ => libc::EOPNOTSUPP,
    }
}

/// Posts a request; returns the errno.
///
/// # Safety
/// [verbs]; [ready]; `posting` is of the send queue of `qp`, and [`check`] has passed the request.
#[inline(always)]
unsafe fn post_one(
    context: &Context,
    qp: &Qp,
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    data: Request,
) -> c_int {
    // SAFETY: [verbs] the list and its inline data can be read; the caller's [ready] and `check`.
    unsafe {
        let list = sges(wr.sg_list, wr.num_sge);
        match list {
            _ if wr.send_flags & IBV_SEND_INLINE == 0 => put(context, qp, posting, wr, Payload::gather(list), data),
            [] => put(context, qp, posting, wr, Payload::gather(&[]), data),
            [sge] => {
                let (inline, inline_len) = (iter::once(bytes(sge)), sge.length);
                put(context, qp, posting, wr, Payload { inline, inline_len, sges: &[] }, data)
            }
            _ => {
                let (inline, inline_len) = (list.iter().map(|sge| bytes(sge)), len_of(list));
                put(context, qp, posting, wr, Payload { inline, inline_len, sges: &[] }, data)
            }
        }
    }
}

/// As [`post_one`], with the payload of the request.
///
/// # Safety
/// As [`post_one`].
#[inline(always)]
unsafe fn put<I: Pieces>(
    context: &Context,
    qp: &Qp,
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    payload: Payload<'_, I>,
    data: Request,
) -> c_int {
    let flags = flags_of(wr.send_flags, qp.signal_all);
    // SAFETY: [verbs] the program keeps [memory]; the caller's [ready]. Fields of unions are those that the opcode
    // names, or integers.
    let posted = unsafe {
        let imm = u32::from_be(wr.__bindgen_anon_1.imm_data);
        if qp.transport == IBV_QPT_UD {
            let ud = &wr.wr.ud;
            let Some(av) = address_vector(context, ud.ah) else { return libc::EINVAL };
            let to = av.read_unaligned().to(ud.remote_qpn, ud.remote_qkey);
            let imm = (wr.opcode == IBV_WR_SEND_WITH_IMM).then_some(imm);
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
                IBV_WR_RDMA_WRITE_WITH_IMM => posting.write(remote, payload, Some(imm), flags, data),
                IBV_WR_RDMA_READ => posting.read(remote, payload.sges, flags, data),
                _ => return atomic(posting, wr, payload.sges, flags, data),
            }
        }
    };
    posted.map_or_else(errno, |()| 0)
}

/// Posts an atomic, which writes eight bytes whatever its only SGE says.
///
/// # Safety
/// As [`post_one`].
#[cold]
unsafe fn atomic(
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    list: &[Sge],
    flags: Flags,
    data: Request,
) -> c_int {
    let [sge] = list else { return libc::EINVAL };
    let result = Sge { length: 8, ..*sge };
    // SAFETY: [verbs] the program keeps [memory]; the caller's [ready]. The opcode names this field of the union.
    let posted = unsafe {
        let atomic = &wr.wr.atomic;
        let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
        if wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
            posting.fetch_add(at, atomic.compare_add, result, flags, data)
        } else {
            posting.compare_swap(at, [atomic.compare_add, atomic.swap], result, flags, data)
        }
    };
    posted.map_or_else(errno, |()| 0)
}

/// Returns where the address vector of an address handle is; `None` if libmlx5 does not say.
///
/// # Safety
/// `ah` is an address handle of `context`, or null.
#[inline(always)]
unsafe fn address_vector(context: &Context, ah: *mut ibv_ah) -> Option<NonNull<DatagramSegment>> {
    let offset = match context.av_offset.load(Ordering::Relaxed) {
        // SAFETY: the caller's address handle.
        0 => unsafe { av_offset(context, ah) }?,
        offset => offset,
    };
    NonNull::new(ah.wrapping_byte_add(offset).cast()).filter(|_| !ah.is_null())
}

/// Asks libmlx5 for [`Context::av_offset`].
///
/// # Safety
/// As [`address_vector`].
#[cold]
unsafe fn av_offset(context: &Context, ah: *mut ibv_ah) -> Option<usize> {
    // SAFETY: both are pointers and integers, which may be 0; `ah` is an address handle of `context`, or null.
    unsafe {
        let (mut out, mut obj) = (zeroed::<mlx5dv_ah>(), zeroed::<mlx5dv_obj>());
        (obj.ah.in_, obj.ah.out) = (ah, &raw mut out);
        if ah.is_null() || (context.init_obj)(&mut obj, MLX5DV_OBJ_AH.into()) != 0 {
            return None;
        }
        let offset = out.av.addr().checked_sub(ah.addr())?;
        context.av_offset.store(offset, Ordering::Relaxed);
        Some(offset)
    }
}

/// Returns the flags of a request.
#[inline(always)]
fn flags_of(send_flags: u32, signal_all: bool) -> Flags {
    let mut flags = if signal_all { Flags::SIGNALED } else { Flags::NONE };
    for (bit, flag) in
        [(IBV_SEND_FENCE, Flags::FENCE), (IBV_SEND_SIGNALED, Flags::SIGNALED), (IBV_SEND_SOLICITED, Flags::SOLICITED)]
    {
        if send_flags & bit != 0 {
            flags = flags | flag;
        }
    }
    flags
}

/// Returns the number of bytes; `u32::MAX` if there are more.
#[inline(always)]
fn len_of(list: &[Sge]) -> u32 {
    list.iter().fold(0, |len, sge| sge.length.saturating_add(len))
}

/// Returns inline data.
///
/// # Safety
/// The memory of `sge` can be read during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    if sge.length == 0 {
        return &[];
    }
    // SAFETY: the memory of `sge` can be read.
    unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
}

/// Returns the errno of libmlx5.
#[cold]
fn errno(why: PostError) -> c_int {
    match why {
        PostError::Full | PostError::TooLong | PostError::InlineTooLong => libc::ENOMEM,
        PostError::SgeTooLong => libc::EINVAL,
    }
}
