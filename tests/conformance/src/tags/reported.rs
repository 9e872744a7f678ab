//! Taking completions from both twins, and comparing their fields.

use mlx5_ring::tag_list::{Completion, Handle};
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::tm::AppOp;
use mlx5_wire::tmh::Tmh;
use rdma_core_sys as sys;

use super::added::Added;
use super::subject::Reported;
use super::{Case, reference};
use crate::difference::{Difference, Result, same};
use crate::subject::status;
use crate::tally;
use crate::verbs::same_fields;

type Fields = Vec<(&'static str, u64)>;

impl Case<'_> {
    pub(super) fn poll(&mut self, budget: u32) -> Result<()> {
        let (ours, theirs) = self.twins.on_both(
            self.run.tally,
            |_| self.subject.poll(budget),
            |libmlx5| reference::poll(libmlx5, budget),
        )?;
        same(|| "completions".into(), theirs.len() as u64, ours.len() as u64)?;
        for (number, (theirs, reported)) in theirs.iter().zip(&ours).enumerate() {
            let ours = self.take(number, reported)?;
            same_fields(|name| format!("completion {number}: {name}"), theirs, &ours)?;
            if let Some(id) = reported.slot {
                self.pair.complete(id, true, self.run.tally)?;
            }
        }
        Ok(())
    }

    fn added(&mut self, number: usize, handle: Handle) -> Result<&mut Added> {
        let found = self.added.iter_mut().find(|added| added.handle == handle);
        let field = || format!("completion {number}: receive");
        found.ok_or_else(|| Difference::new(field(), "one that is not over", format!("{handle:?}")))
    }

    /// Notes a completion of doorbell, and returns its fields in the terms of `struct ibv_cq_ex`.
    fn take(&mut self, number: usize, reported: &Reported) -> Result<Fields> {
        let count = |field: &str, carried: u16, phase: u16| {
            let field = format!("completion {number}: {field}");
            same(|| field, carried.into(), phase.into())
        };
        let rendezvous = |is_left: bool| {
            if is_left { sys::IBV_WC_TM_RNDV_INCOMPLETE } else { sys::IBV_WC_SUCCESS }
        };
        const CARRIED: &str = "count that the operation carried";
        let mut fields = match reported.completion {
            Completion::Appended { handle, hw_phase, phase } => {
                let added = self.added(number, handle)?;
                added.adding = false;
                count(CARRIED, added.our_count, phase)?;
                let flags = sync_required(hw_phase, added.their_count);
                operation(added.id, sys::IBV_WC_SUCCESS, sys::IBV_WC_TM_ADD, flags)
            }
            Completion::Removed { handle, data, hw_phase, phase } => {
                let added = self.added(number, handle)?;
                let (id, carried) = added.removing.take().unwrap_or_default();
                added.over = true;
                count(CARRIED, carried, phase)?;
                same(|| format!("completion {number}: data of the receive"), added.id, data)?;
                let flags = sync_required(hw_phase, added.their_count);
                operation(id, sys::IBV_WC_SUCCESS, sys::IBV_WC_TM_DEL, flags)
            }
            Completion::TooLate { handle, hw_phase, phase } => {
                let added = self.added(number, handle)?;
                let (id, carried) = added.removing.take().unwrap_or_default();
                count(CARRIED, carried, phase)?;
                let flags = sync_required(hw_phase, added.their_count);
                self.tally(tally::TAG_DELS_LATE, 1);
                operation(id, sys::IBV_WC_TM_ERR, sys::IBV_WC_TM_DEL, flags)
            }
            Completion::Synchronized { count: carried } => {
                let (id, expected) = self.synchronisations.pop_front().unwrap_or_default();
                count(CARRIED, expected, carried)?;
                operation(id, sys::IBV_WC_SUCCESS, sys::IBV_WC_TM_SYNC, 0)
            }
            Completion::Matched { handle, header } => {
                let added = self.added(number, handle)?;
                added.matched = true;
                let status = rendezvous(reported.app_op == AppOp::CONSUMED_SW_RNDV);
                let fields = operation(added.id, status, sys::IBV_WC_TM_RECV, sys::IBV_WC_TM_MATCH);
                self.tally(tally::TAG_MATCHED, 1);
                self.tally(tally::TAG_RENDEZVOUS, u64::from(header.opcode == RENDEZVOUS));
                with_header(fields, &header)
            }
            Completion::Received { handle, data, header, byte_count }
            | Completion::Incomplete { handle, data, header, byte_count } => {
                let added = self.added(number, handle)?;
                same(|| format!("completion {number}: data of the receive"), added.id, data)?;
                let whole = !std::mem::replace(&mut added.matched, true);
                added.over = true;
                let status = rendezvous(reported.app_op == AppOp::CONSUMED_MSG_SW_RNDV);
                let flags = if whole { sys::IBV_WC_TM_MATCH } else { 0 };
                let flags = flags | sys::IBV_WC_TM_DATA_VALID;
                let mut fields = operation(data, status, sys::IBV_WC_TM_RECV, flags);
                fields.push(("byte_len", byte_count.into()));
                fields.push(("qp_num", reported.qp_num.into()));
                if whole {
                    self.tally(tally::TAG_MATCHED, 1);
                    let offer = u64::from(header.opcode == RENDEZVOUS);
                    self.tally(tally::TAG_RENDEZVOUS, offer);
                    fields = with_header(fields, &header);
                }
                fields
            }
            Completion::Canceled { handle, data } => {
                let added = self.added(number, handle)?;
                same(|| format!("completion {number}: data of the receive"), added.id, data)?;
                added.over = true;
                self.run.tally.add(tally::ERRORS, 1);
                vec![("wr_id", data), ("status", sys::IBV_WC_TM_RNDV_INCOMPLETE.into())]
            }
            Completion::Unexpected | Completion::NoTag => {
                let unexpected = reported.completion == Completion::Unexpected;
                let mut flags = 0;
                if unexpected {
                    self.handled += 1;
                    if self.handled.wrapping_sub(self.carried_by_add) > MAX_SYNC_DIFF {
                        flags = sys::IBV_WC_TM_SYNC_REQ;
                    }
                }
                let (opcode, name) = match unexpected {
                    true => (sys::IBV_WC_TM_RECV, tally::TAG_UNEXPECTED),
                    false => (sys::IBV_WC_TM_NO_TAG, tally::TAG_NO_TAG),
                };
                self.tally(name, 1);
                let id = reported.slot.unwrap_or_default();
                let mut fields = operation(id, sys::IBV_WC_SUCCESS, opcode, flags);
                fields.push(("byte_len", reported.byte_count.into()));
                fields.push(("qp_num", reported.qp_num.into()));
                fields
            }
            Completion::Other => {
                let (syndrome, vendor_err) = reported.failure.unwrap_or((Syndrome::new(0), 0));
                self.run.tally.add(tally::ERRORS, 1);
                vec![
                    ("wr_id", reported.slot.unwrap_or_default()),
                    ("status", status(syndrome).into()),
                    ("vendor_err", vendor_err.into()),
                    ("qp_num", reported.qp_num.into()),
                ]
            }
            Completion::Stray => vec![("stray", 1)],
        };
        // When the message is inside a CQE of 64 bytes, both libraries read this bit from the payload.
        let grh = if reported.has_grh { sys::IBV_WC_GRH } else { 0 };
        for (_, value) in fields.iter_mut().filter(|(name, _)| *name == "wc_flags") {
            *value |= u64::from(grh);
        }
        let asks =
            fields.iter().any(|(name, value)| *name == "wc_flags" && value & u64::from(sys::IBV_WC_TM_SYNC_REQ) != 0);
        self.tally(tally::TAG_SYNC_REQUIRED, u64::from(asks));
        self.added.retain(|added| !added.is_done());
        Ok(fields)
    }
}

/// `enum ibv_tmh_op`.
const RENDEZVOUS: u8 = 1;

/// Unexpected messages that libmlx5 lets be unreported.
const MAX_SYNC_DIFF: u32 = 0x3fff;

/// The flag with which libmlx5 asks for a synchronisation: the count of the device differs from that in the append.
fn sync_required(hw_phase: u16, count: u32) -> u32 {
    if u32::from(hw_phase) == count { 0 } else { sys::IBV_WC_TM_SYNC_REQ }
}

fn operation(id: u64, status: sys::ibv_wc_status, opcode: sys::ibv_wc_opcode, flags: u32) -> Fields {
    vec![("wr_id", id), ("status", status.into()), ("opcode", opcode.into()), ("wc_flags", flags.into())]
}

fn with_header(mut fields: Fields, header: &Tmh) -> Fields {
    fields.extend([("tag", header.tag.get()), ("priv", header.app_ctx.get().into())]);
    fields
}
