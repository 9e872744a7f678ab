//! Polling through libibverbs.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::config::Timestamps;
use super::object::{Cq, Form};

/// Completions taken with one call.
const POLLED: usize = 32;

/// A completion as verbs report it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wc {
    pub(crate) wc: sys::ibv_wc,
    /// Time of completion, if the CQ has timestamps.
    pub(crate) timestamp: Option<u64>,
    /// Tag and private data of a matched message, if the CQ is one for tags.
    pub(crate) tag: Option<(u64, u32)>,
}

impl Wc {
    /// Returns the index of the queue that it is of, which is the upper half of the `wr_id`.
    pub(crate) const fn queue(&self) -> u32 {
        (self.wc.wr_id >> 32) as u32
    }
}

/// A CQ that `ibv_poll_cq` or `ibv_start_poll` polls. It fetches some completions ahead.
pub(crate) struct VerbsCq {
    cq: Arc<Cq>,
    waiting: VecDeque<Wc>,
    fetched: Box<[sys::ibv_wc; POLLED]>,
    /// Completions that were taken, modulo 2^32.
    taken: u32,
    /// The completion that was taken last.
    current: Wc,
}

// SAFETY: `ibv_wc` is plain data; the CQ is polled through `&mut` only.
unsafe impl Send for VerbsCq {}

impl VerbsCq {
    pub(super) fn new(cq: Arc<Cq>) -> Self {
        Self {
            cq,
            waiting: VecDeque::with_capacity(POLLED),
            fetched: Box::new([sys::ibv_wc::default(); POLLED]),
            taken: 0,
            current: Wc::default(),
        }
    }

    /// Returns the number of completions that were taken, modulo 2^32.
    pub(crate) const fn taken(&self) -> u32 {
        self.taken
    }

    /// Returns the completion that was taken last.
    pub(crate) const fn current(&self) -> &Wc {
        &self.current
    }

    /// Takes the next completion; asks the device when all that it gave were taken.
    pub(crate) fn next(&mut self) -> Option<&Wc> {
        if self.waiting.is_empty() {
            self.fetch();
        }
        self.current = self.waiting.pop_front()?;
        self.taken = self.taken.wrapping_add(1);
        Some(&self.current)
    }

    /// Returns `true` if there is a completion that was not taken.
    pub(crate) fn has_arrived(&mut self) -> bool {
        !self.waiting.is_empty() || self.fetch() > 0
    }

    /// Fetches the next completions, at most `count`, and takes none.
    pub(crate) fn look_ahead(&mut self, count: usize) -> impl Iterator<Item = &Wc> {
        while self.waiting.len() < count && self.fetch() > 0 {}
        self.waiting.iter().take(count)
    }

    /// Fetches everything that has arrived, and drops what `keep` does not keep.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Wc) -> bool) {
        while self.fetch() > 0 {}
        self.waiting.retain(|wc| keep(wc));
    }

    /// Fetches completions with one call. Returns how many.
    fn fetch(&mut self) -> usize {
        match self.cq.form() {
            Form::Extended(_) | Form::Tagged => self.fetch_extended(),
            Form::Plain | Form::Compressed(_) => self.fetch_plain(),
        }
    }

    fn fetch_plain(&mut self) -> usize {
        let Self { waiting, fetched, .. } = self;
        // SAFETY: a live CQ that no other code polls, and room for as many completions.
        let got = unsafe { sys::ibv_poll_cq(self.cq.as_raw(), POLLED as i32, fetched.as_mut_ptr()) };
        // A negative number means that the CQ is broken; its asynchronous event says so.
        let got = usize::try_from(got).unwrap_or(0).min(POLLED);
        waiting.extend(fetched[..got].iter().map(|&wc| Wc { wc, ..Wc::default() }));
        got
    }

    fn fetch_extended(&mut self) -> usize {
        // An extended CQ begins with the plain one.
        let cq: *mut sys::ibv_cq_ex = self.cq.as_raw().cast();
        let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: a live extended CQ that no other code polls. After an error nothing was taken: the CQ is empty, or it
        // is broken, which an asynchronous event reports.
        if unsafe { sys::ibv_start_poll(cq, ptr::from_mut(&mut attr)) } != 0 {
            return 0;
        }
        let mut taken = 0;
        loop {
            // SAFETY: a batch has started, there is a completion, and the CQ was created in this form.
            self.waiting.push_back(unsafe { current(cq, self.cq.form()) });
            taken += 1;
            // SAFETY: a batch has started.
            if taken == POLLED || unsafe { sys::ibv_next_poll(cq) } != 0 {
                break;
            }
        }
        // SAFETY: a batch has started.
        unsafe { sys::ibv_end_poll(cq) };
        taken
    }
}

/// # Safety
/// `cq` is in a batch, has a completion, and was created in this form.
unsafe fn current(cq: *mut sys::ibv_cq_ex, form: Form) -> Wc {
    // SAFETY: the caller's `cq` is in a batch, has a completion, and was created with the fields of its form.
    unsafe {
        let wc = sys::ibv_wc {
            wr_id: (*cq).wr_id,
            status: (*cq).status,
            qp_num: sys::ibv_wc_read_qp_num(cq),
            ..Default::default()
        };
        let mut current = Wc { wc, ..Wc::default() };
        if let Form::Tagged = form {
            // A rendezvous that software must finish has a status of its own, and all fields.
            current.wc.opcode = sys::ibv_wc_read_opcode(cq);
            current.wc.byte_len = sys::ibv_wc_read_byte_len(cq);
            current.wc.wc_flags = sys::ibv_wc_read_wc_flags(cq);
            if current.wc.wc_flags & sys::IBV_WC_TM_MATCH != 0 {
                let mut info = sys::ibv_wc_tm_info::default();
                sys::ibv_wc_read_tm_info(cq, &mut info);
                current.tag = Some((info.tag, info.priv_));
            }
            return current;
        }
        let wc = &mut current.wc;
        if wc.status != sys::IBV_WC_SUCCESS {
            wc.vendor_err = sys::ibv_wc_read_vendor_err(cq);
            return current;
        }
        wc.opcode = sys::ibv_wc_read_opcode(cq);
        wc.byte_len = sys::ibv_wc_read_byte_len(cq);
        wc.wc_flags = sys::ibv_wc_read_wc_flags(cq);
        if wc.wc_flags & sys::IBV_WC_WITH_INV != 0 {
            wc.__bindgen_anon_1.invalidated_rkey = sys::ibv_wc_read_invalidated_rkey(cq);
        } else if wc.wc_flags & sys::IBV_WC_WITH_IMM != 0 {
            wc.__bindgen_anon_1.imm_data = sys::ibv_wc_read_imm_data(cq);
        }
        wc.src_qp = sys::ibv_wc_read_src_qp(cq);
        wc.slid = sys::ibv_wc_read_slid(cq) as u16;
        wc.sl = sys::ibv_wc_read_sl(cq);
        wc.dlid_path_bits = sys::ibv_wc_read_dlid_path_bits(cq);
        current.timestamp = match form {
            // libmlx5 gives it as the CQE has it, in spite of the name.
            Form::Extended(Timestamps::RealTime) => Some(sys::ibv_wc_read_completion_wallclock_ns(cq)),
            Form::Extended(Timestamps::Ticks) => Some(sys::ibv_wc_read_completion_ts(cq)),
            _ => None,
        };
        current
    }
}
