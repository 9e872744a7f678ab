//! The states of queue pairs. Tests that move queue pairs through them include this file by path.

use rdma_core_sys::*;

/// Returns the attributes that the change of a queue pair to a state names, the state included.
pub fn mask(qp_type: ibv_qp_type, state: ibv_qp_state) -> u32 {
    let of_rc = |mask| if qp_type == IBV_QPT_RC { mask } else { 0 };
    IBV_QP_STATE
        | match (qp_type, state) {
            (IBV_QPT_RAW_PACKET, IBV_QPS_INIT) => IBV_QP_PORT,
            (IBV_QPT_UD, IBV_QPS_INIT) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
            (_, IBV_QPS_INIT) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            (IBV_QPT_RC | IBV_QPT_UC, IBV_QPS_RTR) => {
                IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | of_rc(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
            }
            (IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD, IBV_QPS_RTS) => {
                let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
                IBV_QP_SQ_PSN | of_rc(retries | IBV_QP_MAX_QP_RD_ATOMIC)
            }
            _ => 0,
        }
}

/// Moves a queue pair through states, with the attributes that each state names.
///
/// # Safety
/// The queue pair is alive.
pub unsafe fn to(qp: *mut ibv_qp, states: &[ibv_qp_state], mut attr: ibv_qp_attr) {
    for &state in states {
        attr.qp_state = state;
        // SAFETY: the caller promises that the queue pair is alive.
        let errno = unsafe { ibv_modify_qp(qp, &mut attr, mask((*qp).qp_type, state) as i32) };
        assert_eq!(errno, 0, "to state {state}");
    }
}
