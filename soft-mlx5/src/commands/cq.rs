//! Completion queues.

use mlx5_wire::firmware::cq::{CqContext, CreateCq, ModifyCq, QueryCqReply, mini_format, modify};

use super::Execution;
use super::capabilities::GENERAL;
use super::memory::QueueMemory;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::objects::{CqAttr, Cqn, Errno};

fn cqe_size(context: &CqContext) -> Result<u32> {
    match context.cqe_size {
        0 => Ok(64),
        1 => Ok(128),
        _ => Err(Refusal::CQE_SIZE),
    }
}

/// Returns the format of the arrays of a CQ whose CQEs are compressed, as the driver numbers the formats.
fn compression(context: &CqContext) -> Result<Option<u8>> {
    const OF_CQE_64: u8 = 0;
    if !context.compression {
        return Ok(None);
    }
    let plain = context.cqe_size == OF_CQE_64 && !context.collapsed && context.compression_layout == 0;
    match context.mini_cqe_format {
        format @ (mini_format::HASH | mini_format::CHECKSUM) if plain => Ok(Some(1 << format)),
        _ => Err(Refusal::CQE_MODE),
    }
}

fn check_size(context: &CqContext) -> Result<u32> {
    if context.log_size > GENERAL.log_max_cq_sz {
        return Err(Refusal::QUEUE_SIZE);
    }
    Ok(1 << context.log_size)
}

impl Execution<'_> {
    /// Returns the event queue in the context of a CQ.
    pub(super) fn eqn_of(context: &[u8]) -> u8 {
        CqContext::from_prefix(context).map_or(0, |context| context.eqn)
    }

    pub(super) fn create_cq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let create: CreateCq = command.parse()?;
        let (context, uid) = (create.context, command.uid());
        let (cqe_size, cqe_count) = (cqe_size(&context)?, check_size(&context)?);
        let compression = compression(&context)?;
        // No reference: libmlx5 frees the page of a context's CQs before the kernel destroys the CQs that a program
        // left.
        self.state.objects.check_use(Id(Kind::Uar, context.uar_page), uid)?;
        let mut uses = vec![self.state.objects.check_use(Id(Kind::Eq, context.eqn.into()), uid)?];
        let memory = QueueMemory {
            log_page_size: context.log_page_size,
            page_offset: context.page_offset,
            list: command.after::<CreateCq>(),
            umem_valid: create.umem_valid,
            umem: (create.umem_id, create.umem_offset),
            record: context.dbr_addr,
            record_umem_valid: context.dbr_umem_valid,
            record_umem: context.dbr_umem_id,
        };
        let found = self.locate(&memory, u64::from(cqe_count) * u64::from(cqe_size), uid)?;
        uses.extend(found.uses);
        let attr = CqAttr {
            buf: found.ring,
            dbrec: found.record,
            cqe_count,
            cqe_size,
            compression,
            collapsed: context.collapsed,
            real_time: None,
            uar: context.uar_page,
            ignore_overrun: context.overrun_ignore,
            comp_vector: 0,
        };
        let cq = self.nic.create_cq_in(attr, &found.spaces)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Cq, cq.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, cq.0)
    }

    pub(super) fn query_cq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Cq, number), command.uid())?;
        let context = CqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        const OVERRUN: u8 = 9;
        let status = self.nic.cq_status(Cqn(number))?;
        answer(
            output,
            QueryCqReply {
                context: CqContext {
                    status: if status.failed { OVERRUN } else { 0 },
                    consumer_counter: status.consumer & 0xff_ffff,
                    producer_counter: status.producer & 0xff_ffff,
                    // Verbs may have resized the CQ since.
                    log_size: status.cqe_count.ilog2() as u8,
                    ..context
                },
            },
        )
    }

    pub(super) fn modify_cq(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let modify: ModifyCq = command.parse()?;
        let (id, uid) = (Id(Kind::Cq, modify.cqn), command.uid());
        match command.request.op_mod {
            modify::MODERATE => self.moderate_cq(&modify, id, uid),
            modify::RESIZE => self.resize_cq(command, &modify, id, uid),
            _ => Err(Refusal::UNKNOWN_MODIFIER),
        }
    }

    /// Events are never late here, so moderation changes nothing but the context.
    fn moderate_cq(&mut self, modify: &ModifyCq, id: Id, uid: u16) -> Result {
        const PERIOD: u32 = 1 << 0;
        const COUNT: u32 = 1 << 1;
        let entry = self.state.objects.find_mut(id, uid)?;
        if modify.field_select & !(PERIOD | COUNT) != 0 {
            return Err(Refusal::FIELDS);
        }
        let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
        let mut context = CqContext::from_bytes(bytes);
        if modify.field_select & PERIOD != 0 {
            context.period = modify.context.period;
        }
        if modify.field_select & COUNT != 0 {
            context.max_count = modify.context.max_count;
        }
        context.put(bytes);
        Ok(())
    }

    fn resize_cq(&mut self, command: &Command, modify: &ModifyCq, id: Id, uid: u16) -> Result {
        let entry = self.state.objects.find(id, uid)?;
        let old = CqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let new = modify.context;
        let (cqe_size, cqe_count) = (cqe_size(&old)?, check_size(&new)?);
        let memory = QueueMemory {
            log_page_size: new.log_page_size,
            page_offset: new.page_offset,
            list: command.after::<ModifyCq>(),
            umem_valid: modify.umem_valid,
            umem: (modify.umem_id, modify.umem_offset),
            ..QueueMemory::default()
        };
        let is_umem = |id: &Id| id.0 == Kind::Umem;
        let (mut umems, mut uses) = entry.uses.iter().copied().partition::<Vec<_>, _>(is_umem);
        // The UMEM of the record is the last one, and stays. The record of a CQ of verbs lies in no UMEM.
        let in_umem = self.is_umem(old.dbr_umem_valid) && old.dbr_umem_id != 0;
        let record = umems.pop().filter(|_| in_umem);
        let (space, ring, umem) = self.locate_ring(&memory, u64::from(cqe_count) * u64::from(cqe_size), uid)?;
        uses.extend(umem.into_iter().chain(record));
        let resized = self.nic.resize_cq_in(Cqn(modify.cqn), &space, ring, cqe_count);
        resized.map_err(|error| match error {
            Errno(libc::EBUSY) => Refusal::OVERRUN,
            Errno(libc::EINVAL) => Refusal::UNREAD,
            other => other.into(),
        })?;
        self.state.objects.set_uses(id, uses);
        let entry = self.state.objects.find_mut(id, uid)?;
        let bytes = entry.context.first_chunk_mut().ok_or(Refusal::NO_OBJECT)?;
        let context =
            CqContext { log_size: new.log_size, log_page_size: new.log_page_size, page_offset: new.page_offset, ..old };
        context.put(bytes);
        Ok(())
    }
}
