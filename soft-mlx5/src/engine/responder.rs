//! The receiving side of a queue pair: executes requests in the order of their packet sequence numbers.

mod answer;

use super::core::Core;
use super::{receive, tm};
use crate::fabric::headers::{NakCode, PSN_MASK, Syndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::packet::Packet;
use crate::fabric::psn;
use crate::objects::completion::Failure;
use crate::objects::mkey::REMOTE_READ;
use crate::objects::qp::Qp;
use crate::objects::responder::{Answer, Message, ReadAnswer, Refusal};
use crate::objects::{Event, Service};

pub use self::answer::transmit;

/// Executes an arrived request.
pub fn receive(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    match qp.attr.service {
        Service::Rc | Service::Dc => receive_reliable(qp, core, packet),
        Service::Uc => receive_unreliable(qp, core, packet),
        Service::Ud => receive::datagram(qp, core, packet),
        // No packet of a transport is for a queue pair of frames.
        Service::Raw => {}
    }
    if !qp.responder.answers.is_empty() {
        core.activate(qp);
    }
}

fn receive_reliable(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let expected = qp.responder.expected_psn;
    let ahead = psn::diff(packet.bth.psn, expected);
    if ahead > 0 {
        core.counters.count(qp.counted(), |counters| counters.out_of_sequence += 1);
        if !qp.responder.refused {
            qp.responder.refused = true;
            qp.responder.say(expected, Syndrome::Nak(NakCode::SequenceError));
        }
        return;
    }
    if ahead < 0 {
        core.counters.count(qp.counted(), |counters| counters.duplicate_request += 1);
        return repeat(qp, core, packet);
    }
    qp.responder.refused = false;
    if begins(packet.operation) && core.faults.is_fatal() {
        core.events.extend(qp.event(Event::QpFatal));
        return qp.fail(core);
    }
    let outcome = execute(qp, core, packet);
    core.counters.count(qp.counted(), |counters| counters.count_request(packet.operation, &outcome));
    match outcome {
        Ok(packets) => {
            qp.responder.expected_psn = psn::add(expected, packets);
            if packet.bth.ack_request && !has_own_answer(packet.operation) {
                qp.responder.say(expected, Syndrome::Ack);
            }
        }
        Err(Refusal::NotReady) => {
            qp.responder.refused = true;
            let timer = qp.responder.rnr_timer;
            qp.responder.say(expected, Syndrome::Rnr(timer));
        }
        Err(Refusal::Fatal(code, failure)) => {
            qp.responder.say(expected, Syndrome::Nak(code));
            refuse(qp, core, code, failure);
        }
    }
}

/// Reports an error on the responder's own side, and stops the queue pair.
fn refuse(qp: &mut Qp, core: &mut Core, code: NakCode, failure: Option<Failure>) {
    match (failure, qp.responder.receive.counter) {
        (Some(failure), Some(_)) => receive::fail(qp, core, failure),
        _ => {
            // No WQE stands for the error: it becomes an event.
            core.events.extend(match code {
                NakCode::RemoteAccess => qp.event(Event::QpAccessError),
                _ => qp.event(Event::QpRequestError),
            });
        }
    }
    qp.fail(core);
}

fn receive_unreliable(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let starts = packet.operation.starts_send() || packet.operation.starts_write();
    if packet.bth.psn != qp.responder.expected_psn {
        // A packet is missing: the message it belonged to is lost, its receive WQE is not.
        qp.responder.message = Message::None;
        qp.responder.receive.placed = 0;
    }
    qp.responder.expected_psn = psn::add(packet.bth.psn, 1);
    if qp.responder.message == Message::None && !starts {
        return;
    }
    if starts && qp.responder.message != Message::None {
        qp.responder.message = Message::None;
        qp.responder.receive.placed = 0;
    }
    let outcome = execute(qp, core, packet);
    core.counters.count(qp.counted(), |counters| counters.count_request(packet.operation, &outcome));
    match outcome {
        Ok(_) => {}
        Err(Refusal::Fatal(_, Some(failure))) if qp.responder.receive.counter.is_some() => {
            receive::fail(qp, core, failure);
            qp.fail(core);
        }
        // No NAK is sent; the message is dropped.
        Err(_) => qp.responder.message = Message::None,
    }
}

/// Returns `true` if a packet is the first of a message.
fn begins(operation: Operation) -> bool {
    !operation.continues_send() && !operation.continues_write()
}

fn has_own_answer(operation: Operation) -> bool {
    operation == Operation::ReadRequest || operation.has_atomic_eth()
}

/// Executes a request that is next in order; returns how many sequence numbers it takes.
fn execute(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<u32, Refusal> {
    let operation = packet.operation;
    check_place(qp, packet)?;
    if operation.starts_send() || operation.continues_send() {
        receive::send(qp, core, packet)?;
    } else if operation.starts_write() || operation.continues_write() {
        receive::write(qp, core, packet)?;
    } else if operation == Operation::ReadRequest {
        return read(qp, core, packet);
    } else {
        let original = receive::atomic(qp, core, packet)?;
        let psn = packet.bth.psn;
        if qp.responder.atomics.len() >= qp.responder.max_reads.max(16) {
            qp.responder.atomics.pop_front();
        }
        qp.responder.atomics.push_back((psn, original));
        qp.responder.answers.push_back(Answer::Atomic { psn, original, is_repeat: false });
        end_message(qp);
        return Ok(1);
    }
    if !operation.is_followed() {
        end_message(qp);
    }
    Ok(1)
}

fn end_message(qp: &mut Qp) {
    qp.responder.message = Message::None;
    qp.responder.msn = psn::add(qp.responder.msn, 1);
}

/// Checks that a packet may follow the packets before it, and may have this payload.
fn check_place(qp: &Qp, packet: &Packet) -> Result<(), Refusal> {
    let operation = packet.operation;
    let in_order = match qp.responder.message {
        Message::None => !operation.continues_send() && !operation.continues_write(),
        Message::Send => operation.continues_send(),
        Message::Write { .. } => operation.continues_write(),
    };
    let len = packet.payload.len();
    let fits = if operation.is_followed() {
        len == qp.mtu
    } else if operation.continues_send() || operation.continues_write() {
        (1..=qp.mtu).contains(&len)
    } else if has_own_answer(operation) {
        len == 0
    } else {
        len <= qp.mtu
    };
    if in_order && fits { Ok(()) } else { Err(Refusal::INVALID) }
}

fn read_answer(qp: &Qp, core: &Core, packet: &Packet) -> Result<ReadAnswer, Refusal> {
    let reth = packet.reth;
    if qp.access & REMOTE_READ == 0 || reth.length > 1 << 31 {
        return Err(Refusal::INVALID);
    }
    if reth.length > 0 {
        let len = reth.length as usize;
        core.mkeys.check_for(reth.rkey, qp.owner(), reth.va, len, REMOTE_READ).map_err(|_| Refusal::ACCESS)?;
    }
    Ok(ReadAnswer {
        psn: packet.bth.psn,
        va: reth.va,
        rkey: reth.rkey,
        length: reth.length,
        packets: reth.length.div_ceil(qp.mtu as u32).max(1),
        next: 0,
        is_repeat: false,
    })
}

fn read(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<u32, Refusal> {
    if qp.responder.reads_pending() >= qp.responder.max_reads {
        return Err(Refusal::INVALID);
    }
    let answer = read_answer(qp, core, packet)?;
    qp.responder.answers.push_back(Answer::Read(answer));
    end_message(qp);
    Ok(answer.packets)
}

/// Answers an executed request again: the answer was lost, or the request doubled.
fn repeat(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let at = packet.bth.psn;
    let operation = packet.operation;
    // The peer asks again for an answer beyond this bound.
    let has_room = qp.responder.answers.len() < 64;
    if operation == Operation::ReadRequest {
        for answer in &mut qp.responder.answers {
            if let Answer::Read(pending) = answer {
                if psn::is_within(at, pending.psn, psn::add(pending.psn, pending.packets)) {
                    // The answer is still being sent: it goes on from there again.
                    pending.next = pending.next.min(psn::diff(at, pending.psn) as u32);
                    return;
                }
            }
        }
        if let (Ok(answer), true) = (read_answer(qp, core, packet), has_room) {
            let end = psn::add(at, answer.packets);
            if psn::diff(end, qp.responder.expected_psn) <= 0 {
                let answer = ReadAnswer { is_repeat: true, ..answer };
                qp.responder.answers.push_back(Answer::Read(answer));
            }
        }
    } else if operation.has_atomic_eth() {
        let done = qp.responder.atomics.iter().find(|(psn, _)| *psn == at).copied();
        if let (Some((psn, original)), true) = (done, has_room) {
            qp.responder.answers.push_back(Answer::Atomic { psn, original, is_repeat: true });
        }
    } else {
        let last = psn::add(qp.responder.expected_psn, PSN_MASK);
        qp.responder.say(last, Syndrome::Ack);
    }
}

/// Flushes the receive queue, and the receive WQE that was being filled.
pub fn flush(qp: &mut Qp, core: &mut Core) {
    qp.responder.message = Message::None;
    tm::message::cancel(qp, core);
    if qp.responder.receive.counter.is_some() {
        receive::fail(qp, core, Failure::FLUSH);
    }
    // WQEs of an SRQ belong to no queue pair before they are taken.
    while qp.attr.srq.is_none() && core.take_receive(qp) {
        receive::fail(qp, core, Failure::FLUSH);
    }
}
