//! Sending again: after a loss that is known, a time-out, or a wait for a receive.

use super::fail;
use crate::nic::completion::Failure;
use crate::nic::core::Core;
use crate::nic::objects::Service;
use crate::nic::qp::Qp;

// A peer in another process may get no core for so long, and has not left: it is asked again until then, even
// when the retries are used up.
const SLOW_PEER_NS: u64 = 2_000_000_000;
const INFINITE_RNR: u8 = 7;

/// Asks again, once, for an answer that is known to be lost.
pub fn answer_lost(qp: &mut Qp, core: &mut Core) {
    let at = qp.requester.unacked_psn;
    if qp.requester.implied_loss != Some(at) {
        core.counters.implied_nak_seq_err += 1;
        qp.requester.implied_loss = Some(at);
        qp.requester.go_back();
        core.activate(qp);
    }
}

/// Sends again, because the responder misses packets from the oldest one that is not acknowledged.
pub fn missing(qp: &mut Qp, core: &mut Core) {
    // The responder may report this twice, with nothing sent in between: one retry is enough.
    if qp.requester.is_at_oldest() {
        return;
    }
    retry(qp, core);
}

/// Sends everything again from the oldest packet that is not acknowledged.
fn retry(qp: &mut Qp, core: &mut Core) {
    let requester = &mut qp.requester;
    if requester.retries_left == 0 {
        let gives_up_at = requester.waiting_since + SLOW_PEER_NS;
        let slow = qp.route.as_ref().is_some_and(|route| core.link.is_process(route.dlid));
        if !slow || core.now >= gives_up_at {
            return fail(qp, core, Failure::RETRIES);
        }
    }
    requester.retries_left = requester.retries_left.saturating_sub(1);
    requester.go_back();
    restart_timer(qp, core);
    core.activate(qp);
}

/// Waits this long, because the responder is not ready for the oldest packet.
pub fn back_off(qp: &mut Qp, core: &mut Core, delay_ns: u64) {
    let requester = &mut qp.requester;
    // The responder has answered: the retries after a time-out start again.
    requester.retries_left = requester.retry_cnt;
    if requester.rnr_retry != INFINITE_RNR {
        if requester.rnr_left == 0 {
            return fail(qp, core, Failure::RNR_RETRIES);
        }
        requester.rnr_left -= 1;
    }
    requester.backing_off = true;
    requester.go_back();
    core.timers.set(qp.number, &mut qp.deadline, Some(core.now + delay_ns));
}

/// Handles the queue pair's deadline, which has passed.
pub fn expire(qp: &mut Qp, core: &mut Core) {
    core.progress = true;
    core.timers.set(qp.number, &mut qp.deadline, None);
    if qp.requester.backing_off {
        qp.requester.backing_off = false;
        core.activate(qp);
    } else if qp.requester.has_unacked() {
        core.counters.local_ack_timeout_err += 1;
        retry(qp, core);
    }
}

/// Notes that something was acknowledged.
pub fn note_progress(qp: &mut Qp, core: &mut Core) {
    qp.requester.waiting_since = core.now;
    restart_timer(qp, core);
}

// Restarts the timer: something was acknowledged, or is sent again.
fn restart_timer(qp: &mut Qp, core: &mut Core) {
    let timeout = qp.requester.timeout_ns().filter(|_| qp.attr.service == Service::Rc);
    let running = qp.requester.has_unacked() && !qp.requester.backing_off;
    let at = timeout.filter(|_| running).map(|timeout| core.now + timeout);
    if !qp.requester.backing_off {
        core.timers.set(qp.number, &mut qp.deadline, at);
    }
}

/// Runs the timer if something is under way and it does not run yet.
pub fn ensure_timer(qp: &mut Qp, core: &mut Core) {
    if qp.deadline.get().is_none() {
        note_progress(qp, core);
    }
}
