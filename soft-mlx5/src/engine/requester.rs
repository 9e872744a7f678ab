//! The sending side of a queue pair: completes the WQEs that were started, in order.

pub mod hints;
mod retry;

use super::completion;
use super::core::Core;
use super::dc::initiator;
use super::tm::rendezvous;
use crate::fabric::psn;
use crate::objects::QpState;
use crate::objects::completion::Failure;
use crate::objects::qp::Qp;

pub use self::retry::{answer_lost, back_off, echo_returned, ensure_timer, expire, missing, note_progress};

/// Reports the oldest requests as far as they are complete, or failed.
pub fn complete_front(qp: &mut Qp, core: &mut Core) {
    while let Some(front) = qp.requester.front().copied() {
        if let Some(failure) = front.failure {
            return fail(qp, core, failure);
        }
        let complete = front.packets == 0
            || !front.kind.is_read_like() && psn::diff(qp.requester.unacked_psn, front.end()) >= 0
            || !qp.attr.service.is_reliable() && psn::diff(qp.requester.unacked_psn, front.end()) >= 0;
        if !complete {
            return;
        }
        finish(qp, core, None);
    }
}

/// Completes the oldest request.
pub fn finish(qp: &mut Qp, core: &mut Core, inline: Option<&[u8]>) {
    let Some(request) = qp.requester.pop() else { return };
    core.progress = true;
    if qp.rendezvous.is_some() {
        return rendezvous::finished(qp, core, &request);
    }
    if !request.flags.signaled() && !qp.attr.signal_all {
        return;
    }
    let byte_cnt = if request.kind.is_read_like() { request.length } else { 0 };
    let format = core.cqs.get(qp.attr.send_cq.0).map(|cq| cq.inline_format());
    let inline = format.zip(inline);
    let cqe = completion::requester(qp, request.opcode, request.index, byte_cnt, inline, core.now);
    core.complete(qp.attr.send_cq, &cqe);
}

/// Reports the oldest request as failed, and stops the queue pair.
pub fn fail(qp: &mut Qp, core: &mut Core, failure: Failure) {
    let request = qp.requester.pop();
    if let Some(request) = request.filter(|_| qp.rendezvous.is_none()) {
        let cqe = completion::requester_error(qp, request.opcode, request.index, failure);
        core.complete(qp.attr.send_cq, &cqe);
        if initiator::is_confined(qp, core, request.stream, failure) {
            return;
        }
    }
    if qp.attr.service.is_reliable() || qp.state != QpState::Rts {
        qp.fail(core);
    } else {
        // A send queue that failed does not stop the receive queue of an unreliable service.
        flush(qp, core);
        qp.state = QpState::Sqe;
    }
}

/// Flushes the started requests.
pub fn flush(qp: &mut Qp, core: &mut Core) {
    while let Some(request) = qp.requester.pop() {
        if qp.rendezvous.is_some() {
            continue;
        }
        let cqe = completion::requester_error(qp, request.opcode, request.index, Failure::FLUSH);
        core.complete(qp.attr.send_cq, &cqe);
    }
    (qp.requester.current, qp.requester.packet) = (0, 0);
}

/// State of the packets before an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// All are complete.
    All,
    /// A READ or atomic lacks its answer.
    AnswerMissing,
}

/// Completes the requests before `psn`, which the responder has executed.
pub fn acknowledge(qp: &mut Qp, core: &mut Core, psn: u32) -> Acknowledged {
    while let Some(front) = qp.requester.front().copied() {
        let failed = front.packets == 0 && front.failure.is_some();
        if failed || front.packets > 0 && psn::diff(psn, front.first_psn) <= 0 {
            break;
        }
        if front.kind.is_read_like() {
            let answered = psn::diff(psn, qp.requester.unacked_psn) <= 0;
            return if answered { Acknowledged::All } else { Acknowledged::AnswerMissing };
        }
        if front.packets > 0 {
            let within = psn::diff(psn, front.end()) < 0;
            let upto = if within { psn } else { front.end() };
            qp.requester.acknowledged_up_to(upto);
            if within {
                break;
            }
        }
        finish(qp, core, None);
    }
    Acknowledged::All
}
