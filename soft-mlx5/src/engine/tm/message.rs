//! Messages that arrive for a queue pair with a tag list.

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};

use super::super::core::Core;
use super::{cancel_entry, list_of, rendezvous, report, target};
use crate::engine::{completion, umr};
use crate::fabric::headers::NakCode;
use crate::fabric::packet::Packet;
use crate::objects::completion::Failure;
use crate::objects::qp::Qp;
use crate::objects::responder::{Delivery, Refusal, Role};
use crate::objects::scatter::ScatterError;

fn header(payload: &[u8]) -> Option<Tmh> {
    payload.first_chunk().map(Tmh::from_bytes)
}

fn rendezvous_header(payload: &[u8]) -> Option<Rvh> {
    payload.get(Tmh::SIZE..)?.first_chunk().map(Rvh::from_bytes)
}

/// Returns the tag of a message that is to be matched. A message that only seems to have a header has no tag: it
/// reaches software whole.
fn tag(packet: &Packet) -> Option<(TmhOpcode, u64)> {
    let tmh = header(packet.payload)?;
    let opcode = TmhOpcode::from_byte(tmh.opcode);
    let tagged = match opcode {
        TmhOpcode::Eager => true,
        TmhOpcode::Rendezvous => rendezvous_header(packet.payload).is_some(),
        _ => false,
    };
    tagged.then_some((opcode, tmh.tag.get()))
}

/// Decides where a message goes, from its first packet.
pub fn begin(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<(), Refusal> {
    qp.responder.receive.role = Role::None;
    let srq = qp.attr.srq.and_then(|srqn| core.srqs.get_mut(srqn.0));
    let Some(srq) = srq.filter(|srq| srq.tags.is_some()) else { return Ok(()) };
    if !srq.flows() {
        return Err(Refusal::NotReady);
    }
    let tag = tag(packet);
    if let (Some((opcode, tag)), Some(list)) = (tag, srq.tags.as_mut()) {
        if let Some(entry) = list.find(tag) {
            let delivery = match opcode {
                TmhOpcode::Rendezvous => offload(qp, packet, list.buffer(entry).capacity())?,
                _ => Delivery::Eager,
            };
            list.take(tag);
            let receive = &mut qp.responder.receive;
            std::mem::swap(&mut receive.list, list.buffer(entry));
            receive.placed = 0;
            receive.role = Role::Matched(entry, delivery);
            return Ok(());
        }
    }
    if !core.take_receive(qp) {
        return Err(Refusal::NotReady);
    }
    let op = if tag.is_some() { AppOp::UNEXPECTED } else { AppOp::NO_TAG };
    qp.responder.receive.role = Role::Slot(op);
    if tag.is_some() {
        list_of(qp, core).into_iter().for_each(|list| list.count_unexpected());
    }
    Ok(())
}

/// Decides whether the device can read the data of a rendezvous by itself.
fn offload(qp: &Qp, packet: &Packet, room: u64) -> Result<Delivery, Refusal> {
    let fits = rendezvous_header(packet.payload)
        .is_some_and(|rvh| u64::from(rvh.len.get()) <= room && rvh.len.get() <= MAX_MESSAGE);
    let Some(queue) = qp.rendezvous.as_ref().filter(|_| fits && !packet.operation.is_followed()) else {
        return Ok(Delivery::Headers);
    };
    // The peer tries again; by then a transfer has ended.
    if queue.has_room(qp.requester.front().map_or(qp.sq.next(), |request| request.index)) {
        Ok(Delivery::Rendezvous)
    } else {
        Err(Refusal::NotReady)
    }
}

const MAX_MESSAGE: u32 = 1 << 30;

/// Executes a packet of a matched message.
pub fn place(qp: &mut Qp, core: &mut Core, packet: &Packet, entry: u16, delivery: Delivery) -> Result<(), Refusal> {
    let (first, last) = (packet.operation.starts_send(), !packet.operation.is_followed());
    let tmh = if first { header(packet.payload) } else { None };
    if let (Delivery::Rendezvous, Some(tmh)) = (delivery, tmh) {
        let Some(rvh) = rendezvous_header(packet.payload) else { return Err(Refusal::INVALID) };
        let arrival = completion::arrival(qp, packet, 0);
        report(qp, core, &arrival, (AppOp::CONSUMED, entry), Some(&tmh), None);
        qp.responder.receive.role = Role::None;
        rendezvous::start(qp, core, entry, &tmh, &rvh, arrival);
        return Ok(());
    }
    let placed = qp.responder.receive.placed;
    let room = qp.responder.receive.list.capacity() - placed;
    let bytes = match delivery {
        // As many bytes as fit: software is responsible for the length of the buffer.
        Delivery::Headers => &packet.payload[..packet.payload.len().min(room as usize)],
        _ if first => &packet.payload[Tmh::SIZE..],
        _ => packet.payload,
    };
    if bytes.len() as u64 > room {
        return Err(Refusal::Fatal(NakCode::InvalidRequest, Some(Failure::LOCAL_LENGTH_RECEIVE)));
    }
    let inline = first && last && goes_inline(qp, core, bytes.len());
    if !inline {
        let pd = core.receive_pd(qp);
        let list = &qp.responder.receive.list;
        list.write(&core.mkeys, pd, placed, bytes).map_err(|error| match error {
            ScatterError::Length => Refusal::Fatal(NakCode::InvalidRequest, Some(Failure::LOCAL_LENGTH_RECEIVE)),
            ScatterError::Protection => Refusal::Fatal(NakCode::RemoteOperational, Some(Failure::LOCAL_PROT_RECEIVE)),
        })?;
    }
    if packet.operation.has_ieth() {
        umr::invalidate(qp, core, packet.immediate)?;
    }
    let total = placed + bytes.len() as u64;
    qp.responder.receive.placed = total;
    let op = match (first, last, delivery) {
        (true, true, Delivery::Headers) => AppOp::CONSUMED_MSG_SW_RNDV,
        (true, true, _) => AppOp::CONSUMED_MSG,
        (true, false, Delivery::Headers) => AppOp::CONSUMED_SW_RNDV,
        (true, false, _) => AppOp::CONSUMED,
        (false, true, _) => AppOp::EXPECTED,
        (false, false, _) => return Ok(()),
    };
    let arrival = completion::arrival(qp, packet, if last { total as u32 } else { 0 });
    if last {
        qp.responder.receive.role = Role::None;
        list_of(qp, core).into_iter().for_each(|list| list.release(entry));
    }
    report(qp, core, &arrival, (op, entry), tmh.as_ref(), inline.then_some(bytes));
    Ok(())
}

/// Returns `true` if a matched message goes into the CQE: only the longer form has room beside the tag.
fn goes_inline(qp: &Qp, core: &Core, len: usize) -> bool {
    let cq = target(qp, core).and_then(|(cq, _)| core.cqs.get(cq.0));
    qp.attr.scatter_to_cqe_rq
        && cq.is_some_and(|cq| cq.inline_format() == CqeFormat::Inline64 && (1..=cq.inline_capacity()).contains(&len))
}

/// Ends the entry of a message that has not arrived whole, because the queue pair stops.
pub fn cancel(qp: &mut Qp, core: &mut Core) {
    if let Role::Matched(entry, _) = std::mem::take(&mut qp.responder.receive.role) {
        cancel_entry(qp, core, entry);
    }
}
