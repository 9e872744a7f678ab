//! Answers to the peer: verdicts, and the answers to READs and atomics.

use super::refuse;
use crate::base::defect::Defect;
use crate::engine::core::{Core, Turn};
use crate::engine::transmit;
use crate::fabric::headers::{Aeth, Bth, NakCode, PKEY, Syndrome};
use crate::fabric::opcode::Operation;
use crate::fabric::psn;
use crate::objects::defects;
use crate::objects::mkey::REMOTE_READ;
use crate::objects::qp::Qp;
use crate::objects::responder::{Ack, Answer, ReadAnswer};

/// Sends the answers to the peer, at most `budget` packets.
pub fn transmit(qp: &mut Qp, core: &mut Core, budget: &mut u32) -> Turn {
    let Some(route) = qp.route else {
        qp.responder.answers.clear();
        return Turn::Idle;
    };
    if core.late.is_on() && qp.responder.ack != Ack::Due && qp.responder.has_only_ack() {
        if qp.responder.ack == Ack::None {
            qp.responder.ack = Ack::Waits;
            core.late.acks.add(qp.number, core.now);
        }
        return Turn::Idle;
    }
    while let Some(answer) = qp.responder.answers.front().copied() {
        if *budget == 0 {
            return Turn::More;
        }
        *budget -= 1;
        match answer {
            Answer::Verdict { psn, syndrome } => {
                let aeth = Aeth { syndrome, msn: qp.responder.msn };
                let bth = bth(qp, Operation::Acknowledge, psn);
                qp.responder.ack = Ack::None;
                transmit::send(qp, core, &bth, |frame| frame.push(&aeth));
            }
            Answer::Atomic { psn, original, .. } => {
                let aeth = Aeth { syndrome: Syndrome::Ack, msn: qp.responder.msn };
                let bth = bth(qp, Operation::AtomicAcknowledge, psn);
                transmit::send(qp, core, &bth, |frame| {
                    frame.push(&aeth);
                    frame.push(&original);
                });
            }
            Answer::Read(read) => {
                if !core.link.has_room(route.dlid) {
                    return Turn::Blocked;
                }
                core.progress = true;
                if !read_packet(qp, core, &read) {
                    // The memory was taken away after the request was checked.
                    let psn = psn::add(read.psn, read.next);
                    qp.responder.answers.clear();
                    qp.responder.say(psn, Syndrome::Nak(NakCode::RemoteAccess));
                    refuse(qp, core, NakCode::RemoteAccess, None);
                    continue;
                }
                if read.next + 1 < read.packets {
                    let next = Answer::Read(ReadAnswer { next: read.next + 1, ..read });
                    qp.responder.answers[0] = next;
                    continue;
                }
            }
        }
        core.progress = true;
        qp.responder.answers.pop_front();
    }
    Turn::Idle
}

fn bth(qp: &Qp, operation: Operation, psn: u32) -> Bth {
    Bth { opcode: operation.encode(qp.attr.service), pkey: PKEY, dest_qpn: qp.dest_qpn, psn, ..Bth::default() }
}

/// Sends one packet of the answer to a READ; returns `false` if the key no longer allows it.
fn read_packet(qp: &Qp, core: &mut Core, read: &ReadAnswer) -> bool {
    use Operation::*;
    let (first, last) = (read.next == 0, read.next + 1 == read.packets);
    let operation = match (first, last) {
        (true, true) => ReadResponseOnly,
        (true, false) => ReadResponseFirst,
        (false, false) => ReadResponseMiddle,
        (false, true) => ReadResponseLast,
    };
    let offset = read.next as usize * qp.mtu;
    let len = (read.length as usize - offset).min(qp.mtu);
    let va = read.va.wrapping_add(offset as u64);
    let region = if len == 0 {
        None
    } else {
        match core.mkeys.check_for(read.rkey, qp.owner(), va, len, REMOTE_READ) {
            Ok(region) => Some(region),
            Err(_) => return false,
        }
    };
    let aeth = Aeth { syndrome: Syndrome::Ack, msn: qp.responder.msn };
    let bth = bth(qp, operation, psn::add(read.psn, read.next));
    let changes = core.defects.is(Defect::ReadBytes);
    let sent = transmit::try_send(qp, core, &bth, |frame| {
        if operation.has_aeth() {
            frame.push(&aeth);
        }
        let payload = frame.payload_mut(len);
        let read = region.map_or(Ok(()), |region| region.read(payload));
        if changes {
            defects::change_last(payload);
        }
        read
    });
    sent.is_ok()
}
