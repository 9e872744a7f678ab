//! Rendezvous: the device reads the data of a matched message from its sender, and notifies the sender.
//!
//! The queue pair gave its send queue to the device, which posts to it as software would.

use std::collections::VecDeque;

use mlx5_wire::ctrl::{ControlSegment, FENCE, SEND_WQE_BB};
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::SEND;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::RemoteAddressSegment;
use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};

use super::super::completion::Arrival;
use super::super::core::Core;
use super::super::memory::{Space, Span};
use super::super::objects::{Result, WqAttr};
use super::super::qp::Qp;
use super::super::requester::Request;
use super::super::sq::SendQueue;
use super::{cancel_entry, list_of, report};

// Basic blocks of the queue; a rendezvous needs one to read and one to notify.
const BLOCKS: u16 = 64;
const INLINE: u32 = 1 << 31;

#[derive(Debug, Clone, Copy)]
struct Transfer {
    entry: u16,
    arrival: Arrival,
}

/// The send queue that belongs to the device.
#[derive(Debug)]
pub struct Rendezvous {
    // Kept for the queue, which knows their addresses.
    ring: Box<[u64]>,
    record: Box<[u64; 1]>,
    producer: u16,
    // Transfers whose data was not read whole, oldest first.
    transfers: VecDeque<Transfer>,
}

const OURS: &str = "the memory is the device's own";

impl Rendezvous {
    /// Makes an empty queue.
    pub fn new() -> Self {
        Self {
            ring: vec![0; usize::from(BLOCKS) * SEND_WQE_BB / 8].into_boxed_slice(),
            record: Box::new([0]),
            producer: 0,
            transfers: VecDeque::new(),
        }
    }

    /// Returns the queue for the requester.
    pub fn send_queue(&mut self) -> Result<SendQueue> {
        let buf = self.ring.as_mut_ptr() as u64;
        let attr = WqAttr { buf, count: BLOCKS.into(), shift: 6 };
        SendQueue::new(attr, &Space::Process, self.record())
    }

    fn record(&mut self) -> Span {
        Span::new(self.record.as_mut_ptr() as u64, 8)
    }

    fn set_producer(&mut self, producer: u16) {
        self.producer = producer;
        self.record().set_record(SEND, producer.into()).expect(OURS);
    }

    /// Returns `true` if another rendezvous can start.
    pub fn has_room(&self, qp: &Qp) -> bool {
        let oldest = qp.requester.front().map_or(qp.sq.next(), |request| request.index);
        self.producer.wrapping_sub(oldest) <= BLOCKS - 2
    }

    /// Starts again, as after a reset of the queue pair.
    pub fn reset(&mut self) {
        self.set_producer(0);
    }

    fn post(&mut self, qpn: u32, opcode: WqeOpcode, flags: u8, segments: &[u8]) -> (u16, u8) {
        let index = self.producer;
        let ds = 1 + segments.len().div_ceil(16) as u8;
        let ctrl = ControlSegment::new(opcode.get(), index, qpn, ds, flags);
        let ring = Span::new(self.ring.as_mut_ptr() as u64, self.ring.len() * 8);
        let at = usize::from(index % BLOCKS) * SEND_WQE_BB;
        ring.write(at, &ctrl.to_bytes()).expect(OURS);
        ring.write(at + ControlSegment::SIZE, segments).expect(OURS);
        self.set_producer(index.wrapping_add(1));
        (index, ds)
    }
}

/// Reads the data that `rvh` names into the buffer of `entry`, and notifies the sender.
pub fn start(qp: &mut Qp, core: &mut Core, entry: u16, tmh: &Tmh, rvh: &Rvh, arrival: Arrival) {
    let mut read =
        RemoteAddressSegment { raddr: rvh.va, rkey: rvh.rkey, ..RemoteAddressSegment::zeroed() }.to_bytes().to_vec();
    let mut rest = rvh.len.get();
    for segment in qp.responder.receive.list.segments() {
        let len = rest.min(segment.byte_count.get());
        if len > 0 {
            let piece = DataSegment::new(segment.addr.get(), len, segment.lkey.get());
            read.extend_from_slice(&piece.to_bytes());
        }
        rest -= len;
    }
    let fin = Tmh { opcode: TmhOpcode::Fin.byte(), ..*tmh };
    let size = (Tmh::SIZE + Rvh::SIZE) as u32;
    let fin = [&(INLINE | size).to_be_bytes()[..], &fin.to_bytes(), &rvh.to_bytes()].concat();
    let number = qp.number;
    let Some(queue) = &mut qp.rendezvous else { return };
    let posted = [
        queue.post(number, WqeOpcode::RDMA_READ, 0, &read),
        // The fence holds the SEND back until the data is here.
        queue.post(number, WqeOpcode::SEND, FENCE, &fin),
    ];
    let arrival = Arrival { byte_cnt: rvh.len.get(), ..arrival };
    queue.transfers.push_back(Transfer { entry, arrival });
    for (index, ds) in posted {
        qp.sq.ring(index, ds);
    }
    core.activate(qp);
}

/// Handles a complete request of the device's queue.
pub fn finished(qp: &mut Qp, core: &mut Core, request: &Request) {
    if request.opcode != WqeOpcode::RDMA_READ {
        return;
    }
    let queue = qp.rendezvous.as_mut();
    let Some(transfer) = queue.and_then(|queue| queue.transfers.pop_front()) else { return };
    let entry = transfer.entry;
    list_of(qp, core).into_iter().for_each(|list| list.release(entry));
    report(qp, core, &transfer.arrival, (AppOp::EXPECTED, entry), None, None);
}

/// Ends all entries that wait for data: nothing more will be read.
pub fn cancel(qp: &mut Qp, core: &mut Core) {
    let queue = qp.rendezvous.as_mut();
    let transfers = queue.map(|queue| std::mem::take(&mut queue.transfers));
    for transfer in transfers.into_iter().flatten() {
        cancel_entry(qp, core, transfer.entry);
    }
}
