//! Names that the headers define as macros over the names of the kernel's headers.

use crate::{
    IB_UVERBS_ACCESS_OPTIONAL_RANGE, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, IB_UVERBS_QPF_GRH_REQUIRED, MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF,
    MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, ib_uverbs_advise_mr_advice,
};
use core::ffi::{c_uint, c_void};

/// The access flags that the kernel may drop.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = IB_UVERBS_ACCESS_OPTIONAL_RANGE;
/// In `ibv_port_attr::flags`: every address on this port needs a GRH.
pub const IBV_QPF_GRH_REQUIRED: u8 = IB_UVERBS_QPF_GRH_REQUIRED as u8;
/// Advice: the range will be read.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
/// Advice: the range will be written.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
/// Advice: the range will be read, but pages that are not there stay away.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice =
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
/// Returned by an allocator of a parent domain to leave the allocation to the provider.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;
/// A UAR that is mapped write-combining (BlueFlame).
pub const MLX5DV_UAR_ALLOC_TYPE_BF: u32 = MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF;
/// A UAR that is not cached: doorbells only.
pub const MLX5DV_UAR_ALLOC_TYPE_NC: u32 = MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC;
/// Fields of an extended completion that `ibv_wc` has, too.
pub const IBV_WC_STANDARD_FLAGS: u32 = crate::IBV_WC_EX_WITH_BYTE_LEN
    | crate::IBV_WC_EX_WITH_IMM
    | crate::IBV_WC_EX_WITH_QP_NUM
    | crate::IBV_WC_EX_WITH_SRC_QP
    | crate::IBV_WC_EX_WITH_SLID
    | crate::IBV_WC_EX_WITH_SL
    | crate::IBV_WC_EX_WITH_DLID_PATH_BITS;
