//! The verbs objects of a device that matches tags.

use std::sync::Arc;

use rdma_core_sys::{self as sys, Mlx5dv};

use super::config::TagMatchingConfig;
use crate::context::Context;
use crate::cq::CqCore;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, ReceiveSide, SendSide};
use crate::srq::Srq;

/// A tag-matching SRQ and its CQ, which is that of nothing else.
pub(super) struct Objects {
    pub(super) srq: Arc<Srq>,
    pub(super) cq: CqCore,
    /// List operations that can be outstanding.
    pub(super) operations: u32,
}

impl Objects {
    /// Makes the objects. On RoCE libmlx5 refuses the SRQ, for its own queue pair for list operations knows InfiniBand
    /// only; where the library drives the queues (`mlx5dv`), commands of the firmware make the SRQ then.
    pub(super) fn create(
        pd: &ProtectionDomain,
        config: &TagMatchingConfig,
        mlx5dv: Option<&'static Mlx5dv>,
    ) -> Result<Self> {
        let caps = capabilities(pd.context())?;
        let tags = u32::from(config.max_tags);
        let max_tags = caps.max_num_tags.min(mlx5_ring::tag_list::MAX_TAGS.into());
        if caps.flags & sys::IBV_TM_CAP_RC == 0 || max_tags == 0 {
            return Err(Error::Unsupported {
                operation: "tag matching by the device",
                when: "on this device: use Offload::Auto or Offload::Never",
            });
        }
        Error::check_range(
            "max_tags (of a list on the device; Offload::Never allows 65535)",
            tags.into(),
            1,
            max_tags.into(),
        )?;
        // An entry is used again when the CQEs of its append and of its remove have come, and one
        // synchronisation is outstanding at a time: no operation ever finds the queue full.
        let operations = 2 * (tags + 1) + 2;
        Error::check_range("list operations", operations.into(), 1, caps.max_ops.into())?;
        // Receives, and for each tag: append, remove, match, data.
        let cqes = config.receives() + 4 * (tags + 1) + 8;
        let cq = CqCore::create_for_tags(pd.context(), &config.cq_of(cqes))?;
        let (raw, max_wr) = (cq.object.as_raw(), config.max_wr);
        let srq = Srq::create_tagged(pd, raw, max_wr, tags, operations).or_else(|refused| match mlx5dv {
            Some(mlx5dv) => Srq::create_tagged_by_command(pd, mlx5dv, raw, max_wr, tags),
            None => Err(refused),
        })?;
        Ok(Self { srq: Arc::new(srq), cq, operations })
    }

    pub(super) fn create_qp(&self, pd: &ProtectionDomain, config: &QpConfig, send: SendSide) -> Result<QueuePair> {
        let cq = Arc::clone(&self.cq.object);
        let receive =
            ReceiveSide { srq: Some(Arc::clone(&self.srq)), mlx5dv: self.cq.mlx5dv(), ..ReceiveSide::idle(cq) };
        QueuePair::create(pd, config, receive, send)
    }
}

/// Returns the capabilities of the device (`ibv_query_device_ex(3)`).
fn capabilities(context: &Context) -> Result<sys::ibv_tm_caps> {
    let mut attr = sys::ibv_device_attr_ex::default();
    // SAFETY: an open context and a writable structure.
    let errno = unsafe { sys::ibv_query_device_ex(context.as_raw(), std::ptr::null(), &mut attr) };
    if errno != 0 {
        return Err(Error::returned("ibv_query_device_ex", context.name(), errno));
    }
    Ok(attr.tm_caps)
}
