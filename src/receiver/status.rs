//! What an error CQE means in the terms of verbs.

use mlx5_wire::syndrome::Syndrome;
use rdma_core_sys as sys;

/// Status of a syndrome, as libmlx5 maps it.
pub(crate) const fn wc_status(syndrome: Syndrome) -> sys::ibv_wc_status {
    match syndrome {
        Syndrome::LOCAL_LENGTH => sys::IBV_WC_LOC_LEN_ERR,
        Syndrome::LOCAL_QP_OP => sys::IBV_WC_LOC_QP_OP_ERR,
        Syndrome::LOCAL_PROT => sys::IBV_WC_LOC_PROT_ERR,
        Syndrome::WR_FLUSH => sys::IBV_WC_WR_FLUSH_ERR,
        Syndrome::MW_BIND => sys::IBV_WC_MW_BIND_ERR,
        Syndrome::BAD_RESP => sys::IBV_WC_BAD_RESP_ERR,
        Syndrome::LOCAL_ACCESS => sys::IBV_WC_LOC_ACCESS_ERR,
        Syndrome::REMOTE_INVAL_REQ => sys::IBV_WC_REM_INV_REQ_ERR,
        Syndrome::REMOTE_ACCESS => sys::IBV_WC_REM_ACCESS_ERR,
        Syndrome::REMOTE_OP => sys::IBV_WC_REM_OP_ERR,
        Syndrome::TRANSPORT_RETRY_EXC => sys::IBV_WC_RETRY_EXC_ERR,
        Syndrome::RNR_RETRY_EXC => sys::IBV_WC_RNR_RETRY_EXC_ERR,
        Syndrome::REMOTE_ABORTED => sys::IBV_WC_REM_ABORT_ERR,
        _ => sys::IBV_WC_GENERAL_ERR,
    }
}
