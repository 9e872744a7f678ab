//! Effects of requests on the memory and the receive queue of the responder.

use std::borrow::Cow;

use mlx5_wire::opcode::CqeOpcode;

use super::core::Core;
use super::tm::{self, message};
use super::{completion, umr};
use crate::base::defect::Defect;
use crate::fabric::LinkLayer;
use crate::fabric::ethernet::{delivered_grh, packet_type};
use crate::fabric::headers::NakCode;
use crate::fabric::opcode::Operation;
use crate::fabric::packet::Packet;
use crate::objects::completion::{Arrival, Failure};
use crate::objects::mkey::{REMOTE_ATOMIC, REMOTE_WRITE};
use crate::objects::qp::Qp;
use crate::objects::responder::{Message, Refusal, Role};
use crate::objects::scatter::ScatterError;
use crate::objects::{Cqn, Service, defects};

/// Bytes in front of a datagram.
pub const GRH_SIZE: usize = 40;

/// Executes a packet of a SEND.
pub fn send(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<(), Refusal> {
    if packet.operation.starts_send() {
        refuse_on_request(qp, core)?;
        message::begin(qp, core, packet)?;
        let matched = matches!(qp.responder.receive.role, Role::Matched(..));
        if !matched && !take(qp, core) {
            return Err(Refusal::NotReady);
        }
        if !matched && core.faults.receive_fails() {
            let failure = Failure::LOCAL_QP_OP;
            return Err(Refusal::Fatal(NakCode::RemoteOperational, Some(failure)));
        }
        qp.responder.message = Message::Send;
    }
    if let Role::Matched(entry, delivery) = qp.responder.receive.role {
        return message::place(qp, core, packet, entry, delivery);
    }
    let only = packet.operation.starts_send() && !packet.operation.is_followed();
    let len = packet.payload.len();
    let pd = core.receive_pd(qp);
    let receive = &mut qp.responder.receive;
    let placed = receive.placed;
    if placed + len as u64 > receive.list.capacity() {
        let failure = Failure::LOCAL_LENGTH_RECEIVE;
        return Err(Refusal::Fatal(NakCode::InvalidRequest, Some(failure)));
    }
    let inline = only && len > 0 && qp.attr.scatter_to_cqe_rq && len <= inline_capacity(qp, core);
    if !inline {
        let changed = core.defects.payload(packet.payload);
        let payload = changed.as_deref().unwrap_or(packet.payload);
        qp.responder.receive.list.write(&core.mkeys, pd, placed, payload).map_err(|error| match error {
            ScatterError::Length => Refusal::Fatal(NakCode::InvalidRequest, Some(Failure::LOCAL_LENGTH_RECEIVE)),
            ScatterError::Protection => Refusal::Fatal(NakCode::RemoteOperational, Some(Failure::LOCAL_PROT_RECEIVE)),
        })?;
    }
    qp.responder.receive.placed += len as u64;
    if packet.operation.has_ieth() {
        umr::invalidate(qp, core, packet.immediate)?;
    }
    if !packet.operation.is_followed() {
        let opcode = completion::opcode(packet);
        let byte_cnt = qp.responder.receive.placed as u32;
        complete(qp, core, packet, opcode, byte_cnt, inline);
    }
    Ok(())
}

/// Takes a receive WQE; returns `false` and counts the message if none is posted.
fn take(qp: &mut Qp, core: &mut Core) -> bool {
    let taken = core.take_receive(qp);
    if !taken {
        core.counters.count(qp.counted(), |counters| counters.out_of_buffer += 1);
    }
    taken
}

/// Injects RNR where a sender would get the NAK.
fn refuse_on_request(qp: &Qp, core: &mut Core) -> Result<(), Refusal> {
    if qp.attr.service.is_reliable() && core.faults.is_rnr() { Err(Refusal::NotReady) } else { Ok(()) }
}

fn receive_cq(qp: &Qp, core: &Core) -> Cqn {
    tm::target(qp, core).map_or(qp.attr.recv_cq, |(cq, _)| cq)
}

fn inline_capacity(qp: &Qp, core: &Core) -> usize {
    core.cqs.get(receive_cq(qp, core).0).map_or(0, |cq| cq.inline_capacity())
}

/// Executes a packet of an RDMA WRITE.
pub fn write(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<(), Refusal> {
    let (va, rkey, length, remaining) = match qp.responder.message {
        Message::Write { va, rkey, length, remaining } => (va, rkey, length, remaining),
        _ => {
            let reth = packet.reth;
            if qp.access & REMOTE_WRITE == 0 || reth.length > 1 << 31 {
                return Err(Refusal::INVALID);
            }
            (reth.va, reth.rkey, reth.length, reth.length)
        }
    };
    let len = packet.payload.len() as u32;
    let last = !packet.operation.is_followed();
    if len > remaining || last != (len == remaining) {
        return Err(Refusal::INVALID);
    }
    let check =
        |len: u32| core.mkeys.check_for(rkey, qp.owner(), va, len as usize, REMOTE_WRITE).map_err(|_| Refusal::ACCESS);
    // Checks the whole rest at once: a message that is refused for its range writes nothing.
    let region = if remaining > 0 { Some(check(remaining)?) } else { None };
    if packet.operation.has_immediate() {
        refuse_on_request(qp, core)?;
    }
    // The receive WQE comes before the bytes: a message without a WQE is not half executed.
    if packet.operation.has_immediate() && !take(qp, core) {
        return Err(Refusal::NotReady);
    }
    if let Some(region) = region {
        let mut payload = Cow::Borrowed(packet.payload);
        if core.defects.is(Defect::WriteBytes) {
            defects::change_last(payload.to_mut());
        }
        region.write(&payload).map_err(|_| Refusal::ACCESS)?;
    }
    if packet.operation.has_immediate() {
        complete(qp, core, packet, CqeOpcode::ResponderWriteImm, length, false);
    }
    qp.responder.message = Message::Write { va: va.wrapping_add(len.into()), rkey, length, remaining: remaining - len };
    Ok(())
}

/// Executes an atomic; returns the old value.
pub fn atomic(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<u64, Refusal> {
    let request = packet.atomic;
    if qp.access & REMOTE_ATOMIC == 0 || request.va % 8 != 0 {
        return Err(Refusal::INVALID);
    }
    let region =
        core.mkeys.check_for(request.rkey, qp.owner(), request.va, 8, REMOTE_ATOMIC).map_err(|_| Refusal::ACCESS)?;
    if !region.is_aligned() {
        return Err(Refusal::INVALID);
    }
    let swaps_always = core.defects.is(Defect::Swap);
    let after = |old: u64| {
        if packet.operation == Operation::FetchAdd {
            old.wrapping_add(request.swap_add)
        } else if old == request.compare || swaps_always {
            request.swap_add
        } else {
            old
        }
    };
    let old = region.fetch_update(after).map_err(|_| Refusal::ACCESS)?;
    Ok(if core.defects.is(Defect::Fetch) { after(old) } else { old })
}

/// Delivers a datagram. A datagram with any error is dropped without notice.
pub fn datagram(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    if packet.deth.qkey != qp.qkey || !take(qp, core) {
        return;
    }
    let pd = core.receive_pd(qp);
    let list = &qp.responder.receive.list;
    let total = GRH_SIZE + packet.payload.len();
    if total as u64 > list.capacity() {
        // The WQE stays for the next datagram.
        return;
    }
    if core.faults.receive_fails() {
        fail(qp, core, Failure::LOCAL_QP_OP);
        return qp.fail(core);
    }
    let placed = if packet.global {
        let (grh, from) = delivered_grh(packet, core.link_layer);
        list.write(&core.mkeys, pd, from as u64, &grh[from..])
    } else {
        // Without a GRH these bytes are undefined: they stay as they are.
        Ok(())
    };
    let placed = placed.and_then(|()| list.write(&core.mkeys, pd, GRH_SIZE as u64, packet.payload));
    if placed.is_err() {
        fail(qp, core, Failure::LOCAL_PROT_RECEIVE);
        qp.fail(core);
        return;
    }
    complete(qp, core, packet, completion::opcode(packet), total as u32, false);
}

fn release(qp: &mut Qp, core: &mut Core) -> Option<u16> {
    let counter = qp.responder.receive.counter.take()?;
    match qp.attr.srq {
        Some(srqn) => core.srqs.get_mut(srqn.0).into_iter().for_each(|srq| srq.complete(counter)),
        None => qp.rq.complete(counter),
    }
    Some(counter)
}

fn complete(qp: &mut Qp, core: &mut Core, packet: &Packet, opcode: CqeOpcode, byte_cnt: u32, inline: bool) {
    let Some(counter) = release(qp, core) else { return };
    let mut arrival = Arrival { opcode, ..completion::arrival(qp, packet, byte_cnt) };
    if qp.attr.service == Service::Ud && core.link_layer == LinkLayer::Ethernet {
        arrival.sl = packet_type(packet);
    }
    let format = core.cqs.get(receive_cq(qp, core).0).map(|cq| cq.inline_format());
    let inline = format.filter(|_| inline).map(|format| (format, packet.payload));
    let mut cqe = completion::responder(qp, counter, &arrival, inline, core.now);
    if let Role::Slot(op) = std::mem::take(&mut qp.responder.receive.role) {
        tm::mark(&mut cqe, op, 0);
    }
    tm::complete_receive(qp, core, cqe);
}

/// Completes the receive WQE in progress in error.
pub fn fail(qp: &mut Qp, core: &mut Core, failure: Failure) {
    if let Some(counter) = release(qp, core) {
        let cqe = completion::responder_error(qp, counter, failure);
        tm::complete_receive(qp, core, cqe);
    }
}
