//! Attributes of a device and its ports, and optional features ([`Context::capabilities`]).

use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use crate::context::Context;
use crate::error::{Error, Result};

pub use crate::attributes::{DeviceAttr, LinkLayer, PortAttr, PortState};

/// Features of a device beyond [`Context::attr`], from [`Context::capabilities`].
///
/// ```
/// # let _device = doorbell_doc::device();
/// let context = doorbell::open("mlx5_0")?;
/// match context.capabilities()?.tag_matching {
///     Some(caps) => println!("a list of {} tags", caps.max_num_tags),
///     None => println!("no tag matching"),
/// }
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Hardware tag matching; `None` without it.
    pub tag_matching: Option<TagMatchingCaps>,
    /// Compression of CQEs; `None` without it, and on devices that are not mlx5.
    pub cqe_compression: Option<CqeCompressionCaps>,
    /// Timestamps in completions; `None` without them.
    pub timestamps: Option<TimestampCaps>,
    /// `true` if one WQE can send many frames (`MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED` and `_ENHANCED_MPW`), see
    /// [`Posting::send_frames`](crate::Posting::send_frames).
    pub multi_packet_sends: bool,
}

/// Hardware tag matching (`struct ibv_tm_caps`).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::tags::{Offload, TagMatchingConfig, TagMatchingSrq};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let config = match pd.context().capabilities()?.tag_matching {
///     // As long a list as the device has, and matched by it or not at all.
///     Some(caps) if caps.rc => TagMatchingConfig::new(caps.max_num_tags.min(1000) as u16)
///         .offload(Offload::Required),
///     _ => TagMatchingConfig::new(1000).offload(Offload::Never),
/// };
/// let tags = TagMatchingSrq::new(&pd, &config)?;
/// println!("matched by the device: {}", tags.offload());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagMatchingCaps {
    /// Tags that a matching list holds.
    pub max_num_tags: u32,
    /// List operations that can be outstanding.
    pub max_ops: u32,
    /// Buffers that a tagged receive can have.
    pub max_sge: u32,
    /// Largest header of a rendezvous in bytes.
    pub max_rndv_hdr_size: u32,
    /// `true` if matching works on reliable connections (`IBV_TM_CAP_RC`).
    pub rc: bool,
}

/// Compression of CQEs (`struct mlx5dv_cqe_comp_caps`).
///
/// ```
/// # let _device = doorbell_doc::device();
/// let caps = doorbell::open("mlx5_0")?.capabilities()?;
/// if let Some(compression) = caps.cqe_compression {
///     println!("up to {} completions in one block", compression.max_num);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqeCompressionCaps {
    /// Most completions in one compressed block.
    pub max_num: u32,
    /// Mini CQEs that carry the hash (`MLX5DV_CQE_RES_FORMAT_HASH`).
    pub hash: bool,
    /// Mini CQEs that carry the checksum (`MLX5DV_CQE_RES_FORMAT_CSUM`).
    pub checksum: bool,
    /// Mini CQEs that carry the checksum and the index of a stride
    /// (`MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX`).
    pub checksum_stride_index: bool,
    /// `true` if CQs of 128-byte CQEs can be compressed (`MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP`).
    pub cqe_128: bool,
}

/// Timestamps in completions (`ibv_query_device_ex(3)`).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Timestamps};
///
/// let config = match doorbell::open("mlx5_0")?.capabilities()?.timestamps {
///     Some(caps) if caps.real_time => CqConfig::new(4096).timestamps(Timestamps::RealTime),
///     Some(_) => CqConfig::new(4096).timestamps(Timestamps::Ticks),
///     None => CqConfig::new(4096),
/// };
/// # let _ = config;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimestampCaps {
    /// Mask of the valid bits of a timestamp.
    pub mask: u64,
    /// Frequency of the free-running clock in kHz; 0 if the driver does not report it.
    pub clock_khz: u64,
    /// `true` if timestamps can be in real time (`MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS`) instead of ticks of the
    /// free-running clock: see [`Timestamps::RealTime`](crate::Timestamps::RealTime).
    pub real_time: bool,
}

impl Context {
    /// Returns what the device supports beyond [`attr`](Self::attr) (`ibv_query_device_ex(3)`,
    /// `mlx5dv_query_device(3)`).
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn capabilities(&self) -> Result<Capabilities> {
        let mut attr = sys::ibv_device_attr_ex::default();
        // SAFETY: an open context and a writable structure.
        let errno = unsafe { sys::ibv_query_device_ex(self.as_raw(), std::ptr::null(), &mut attr) };
        if errno != 0 {
            return Err(Error::returned("ibv_query_device_ex", self.name(), errno));
        }
        let mlx5 = match self.mlx5dv() {
            Some(mlx5dv) => Some(query_mlx5(self, mlx5dv)?),
            None => None,
        };
        Ok(capabilities(&attr, mlx5.as_ref()))
    }

    /// Returns `true` if the device compresses CQEs in this format.
    pub(crate) fn compresses(&self, mlx5dv: &Mlx5dv, format: MiniCqeFormat) -> Result<bool> {
        let sys::mlx5dv_cqe_comp_caps { max_num, supported_format } = query_mlx5(self, mlx5dv)?.cqe_comp_caps;
        Ok(max_num > 0 && supported_format & format as u32 != 0)
    }

    /// Returns `true` if the device sends many frames with one WQE.
    pub(crate) fn sends_multi_packet(&self, mlx5dv: &Mlx5dv) -> Result<bool> {
        Ok(has_multi_packet_sends(&query_mlx5(self, mlx5dv)?))
    }

    /// Returns `true` if the device has timestamps in real time.
    pub(crate) fn has_real_time(&self) -> Result<bool> {
        let real_time = u64::from(sys::MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS);
        match self.mlx5dv() {
            Some(mlx5dv) => Ok(query_mlx5(self, mlx5dv)?.flags & real_time != 0),
            None => Ok(false),
        }
    }
}

pub(crate) fn query_mlx5(context: &Context, mlx5dv: &Mlx5dv) -> Result<sys::mlx5dv_context> {
    // libmlx5 fills the fields that `comp_mask` names, and always the flags.
    let mut attr = sys::mlx5dv_context {
        comp_mask: (sys::MLX5DV_CONTEXT_MASK_CQE_COMPRESION | sys::MLX5DV_CONTEXT_MASK_STRIDING_RQ).into(),
        ..Default::default()
    };
    // SAFETY: an open context of libmlx5 and a writable structure.
    let errno = unsafe { (mlx5dv.query_device)(context.as_raw(), &mut attr) };
    if errno != 0 {
        return Err(Error::returned("mlx5dv_query_device", context.name(), errno));
    }
    Ok(attr)
}

/// DPDK wants both flags, too. Adapters that need an inline header, which these WQEs have not, report neither: they are
/// older than the enhanced form.
const fn has_multi_packet_sends(mlx5: &sys::mlx5dv_context) -> bool {
    const FLAGS: u64 = (sys::MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED | sys::MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW) as u64;
    mlx5.flags & FLAGS == FLAGS
}

fn capabilities(attr: &sys::ibv_device_attr_ex, mlx5: Option<&sys::mlx5dv_context>) -> Capabilities {
    let flag = |flag: u32| mlx5.is_some_and(|mlx5| mlx5.flags & u64::from(flag) != 0);
    let tm = &attr.tm_caps;
    let tag_matching = (tm.max_num_tags > 0).then_some(TagMatchingCaps {
        max_num_tags: tm.max_num_tags,
        max_ops: tm.max_ops,
        max_sge: tm.max_sge,
        max_rndv_hdr_size: tm.max_rndv_hdr_size,
        rc: tm.flags & sys::IBV_TM_CAP_RC != 0,
    });
    let compression = mlx5
        .filter(|mlx5| mlx5.comp_mask & u64::from(sys::MLX5DV_CONTEXT_MASK_CQE_COMPRESION) != 0)
        .map(|mlx5| mlx5.cqe_comp_caps)
        .filter(|caps| caps.max_num > 0);
    let cqe_compression = compression.map(|caps| {
        let format = |format: u32| caps.supported_format & format != 0;
        CqeCompressionCaps {
            max_num: caps.max_num,
            hash: format(sys::MLX5DV_CQE_RES_FORMAT_HASH),
            checksum: format(sys::MLX5DV_CQE_RES_FORMAT_CSUM),
            checksum_stride_index: format(sys::MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX),
            cqe_128: flag(sys::MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP),
        }
    });
    let timestamps = (attr.completion_timestamp_mask != 0).then_some(TimestampCaps {
        mask: attr.completion_timestamp_mask,
        clock_khz: attr.hca_core_clock,
        real_time: flag(sys::MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS),
    });
    let multi_packet_sends = mlx5.is_some_and(has_multi_packet_sends);
    Capabilities { tag_matching, cqe_compression, timestamps, multi_packet_sends }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_reports_nothing_can_do_nothing() {
        let none = capabilities(&Default::default(), None);
        assert_eq!(none, Capabilities::default());
        let mlx5 = sys::mlx5dv_context { flags: sys::MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP.into(), ..Default::default() };
        assert_eq!(capabilities(&Default::default(), Some(&mlx5)), Capabilities::default());
    }

    #[test]
    fn each_bit_is_the_capability_of_its_name() {
        let mut attr = sys::ibv_device_attr_ex {
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 156_250,
            ..Default::default()
        };
        attr.tm_caps.max_num_tags = 127;
        let mut mlx5 = sys::mlx5dv_context {
            comp_mask: sys::MLX5DV_CONTEXT_MASK_CQE_COMPRESION.into(),
            flags: sys::MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS.into(),
            ..Default::default()
        };
        mlx5.cqe_comp_caps.max_num = 64;
        mlx5.cqe_comp_caps.supported_format = sys::MLX5DV_CQE_RES_FORMAT_CSUM;
        let caps = capabilities(&attr, Some(&mlx5));
        assert!(caps.tag_matching.is_some_and(|tm| tm.max_num_tags == 127 && !tm.rc));
        let compression = caps.cqe_compression.unwrap();
        assert!(compression.checksum && !compression.hash && !compression.cqe_128);
        assert!(caps.timestamps.is_some_and(|ts| ts.real_time && ts.clock_khz == 156_250));
        for flag in [sys::MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED, sys::MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW] {
            assert!(!capabilities(&attr, Some(&mlx5)).multi_packet_sends, "both are needed");
            mlx5.flags |= u64::from(flag);
        }
        assert!(capabilities(&attr, Some(&mlx5)).multi_packet_sends);
        // The driver may not have read what it was asked for.
        mlx5.comp_mask = 0;
        assert_eq!(capabilities(&attr, Some(&mlx5)).cqe_compression, None);
    }
}
