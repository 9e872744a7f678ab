//! Sends as doorbell drives them: the ring itself, one for each queue pair, and one CQ.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use mlx5_ring::cq::{self, CompletionQueue};
use mlx5_ring::sq::{BlueFlame, Completion, Config, PostError, Record, SendQueue};
use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys as sys;

use super::plan::Shape;
use super::request::Request;
use super::twin::Twin;
use crate::fault::{self, Fault};
use crate::memory::Region;
use crate::verbs::{QKEY, init_obj, send_queue, some};

/// A CQE as the ring reports it.
#[derive(Debug)]
pub struct Reported {
    pub qp: usize,
    pub completion: Completion,
    /// Requests that are over, oldest first. The CQE names the last.
    pub retired: Vec<u64>,
}

pub struct Subject {
    cq: CompletionQueue,
    queues: Vec<SendQueue<u64>>,
    numbers: Vec<u32>,
    destinations: Vec<DatagramSegment>,
    /// Whether the last request of each queue changes a key. A reset does not end that in libmlx5.
    fenced: Vec<bool>,
    fault: Option<Fault>,
    records: Vec<Region>,
    _storage: Vec<Box<[MaybeUninit<Record<u64>>]>>,
}

impl Subject {
    pub fn new(twin: &Twin, shape: &Shape, fault: Option<Fault>) -> Self {
        let av = address_vector(twin);
        let mut subject = Self {
            // SAFETY: a fresh CQ that no other code polls, and that outlives the subject.
            cq: unsafe { CompletionQueue::new(cq_layout(twin)) }.expect("a CQ of libmlx5"),
            queues: Vec::new(),
            numbers: Vec::new(),
            destinations: Vec::new(),
            fenced: vec![false; twin.base.qps.len()],
            fault,
            records: Vec::new(),
            _storage: Vec::new(),
        };
        let blue_flame = match (shape.shut_up_bf, shape.prefer_bf) {
            (true, _) => BlueFlame::Never,
            (false, false) => BlueFlame::Inline,
            (false, true) => BlueFlame::Always,
        };
        let config = Config { max_wqe_blocks: max_wqe_blocks(twin, shape), blue_flame };
        for (qp, peer) in twin.base.qps.iter().zip(&twin.base.peers) {
            let layout = send_queue(*qp);
            let mut storage: Box<[_]> = Box::new_uninit_slice(layout.wqe_cnt as usize)
                .into_iter()
                .map(|_: MaybeUninit<u8>| MaybeUninit::uninit())
                .collect();
            let records = NonNull::from(&mut *storage).cast();
            // SAFETY: a fresh queue with a register of its own: libmlx5 does not share its first registers. The box
            // and the QP live longer.
            let queue = unsafe { SendQueue::new(layout, config, records) };
            subject.queues.push(queue.expect("a send queue of libmlx5"));
            subject.numbers.push(layout.qpn);
            subject.destinations.push(av.to(twin.base.number(*peer), QKEY));
            // SAFETY: the doorbell record of the QP.
            subject.records.push(unsafe { Region::new(layout.dbrec.cast(), 8) });
            subject._storage.push(storage);
        }
        subject
    }

    /// Posts requests with one doorbell.
    pub fn post(&mut self, qp: usize, datagram: bool, requests: &[Request]) -> Vec<Result<(), PostError>> {
        let mut posting = self.queues[qp].posting();
        let to = datagram.then_some(&self.destinations[qp]);
        let (qpn, fenced) = (self.numbers[qp], &mut self.fenced[qp]);
        let results = requests
            .iter()
            .map(|request| {
                // SAFETY: the memory is read only while the device rests.
                let result = unsafe { request.post(&mut posting, to, qpn, *fenced) };
                *fenced = request.change.is_some();
                result
            })
            .collect();
        drop(posting);
        if self.fault == Some(Fault::SendRecord) {
            fault::flip(self.records[qp], mlx5_wire::dbrec::SEND, 1);
        }
        results
    }

    /// Takes at most `budget` CQEs.
    pub fn poll(&mut self, budget: u32) -> Vec<Option<Reported>> {
        let mut reported = Vec::new();
        while (reported.len() as u32) < budget {
            let Some(cqe) = self.cq.next() else { break };
            let Some(completion) = Completion::read(cqe) else {
                reported.push(None);
                continue;
            };
            let qp = self.numbers.iter().position(|number| *number == completion.qpn);
            reported.push(qp.and_then(|qp| {
                let completed = self.queues[qp].complete(completion.wqe_counter)?;
                let retired = completed.collect();
                Some(Reported { qp, completion, retired })
            }));
        }
        self.cq.publish();
        reported
    }

    /// The QP was reset: discards its CQEs in the CQ. Returns the outstanding requests.
    pub fn reset(&mut self, qp: usize) -> Vec<u64> {
        let number = self.numbers[qp];
        self.cq.purge(|cqe| cqe.qpn() == number);
        let mut back = Vec::new();
        // SAFETY: the QP was in RESET, and nothing was posted since.
        unsafe { self.queues[qp].reset(|id| back.push(id)) }
        back
    }
}

/// Basic blocks of the largest WQE that libmlx5 has made room for.
pub fn max_wqe_blocks(twin: &Twin, shape: &Shape) -> u32 {
    let overhead = match shape {
        Shape { datagrams: true, .. } => 64,
        Shape { windows: true, .. } => 192,
        _ => 48,
    };
    (overhead + 4 + twin.cap.max_inline_data) / 64
}

fn cq_layout(twin: &Twin) -> cq::Layout {
    // SAFETY: a structure of integers and pointers.
    let mut out: sys::mlx5dv_cq = unsafe { std::mem::zeroed() };
    init_obj(sys::MLX5DV_OBJ_CQ, |obj| (obj.cq.in_, obj.cq.out) = (twin.cq, &mut out));
    cq::Layout {
        buf: some(out.buf).cast(),
        dbrec: some(out.dbrec.cast()),
        cqe_cnt: out.cqe_cnt,
        cqe_size: out.cqe_size,
    }
}

fn address_vector(twin: &Twin) -> DatagramSegment {
    // SAFETY: a structure of integers and pointers.
    let mut out: sys::mlx5dv_ah = unsafe { std::mem::zeroed() };
    init_obj(sys::MLX5DV_OBJ_AH, |obj| (obj.ah.in_, obj.ah.out) = (twin.ah, &mut out));
    // SAFETY: the address vector of a live handle, which is not written.
    DatagramSegment::from_bytes(unsafe { &*out.av.cast::<[u8; DatagramSegment::SIZE]>() })
}
