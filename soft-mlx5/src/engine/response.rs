//! Answers, as the requester handles them.

use mlx5_wire::data::DataSegment;

use super::core::Core;
use super::requester::{self, Acknowledged};
use crate::fabric::headers::{Aeth, NakCode, Syndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::Packet;
use crate::fabric::psn;
use crate::objects::Service;
use crate::objects::completion::Failure;
use crate::objects::memory::Unmapped;
use crate::objects::qp::Qp;
use crate::objects::requester::Request;
use crate::objects::scatter::{ScatterError, scatter};
use crate::objects::wqe::{Kind, SendWqe};

/// Handles an arrived answer.
pub fn receive(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let at = packet.bth.psn;
    if !psn::is_within(at, qp.requester.unacked_psn(), qp.requester.sent_psn()) {
        // The packet was answered before, or never sent.
        return;
    }
    let before = qp.requester.unacked_psn();
    match (packet.operation, packet.aeth) {
        (Operation::Acknowledge, Some(aeth)) => acknowledge(qp, core, at, aeth),
        (_, Some(Aeth { syndrome: Syndrome::Ack, .. })) | (Operation::ReadResponseMiddle, None) => {
            answer(qp, core, packet);
        }
        _ => {}
    }
    if qp.receives() {
        requester::complete_front(qp, core);
    }
    if qp.requester.unacked_psn() != before {
        requester::note_progress(qp, core);
    }
    core.activate(qp);
}

fn acknowledge(qp: &mut Qp, core: &mut Core, at: u32, aeth: Aeth) {
    // An ACK covers its own packet, a refusal only those before.
    let upto = if aeth.syndrome == Syndrome::Ack { psn::add(at, 1) } else { at };
    if requester::acknowledge(qp, core, upto) == Acknowledged::AnswerMissing {
        return requester::answer_lost(qp, core);
    }
    match aeth.syndrome {
        Syndrome::Ack | Syndrome::Reserved(_) => {}
        Syndrome::Rnr(timer) => {
            core.counters.count(qp.counted(), |counters| counters.rnr_nak_retry_err += 1);
            requester::back_off(qp, core, rnr_delay_ns(timer));
        }
        Syndrome::Nak(NakCode::SequenceError) => {
            core.counters.count(qp.counted(), |counters| counters.packet_seq_err += 1);
            requester::missing(qp, core);
        }
        Syndrome::Nak(code) => {
            let failure = match code {
                NakCode::InvalidRequest => Failure::REMOTE_INVALID,
                NakCode::RemoteAccess => Failure::REMOTE_ACCESS,
                NakCode::RemoteOperational | NakCode::SequenceError => Failure::REMOTE_OPERATION,
            };
            requester::fail(qp, core, failure);
        }
    }
}

/// Returns the delay that an RNR code asks for (InfiniBand specification, table 45).
fn rnr_delay_ns(code: u8) -> u64 {
    const STEPS_OF_10_US: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    STEPS_OF_10_US[usize::from(code & 0x1f)] * 10_000
}

fn answer(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let at = packet.bth.psn;
    // The responder works in order: all requests before this answer were executed.
    if requester::acknowledge(qp, core, at) == Acknowledged::AnswerMissing {
        return requester::answer_lost(qp, core);
    }
    if at != qp.requester.unacked_psn() {
        return;
    }
    let Some(request) = qp.requester.front().copied() else { return };
    let failed = match request.kind {
        Kind::Read => read_data(qp, core, packet, &request),
        Kind::Atomic => atomic_data(qp, core, packet, &request),
        _ => Err(Failure::BAD_RESPONSE),
    };
    if let Err(failure) = failed {
        requester::fail(qp, core, failure);
    }
}

/// Returns `true` if the bytes go into the CQE instead of the buffer.
fn goes_inline(qp: &Qp, core: &Core, request: &Request) -> bool {
    let capacity = core.cqs.get(qp.attr.send_cq.0).map_or(0, |cq| cq.inline_capacity());
    qp.attr.service == Service::Rc
        && qp.attr.scatter_to_cqe_sq
        && (request.flags.signaled() || qp.attr.signal_all)
        && (1..=capacity).contains(&(request.length as usize))
}

fn read_data(qp: &mut Qp, core: &mut Core, packet: &Packet, request: &Request) -> Result<(), Failure> {
    use Operation::*;
    let number = psn::diff(packet.bth.psn, request.first_psn) as u32;
    let last = number + 1 == request.packets;
    let offset = number as usize * qp.mtu;
    let expected = (request.length as usize - offset).min(qp.mtu);
    let ends = matches!(packet.operation, ReadResponseLast | ReadResponseOnly);
    let fits = packet.operation.is_response()
        && packet.operation != AtomicAcknowledge
        && ends == last
        && packet.payload.len() == expected;
    if !fits {
        return Err(Failure::BAD_RESPONSE);
    }
    let inline = goes_inline(qp, core, request);
    place(qp, core, request, offset as u64, packet.payload, inline)?;
    qp.requester.acknowledged_up_to(psn::add(packet.bth.psn, 1));
    if last {
        requester::finish(qp, core, inline.then_some(packet.payload));
    }
    Ok(())
}

fn atomic_data(qp: &mut Qp, core: &mut Core, packet: &Packet, request: &Request) -> Result<(), Failure> {
    if packet.operation != Operation::AtomicAcknowledge {
        return Err(Failure::BAD_RESPONSE);
    }
    let inline = goes_inline(qp, core, request);
    place(qp, core, request, 0, &packet.original.to_ne_bytes(), inline)?;
    qp.requester.acknowledged_up_to(psn::add(packet.bth.psn, 1));
    // In memory a result is in host order. In a CQE it is big-endian, as UCX reads it; libmlx5 copies the bytes as they
    // are, so its programs get them swapped.
    requester::finish(qp, core, inline.then_some(&packet.original.to_be_bytes()));
    Ok(())
}

/// Writes an answer to the buffer of the WQE, unless the answer goes into the CQE.
fn place(qp: &Qp, core: &mut Core, request: &Request, offset: u64, bytes: &[u8], inline: bool) -> Result<(), Failure> {
    if bytes.is_empty() || inline {
        return Ok(());
    }
    let mut wqe = SendWqe::default();
    let ctrl = qp.sq.ctrl(request.index);
    let loaded = ctrl.and_then(|ctrl| qp.sq.load(request.index, ctrl, &mut wqe));
    loaded.map_err(|Unmapped| Failure::LOCAL_QP_OP)?;
    let at = wqe.data_offset(request.kind);
    let segments: Vec<DataSegment> = wqe.segments(at).collect();
    let pd = if qp.rendezvous.is_some() { core.receive_pd(qp) } else { qp.attr.pd };
    scatter(&segments, &core.mkeys, pd, offset, bytes).map_err(|error| match error {
        ScatterError::Length => Failure::LOCAL_LENGTH_RECEIVE,
        ScatterError::Protection => Failure::LOCAL_PROT,
    })
}

#[cfg(test)]
mod tests {
    use super::rnr_delay_ns;

    #[test]
    fn rnr_timers_of_the_specification() {
        assert_eq!(rnr_delay_ns(0), 655_360_000);
        assert_eq!(rnr_delay_ns(1), 10_000);
        assert_eq!(rnr_delay_ns(12), 640_000);
        assert_eq!(rnr_delay_ns(31), 491_520_000);
    }
}
