//! `ibv_wr_*`: a batch that is built call by call.
//!
//! The builder of an operation opens a WQE. The WQE is closed when its payload and, for a datagram, its address are there, in
//! any order. `ibv_wr_complete` rings the doorbell, but not before RTS: that is how a batch keeps [ready].

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use std::sync::PoisonError;

use mlx5_ring::sq::{Flags, Immediate, Mark, Open, PostError, Remote, SendQueue};
use rdma_core_sys::ibv_qp_ex;

use crate::context;
use crate::decide;
use crate::find;
use crate::log::LIBMLX5;
use crate::objects::{Path, Qp, Request, SendCompleter, SendSide, Transport};
use crate::send::{errno, flags_of};

pub(crate) mod functions;
mod parts;

/// A batch that is being built.
pub(crate) struct Draft {
    /// Where the batch begins.
    start: Option<(Mark, u32)>,
    /// The first error of the batch.
    error: c_int,
    /// Parts that the open WQE lacks, [`CLOSED`] or [`FAILED`]; 0 if another WQE can be opened.
    lacks: u8,
    wqe: MaybeUninit<Open>,
    wr_id: u64,
    /// Room for inline data of any number of pieces.
    bytes: Vec<u8>,
}

const PAYLOAD: u8 = 1;
const ADDRESS: u8 = 2;
/// No batch is open.
const CLOSED: u8 = 4;
/// The batch has an error: no WQE is open from then on.
const FAILED: u8 = 8;

impl Draft {
    /// For requests of at most `inline` inline bytes.
    pub(crate) fn new(inline: u32) -> Self {
        Self {
            start: None,
            error: 0,
            lacks: CLOSED,
            wqe: MaybeUninit::uninit(),
            wr_id: 0,
            bytes: Vec::with_capacity(inline as usize),
        }
    }

    /// Ends the requests of a batch whose queue was reset: its calls have no effect, and its end fails.
    pub(crate) fn discard(&mut self) {
        (self.start, self.error) = (None, 0);
        self.fail(libc::EINVAL);
    }

    /// Keeps the first error of a batch.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
        if self.lacks != CLOSED {
            self.lacks = FAILED;
        }
    }
}

pub(crate) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs], [record-lives]; `replace` has put the record there.
    unsafe {
        let record = &**find::place_in_qp(qp);
        let mut guard = record.send_queue.lock();
        let Some(side) = &mut *guard else {
            drop(guard);
            return start_undecided(qp, record);
        };
        side.look(&record.send_completer);
        let draft = &mut side.draft;
        draft.start = Some((side.queue.mark(), side.posted));
        (draft.error, draft.lacks) = (0, 0);
        // Until the batch ends. Meanwhile this thread may poll the CQ.
        guard.keep();
    }
}

/// Begins a batch of a queue pair that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]; `record` is that of the queue pair.
#[cold]
unsafe extern "C" fn start_undecided(qp: *mut ibv_qp_ex, record: &Qp) {
    // SAFETY: [verbs], [record-lives]; `replace` has put the record there.
    unsafe {
        if record.status.path() == Path::Undecided {
            decide::for_qp(context::of((*qp).qp_base.context), record);
        }
        if record.send_queue.lock().is_some() {
            return wr_start(qp);
        }
        // Another thread may just have given the queue pair its functions back.
        let original = record.original.lock().unwrap_or_else(PoisonError::into_inner);
        let start = original.as_ref().and_then(|original| original.wr_start);
        drop(original);
        // The rest of the batch goes to the functions that were given back.
        LIBMLX5.add_posts(1);
        if let Some(start) = start {
            start(qp);
        }
    }
}

/// Returns the queue pair of a batch and its send queue.
///
/// # Safety
/// [verbs] The program is in a batch that `wr_start` has begun, so this thread holds the lock, and doorbell drives the queue
/// pair and never gives its functions back. This thread has no other reference to the send queue.
#[inline(always)]
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a mut SendSide) {
    // SAFETY: [record-lives] `replace` has put the record there. This thread holds the lock, and doorbell drives the queue.
    unsafe {
        let record = &**find::place_in_qp(qp);
        (record, record.send_queue.held().as_mut().unwrap_unchecked())
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: [verbs] the program is in a batch.
    unsafe { end(qp, false) }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe { end(qp, true) };
}

/// Ends a batch.
///
/// # Safety
/// [verbs] The program is in a batch.
unsafe fn end(qp: *mut ibv_qp_ex, is_aborted: bool) -> c_int {
    // SAFETY: [verbs] the program is in a batch.
    let (record, side) = unsafe { batch(qp) };
    let can_send = record.can_send.load(Ordering::Relaxed);
    let error = match side.draft.lacks {
        // This thread holds no lock.
        CLOSED => return libc::EINVAL,
        0 if can_send => 0,
        FAILED if can_send => side.draft.error,
        _ => libc::EINVAL,
    };
    side.draft.lacks = CLOSED;
    if let Some((mark, posted)) = side.draft.start.take() {
        if is_aborted || error != 0 {
            side.queue.rewind(mark);
            side.posted = posted;
        } else {
            side.queue.hand_over(&record.send_completer.progress);
            drop(side.queue.posting());
            record.sends_posted.add(side.posted.wrapping_sub(posted).into());
        }
    }
    // SAFETY: this thread holds the lock, and uses `side` no more.
    unsafe { record.send_queue.unlock() };
    error
}

/// Begins a request, whose WQE `open` opens.
///
/// # Safety
/// [verbs] The program is in a batch.
#[inline(always)]
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    open: impl FnOnce(&Qp, &mut SendSide, Flags) -> Result<Opened, c_int>,
) {
    // SAFETY: [verbs] the program is in a batch.
    unsafe {
        let (record, side) = batch(qp);
        if side.draft.lacks != 0 {
            return side.draft.fail(libc::EINVAL);
        }
        if side.is_full() && side.is_still_full(&record.send_completer) {
            return side.draft.fail(libc::ENOMEM);
        }
        match open(record, side, flags_of((*qp).wr_flags, record.signal_all)) {
            Ok(Opened { wqe, lacks }) => {
                let draft = &mut side.draft;
                draft.wqe.write(wqe);
                (draft.wr_id, draft.lacks) = ((*qp).wr_id, lacks);
            }
            Err(error) => side.draft.fail(error),
        }
    }
}

/// A WQE that was opened, and the parts that it lacks.
struct Opened {
    wqe: Open,
    lacks: u8,
}

/// Returns what is open, which lacks these parts, or the errno.
#[inline(always)]
fn lacking(lacks: u8, open: Result<Open, PostError>) -> Result<Opened, c_int> {
    open.map(|wqe| Opened { wqe, lacks }).map_err(errno)
}

impl SendSide {
    #[inline(always)]
    const fn is_full(&self) -> bool {
        self.posted.wrapping_sub(self.retired) >= self.limits.requests
    }

    /// Returns `true` if no request is over since this thread looked last.
    #[cold]
    fn is_still_full(&mut self, completer: &SendCompleter) -> bool {
        self.look(completer);
        self.is_full()
    }

    #[inline(always)]
    fn open_send(&mut self, qp: &Qp, immediate: Immediate, flags: Flags) -> Result<Opened, c_int> {
        if qp.transport == Transport::Ud {
            lacking(PAYLOAD | ADDRESS, self.queue.open_datagram(immediate, flags))
        } else {
            lacking(PAYLOAD, self.queue.open_send(immediate, flags))
        }
    }

    fn open_atomic(
        &mut self,
        open: impl FnOnce(&mut SendQueue<Request>) -> Result<Open, PostError>,
    ) -> Result<Opened, c_int> {
        if self.has_atomics {
            lacking(PAYLOAD, open(&mut self.queue))
        } else {
            Err(libc::EOPNOTSUPP)
        }
    }
}

/// Declares functions that begin a request.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) = |$qp:ident, $side:ident, $flags:ident| $open:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: [verbs] the program is in a batch.
            unsafe { begin(qp, |$qp, $side, $flags| $open) }
        }
    )*};
}

operations! {
    wr_send() = |qp, side, flags| side.open_send(qp, Immediate::None, flags);
    wr_send_imm(imm: u32) =
        |qp, side, flags| side.open_send(qp, Immediate::Data(u32::from_be(imm)), flags);
    wr_send_inv(rkey: u32) =
        |qp, side, flags| side.open_send(qp, Immediate::Invalidate(rkey), flags);
    wr_rdma_write(rkey: u32, addr: u64) = |_qp, side, flags| {
        lacking(PAYLOAD, side.queue.open_write(Remote { addr, rkey }, None, flags))
    };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = |_qp, side, flags| {
        let imm = Some(u32::from_be(imm));
        lacking(PAYLOAD, side.queue.open_write(Remote { addr, rkey }, imm, flags))
    };
    wr_rdma_read(rkey: u32, addr: u64) =
        |_qp, side, flags| lacking(PAYLOAD, side.queue.open_read(Remote { addr, rkey }, flags));
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = |_qp, side, flags| {
        side.open_atomic(|queue| queue.open_fetch_add(Remote { addr, rkey }, add, flags))
    };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = |_qp, side, flags| {
        let operands = [compare, swap];
        side.open_atomic(|queue| queue.open_compare_swap(Remote { addr, rkey }, operands, flags))
    };
}

#[cfg(test)]
mod tests;
