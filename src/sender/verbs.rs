//! The verbs path: one `ibv_post_send` for each request.

use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Record, Run};
use rdma_core_sys as sys;

use super::operation::Operation;
use super::payload::Payload;
use super::request::WorkRequest;
use crate::mlx5::Storage;
use crate::not_sent::NotSent;
use crate::qp::{AddressHandle, Qp};

/// Most SGEs of a request.
const SGES: usize = 32;

/// A send queue that `ibv_post_send` posts to. Each request asks for a completion.
pub(crate) struct VerbsSq {
    qp: Arc<Qp>,
    /// Index in the sender, which is the upper half of each `wr_id`; the lower half is the running number.
    index: u32,
    /// By running number, masked. Those from `tail` to `head` are outstanding.
    requests: Storage<Record<WorkRequest>>,
    /// Where each datagram goes: the driver may look until it is sent.
    handles: Box<[Option<AddressHandle>]>,
    limit: u32,
    head: u32,
    tail: u32,
}

impl VerbsSq {
    pub(super) fn new(qp: Arc<Qp>, index: u32, limit: u32) -> Self {
        let slots = (limit as usize).next_power_of_two();
        Self {
            qp,
            index,
            requests: Storage::of(slots, Record::none),
            handles: (0..slots).map(|_| None).collect(),
            limit,
            head: 0,
            tail: 0,
        }
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.limit
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns the running number of the oldest request.
    pub(super) const fn retired(&self) -> u32 {
        self.tail
    }

    /// Returns the outstanding requests up to the one that completes with `wr_id`; `None` if it is not outstanding.
    pub(super) fn run_to(&self, wr_id: u64) -> Option<Run<WorkRequest>> {
        let number = wr_id as u32;
        let ahead = number.wrapping_sub(self.tail);
        (ahead < self.head.wrapping_sub(self.tail)).then(|| self.run(self.tail, number.wrapping_add(1)))
    }

    /// Returns all requests that are outstanding.
    pub(super) fn run_of_all(&self) -> Run<WorkRequest> {
        self.run(self.tail, self.head)
    }

    fn run(&self, next: u32, end: u32) -> Run<WorkRequest> {
        Run::new(self.requests.slice(), next, end)
    }

    /// Makes room of the requests before running number `end`, which were returned.
    #[cold]
    pub(super) fn free(&mut self, end: u32) {
        while self.tail != end {
            let slot = self.slot(self.tail);
            self.handles[slot] = None;
            self.tail = self.tail.wrapping_add(1);
        }
    }

    fn slot(&self, number: u32) -> usize {
        number as usize & (self.handles.len() - 1)
    }

    /// Posts the request that [`describe`] made `wr` and `handle` of.
    ///
    /// # Safety
    /// The SGEs are registered memory that is the request's until it is retired, or inline bytes.
    #[cold]
    pub(super) unsafe fn post(
        &mut self,
        mut wr: sys::ibv_send_wr,
        handle: Option<&AddressHandle>,
        sges: &[Sge],
        inline: bool,
        flags: Flags,
        request: WorkRequest,
    ) -> Result<(), NotSent> {
        if self.head.wrapping_sub(self.tail) == self.limit {
            return Err(NotSent::Full { waited: Duration::ZERO });
        }
        let mut list = [sys::ibv_sge::default(); SGES];
        let mut count = 0;
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let entry = list.get_mut(count).ok_or(NotSent::TooManyBuffers { max: SGES })?;
            *entry = sys::ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey };
            count += 1;
        }
        wr.wr_id = u64::from(self.index) << 32 | u64::from(self.head);
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), count as i32);
        wr.send_flags |= sys::IBV_SEND_SIGNALED
            | if inline { sys::IBV_SEND_INLINE } else { 0 }
            | if flags.contains(Flags::SOLICITED) { sys::IBV_SEND_SOLICITED } else { 0 }
            | if flags.contains(Flags::FENCE) { sys::IBV_SEND_FENCE } else { 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair in RTS and a list of one initialised request; the caller's memory is registered,
        // and the request's until it is retired.
        let errno = unsafe { sys::ibv_post_send(self.qp.as_raw(), &mut wr, &mut bad) };
        match errno {
            0 => {}
            // Some providers return -1 and set errno where the man page promises the number.
            ..0 => return Err(NotSent::Verbs(io::Error::last_os_error())),
            _ => return Err(NotSent::Verbs(io::Error::from_raw_os_error(errno))),
        }
        let slot = self.slot(self.head);
        // SAFETY: a record that no run reads: its slot is free.
        unsafe { self.requests.start().add(slot).write(Record::single(request)) }
        self.handles[slot] = handle.cloned();
        self.head = self.head.wrapping_add(1);
        Ok(())
    }
}

/// Returns what a request does, and where a datagram goes.
#[inline(always)]
pub(super) fn describe(operation: Operation<'_>) -> (sys::ibv_send_wr, Option<&AddressHandle>) {
    let mut wr = sys::ibv_send_wr::default();
    let handle = describe_in(&mut wr, operation);
    (wr, handle)
}

#[inline(always)]
fn describe_in<'a>(wr: &mut sys::ibv_send_wr, operation: Operation<'a>) -> Option<&'a AddressHandle> {
    let with_imm = |wr: &mut sys::ibv_send_wr, imm: Option<u32>, [without, with]: [u32; 2]| {
        wr.opcode = if imm.is_some() { with } else { without };
        wr.__bindgen_anon_1.imm_data = imm.unwrap_or_default().to_be();
    };
    match operation {
        Operation::Send(Immediate::None) => wr.opcode = sys::IBV_WR_SEND,
        Operation::Send(Immediate::Data(imm)) => {
            with_imm(wr, Some(imm), [sys::IBV_WR_SEND, sys::IBV_WR_SEND_WITH_IMM]);
        }
        Operation::Send(Immediate::Invalidate(rkey)) => {
            wr.opcode = sys::IBV_WR_SEND_WITH_INV;
            wr.__bindgen_anon_1.invalidate_rkey = rkey;
        }
        Operation::SendTo(to, imm) => {
            with_imm(wr, imm, [sys::IBV_WR_SEND, sys::IBV_WR_SEND_WITH_IMM]);
            to.describe(wr);
            return Some(to);
        }
        Operation::Frame { checksums } => {
            wr.opcode = sys::IBV_WR_SEND;
            wr.send_flags |= if checksums { sys::IBV_SEND_IP_CSUM } else { 0 };
        }
        Operation::Write(to, imm) => {
            with_imm(wr, imm, [sys::IBV_WR_RDMA_WRITE, sys::IBV_WR_RDMA_WRITE_WITH_IMM]);
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (to.addr, to.rkey);
        }
        Operation::Read(from) => {
            wr.opcode = sys::IBV_WR_RDMA_READ;
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (from.addr, from.rkey);
        }
        Operation::FetchAdd(at, add) => {
            wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
            (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = (at.addr, at.rkey);
            wr.wr.atomic.compare_add = add;
        }
        Operation::CompareSwap(at, [compare, swap]) => {
            wr.opcode = sys::IBV_WR_ATOMIC_CMP_AND_SWP;
            (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = (at.addr, at.rkey);
            (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (compare, swap);
        }
    }
    None
}

/// Posts through verbs.
///
/// # Safety
/// [memory] and [ready] of [`mlx5_ring::sq`].
#[inline(always)]
pub(super) unsafe fn post_payload<P: Payload>(
    verbs: &mut VerbsSq,
    operation: Operation<'_>,
    payload: &P,
    flags: Flags,
    request: WorkRequest,
) -> Result<(), NotSent> {
    let (wr, handle) = describe(operation);
    // SAFETY: the caller's [memory] and [ready]; inline bytes are copied at once.
    unsafe {
        match payload.inline() {
            Some(bytes) => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                let sge = Sge { addr, length: bytes.len() as u32, lkey: 0 };
                verbs.post(wr, handle, &[sge], true, flags, request)
            }
            None => verbs.post(wr, handle, payload.sges().as_ref(), false, flags, request),
        }
    }
}
