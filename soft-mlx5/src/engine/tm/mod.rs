//! Tag matching: messages that name their receive buffer by a tag.
//!
//! A shared receive queue of this kind has a list of tagged buffers besides its WQEs. Software changes
//! the list through a send queue of any RC queue pair attached to it; messages that match no entry
//! arrive in a WQE as with any shared receive queue.

pub mod message;
pub mod operation;
pub mod rendezvous;

use mlx5_wire::cqe::{APP_TAG_MATCHING, CqeFormat};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::Tmh;

use super::core::Core;
use crate::objects::Cqn;
use crate::objects::completion::{Arrival, Completion};
use crate::objects::qp::Qp;
use crate::objects::tag_list::TagList;

// Places in a CQE.
const USER_INDEX: usize = 32;
const APP: usize = 40;
const APP_OP: usize = 41;
const APP_INFO: usize = 42;

/// Returns CQ and user index for completions of the shared receive queue, if it has its own.
pub fn target(qp: &Qp, core: &Core) -> Option<(Cqn, u32)> {
    let srq = core.srqs.get(qp.attr.srq?.0)?;
    Some((srq.own_cq()?, srq.attr().user_index))
}

/// Returns the tag list that a queue pair receives with.
pub fn list_of<'a>(qp: &Qp, core: &'a mut Core) -> Option<&'a mut TagList> {
    core.srqs.get_mut(qp.attr.srq?.0)?.tags.as_mut()
}

/// Writes a completion of the receiving side to its CQ.
pub fn complete_receive(qp: &Qp, core: &mut Core, mut completion: Completion) {
    let mut cq = qp.attr.recv_cq;
    if let Some((own, user_index)) = target(qp, core) {
        cq = own;
        completion.cqe[USER_INDEX..][..4].copy_from_slice(&user_index.to_be_bytes());
    }
    core.complete(cq, &completion);
}

/// Makes a completion one of tag matching.
pub fn mark(completion: &mut Completion, op: AppOp, entry: u16) {
    completion.cqe[APP] = APP_TAG_MATCHING;
    completion.cqe[APP_OP] = op.get();
    completion.cqe[APP_INFO..][..2].copy_from_slice(&entry.to_be_bytes());
}

/// Ends an entry whose message will not arrive.
fn cancel_entry(qp: &Qp, core: &mut Core, entry: u16) {
    list_of(qp, core).into_iter().for_each(|list| list.release(entry));
    let arrival = Arrival::nothing(qp.dest_qpn);
    report(qp, core, &arrival, (AppOp::MSG_COMPLETION_CANCELED, entry), None, None);
}

/// Reports the result of a matched message.
fn report(
    qp: &Qp,
    core: &mut Core,
    arrival: &Arrival,
    (op, entry): (AppOp, u16),
    header: Option<&Tmh>,
    inline: Option<&[u8]>,
) {
    let inline = inline.map(|bytes| (CqeFormat::Inline64, bytes));
    let mut arrival = *arrival;
    if op == AppOp::CONSUMED {
        // The data is still on its way.
        arrival.opcode = CqeOpcode::NoPacket;
    }
    let mut completion = super::completion::responder(qp, 0, &arrival, inline, core.now);
    if let Some(header) = header {
        completion.cqe[..Tmh::SIZE].copy_from_slice(&header.to_bytes());
    }
    mark(&mut completion, op, entry);
    complete_receive(qp, core, completion);
}
