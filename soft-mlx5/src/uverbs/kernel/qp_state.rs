//! Which attributes each state change of a QP needs and allows: the table of the InfiniBand
//! specification as the core enforces it.

use crate::objects::{QpState, Service};

/// `IBV_QP_*` attribute bits.
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const DEST_QPN: u32 = 1 << 20;
    /// Only in the extended command.
    pub const RATE_LIMIT: u32 = 1 << 25;

    /// All bits of the first form of the command.
    pub const STANDARD: u32 = (1 << 21) - 1;
}
use mask::*;

struct Change {
    needs: u32,
    takes: u32,
}

/// Returns `true` if a QP of this service may change from one state to the other with these attributes.
pub fn is_allowed(from: QpState, to: QpState, service: Service, given: u32) -> bool {
    use QpState::{Rtr, Rts, Sqd, Sqe};
    if given & CUR_STATE != 0 && !matches!(from, Rtr | Rts | Sqd | Sqe) {
        return false;
    }
    let Some(change) = change(from, to, service) else { return false };
    given & change.needs == change.needs && given & !(change.needs | change.takes | STATE) == 0
}

fn change(from: QpState, to: QpState, service: Service) -> Option<Change> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = Change { needs: 0, takes: 0 };
    if service == Service::Dc {
        return change_of_initiator(from, to);
    }
    Some(match (from, to) {
        (_, Reset) => none,
        (Reset, Init) => Change { needs: identity(service), takes: 0 },
        (Reset, _) => return None,
        (_, Err) => none,
        (Init, Init) => Change { needs: 0, takes: identity(service) },
        (Init, Rtr) => init_to_rtr(service),
        (Rtr, Rts) => rtr_to_rts(service),
        (Rts, Rts) | (Sqd, Rts) => Change { needs: 0, takes: CUR_STATE | while_sending(service) },
        (Rts, Sqd) => Change { needs: 0, takes: EN_SQD_ASYNC_NOTIFY },
        (Sqd, Sqd) => Change { needs: 0, takes: while_drained(service) },
        (Sqe, Rts) => match service {
            Service::Rc | Service::Dc => none,
            Service::Uc => Change { needs: 0, takes: CUR_STATE | ACCESS_FLAGS },
            Service::Ud => Change { needs: 0, takes: CUR_STATE | QKEY },
            Service::Raw => Change { needs: 0, takes: CUR_STATE },
        },
        _ => return None,
    })
}

fn identity(service: Service) -> u32 {
    match service {
        Service::Rc | Service::Uc => PKEY_INDEX | PORT | ACCESS_FLAGS,
        Service::Ud => PKEY_INDEX | PORT | QKEY,
        Service::Raw => PORT,
        Service::Dc => PKEY_INDEX | PORT,
    }
}

fn init_to_rtr(service: Service) -> Change {
    let path = AV | PATH_MTU | DEST_QPN | RQ_PSN;
    let connected = ALT_PATH | ACCESS_FLAGS | PKEY_INDEX;
    match service {
        Service::Rc => Change { needs: path | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, takes: connected },
        Service::Uc => Change { needs: path, takes: connected },
        Service::Ud => Change { needs: 0, takes: PKEY_INDEX | QKEY },
        Service::Raw => Change { needs: 0, takes: 0 },
        Service::Dc => Change { needs: PATH_MTU, takes: PKEY_INDEX | AV },
    }
}

/// The driver's own table for initiators of dynamic connections, which name no state of theirs and are never drained.
fn change_of_initiator(from: QpState, to: QpState) -> Option<Change> {
    use QpState::{Err, Init, Reset, Rtr, Rts};
    let none = Change { needs: 0, takes: 0 };
    Some(match (from, to) {
        (_, Reset) => none,
        (Reset, Init) => Change { needs: identity(Service::Dc), takes: 0 },
        (Init, Init) => Change { needs: 0, takes: identity(Service::Dc) },
        (Init, Rtr) => init_to_rtr(Service::Dc),
        (Rtr, Rts) => Change { takes: while_sending(Service::Dc), ..rtr_to_rts(Service::Dc) },
        (Rts, Rts) => Change { needs: 0, takes: while_sending(Service::Dc) },
        (Init | Rtr | Rts | Err, Err) => none,
        _ => return None,
    })
}

/// Returns `true` if a target of dynamic connections may change from one state to the other with exactly these
/// attributes. It stays in RTR for life.
pub fn is_allowed_for_target(from: QpState, to: QpState, given: u32) -> bool {
    match (from, to) {
        (QpState::Reset, QpState::Init) => given == STATE | ACCESS_FLAGS | PKEY_INDEX | PORT,
        (QpState::Init, QpState::Rtr) => given == STATE | MIN_RNR_TIMER | AV | PATH_MTU,
        _ => false,
    }
}

fn rtr_to_rts(service: Service) -> Change {
    let needs = match service {
        Service::Rc | Service::Dc => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
        Service::Uc | Service::Ud => SQ_PSN,
        Service::Raw => 0,
    };
    Change { needs, takes: CUR_STATE | while_sending(service) }
}

fn while_sending(service: Service) -> u32 {
    match service {
        Service::Rc => ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER,
        Service::Uc => ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE,
        Service::Ud => QKEY,
        Service::Raw => 0,
        Service::Dc => MIN_RNR_TIMER,
    }
}

fn while_drained(service: Service) -> u32 {
    let connected = AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE;
    let reliable = PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    match service {
        Service::Rc => connected | reliable,
        Service::Uc => connected,
        Service::Ud => PKEY_INDEX | QKEY,
        Service::Raw | Service::Dc => 0,
    }
}

/// Returns `true` if the device has a command for the change. No command drains the send queue on
/// request.
pub fn device_can(from: QpState, to: QpState) -> bool {
    to != QpState::Sqd || from == QpState::Sqd
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    const INIT_RC: u32 = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    const RTR_RC: u32 = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    const RTS_RC: u32 = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;

    #[test]
    fn an_rc_qp_comes_up_with_exactly_the_attributes_of_the_specification() {
        for (from, to, mask) in [(Reset, Init, INIT_RC), (Init, Rtr, RTR_RC), (Rtr, Rts, RTS_RC)] {
            assert!(is_allowed(from, to, Service::Rc, mask));
            for bit in 0..21 {
                let bit = 1 << bit;
                if mask & bit != 0 && bit != STATE {
                    assert!(!is_allowed(from, to, Service::Rc, mask & !bit), "{from:?} {bit:#x}");
                }
            }
            assert!(!is_allowed(from, to, Service::Rc, mask | QKEY));
        }
        assert!(is_allowed(Init, Rtr, Service::Rc, RTR_RC | PKEY_INDEX | ACCESS_FLAGS));
        assert!(!is_allowed(Init, Rtr, Service::Rc, RTR_RC | PORT));
    }

    #[test]
    fn a_ud_qp_needs_a_qkey_and_no_path() {
        assert!(is_allowed(Reset, Init, Service::Ud, STATE | PKEY_INDEX | PORT | QKEY));
        assert!(!is_allowed(Reset, Init, Service::Ud, INIT_RC));
        assert!(is_allowed(Init, Rtr, Service::Ud, STATE));
        assert!(!is_allowed(Init, Rtr, Service::Ud, STATE | AV));
        assert!(is_allowed(Rtr, Rts, Service::Ud, STATE | SQ_PSN));
    }

    #[test]
    fn an_initiator_and_a_target_have_masks_of_their_own() {
        let rts = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | SQ_PSN;
        let legal =
            [(Reset, Init, 0x31), (Init, Init, 1), (Init, Rtr, 0x101), (Rtr, Rts, rts), (Rts, Err, 1), (Err, Reset, 1)];
        for (from, to, mask) in legal {
            assert!(is_allowed(from, to, Service::Dc, mask), "{from:?} {to:?}");
            for more in [ACCESS_FLAGS, CUR_STATE, DEST_QPN] {
                assert!(!is_allowed(from, to, Service::Dc, mask | more), "{from:?} {to:?} {more:#x}");
            }
        }
        assert_eq!(rts, 0x12e01);
        assert!(is_allowed(Init, Rtr, Service::Dc, 0x101 | AV | PKEY_INDEX));
        assert!(!is_allowed(Init, Rtr, Service::Dc, 1) && !is_allowed(Rts, Sqd, Service::Dc, 1));
        assert!(is_allowed_for_target(Reset, Init, 0x39) && is_allowed_for_target(Init, Rtr, 0x8181));
        for (from, to, mask) in
            [(Reset, Init, 0x31), (Init, Init, 1), (Init, Rtr, 0x8101), (Rtr, Err, 1), (Rtr, Reset, 1)]
        {
            assert!(!is_allowed_for_target(from, to, mask), "{from:?} {to:?}");
        }
    }

    #[test]
    fn states_cannot_be_skipped() {
        let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        let legal: &[(QpState, &[QpState])] = &[
            (Reset, &[Reset, Init]),
            (Init, &[Reset, Init, Rtr, Err]),
            (Rtr, &[Reset, Rts, Err]),
            (Rts, &[Reset, Rts, Sqd, Err]),
            (Sqd, &[Reset, Rts, Sqd, Err]),
            (Sqe, &[Reset, Rts, Err]),
            (Err, &[Reset, Err]),
        ];
        for (from, to) in legal {
            for state in states {
                let known = change(*from, state, Service::Uc).is_some();
                assert_eq!(known, to.contains(&state), "{from:?} to {state:?}");
            }
        }
    }

    #[test]
    fn the_current_state_may_be_named_only_where_the_device_changes_it() {
        assert!(is_allowed(Rts, Rts, Service::Rc, STATE | CUR_STATE));
        assert!(!is_allowed(Init, Init, Service::Rc, STATE | CUR_STATE));
        assert!(!is_allowed(Rts, Reset, Service::Rc, STATE | CUR_STATE));
        assert!(!device_can(Rts, Sqd));
        assert!(device_can(Rts, Rts));
    }
}
