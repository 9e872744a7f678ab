//! The extended CQ: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the readers.

use core::ffi::{c_int, c_uint};
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering};

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_WC_SUCCESS, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_status};

use crate::complete::{Form, Message, Outcome, Request};
use crate::context;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log::{self, LIBMLX5};
use crate::objects::{Cq, CqSide, Path};
use crate::poll::{STRAY, UNSEEN};
use crate::wc::{receive_flags, receive_opcode, request_opcode};

/// Puts the library's functions in the place of libmlx5's, as far as the CQ has them, unless it has the reader of tag matching.
///
/// # Safety
/// `cq` is a CQ of libmlx5 that no code uses meanwhile, and `record` is its record.
pub(crate) unsafe fn replace(cq: *mut ibv_cq_ex, record: &Cq) {
    if record.original.as_ref().is_some_and(|original| original.read_tm_info.is_some()) {
        // SAFETY: no code uses `cq`, which is an extended CQ.
        unsafe { count_polls(&mut *cq) };
        return;
    }
    // SAFETY: no code uses `cq`; libmlx5 has room for the functions of an extended CQ in each CQ.
    let cq = unsafe {
        find::place_in_cq(cq).write(record);
        &mut *cq
    };
    cq.start_poll = Some(start_poll_undecided);
    if record.original.is_none() {
        return;
    }
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = cq.read_byte_len.and(Some(read_byte_len));
    cq.read_imm_data = cq.read_imm_data.and(Some(read_imm_data));
    cq.read_qp_num = cq.read_qp_num.and(Some(read_qp_num));
    cq.read_src_qp = cq.read_src_qp.and(Some(read_src_qp));
    cq.read_slid = cq.read_slid.and(Some(read_slid));
    cq.read_sl = cq.read_sl.and(Some(read_sl));
    cq.read_dlid_path_bits = cq.read_dlid_path_bits.and(Some(read_dlid_path_bits));
    cq.read_completion_ts = cq.read_completion_ts.and(Some(read_completion_ts));
    cq.read_cvlan = cq.read_cvlan.and(Some(read_cvlan));
    cq.read_flow_tag = cq.read_flow_tag.and(Some(read_flow_tag));
}

/// Lets an extended CQ that libmlx5 drives count its polls, if calls are counted.
fn count_polls(cq: &mut ibv_cq_ex) {
    if log::is_on() {
        cq.start_poll = Some(start_poll_of_libmlx5);
    }
}

/// Lets the program poll a CQ that has its ring, and [`find::cq`] find its record.
pub(crate) fn take_over(cq: &Cq) {
    // SAFETY: [record-lives] libmlx5 has room for the functions of an extended CQ in each CQ. Another thread may still call the
    // function that was there: it finds no completion.
    unsafe {
        let place = &raw mut (*cq.ibv.cast::<ibv_cq_ex>()).start_poll;
        // A thread that reads it finds the ring.
        (*place.cast::<AtomicUsize>()).store(start_poll as *const () as usize, Ordering::Release);
    }
}

/// Gives a CQ the functions of libmlx5 back.
pub(crate) fn restore_cq(cq: &Cq) {
    // SAFETY: [record-lives] libmlx5 has room for the functions of an extended CQ in each CQ. Another thread may call the
    // functions of either library: both find an empty CQ.
    unsafe {
        let original = cq.original.as_ref();
        let cq = &mut *cq.ibv.cast::<ibv_cq_ex>();
        cq.start_poll = original.and_then(|original| original.start_poll);
        let Some(original) = original else { return };
        count_polls(cq);
        cq.next_poll = original.next_poll;
        cq.end_poll = original.end_poll;
        cq.read_opcode = original.read_opcode;
        cq.read_vendor_err = original.read_vendor_err;
        cq.read_wc_flags = original.read_wc_flags;
        cq.read_byte_len = original.read_byte_len;
        cq.read_imm_data = original.read_imm_data;
        cq.read_qp_num = original.read_qp_num;
        cq.read_src_qp = original.read_src_qp;
        cq.read_slid = original.read_slid;
        cq.read_sl = original.read_sl;
        cq.read_dlid_path_bits = original.read_dlid_path_bits;
        cq.read_completion_ts = original.read_completion_ts;
        cq.read_cvlan = original.read_cvlan;
        cq.read_flow_tag = original.read_flow_tag;
    }
}

/// Gives a CQ whose record is about to go all functions of libmlx5 back.
pub(crate) fn forget(cq: &Cq) {
    restore_cq(cq);
    let original = cq.original.as_ref();
    // SAFETY: [record-lives] libmlx5 has room for the functions of an extended CQ in each CQ.
    let ibv = unsafe { &mut *cq.ibv.cast::<ibv_cq_ex>() };
    ibv.start_poll = original.and_then(|original| original.start_poll);
    ibv.read_tm_info = original.and_then(|original| original.read_tm_info);
}

/// Returns the record of a CQ that the program polls.
///
/// # Safety
/// doorbell drives the CQ, and so never gives its functions back.
#[inline(always)]
unsafe fn polled<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: [record-lives] `replace` has put the record there.
    unsafe { &**find::place_in_cq(cq) }
}

pub(crate) unsafe extern "C" fn start_poll(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: [verbs], [record-lives]; `replace` has put the record there, and `guard` holds its lock.
    unsafe {
        if (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let record = polled(cq);
        match record.side.try_lock() {
            Some(guard) => start_locked(guard, cq, record),
            None => start_contended(cq, record),
        }
    }
}

/// Starts a poll of a CQ that another thread polls.
///
/// # Safety
/// [verbs]; `record` is that of the CQ, which doorbell drives.
#[cold]
unsafe extern "C" fn start_contended(cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: [verbs]; `record` is that of the CQ, which doorbell drives, and the guard holds its lock.
    unsafe { start_locked(record.side.lock(), cq, record) }
}

/// Starts a poll of a CQ whose lock is held.
///
/// # Safety
/// [verbs]; `record` is that of the CQ, which doorbell drives, and `guard` holds its lock.
#[inline(always)]
unsafe fn start_locked(guard: Guard<'_, Option<CqSide>>, cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: [verbs]; `record` is that of the CQ, which doorbell drives, and `guard` holds its lock.
    unsafe {
        let side = record.held();
        let is_taken = match side.ring.peek_if(Message::<false>::has) {
            // The consumer index is published when the program has read the completion.
            Ok(cqe) => {
                let cqe: Cqe<'static> = cqe.detach();
                side.show_next::<Message<false>>(cq, cqe)
            }
            Err(CqeKind::Pending) => return libc::ENOENT,
            Err(_) => false,
        };
        // Until `end_poll`.
        mem::forget(guard);
        if is_taken { 0 } else { start_other(cq, record) }
    }
}

/// Starts a poll of a CQ whose next completion is not a [message](Message) outside of its CQE, or could not be taken as one.
///
/// # Safety
/// As [`take`].
#[inline(never)]
unsafe extern "C" fn start_other(cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: as in `take`; nothing refers to the ring.
    unsafe {
        let error = take(cq, record);
        if error != 0 {
            end(record);
        }
        error
    }
}

/// Starts a poll of a CQ before the decision, or just after it.
unsafe extern "C" fn start_poll_undecided(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: [verbs], [record-lives]; `replace` has put the record there.
    let (context, record) = unsafe { (context::of((*cq).context), &**find::place_in_cq(cq)) };
    // See `poll_undecided`.
    let undecided = context.undecided();
    if record.status.path() == Path::Doorbell {
        return libc::ENOENT;
    }
    // SAFETY: [verbs] `attr` can be read.
    let error = unsafe { start_poll_of_libmlx5(cq, attr) };
    if error != libc::ENOENT {
        record.status.set_uncovered(UNSEEN);
    }
    drop(undecided);
    if error != libc::ENOENT {
        decide::against(context, record, UNSEEN);
    }
    error
}

/// As libmlx5, and counts.
unsafe extern "C" fn start_poll_of_libmlx5(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let record = context::of((*cq).context).cq(cq.cast());
        let original = record.and_then(|record| record.original.as_ref()?.start_poll);
        let Some(start_poll) = original else { return libc::EINVAL };
        let error = start_poll(cq, attr);
        if error == 0 {
            LIBMLX5.add_polls(1);
        }
        error
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: [verbs] `start_poll` has returned 0, so this thread holds the lock of the CQ.
    unsafe { take(cq, polled(cq)) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: [verbs] `start_poll` has returned 0, so this thread holds the lock of the CQ.
    unsafe { end(polled(cq)) }
}

/// Ends a poll.
///
/// # Safety
/// As [`Cq::held`].
#[inline(always)]
unsafe fn end(record: &Cq) {
    // SAFETY: this thread holds the lock, and nothing else refers to the ring.
    unsafe {
        record.held().publish(record);
        drop(record.side.regain());
    }
}

/// Makes the next completion the current one.
///
/// # Safety
/// As [`Cq::held`]; `cq` is the CQ of `record`.
#[inline(always)]
unsafe fn take(cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: this thread holds the lock, and `cq` is the CQ of `record`. The CQE has the form for which it is taken.
    unsafe {
        let side = record.held();
        match side.ring.peek_if(Message::<false>::has) {
            Ok(cqe) => {
                let cqe: Cqe<'static> = cqe.detach();
                if side.show_next::<Message<false>>(cq, cqe) { 0 } else { take_any(cq, record) }
            }
            Err(CqeKind::Inline) => take_form::<Message<true>>(cq, record),
            Err(CqeKind::NotAReceive) => take_form::<Request>(cq, record),
            Err(_) => take_any(cq, record),
        }
    }
}

/// As [`take`], for a CQE that may have this form.
///
/// # Safety
/// As [`take`].
// A call at the end of a function that cannot unwind is a jump: `next_poll` has no registers to save.
#[inline(never)]
unsafe extern "C" fn take_form<F: Form>(cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: this thread holds the lock, and `cq` is the CQ of `record`. The CQE has the form for which it is taken.
    unsafe {
        let side = record.held();
        match F::peek(&side.ring).map(|cqe| cqe.detach::<'static>()) {
            Some(cqe) if side.show_next::<F>(cq, cqe) => 0,
            _ => take_any(cq, record),
        }
    }
}

/// As [`take`], for a CQE of any form.
///
/// # Safety
/// As [`take`].
#[inline(never)]
unsafe extern "C" fn take_any(cq: *mut ibv_cq_ex, record: &Cq) -> c_int {
    // SAFETY: as in `take`; the consumer index is published when the program has read the completion. [polled]
    unsafe {
        let side = record.held();
        loop {
            let Some(cqe) = side.ring.peek() else { return libc::ENOENT };
            let cqe: Cqe<'static> = cqe.detach();
            match side.qp(cqe).map_or(Outcome::Stray, |qp| qp.complete_any(cqe)) {
                Outcome::Done { wr_id, status } => {
                    side.show(cq, cqe, wr_id, status);
                    return 0;
                }
                Outcome::Hidden => side.ring.advance(),
                Outcome::Stray => {
                    side.ring.advance();
                    return STRAY;
                }
            }
        }
    }
}

impl CqSide {
    /// Makes the next completion, whose CQE this is, the current one; returns `false` if no such request is outstanding, or another
    /// thread uses its SRQ.
    ///
    /// # Safety
    /// `cq` is the CQ of this ring, and this thread holds the lock. The CQE has this form.
    #[inline(always)]
    unsafe fn show_next<F: Form>(&mut self, cq: *mut ibv_cq_ex, cqe: Cqe<'_>) -> bool {
        let Some(qp) = self.qp(cqe) else { return false };
        // SAFETY: [polled] `cq` is the CQ of this ring. The CQE has this form.
        unsafe {
            let Some(wr_id) = F::complete(qp, cqe) else { return false };
            self.show(cq, cqe, wr_id, IBV_WC_SUCCESS);
        }
        true
    }

    /// Makes the next CQE, whose request is over, the current one.
    ///
    /// # Safety
    /// `cq` is the CQ of this ring, and `cqe` the next CQE.
    #[inline(always)]
    unsafe fn show(&mut self, cq: *mut ibv_cq_ex, cqe: Cqe<'_>, wr_id: u64, status: ibv_wc_status) {
        self.current = Some(cqe.place());
        self.ring.advance_inline();
        // SAFETY: `cq` is the CQ of this ring.
        unsafe { ((*cq).wr_id, (*cq).status) = (wr_id, status) };
    }
}

/// Returns the current completion.
///
/// # Safety
/// [verbs] The program is in a poll.
#[inline(always)]
unsafe fn current(cq: *mut ibv_cq_ex) -> Cqe<'static> {
    // SAFETY: [verbs] the program is in a poll, so this thread holds the lock, and the CQE was taken and is not published.
    unsafe {
        let side = polled(cq).held();
        side.ring.taken(side.current.unwrap_unchecked())
    }
}

/// Declares readers of the current completion.
macro_rules! readers {
    ($($name:ident($cqe:ident) -> $type:ty = $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: [verbs] the program is in a poll.
            let $cqe = unsafe { current(cq) };
            $value
        }
    )*};
}

readers! {
    read_opcode(cqe) -> ibv_wc_opcode = opcode_of(cqe);
    read_vendor_err(cqe) -> u32 = cqe.vendor_err_synd().into();
    read_byte_len(cqe) -> u32 = cqe.byte_count();
    read_imm_data(cqe) -> u32 = match cqe.opcode() {
        // This is the invalidated key, in the order of the host.
        CqeOpcode::ResponderSendInv => cqe.imm_inval_pkey(),
        _ => cqe.imm_inval_pkey().to_be(),
    };
    read_qp_num(cqe) -> u32 = cqe.qpn();
    read_src_qp(cqe) -> u32 = cqe.source_qpn();
    read_wc_flags(cqe) -> c_uint = match cqe.opcode() {
        // As libmlx5: the sender knows.
        CqeOpcode::Requester => 0,
        opcode => receive_flags(opcode, cqe),
    };
    read_slid(cqe) -> u32 = cqe.slid().into();
    read_sl(cqe) -> u8 = cqe.sl();
    read_dlid_path_bits(cqe) -> u8 = cqe.dlid_path_bits();
    read_completion_ts(cqe) -> u64 = cqe.timestamp();
    read_cvlan(cqe) -> u16 = cqe.to_cqe64().vlan_info.get();
    read_flow_tag(cqe) -> u32 = cqe.qpn();
}

#[inline(always)]
fn opcode_of(cqe: Cqe<'_>) -> ibv_wc_opcode {
    match cqe.opcode() {
        CqeOpcode::Requester => request_opcode(cqe).0,
        CqeOpcode::RequesterError | CqeOpcode::ResponderError => IBV_WC_SUCCESS,
        opcode => receive_opcode(opcode),
    }
}
