//! The extended CQ: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the readers.

use core::ffi::{c_int, c_uint};
use core::mem;

use mlx5_ring::completion::Cqe;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_WC_SUCCESS, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode};

use crate::complete::Outcome;
use crate::context;
use crate::log::{self, DOORBELL, LIBMLX5};
use crate::objects::{Cq, CqSide, Path};
use crate::wc::{change_opcode, receive_flags, receive_opcode, request_opcode};

/// Result of `ibv_poll_cq` and `ibv_start_poll` of libmlx5 for a CQE of no request.
pub(crate) const STRAY: c_int = -2;

/// Calls a macro with the functions that this library replaces in an extended CQ.
macro_rules! functions {
    ($each:ident) => {
        $each!(next_poll, end_poll, read_opcode, read_vendor_err, read_wc_flags);
        $each!(read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_slid, read_sl);
        $each!(read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag);
    };
}

/// Returns why doorbell does not cover an extended CQ, if so.
pub(crate) fn uncovered(cq: &ibv_cq_ex) -> Option<&'static str> {
    if cq.read_tm_info.is_some() {
        Some("a CQ for tag matching")
    } else if cq.read_completion_wallclock_ns.is_some() {
        Some("a CQ with wall-clock timestamps")
    } else {
        None
    }
}

/// Puts the library's functions in the place of libmlx5's, as far as the CQ has them.
pub(crate) fn replace(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    macro_rules! replace {
        ($($name:ident),*) => { $(cq.$name = cq.$name.and(Some($name));)* };
    }
    functions!(replace);
}

/// Leaves a CQ to libmlx5, whose ring is not made, and which is empty.
pub(crate) fn leave(record: &Cq) {
    record.status.set(Path::Libmlx5);
    let Some(original) = &record.original else { return };
    // SAFETY: [record-lives] an extended CQ. Another thread may call the functions of either library: all of them find
    // an empty CQ.
    let cq = unsafe { &mut *record.ibv.cast::<ibv_cq_ex>() };
    macro_rules! restore {
        ($($name:ident),*) => { $(cq.$name = original.$name;)* };
    }
    functions!(restore);
    if !log::is_on() {
        cq.start_poll = original.start_poll;
    }
}

/// Returns the record of a CQ whose functions were replaced.
///
/// # Safety
/// [verbs]
#[inline(always)]
unsafe fn record_of<'a>(cq: *mut ibv_cq_ex) -> Option<&'a Cq> {
    // SAFETY: [verbs], [record-lives]. An extended CQ begins as a plain one does.
    unsafe { context::cq(cq.cast()) }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: [verbs]
    unsafe {
        let Some(record) = record_of(cq) else { return libc::EINVAL };
        if record.status.path() != Path::Doorbell {
            return start_of_libmlx5(cq, record, attr);
        }
        if (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let mut guard = record.side.lock();
        let Some(side) = &mut *guard else { return libc::EINVAL };
        let error = side.show_next(cq);
        if error == 0 {
            // Until `end_poll`.
            mem::forget(guard);
        } else {
            side.publish(record);
        }
        error
    }
}

/// Starts a poll of a CQ that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]; `record` is that of the CQ.
#[cold]
unsafe fn start_of_libmlx5(cq: *mut ibv_cq_ex, record: &Cq, attr: *mut ibv_poll_cq_attr) -> c_int {
    let original = record.original.as_ref().and_then(|original| original.start_poll);
    let Some(start_poll) = original else { return libc::EINVAL };
    // No code decides for doorbell meanwhile.
    let _guard = (record.status.path() == Path::Undecided).then(|| record.side.lock());
    if record.status.path() == Path::Doorbell {
        // Another thread has just decided, before anything was posted.
        return libc::ENOENT;
    }
    // SAFETY: [verbs]
    let error = unsafe { start_poll(cq, attr) };
    if error == 0 {
        LIBMLX5.add_polls(1);
    }
    if error != libc::ENOENT && record.status.path() == Path::Undecided {
        // A queue that was made past this library completes on it.
        leave(record);
    }
    error
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    /// Polls a CQ without a place, and takes completions that are no messages.
    #[cold]
    unsafe extern "C" fn other(cq: *mut ibv_cq_ex) -> c_int {
        // SAFETY: [verbs] `start_poll` has returned 0, so this thread holds the lock.
        unsafe {
            match record_of(cq).and_then(|record| record.side.held().as_mut()) {
                Some(side) => side.show_next(cq),
                None => libc::EINVAL,
            }
        }
    }
    // SAFETY: [verbs] `start_poll` has returned 0, so this thread holds the lock.
    unsafe {
        if let Some(side) = Cq::find(cq.cast()).and_then(|record| record.side.held().as_mut()) {
            match side.show_message(cq) {
                Some(()) => return 0,
                None if side.ring.peek().is_none() => return libc::ENOENT,
                None => {}
            }
        }
        other(cq)
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: [verbs] `start_poll` has returned 0, so this thread holds the lock.
    unsafe {
        let Some(record) = record_of(cq) else { return };
        if let Some(side) = record.side.held() {
            side.publish(record);
        }
        record.side.unlock();
    }
}

impl CqSide {
    /// Makes the next completion the current one, if it is a message that is not in its CQE.
    ///
    /// # Safety
    /// `cq` is the CQ of this ring, and this thread holds the lock.
    #[inline(always)]
    unsafe fn show_message(&mut self, cq: *mut ibv_cq_ex) -> Option<()> {
        // SAFETY: the CQE is given back at the end of the poll, when nothing refers to it. [polled], [record-lives].
        // `cq` is the CQ of this ring.
        unsafe {
            let cqe = self.ring.peek()?.detach::<'static>();
            (*cq).wr_id = context::of((*cq).context).qps.get(cqe.qpn())?.complete_message(cqe)?;
            (*cq).status = IBV_WC_SUCCESS;
            self.show(cqe);
        }
        Some(())
    }

    /// Takes a CQE, which is the current one.
    #[inline(always)]
    fn show(&mut self, cqe: Cqe<'static>) {
        self.current = Some(cqe);
        DOORBELL.add_polls(1);
        self.ring.advance();
    }

    /// Makes the next completion the current one; returns the errno.
    ///
    /// # Safety
    /// `cq` is the CQ of this ring, and this thread holds the lock.
    #[inline(always)]
    unsafe fn show_next(&mut self, cq: *mut ibv_cq_ex) -> c_int {
        // SAFETY: `cq` is the CQ of this ring.
        let context = unsafe { context::of((*cq).context) };
        loop {
            // SAFETY: the CQE is given back at the end of the poll, when nothing refers to it.
            let Some(cqe) = self.ring.peek().map(|cqe| unsafe { cqe.detach::<'static>() }) else {
                return libc::ENOENT;
            };
            // SAFETY: [polled], [record-lives].
            let outcome = unsafe {
                context.qps.get(cqe.qpn()).map(|qp| match qp.complete_message(cqe) {
                    Some(wr_id) => Outcome::Done { wr_id, status: IBV_WC_SUCCESS },
                    None => qp.complete(cqe),
                })
            };
            match outcome {
                Some(Outcome::Done { wr_id, status }) => {
                    // SAFETY: `cq` is the CQ of this ring.
                    unsafe { ((*cq).wr_id, (*cq).status) = (wr_id, status) };
                    self.show(cqe);
                    return 0;
                }
                Some(Outcome::Hidden) => self.ring.advance(),
                Some(Outcome::Stray) | None => {
                    self.ring.advance();
                    return STRAY;
                }
            }
        }
    }
}

/// Returns the current completion.
///
/// # Safety
/// [verbs] The program is in a poll.
#[inline(always)]
unsafe fn current(cq: *mut ibv_cq_ex) -> Option<Cqe<'static>> {
    // SAFETY: [verbs] the program is in a poll, so this thread holds the lock, and the CQE was taken and is not
    // published.
    unsafe { record_of(cq)?.side.held().as_ref()?.current }
}

/// Declares readers of the current completion.
macro_rules! readers {
    ($($name:ident($cqe:ident) -> $type:ty = $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: [verbs] the program is in a poll.
            unsafe { current(cq) }.map_or_else(Default::default, |$cqe| $value)
        }
    )*};
}

readers! {
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

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: [verbs] the program is in a poll. [record-lives] A queue pair is not destroyed meanwhile.
    unsafe {
        let Some(cqe) = current(cq) else { return ibv_wc_opcode::default() };
        match cqe.opcode() {
            CqeOpcode::Requester => {
                let qp = context::of((*cq).context).qps.get(cqe.qpn());
                change_opcode(qp, cqe).unwrap_or_else(|| request_opcode(cqe).0)
            }
            CqeOpcode::RequesterError | CqeOpcode::ResponderError => IBV_WC_SUCCESS,
            opcode => receive_opcode(opcode),
        }
    }
}
