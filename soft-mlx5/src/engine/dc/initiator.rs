//! Initiators: sessions, and errors of streams.

use crate::engine::core::Core;
use crate::engine::{Nic, completion, transmit};
use crate::objects::completion::Failure;
use crate::objects::dc::{Initiator, Peer, Role};
use crate::objects::qp::Qp;
use crate::objects::wqe::SendWqe;
use crate::objects::{Errno, QpState, Qpn, Result};

/// Lets an initiator turn to the target of its next request. Returns `false` as long as the last target has not
/// acknowledged everything.
pub fn turn_to_target(qp: &mut Qp, core: &mut Core, wqe: &SendWqe) -> bool {
    // A request without a whole address fails by itself.
    let Ok(segment) = wqe.datagram() else { return true };
    let [a, b, c, d] = segment.reserved4;
    let peer = Peer {
        number: segment.dqp_dct.get() & 0xff_ffff,
        key: u64::from(segment.qkey.get()) << 32 | u64::from(u32::from_be_bytes([a, b, c, d])),
        path: transmit::path_of(&segment, core.link_layer),
    };
    if matches!(&qp.role, Role::Initiator(Initiator { peer: Some(last), .. }) if *last == peer) {
        return true;
    }
    if !qp.requester.is_idle() || qp.state != QpState::Rts {
        return false;
    }
    end_session(qp, core);
    core.last_session += 1;
    if let Role::Initiator(initiator) = &mut qp.role {
        (initiator.session, initiator.peer) = (core.last_session, Some(peer));
    }
    qp.dest_qpn = peer.number;
    qp.route = core.route(&peer.path);
    true
}

fn end_session(qp: &mut Qp, core: &mut Core) {
    if let Role::Initiator(initiator) = &mut qp.role {
        initiator.peer = None;
    }
    qp.requester.start_over();
    core.timers.set(qp.number, &mut qp.deadline, None);
}

/// Forgets sessions and errors of an initiator in Reset.
pub fn reset(qp: &mut Qp) {
    if let Role::Initiator(initiator) = &mut qp.role {
        initiator.peer = None;
        initiator.failed.clear();
    }
}

/// Returns `true` if this stream of an initiator is in error.
pub fn is_failed(qp: &Qp, stream: u16) -> bool {
    matches!(&qp.role, Role::Initiator(initiator) if initiator.failed.contains(&stream))
}

/// Keeps an error, which was reported, within its stream. Returns `false` if the error stops the queue pair.
pub fn is_confined(qp: &mut Qp, core: &mut Core, stream: u16, failure: Failure) -> bool {
    let Role::Initiator(Initiator { streams_in_error: Some(most), failed, .. }) = &mut qp.role else { return false };
    if failure == Failure::FLUSH {
        return true;
    }
    failed.insert(stream);
    let mut unknown = Vec::new();
    if failure == Failure::RETRIES {
        // The target may have executed the requests behind this one: they are not sent again.
        unknown.extend(std::iter::from_fn(|| qp.requester.pop()));
        failed.extend(unknown.iter().map(|request| request.stream));
    }
    let stops = failed.len() >= *most as usize;
    for request in unknown {
        let cqe = completion::requester_error(qp, request.opcode, request.index, failure);
        core.complete(qp.attr.send_cq, &cqe);
    }
    if stops {
        return false;
    }
    // The connection has failed, but not the requests behind this one: they start again, in another session.
    if let Some(next) = qp.requester.front() {
        qp.sq.go_back(next.index);
    }
    end_session(qp, core);
    core.activate(qp);
    true
}

impl Nic {
    /// Lets a stream of an initiator go on after an error.
    pub(crate) fn reset_stream(&mut self, initiator: Qpn, stream: u16) -> Result<()> {
        let Some(Role::Initiator(initiator)) = self.qps.get_mut(initiator.0).map(|qp| &mut qp.role) else {
            return Err(Errno(libc::EINVAL));
        };
        initiator.failed.remove(&stream).then_some(()).ok_or(Errno(libc::EINVAL))
    }
}
