//! Shared receive queues: RMPs, XRC SRQs and SRQs for tag matching.

use mlx5_wire::firmware::srq::{
    ArmSrq, CreateRmp, CreateXrcSrq, CreateXrq, ModifyRmp, QueryRmpReply, QueryXrcSrqReply, QueryXrqReply, RmpContext,
    XrcSrqContext, XrqContext,
};
use mlx5_wire::firmware::wq::{WorkQueue, kind};

use super::Execution;
use super::capabilities::{GENERAL, LOG_TAGS};
use super::limits;
use super::memory::QueueMemory;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::objects::{Cqn, Pdn, SrqAttr, SrqKind, Srqn};

/// log2 of the smallest WQE: a next segment and a data segment.
const LOG_SMALLEST: u8 = 5;

fn check_queue(log_size: u8, log_stride: u8) -> Result<u64> {
    let largest = u32::from(GENERAL.max_wqe_sz_rq).ilog2() as u8;
    let fits = (LOG_SMALLEST..=largest).contains(&log_stride);
    if log_size > GENERAL.log_max_srq_sz || !fits {
        return Err(Refusal::QUEUE_SIZE);
    }
    Ok(1 << (log_size + log_stride))
}

/// Returns `true` if the WQEs of a queue begin with a next segment, and have nothing else that the device lacks.
fn has_links(queue: &WorkQueue) -> bool {
    matches!(queue.kind, kind::LINKED_LIST | kind::CYCLIC) && !queue.signature
}

/// Returns the memory of a work queue.
pub fn memory_of<'a>(queue: &WorkQueue, list: &'a [u8]) -> QueueMemory<'a> {
    QueueMemory {
        log_page_size: queue.log_page_size,
        page_offset: queue.page_offset,
        list,
        umem_valid: queue.umem_valid,
        umem: (queue.umem_id, queue.umem_offset),
        record: queue.dbr_addr,
        record_umem_valid: queue.dbr_umem_valid,
        record_umem: queue.dbr_umem_id,
    }
}

impl Execution<'_> {
    pub(super) fn create_rmp(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let CreateRmp { context, .. } = command.parse()?;
        let (queue, uid) = (context.queue, command.uid());
        if context.basic_cyclic || !has_links(&queue) {
            return Err(Refusal::WQ_KIND);
        }
        let len = check_queue(queue.log_size, queue.log_stride)?;
        let mut uses = vec![self.state.objects.check_use(Id(Kind::Pd, queue.pd), uid)?];
        let list = command.after::<CreateRmp>();
        let found = self.locate(&memory_of(&queue, list), len, uid)?;
        uses.extend(found.uses);
        let attr = SrqAttr {
            pd: Pdn(queue.pd),
            kind: SrqKind::Basic,
            buf: found.ring,
            dbrec: found.record,
            wqe_count: 1 << queue.log_size,
            wqe_shift: queue.log_stride.into(),
            user_index: 0,
            limit: queue.lwm.into(),
            cyclic: queue.kind == kind::CYCLIC,
        };
        let srq = self.nic.create_srq_in(attr, &found.spaces)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Rmp, srq.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, srq.0)
    }

    pub(super) fn create_xrc_srq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let CreateXrcSrq { context, .. } = command.parse()?;
        let uid = command.uid();
        let log_stride = context.log_stride + 4;
        let len = check_queue(context.log_size, log_stride)?;
        if context.dbr_umem_valid {
            return Err(Refusal::ATTRIBUTES);
        }
        let used = [Id(Kind::Pd, context.pd), Id(Kind::Cq, context.cqn), Id(Kind::Xrcd, context.xrcd)];
        let uses = used.into_iter().map(|id| self.state.objects.check_use(id, uid));
        let mut uses = uses.collect::<Result<Vec<_>>>()?;
        let memory = QueueMemory {
            log_page_size: context.log_page_size,
            page_offset: context.page_offset,
            list: command.after::<CreateXrcSrq>(),
            record: context.dbr_addr,
            ..QueueMemory::default()
        };
        let found = self.locate(&memory, len, uid)?;
        uses.extend(found.uses);
        let attr = SrqAttr {
            pd: Pdn(context.pd),
            kind: SrqKind::Xrc { xrcd: context.xrcd, cq: Cqn(context.cqn) },
            buf: found.ring,
            dbrec: found.record,
            wqe_count: 1 << context.log_size,
            wqe_shift: log_stride.into(),
            user_index: context.user_index,
            limit: context.lwm.into(),
            cyclic: false,
        };
        let srq = self.nic.create_srq_in(attr, &found.spaces)?;
        let context = context.to_bytes().to_vec();
        let entry = Entry { uid, uses, context, ..Entry::default() };
        self.state.objects.insert(Id(Kind::XrcSrq, srq.0), entry);
        created(output, srq.0)
    }

    pub(super) fn create_xrq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        const TAG_MATCHING: u8 = 1;
        const RENDEZVOUS: u8 = 1;
        let CreateXrq { context, .. } = command.parse()?;
        let (queue, uid) = (context.queue, command.uid());
        if !has_links(&queue) {
            return Err(Refusal::WQ_KIND);
        }
        if context.topology != TAG_MATCHING || context.offload != RENDEZVOUS || context.dc {
            return Err(Refusal::ATTRIBUTES);
        }
        if !(1..=LOG_TAGS).contains(&context.log_list_size) {
            return Err(Refusal::QUEUE_SIZE);
        }
        let len = check_queue(queue.log_size, queue.log_stride)?;
        let used = [Id(Kind::Pd, queue.pd), Id(Kind::Cq, context.cqn)];
        let uses = used.into_iter().map(|id| self.state.objects.check_use(id, uid));
        let mut uses = uses.collect::<Result<Vec<_>>>()?;
        let found = self.locate(&memory_of(&queue, command.after::<CreateXrq>()), len, uid)?;
        uses.extend(found.uses);
        let max_tags = (1 << context.log_list_size) - 1;
        let attr = SrqAttr {
            pd: Pdn(queue.pd),
            kind: SrqKind::TagMatching { cq: Cqn(context.cqn), max_tags, max_ops: limits::MAX_TAG_OPS },
            buf: found.ring,
            dbrec: found.record,
            wqe_count: 1 << queue.log_size,
            wqe_shift: queue.log_stride.into(),
            user_index: context.user_index,
            limit: queue.lwm.into(),
            cyclic: queue.kind == kind::CYCLIC,
        };
        let srq = self.nic.create_srq_in(attr, &found.spaces)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Xrq, srq.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, srq.0)
    }

    pub(super) fn modify_rmp(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const LIMIT: u64 = 1 << 0;
        let modify: ModifyRmp = command.parse()?;
        self.state.objects.find(Id(Kind::Rmp, modify.rmpn), command.uid())?;
        if modify.bitmask & !LIMIT != 0 {
            return Err(Refusal::FIELDS);
        }
        if modify.bitmask & LIMIT != 0 {
            let limit = modify.context.queue.lwm;
            self.nic.modify_srq_limit(Srqn(modify.rmpn), limit.into())?;
        }
        Ok(())
    }

    /// Sets the limit of the SRQ that ARM_RQ names.
    pub(super) fn arm_rq(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const SRQ: u16 = 1;
        const XRQ: u16 = 2;
        match command.request.op_mod {
            SRQ => self.arm_srq(Kind::Rmp, command),
            XRQ => self.arm_srq(Kind::Xrq, command),
            _ => Err(Refusal::UNKNOWN_MODIFIER),
        }
    }

    pub(super) fn arm_xrc_srq(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const SRQ: u16 = 1;
        if command.request.op_mod != SRQ {
            return Err(Refusal::UNKNOWN_MODIFIER);
        }
        self.arm_srq(Kind::XrcSrq, command)
    }

    pub(super) fn arm_srq(&mut self, kind: Kind, command: &Command) -> Result {
        let ArmSrq { srqn, lwm, .. } = command.parse()?;
        self.state.objects.find(Id(kind, srqn), command.uid())?;
        Ok(self.nic.modify_srq_limit(Srqn(srqn), lwm.into())?)
    }

    pub(super) fn query_rmp(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Rmp, number), command.uid())?;
        let mut context = RmpContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        context.queue.lwm = self.nic.srq_limit(Srqn(number))? as u16;
        answer(output, QueryRmpReply { context })
    }

    pub(super) fn query_xrq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::Xrq, number), command.uid())?;
        let mut context = XrqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        context.queue.lwm = self.nic.srq_limit(Srqn(number))? as u16;
        let tags = self.nic.tag_list(Srqn(number))?;
        (context.hw_phase, context.sw_phase) = (tags.hw_phase(), tags.sw_phase());
        context.append_next_index = tags.next();
        answer(output, QueryXrqReply { context })
    }

    pub(super) fn query_xrc_srq(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let number = command.number()?;
        let entry = self.state.objects.find(Id(Kind::XrcSrq, number), command.uid())?;
        let context = XrcSrqContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let lwm = self.nic.srq_limit(Srqn(number))? as u16;
        answer(output, QueryXrcSrqReply { context: XrcSrqContext { lwm, ..context } })
    }
}
