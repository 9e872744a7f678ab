//! Sending again: after a loss that is known, a time-out, or a wait for a receive.

use super::{fail, hints};
use crate::base::defect::Defect;
use crate::engine::core::Core;
use crate::fabric::echo::Echo;
use crate::objects::completion::Failure;
use crate::objects::qp::Qp;
use crate::objects::requester::Inquiry;

const INFINITE_RNR: u8 = 7;

// Time after which an echo that does not come back is sent again, at first: a new device may have the address. The
// time doubles.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// Asks again, once, for an answer that is known to be lost.
pub fn answer_lost(qp: &mut Qp, core: &mut Core) {
    let at = qp.requester.unacked_psn();
    if qp.requester.implied_loss != Some(at) {
        core.counters.count(qp.counted(), |counters| counters.implied_nak_seq_err += 1);
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
    requester.inquiry = None;
    if requester.retries_left == 0 {
        hints::retries_exceeded(qp, core);
        return fail(qp, core, Failure::RETRIES);
    }
    requester.retries_left -= 1;
    requester.go_back();
    restart_timer(qp, core);
    core.activate(qp);
}

/// Waits this long, because the responder is not ready for the oldest packet.
pub fn back_off(qp: &mut Qp, core: &mut Core, delay_ns: u64) {
    let requester = &mut qp.requester;
    // The responder has answered: the retries after a time-out start again.
    requester.retries_left = requester.retry_cnt;
    if core.defects.is(Defect::NoRetry) {
        return fail(qp, core, Failure::RNR_RETRIES);
    }
    if requester.rnr_retry != INFINITE_RNR {
        if requester.rnr_left == 0 {
            return fail(qp, core, Failure::RNR_RETRIES);
        }
        requester.rnr_left -= 1;
    }
    requester.backing_off = true;
    requester.inquiry = None;
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
        // The peer cannot answer a packet that has not left again since the last retry.
        if qp.requester.is_at_oldest() || is_peer_behind(qp, core) {
            restart_timer(qp, core);
        } else {
            core.counters.count(qp.counted(), |counters| counters.local_ack_timeout_err += 1);
            retry(qp, core);
        }
    }
}

/// Returns `true` if the peer's device exists and may not have seen all packets yet: it is asked.
fn is_peer_behind(qp: &mut Qp, core: &mut Core) -> bool {
    let Some(dlid) = qp.route.as_ref().map(|route| route.dlid) else { return false };
    let now = core.now;
    let inquiry = qp.requester.inquiry;
    if let Some(Inquiry { since, again_at, .. }) = inquiry {
        hints::peer_behind(qp, core, now - since);
        if now < again_at {
            return core.link.has_device(dlid);
        }
    }
    let since = inquiry.map_or(now, |inquiry| inquiry.since);
    let token = core.silent_peers.last_token.wrapping_add(1);
    core.silent_peers.last_token = token;
    let again_at = now + (now - since).max(ASK_AGAIN_NS);
    qp.requester.inquiry = Some(Inquiry { token, since, again_at });
    let slid = core.link.lid();
    core.link.send_echo(&Echo { slid, dlid, returned: false, queue_pair: qp.number, peer: qp.dest_qpn, token })
}

/// Counts the time-out, because the peer's device has taken all packets and has answered none.
pub fn echo_returned(qp: &mut Qp, core: &mut Core, token: u32) {
    let asked = qp.requester.inquiry.is_some_and(|inquiry| inquiry.token == token);
    if asked && qp.requester.has_unacked() && !qp.requester.is_at_oldest() {
        core.progress = true;
        core.counters.count(qp.counted(), |counters| counters.local_ack_timeout_err += 1);
        retry(qp, core);
    }
}

/// Notes that something was acknowledged.
pub fn note_progress(qp: &mut Qp, core: &mut Core) {
    qp.requester.inquiry = None;
    restart_timer(qp, core);
}

// Restarts the timer: something was acknowledged, or is sent again.
fn restart_timer(qp: &mut Qp, core: &mut Core) {
    let running = qp.requester.has_unacked() && !qp.requester.backing_off && qp.attr.service.is_reliable();
    let timeout = if running { core.late.ack_timeout(qp.requester.timeout) } else { None };
    let at = timeout.map(|timeout| core.now + timeout);
    if !qp.requester.backing_off {
        core.timers.set(qp.number, &mut qp.deadline, at);
    }
}

/// Runs the timer if something is under way and it does not run yet.
pub fn ensure_timer(qp: &mut Qp, core: &mut Core) {
    if qp.deadline.get().is_none() {
        restart_timer(qp, core);
    }
}
