//! User-mode memory registration: send WQEs that change memory keys.
//!
//! A WQE is executed whole at its place in the queue. Binds of memory windows and local invalidations are such WQEs,
//! too.

use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::mkey::MkeyContext;
use mlx5_wire::umr::{INLINE, mask};

use super::core::Core;
use crate::base::defect::Defect;
use crate::fabric::headers::NakCode;
use crate::objects::completion::Failure;
use crate::objects::mkey::{Change, LOCAL_READ, WindowFault};
use crate::objects::qp::Qp;
use crate::objects::responder::Refusal;
use crate::objects::strict::Rule;
use crate::objects::wqe::SendWqe;

/// Unit of a list.
const OCTOWORD: usize = 16;
/// Lists come in multiples of so many units.
const OCTOWORDS: usize = 4;
/// Alignment of a list outside the WQE, and unit of its length.
const LIST_ALIGNMENT: u64 = 2048;
const LIST_UNIT: u32 = 64;

/// Executes a WQE.
pub fn execute(qp: &Qp, core: &mut Core, wqe: &SendWqe) -> Result<(), Failure> {
    let malformed = |_| Failure::LOCAL_QP_OP;
    let control = wqe.umr_control().map_err(malformed)?;
    let context = MkeyContext::from_prefix(wqe.tail(SendWqe::MKEY_CONTEXT)).ok_or(Failure::LOCAL_QP_OP)?;
    let (object, index) = (qp.object(), wqe.ctrl().index().into());
    let mask = control.mkey_mask.get();
    if mask & (mask::BSF | mask::SIGNATURE) != 0 {
        core.strict.violation(Rule::Signature, object, index, &control.to_bytes());
        return Err(Failure::LOCAL_QP_OP);
    }
    if mask & !mask::ALL != 0 {
        core.strict.violation(Rule::UmrMask, object, index, &control.to_bytes());
    }
    let units = usize::from(control.xlt_octowords.get());
    if units % OCTOWORDS != 0 {
        return Err(Failure::UMR_SIZE);
    }
    let size = units * OCTOWORD;
    let mut outside = Vec::new();
    let list = if size == 0 {
        None
    } else if control.flags & INLINE != 0 {
        Some(wqe.tail(SendWqe::TRANSLATION).get(..size).ok_or(Failure::LOCAL_QP_OP)?)
    } else {
        let pointer = wqe.tail(SendWqe::TRANSLATION).first_chunk().map(DataSegment::from_bytes);
        let pointer = pointer.ok_or(Failure::LOCAL_QP_OP)?;
        let len = pointer.byte_count.get();
        if pointer.addr.get() % LIST_ALIGNMENT != 0 || len % LIST_UNIT != 0 || (len as usize) < size {
            core.strict.violation(Rule::UmrList, object, index, &pointer.to_bytes());
        }
        outside.resize(size, 0);
        core.mkeys
            .check(pointer.lkey.get(), qp.attr.pd, pointer.addr.get(), size, LOCAL_READ)
            .and_then(|region| region.read(&mut outside))
            .map_err(|_| Failure::LOCAL_PROT)?;
        Some(&outside[..])
    };
    let at = control.offset() * OCTOWORD as u64;
    let key = wqe.ctrl().imm.get();
    let change = Change { key, flags: control.flags, mask, context, list: list.map(|list| (list, at)) };
    core.mkeys.change(&change, qp.owner()).map_err(|_| Failure::MW_BIND)?;
    if let Err((fault, entry)) = core.mkeys.check_window(key >> 8) {
        let rule = match fault {
            WindowFault::Range => Rule::WindowRange,
            WindowFault::Rights => Rule::WindowRights,
        };
        core.strict.violation(rule, object, index, &entry.to_bytes());
    }
    Ok(())
}

/// Frees the key that a SEND of the peer names, before the CQE of the message is written.
pub fn invalidate(qp: &Qp, core: &mut Core, key: u32) -> Result<(), Refusal> {
    if core.defects.is(Defect::KeptKey) {
        return Ok(());
    }
    let refused = |_| Refusal::Fatal(NakCode::RemoteAccess, Some(Failure::INVALIDATE_RECEIVE));
    core.mkeys.invalidate(key, qp.owner()).map_err(refused)
}
