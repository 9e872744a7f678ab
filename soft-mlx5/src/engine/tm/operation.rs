//! List operations: WQEs that change the tag list.

use mlx5_wire::cqe::{Cqe64, CqeFormat, op_own};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::tm::{
    AppOp, CQE_REQUEST, REMOVE_SUCCESS, SW_CNT_VALID, TagMatchingResult, TagMatchingSegment, TmOpcode,
};

use super::super::core::Core;
use super::{complete_receive, list_of, mark};
use crate::base::defect::Defect;
use crate::objects::completion::Completion;
use crate::objects::qp::Qp;
use crate::objects::scatter::ScatterList;
use crate::objects::strict::Rule;
use crate::objects::wqe::{SendWqe, WqeError};

const UNIT: usize = 16;
// Control segment, operation, and for an append a data segment.
const PLAIN_DS: u8 = 3;
const APPEND_DS: u8 = 4;

/// Executes a list operation.
pub fn execute(qp: &mut Qp, core: &mut Core, wqe: &SendWqe) -> Result<(), WqeError> {
    let index = wqe.ctrl().index();
    let segment = wqe.tag_matching()?;
    let operation = TmOpcode::from_byte(segment.opcode);
    let ds = if operation == TmOpcode::Append { APPEND_DS } else { PLAIN_DS };
    if matches!(operation, TmOpcode::Unknown(_)) || wqe.ctrl().ds() != ds {
        return Err(breach(qp, core, Rule::TagOperation, index, &segment));
    }
    let mut buffer = ScatterList::default();
    if operation == TmOpcode::Append {
        let data = wqe.tail(UNIT + TagMatchingSegment::SIZE);
        // UCX appends empty buffers with a length of 0, and no key: they take empty messages.
        let length = data.first_chunk().map_or(0, |data| DataSegment::from_bytes(data).byte_count.get());
        if length > 0 {
            buffer.parse(data, qp.object(), index.into(), &mut core.strict);
        }
    }
    let deaf = core.defects.is(Defect::TagPhase);
    let list = list_of(qp, core).ok_or(WqeError::Malformed)?;
    if segment.flags & SW_CNT_VALID != 0 && !deaf && !list.synchronize(segment.sw_cnt.get()) {
        breach(qp, core, Rule::TagPhase, index, &segment);
    }
    let (youngest, exact) = (core.defects.is(Defect::TagOrder), core.defects.is(Defect::TagMask));
    let list = list_of(qp, core).ok_or(WqeError::Malformed)?;
    if youngest || exact {
        list.break_rules(youngest, exact);
    }
    let named = segment.index.get();
    let done = match operation {
        TmOpcode::Append => {
            let (tag, mask) = (segment.append_tag.get(), segment.append_mask.get());
            let entry = list.append(named, tag, mask, buffer);
            entry.map(|entry| (AppOp::APPEND, entry, true))
        }
        TmOpcode::Remove => list.remove(named).map(|found| (AppOp::REMOVE, named, found)),
        _ => Ok((AppOp::NOOP, 0, true)),
    };
    let hw_phase = list.hw_phase();
    let Ok((op, entry, success)) = done else {
        return Err(breach(qp, core, Rule::TagIndex, index, &segment));
    };
    if segment.flags & CQE_REQUEST != 0 {
        let result = TagMatchingResult {
            success: if success { REMOVE_SUCCESS } else { 0 }.into(),
            hw_phase_cnt: hw_phase.into(),
            ..TagMatchingResult::zeroed()
        };
        complete(qp, core, index, &result, (op, entry));
    }
    Ok(())
}

fn breach(qp: &Qp, core: &mut Core, rule: Rule, index: u16, segment: &TagMatchingSegment) -> WqeError {
    core.strict.violation(rule, qp.object(), index.into(), &segment.to_bytes());
    WqeError::Malformed
}

fn complete(qp: &Qp, core: &mut Core, index: u16, result: &TagMatchingResult, (op, entry): (AppOp, u16)) {
    let mut cqe = Cqe64::zeroed();
    cqe.timestamp = core.now.into();
    cqe.sop_drop_qpn = (u32::from(WqeOpcode::TAG_MATCHING.get()) << 24 | qp.number).into();
    cqe.wqe_counter = index.into();
    cqe.op_own = op_own(CqeOpcode::NoPacket, CqeFormat::Plain, false, 0);
    let mut completion = Completion { cqe: cqe.to_bytes(), front: None };
    completion.cqe[..TagMatchingResult::SIZE].copy_from_slice(&result.to_bytes());
    mark(&mut completion, op, entry);
    complete_receive(qp, core, completion);
}
