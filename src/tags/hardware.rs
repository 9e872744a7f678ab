//! The verbs objects of a device that matches tags.

use std::sync::Arc;

use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::config::TagMatchingConfig;
use crate::context::Context;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};
use crate::receiver::Srq;

/// A tag-matching SRQ and its CQ, which is that of nothing else.
pub(super) struct Objects {
    pub(super) srq: Arc<Srq>,
    pub(super) cq: Arc<Cq>,
    /// List operations that can be outstanding.
    pub(super) operations: u32,
}

/// Fields that `ibv_wc_read_*` reports.
const WC_FLAGS: u32 =
    sys::IBV_WC_EX_WITH_BYTE_LEN | sys::IBV_WC_EX_WITH_QP_NUM | sys::IBV_WC_EX_WITH_TM_INFO;

impl Objects {
    pub(super) fn create(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Self> {
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
        let cq = Arc::new(Cq::create_for_tags(pd.context(), cqes, WC_FLAGS)?);
        let srq = Arc::new(Srq::create_tagged(pd, &cq, config.slots, tags, operations)?);
        Ok(Self { srq, cq, operations })
    }

    pub(super) fn create_qp(
        &self,
        pd: &ProtectionDomain,
        config: &QpConfig,
        mlx5dv: Option<&'static Mlx5dv>,
        send: SendSide,
    ) -> Result<QueuePair> {
        let config = config.clone().foreign_srq();
        let (cq, srq) = (Arc::clone(&self.cq), Arc::clone(&self.srq));
        QueuePair::create(pd, &config, cq, Some(srq), mlx5dv, send)
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
