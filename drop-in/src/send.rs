//! `ibv_post_send`.

use core::ffi::c_int;
use core::mem::{self, zeroed};
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use core::{iter, slice};

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, KeyChange, Payload, Pieces, PostError, Posting, Remote};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::INLINE_SEG;
use rdma_core_sys::{
    IBV_ACCESS_ZERO_BASED, IBV_QPT_RC, IBV_QPT_UD, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_DRIVER1,
    IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, MLX5DV_OBJ_AH, ibv_ah, ibv_inc_rkey, ibv_mw, ibv_mw_bind,
    ibv_qp, ibv_send_wr, ibv_send_wr__bindgen_ty_4__bindgen_ty_1, mlx5dv_ah, mlx5dv_obj,
};

use crate::changes;
use crate::context;
use crate::log::{self, DOORBELL};
use crate::objects::{Qp, Request, SendLimits, SendSide, Sends};
use crate::sge::sges;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if let Some(record) = context::qp(qp) {
            if let Some(sends) = &record.send {
                return sends.side.lock().post_list(record, sends, wr, bad_wr);
            }
            // It has no send queue.
            *bad_wr = wr;
            return libc::ENOMEM;
        }
        let Some(post_send) = context::of((*qp).context).ops.post_send else { return libc::EOPNOTSUPP };
        let error = post_send(qp, wr, bad_wr);
        log::count_posts(wr, bad_wr, error, |wr| wr.next);
        error
    }
}

/// Posts the bind of a window of type 1.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if context::qp(qp).is_none() {
            let bind_mw = context::of((*qp).context).ops.bind_mw;
            return bind_mw.map_or(libc::EOPNOTSUPP, |bind_mw| bind_mw(qp, mw, bind));
        }
        let &ibv_mw_bind { wr_id, send_flags, bind_info } = &*bind;
        if bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            return libc::EINVAL;
        }
        let rkey = ibv_inc_rkey((*mw).rkey);
        let mut wr = ibv_send_wr { wr_id, send_flags, opcode: IBV_WR_BIND_MW, ..zeroed() };
        wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
        let error = post_send(qp, &mut wr, &mut ptr::null_mut());
        if error == 0 {
            (*mw).rkey = rkey;
        }
        error
    }
}

impl SendSide {
    /// Frees what is retired, and finds where the queue is full. As in libmlx5, the queue is as if it was full before
    /// RTS.
    #[inline(always)]
    pub(crate) fn find_room(&mut self, sends: &Sends) {
        let retired = sends.retired.load(Ordering::Acquire);
        self.full_at = if self.can_send { retired.wrapping_add(self.limits.requests) } else { self.posted };
        // SAFETY: `sends` has this queue.
        unsafe { self.queue.free_retired(&sends.progress) }
    }

    /// Posts a list, and rings the doorbell; returns the errno.
    ///
    /// # Safety
    /// [verbs]; `sends` is the send queue of `qp`, and has this side.
    #[inline(always)]
    unsafe fn post_list(
        &mut self,
        qp: &Qp,
        sends: &Sends,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        self.find_room(sends);
        let (first, mut room, mut error) = (self.posted, self.full_at.wrapping_sub(self.posted), 0);
        if self.is_fenced {
            room = 0;
        }
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list can be read, and `bad_wr` can be written.
        unsafe {
            while let Some(request) = wr.as_ref() {
                error = check(qp, &self.limits, request, room);
                if error == 0 {
                    let data = Request { wr_id: request.wr_id, number: self.posted };
                    // [ready]: there is no room before RTS.
                    error = post_one(qp, &mut posting, request, data, false);
                }
                if error != 0 {
                    if error == CHANGES_KEY || self.is_fenced {
                        // All state is in the queue, and the doorbell rings for the rest, too.
                        mem::forget(posting);
                        return self.post_rest(qp, sends, first, wr, bad_wr);
                    }
                    *bad_wr = wr;
                    break;
                }
                self.posted = self.posted.wrapping_add(1);
                room = room.wrapping_sub(1);
                wr = request.next;
            }
        }
        sends.progress.note_posted(posting.posted());
        drop(posting);
        DOORBELL.add_posts(self.posted.wrapping_sub(first));
        error
    }

    /// Posts a list from a request on that changes a key or stands behind one that does. `first` is the count of
    /// requests before the list.
    ///
    /// # Safety
    /// As for [`post_list`](Self::post_list); there is room as [`find_room`](Self::find_room) has found.
    #[cold]
    #[inline(never)]
    unsafe fn post_rest(
        &mut self,
        qp: &Qp,
        sends: &Sends,
        first: u32,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let mut error = 0;
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] the list can be read, and `bad_wr` can be written. [ready]: there is no room before RTS.
        unsafe {
            while let Some(request) = wr.as_ref() {
                let room = self.full_at.wrapping_sub(self.posted);
                let data = Request { wr_id: request.wr_id, number: self.posted };
                error = match check(qp, &self.limits, request, room) {
                    0 => post_one(qp, &mut posting, request, data, self.is_fenced),
                    CHANGES_KEY => change(qp, sends, &mut posting, request, data, self.is_fenced),
                    error => error,
                };
                if error != 0 {
                    *bad_wr = wr;
                    break;
                }
                self.is_fenced = is_change(request);
                self.posted = self.posted.wrapping_add(1);
                wr = request.next;
            }
        }
        sends.progress.note_posted(posting.posted());
        drop(posting);
        DOORBELL.add_posts(self.posted.wrapping_sub(first));
        error
    }
}

/// Result of [`check`] for a request that changes a key.
const CHANGES_KEY: c_int = -1;

fn is_change(wr: &ibv_send_wr) -> bool {
    [IBV_WR_BIND_MW, IBV_WR_LOCAL_INV].contains(&wr.opcode)
}

/// Posts a bind or a local invalidation, whose list of entries does not count; returns the errno.
///
/// # Safety
/// As for [`post_one`].
unsafe fn change(
    qp: &Qp,
    sends: &Sends,
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    data: Request,
    is_fenced: bool,
) -> c_int {
    let (start, is_bind) = (posting.posted(), wr.opcode == IBV_WR_BIND_MW);
    // SAFETY: [verbs] the window and the region exist, and the program keeps [memory]; the caller's [ready]. The opcode
    // names the field of the union.
    let posted = unsafe {
        let change = if is_bind {
            let bind = &wr.__bindgen_anon_2.bind_mw;
            let window = &*bind.mw;
            match changes::bind(window.type_, qp.qpn, window.rkey, bind.rkey, &bind.bind_info) {
                Ok(change) => change,
                Err(error) => return error,
            }
        } else {
            KeyChange::invalidate(wr.__bindgen_anon_1.invalidate_rkey, 0)
        };
        posting.change(&change, flags_of(wr.send_flags, qp.signal_all).behind(is_fenced), data)
    };
    if posted.is_ok() {
        sends.changes.note(start, is_bind);
    }
    posted.map_or_else(errno, |()| 0)
}

/// Returns the errno of a request that is refused, in the order of libmlx5; 0 if it can be posted, or [`CHANGES_KEY`].
/// There is room for `room` requests.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn check(qp: &Qp, limits: &SendLimits, wr: &ibv_send_wr, room: u32) -> c_int {
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
        IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => CHANGES_KEY,
        _ if qp.transport != IBV_QPT_RC || has_inline => libc::EINVAL,
        IBV_WR_RDMA_READ => 0,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => match list {
            _ if !limits.has_atomics => libc::EOPNOTSUPP,
            [sge] if sge.length != 0 => 0,
            _ => libc::EINVAL,
        },
        IBV_WR_TSO => libc::EINVAL,
        _ => libc::EOPNOTSUPP,
    }
}

/// Posts a request, which waits for a change of a key before it if `is_fenced`; returns the errno.
///
/// # Safety
/// [verbs]; [ready]; `posting` is of the send queue of `qp`, and [`check`] has passed the request.
#[inline(always)]
unsafe fn post_one(
    qp: &Qp,
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    data: Request,
    is_fenced: bool,
) -> c_int {
    // SAFETY: [verbs] the list and its inline data can be read; the caller's [ready] and `check`.
    unsafe {
        let list = sges(wr.sg_list, wr.num_sge);
        match list {
            _ if wr.send_flags & IBV_SEND_INLINE == 0 => put(qp, posting, wr, Payload::gather(list), data, is_fenced),
            [] => put(qp, posting, wr, Payload::gather(&[]), data, is_fenced),
            [sge] => {
                let (inline, inline_len) = (iter::once(bytes(sge)), sge.length);
                put(qp, posting, wr, Payload { inline, inline_len, sges: &[] }, data, is_fenced)
            }
            _ => {
                let (inline, inline_len) = (list.iter().map(|sge| bytes(sge)), len_of(list));
                put(qp, posting, wr, Payload { inline, inline_len, sges: &[] }, data, is_fenced)
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
    qp: &Qp,
    posting: &mut Posting<'_, Request>,
    wr: &ibv_send_wr,
    payload: Payload<'_, I>,
    data: Request,
    is_fenced: bool,
) -> c_int {
    let flags = flags_of(wr.send_flags, qp.signal_all).behind(is_fenced);
    // SAFETY: [verbs] the program keeps [memory]; the caller's [ready]. Fields of unions are those that the opcode
    // names, or integers.
    let posted = unsafe {
        let imm = u32::from_be(wr.__bindgen_anon_1.imm_data);
        if qp.transport == IBV_QPT_UD {
            let ud = &wr.wr.ud;
            let known = known_address_vector(qp, ud.ah).or_else(|| address_vector(qp, ud.ah));
            let Some(av) = known else { return libc::EINVAL };
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

/// Returns where the address vector of an address handle is; `None` if it is not known.
///
/// # Safety
/// `ah` is an address handle of the context of `qp`, or null.
#[inline(always)]
pub(crate) unsafe fn known_address_vector(qp: &Qp, ah: *mut ibv_ah) -> Option<NonNull<DatagramSegment>> {
    let offset = qp.av_offset.load(Ordering::Relaxed);
    if ah.is_null() || offset == 0 {
        return None;
    }
    // SAFETY: the vector is a part of the address handle.
    Some(unsafe { NonNull::new_unchecked(ah.byte_add(offset).cast()) })
}

/// As [`known_address_vector`], but asks libmlx5 for [`Qp::av_offset`]; `None` if libmlx5 does not say.
///
/// # Safety
/// As [`known_address_vector`].
#[cold]
pub(crate) unsafe fn address_vector(qp: &Qp, ah: *mut ibv_ah) -> Option<NonNull<DatagramSegment>> {
    // SAFETY: both are pointers and integers, which may be 0; `ah` is an address handle of the context of `qp`, or
    // null.
    unsafe {
        let (mut out, mut obj) = (zeroed::<mlx5dv_ah>(), zeroed::<mlx5dv_obj>());
        (obj.ah.in_, obj.ah.out) = (ah, &raw mut out);
        if ah.is_null() || (context::of((*qp.ibv).context).init_obj)(&mut obj, MLX5DV_OBJ_AH.into()) != 0 {
            return None;
        }
        qp.av_offset.store(out.av.addr().checked_sub(ah.addr())?, Ordering::Relaxed);
        known_address_vector(qp, ah)
    }
}

/// The flags by the three lowest bits of `send_flags`.
const FLAGS: [Flags; 8] = {
    let bits =
        [(IBV_SEND_FENCE, Flags::FENCE), (IBV_SEND_SIGNALED, Flags::SIGNALED), (IBV_SEND_SOLICITED, Flags::SOLICITED)];
    let mut flags = [Flags::NONE; 8];
    let mut i = 0;
    while i < 3 * 8 {
        let (bit, flag) = bits[i / 8];
        if (i % 8) as u32 & bit != 0 {
            flags[i % 8] = flags[i % 8].with(flag);
        }
        i += 1;
    }
    flags
};

/// Returns the flags of a request.
#[inline(always)]
pub(crate) fn flags_of(send_flags: u32, signal_all: bool) -> Flags {
    let all = if signal_all { Flags::SIGNALED } else { Flags::NONE };
    FLAGS[send_flags as usize % FLAGS.len()] | all
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
pub(crate) fn errno(why: PostError) -> c_int {
    match why {
        PostError::Full | PostError::TooLong | PostError::InlineTooLong => libc::ENOMEM,
        PostError::SgeTooLong => libc::EINVAL,
    }
}
