//! SRQs for tag matching.

use std::sync::Arc;

use mlx5_ring::srq;
use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::srq::{CreateXrq, XrqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind};
use mlx5_wire::next::NextSegment;
use rdma_core_sys::{self as sys, Mlx5dv};

use super::{Firmware, Object, QueueMemory};
use crate::error::Result;
use crate::mlx5;
use crate::pd::ProtectionDomain;

/// Bytes of a WQE: a link and one data segment.
const STRIDE: u32 = 32;

/// An SRQ for tag matching (XRQ).
pub(crate) struct Xrq {
    object: Object,
    slots: u32,
}

impl Xrq {
    /// Makes an SRQ with at least `max_wr` receives and a list of `max_tags`, which completes on `cq`. The queue is a
    /// list, as that of an SRQ of verbs: its slots may be posted in any order.
    pub(crate) fn create(
        pd: &ProtectionDomain,
        mlx5dv: &'static Mlx5dv,
        cq: *mut sys::ibv_cq,
        max_wr: u32,
        max_tags: u32,
    ) -> Result<Self> {
        const TAG_MATCHING: u8 = 1;
        const RENDEZVOUS: u8 = 1;
        let context = pd.context();
        let cqn = mlx5::cqn(mlx5dv, cq).map_err(|error| context.not_direct(error))?;
        let firmware = Firmware::new(pd, mlx5dv)?;
        let slots = (max_wr + 1).next_power_of_two();
        let memory = QueueMemory::new(context, mlx5dv, (slots * STRIDE) as usize)?;
        for slot in 0..slots {
            let next = NextSegment::new(((slot + 1) % slots) as u16);
            // SAFETY: the slot lies in the ring, which the device does not have yet.
            unsafe { memory.ring().add((slot * STRIDE) as usize).cast().write(next.to_bytes()) };
        }
        let queue = WorkQueue {
            kind: kind::LINKED_LIST,
            pd: firmware.pdn(),
            dbr_addr: memory.record_offset(),
            dbr_umem_id: memory.umem_id(),
            umem_id: memory.umem_id(),
            log_stride: STRIDE.ilog2() as u8,
            log_size: slots.ilog2() as u8,
            ..WorkQueue::ZERO
        };
        let context = XrqContext {
            topology: TAG_MATCHING,
            offload: RENDEZVOUS,
            cqn,
            // As the driver of Linux computes it (`create_srq_user`).
            log_list_size: max_tags.ilog2() as u8 + 1,
            queue,
            ..XrqContext::ZERO
        };
        let create = CreateXrq { request: Request::new(Opcode::CREATE_XRQ), context };
        Ok(Self { object: firmware.create(&create.to_bytes(), memory)?, slots })
    }

    /// Returns its number.
    pub(crate) const fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) const fn firmware(&self) -> &Arc<Firmware> {
        self.object.firmware()
    }

    /// Returns where the queue is.
    pub(crate) fn layout(&self) -> srq::Layout {
        let memory = self.object.memory();
        srq::Layout { buf: memory.ring(), dbrec: memory.record(), stride: STRIDE, head: 0, tail: self.slots - 1 }
    }

    /// Destroys the SRQ; returns `false` if the firmware refuses.
    pub(crate) fn destroy(&mut self) -> bool {
        self.object.destroy()
    }
}
