//! Rendezvous: the device reads the data of a matched message from its sender, and notifies the sender.
//!
//! The queue pair gave its send queue to the device, which posts to it as software would.

use mlx5_wire::ctrl::FENCE;
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::RemoteAddressSegment;
use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};

use super::{cancel_entry, list_of, report};
use crate::engine::core::Core;
use crate::objects::completion::Arrival;
use crate::objects::qp::Qp;
use crate::objects::rendezvous::Transfer;
use crate::objects::requester::Request;

const INLINE: u32 = 1 << 31;

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
