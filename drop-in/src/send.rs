//! `ibv_post_send`.

use core::ffi::c_int;
use core::mem::{self, MaybeUninit};
use core::slice;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Payload, PostError, Posting, Remote};
use mlx5_wire::inline::INLINE_SEG;
use rdma_core_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_DRIVER1, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV, ibv_qp, ibv_send_wr,
};

use crate::av;
use crate::context;
use crate::create;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log::LIBMLX5;
use crate::objects::{Path, Qp, Request, SendLimits, SendSide, Transport};
use crate::receive::sges;

/// Most pieces of inline data: a WQE has no room for more SGEs.
const PIECES: usize = 64;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let Some(record) = find::qp(qp) else { return post_undecided(qp, wr, bad_wr) };
        match record.send.try_lock() {
            Some(guard) => post_locked(guard, record, wr, bad_wr),
            None => post_contended(record, wr, bad_wr),
        }
    }
}

/// Posts to a queue pair that another thread uses.
#[cold]
unsafe extern "C" fn post_contended(
    record: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { post_locked(record.send.lock(), record, wr, bad_wr) }
}

#[inline(always)]
unsafe fn post_locked(
    mut guard: Guard<'_, Option<SendSide>>,
    record: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let Some(side) = &mut *guard else {
            drop(guard);
            return post_undecided(record.ibv, wr, bad_wr);
        };
        if record.transport == Transport::Ud {
            side.post::<true>(record, wr, bad_wr)
        } else {
            side.post::<false>(record, wr, bad_wr)
        }
    }
}

/// Posts to a queue pair that doorbell does not drive, or not yet.
#[cold]
unsafe extern "C" fn post_undecided(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        if let Some(record) = context.qps.get((*qp).qp_num) {
            if record.status.path() == Path::Undecided {
                decide::for_qp(context, record);
                if record.send.lock().is_some() {
                    return post_send(qp, wr, bad_wr);
                }
            }
        }
        if context.qps.get((*qp).qp_num).is_none() && !create::note_foreign_qp(context, qp) {
            *bad_wr = wr;
            return libc::EOPNOTSUPP;
        }
        let error = (context.original.post_send)(qp, wr, bad_wr);
        let end = if error == 0 { core::ptr::null_mut() } else { *bad_wr };
        let (mut posted, mut next) = (0, wr);
        while next != end {
            posted += 1;
            next = (*next).next;
        }
        LIBMLX5.add_posts(posted);
        error
    }
}

impl SendSide {
    /// Returns the number of requests that can be posted.
    #[inline(always)]
    fn room(&self) -> u32 {
        let outstanding = self.posted.wrapping_sub(self.retired);
        // As libmlx5: before RTS all are refused as if the queue was full.
        let most = if self.is_ready { self.limits.requests } else { 0 };
        most.saturating_sub(outstanding)
    }

    /// Posts a list of requests, of datagrams or not.
    ///
    /// # Safety
    /// [verbs]
    // Not inlined: in a function that is given the queue alone the compiler keeps its fields in registers.
    #[inline(never)]
    unsafe fn post<const ARE_DATAGRAMS: bool>(
        &mut self,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, room) = (self.posted, self.room());
        let room = if self.limits.sges == 0 { 0 } else { room };
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] a list. [memory] and [ready] are what verbs ask of the caller, and `room` of the state; the fields of
        // unions are those that the opcode names.
        unsafe {
            // Most are of one SGE that is not inline.
            while let Some(request) = wr.as_ref() {
                let number = self.posted;
                let sge = request.sg_list.cast::<Sge>();
                if request.num_sge != 1
                    || request.send_flags & IBV_SEND_INLINE != 0
                    || !(1..INLINE_SEG).contains(&(*sge).length)
                    || number.wrapping_sub(first) == room
                {
                    break;
                }
                let list = slice::from_ref(&*sge);
                let payload = Payload::gather(list);
                let flags = flags_of(request.send_flags, qp.signal_all);
                let data = Request { wr_id: request.wr_id, number };
                let posted = if ARE_DATAGRAMS {
                    let ud = &request.wr.ud;
                    let Some(av) = av::known(ud.ah) else { break };
                    if request.opcode != IBV_WR_SEND {
                        break;
                    }
                    let to = av.read_unaligned().to(ud.remote_qpn, ud.remote_qkey);
                    posting.send_to(&to, payload, None, flags, data)
                } else {
                    let rdma = &request.wr.rdma;
                    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
                    match request.opcode {
                        IBV_WR_SEND => posting.send(payload, Immediate::None, flags, data),
                        IBV_WR_RDMA_WRITE => posting.write(remote, payload, None, flags, data),
                        IBV_WR_RDMA_READ if qp.transport == Transport::Rc => {
                            posting.read(remote, list, flags, data)
                        }
                        _ => break,
                    }
                };
                if posted.is_err() {
                    break;
                }
                self.posted = number.wrapping_add(1);
                wr = request.next;
            }
            qp.sends.add(self.posted.wrapping_sub(first).into());
            if wr.is_null() {
                return 0;
            }
            // One doorbell for all.
            mem::forget(posting);
            self.post_inlined::<ARE_DATAGRAMS>(qp, wr, bad_wr)
        }
    }

    /// As [`post`](Self::post), requests whose bytes are copied to the WQE.
    ///
    /// # Safety
    /// [verbs]
    #[inline(never)]
    unsafe fn post_inlined<const ARE_DATAGRAMS: bool>(
        &mut self,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, room) = (self.posted, self.room());
        let room = if self.limits.sges == 0 { 0 } else { room };
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] as in `post`; inline data can be read during the call.
        unsafe {
            while let Some(request) = wr.as_ref() {
                let number = self.posted;
                let sge = request.sg_list.cast::<Sge>();
                if request.num_sge != 1
                    || request.send_flags & IBV_SEND_INLINE == 0
                    || (*sge).length == 0
                    || (*sge).length > self.limits.inline
                    || number.wrapping_sub(first) == room
                {
                    break;
                }
                let pieces = [bytes(&*sge)];
                let payload = Payload::inline(&pieces);
                let flags = flags_of(request.send_flags, qp.signal_all);
                let data = Request { wr_id: request.wr_id, number };
                if request.opcode != IBV_WR_SEND {
                    break;
                }
                let posted = if ARE_DATAGRAMS {
                    let ud = &request.wr.ud;
                    let Some(av) = av::known(ud.ah) else { break };
                    let to = av.read_unaligned().to(ud.remote_qpn, ud.remote_qkey);
                    posting.send_to(&to, payload, None, flags, data)
                } else {
                    posting.send(payload, Immediate::None, flags, data)
                };
                if posted.is_err() {
                    break;
                }
                self.posted = number.wrapping_add(1);
                wr = request.next;
            }
            qp.sends.add(self.posted.wrapping_sub(first).into());
            if wr.is_null() {
                return 0;
            }
            mem::forget(posting);
            self.post_rest(qp, wr, bad_wr)
        }
    }

    /// As [`post`](Self::post), requests of any form.
    ///
    /// # Safety
    /// [verbs]
    #[inline(never)]
    unsafe fn post_rest(
        &mut self,
        qp: &Qp,
        mut wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int {
        let (first, mut error, mut room) = (self.posted, 0, self.room());
        let mut posting = self.queue.posting();
        // SAFETY: [verbs] a list.
        while let Some(request) = unsafe { wr.as_ref() } {
            let number = self.posted;
            // SAFETY: [verbs]
            let posted = unsafe {
                check(request, room, &self.limits).and_then(|()| {
                    post_one(&mut posting, qp, request, number, &self.limits, self.has_atomics)
                })
            };
            if let Err(why) = posted {
                error = why;
                // SAFETY: [verbs]
                unsafe { *bad_wr = wr };
                break;
            }
            self.posted = number.wrapping_add(1);
            room -= 1;
            wr = request.next;
        }
        drop(posting);
        qp.sends.add(self.posted.wrapping_sub(first).into());
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

/// Returns what the flags of a request say.
#[inline(always)]
pub(crate) fn flags_of(send_flags: u32, signal_all: bool) -> Flags {
    let flags = FLAGS[send_flags as usize % FLAGS.len()];
    if signal_all { flags | Flags::SIGNALED } else { flags }
}

/// By the lower three bits of `send_flags`.
const FLAGS: [Flags; 8] = {
    assert!(IBV_SEND_FENCE == 1 && IBV_SEND_SIGNALED == 2 && IBV_SEND_SOLICITED == 4);
    let [none, fence, signaled, solicited] =
        [Flags::NONE, Flags::FENCE, Flags::SIGNALED, Flags::SOLICITED];
    [
        none,
        fence,
        signaled,
        signaled.with(fence),
        solicited,
        solicited.with(fence),
        solicited.with(signaled),
        solicited.with(signaled).with(fence),
    ]
};

/// # Safety
/// [verbs]
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
    // SAFETY: [verbs] the list of the request.
    let list = unsafe { sges(wr.sg_list, wr.num_sge) };
    // SAFETY: [verbs]
    unsafe {
        match list {
            [_, ..] if wr.send_flags & IBV_SEND_INLINE != 0 => {
                post_inline(posting, qp, wr, list, flags, data, limits)
            }
            // Most requests have one: without the loops over a list.
            [one] => {
                let list = slice::from_ref(one);
                post_payload(posting, qp, wr, Payload::gather(list), list, flags, data, has_atomics)
            }
            _ => post_list(posting, qp, wr, list, flags, data, has_atomics),
        }
    }
}

/// Posts a request of any number of SGEs.
///
/// # Safety
/// [verbs]
#[inline(never)]
unsafe fn post_list(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    wr: &ibv_send_wr,
    list: &[Sge],
    flags: Flags,
    data: Request,
    has_atomics: bool,
) -> Result<(), c_int> {
    // SAFETY: [verbs]
    unsafe { post_payload(posting, qp, wr, Payload::gather(list), list, flags, data, has_atomics) }
}

/// Copies the bytes of a request to its WQE.
///
/// # Safety
/// [verbs]
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
    if let [one] = list {
        if one.length > limits.inline {
            return Err(libc::ENOMEM);
        }
        // SAFETY: [verbs], as below.
        return unsafe {
            let pieces = [bytes(one)];
            post_payload(posting, qp, wr, Payload::inline(&pieces), &[], flags, data, false)
        };
    }
    let mut pieces = [const { MaybeUninit::<&[u8]>::uninit() }; PIECES];
    let mut len = 0;
    for (piece, sge) in pieces.get_mut(..list.len()).ok_or(libc::ENOMEM)?.iter_mut().zip(list) {
        len += u64::from(sge.length);
        // SAFETY: [verbs] inline data can be read during the call.
        piece.write(unsafe { bytes(sge) });
    }
    if len > limits.inline.into() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: as many were written just now.
    let pieces = unsafe { slice::from_raw_parts(pieces.as_ptr().cast::<&[u8]>(), list.len()) };
    // SAFETY: [verbs]; inline data goes with no READ or atomic.
    unsafe { post_payload(posting, qp, wr, Payload::inline(pieces), &[], flags, data, false) }
}

/// # Safety
/// The memory of `sge` can be read during `'a`.
#[inline(always)]
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    if sge.length == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
}

/// # Safety
/// [verbs]
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined: what one request is made of")]
unsafe fn post_payload(
    posting: &mut Posting<'_, Request>,
    qp: &Qp,
    wr: &ibv_send_wr,
    payload: Payload<'_>,
    list: &[Sge],
    flags: Flags,
    data: Request,
    has_atomics: bool,
) -> Result<(), c_int> {
    // SAFETY: [memory] and [ready] are what verbs ask of the caller, and `check` of the state; the fields of unions are
    // those that the opcode names.
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
                _ if qp.transport != Transport::Rc || !payload.inline.is_empty() => {
                    return Err(libc::EINVAL);
                }
                IBV_WR_RDMA_READ => posting.read(remote, list, flags, data),
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD if !has_atomics => {
                    return Err(libc::EOPNOTSUPP);
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = &wr.wr.atomic;
                    let at = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
                    // The device writes eight bytes, whatever the entry says.
                    let [sge] = list else { return Err(libc::EINVAL) };
                    let result = Sge { length: 8, ..*sge };
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

/// Returns the errno of libmlx5.
#[cold]
pub(crate) fn errno(why: PostError) -> c_int {
    match why {
        PostError::Full | PostError::TooLong | PostError::InlineTooLong => libc::ENOMEM,
        PostError::SgeTooLong => libc::EINVAL,
    }
}
