//! MODIFY_QP: the checks of the core and of the driver, then the change.

use super::abi::mlx5;
use super::abi::uverbs::{ExModifyQp, ExModifyQpResp, ModifyQp, QpDest};
use super::errno::{EINVAL, EOPNOTSUPP};
use super::qp::{Qp, QpContext};
use super::qp_state::{self, mask};
use super::udata::{Request, Udata};
use super::{Call, limits};
use crate::fabric::LinkLayer;
use crate::nic::objects::{AddressVector, Grh, QpModify, QpState, Result};

const MIGRATED: u8 = 0;
const PSN_MASK: u32 = 0xff_ffff;

/// Runs MODIFY_QP, first form.
pub fn write_modify(call: &mut Call, request: &Request) -> Result<()> {
    let core: ModifyQp = request.core.input.request()?;
    if core.attr_mask & !mask::STANDARD != 0 {
        return Err(EOPNOTSUPP);
    }
    call.modify_qp(&core)
}

/// Runs MODIFY_QP, extended form.
pub fn write_modify_ex(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExModifyQp = request.core.input.request()?;
    if core.base.attr_mask & !(mask::STANDARD | mask::RATE_LIMIT) != 0 {
        return Err(EOPNOTSUPP);
    }
    check_driver(&request.driver)?;
    if core.base.attr_mask & mask::RATE_LIMIT != 0 {
        // Only raw packet QPs have a rate.
        return Err(EINVAL);
    }
    call.modify_qp(&core.base)?;
    let response_length = request.core.output.len.min(8) as u32;
    request.core.output.respond(&ExModifyQpResp { comp_mask: 0, response_length })
}

fn check_driver(driver: &Udata) -> Result<()> {
    if driver.input.len() == 0 {
        return Ok(());
    }
    if driver.input.len() < 16 {
        return Err(EINVAL);
    }
    let given: mlx5::ModifyQp = driver.input.request()?;
    let burst = given.max_burst_sz != 0 || given.typical_pkt_sz != 0;
    if given.comp_mask != 0 || given.reserved != 0 || burst || given.ece_options != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

fn state(number: u8) -> Result<QpState> {
    Ok(match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return Err(EINVAL),
    })
}

impl Call<'_> {
    fn modify_qp(&mut self, core: &ModifyQp) -> Result<()> {
        let qp = self.get::<Qp>(core.qp_handle)?;
        let (qpn, service, mut context) = (qp.qpn, qp.service, qp.attr);
        let mut wanted = *core;
        self.check_ports(&mut wanted, &context)?;

        let given = wanted.attr_mask;
        let named =
            if given & mask::CUR_STATE != 0 { Some(state(wanted.cur_qp_state)?) } else { None };
        let target = if given & mask::STATE != 0 { Some(state(wanted.qp_state)?) } else { None };
        // The device may have left the state that the driver remembers, and refuses commands for any other state
        // than its own.
        let from = self.nic().query_qp(qpn)?.state;
        if named.is_some_and(|named| named != from) {
            return Err(EINVAL);
        }
        let to = target.unwrap_or(from);
        if given & mask::AV != 0 {
            self.check_path(&wanted.dest)?;
        }
        if !qp_state::is_allowed(from, to, service, given) {
            return Err(EINVAL);
        }
        check_values(&wanted)?;
        if !qp_state::device_can(from, to) {
            return Err(EINVAL);
        }

        let mut change = change(&wanted);
        change.state = target;
        self.nic().modify_qp(qpn, &change)?;
        remember(&mut context, &wanted, to);
        self.get_mut::<Qp>(core.qp_handle)?.attr = context;
        Ok(())
    }

    // A new path names its port; on the way to RTR it must be the port of INIT, later it is a
    // change of port.
    fn check_ports(&self, wanted: &mut ModifyQp, context: &QpContext) -> Result<()> {
        let given = wanted.attr_mask;
        if given & mask::PORT != 0 && wanted.port_num != 1 {
            return Err(EINVAL);
        }
        if given & mask::AV != 0 {
            if wanted.dest.port_num != 1 {
                return Err(EINVAL);
            }
            let to_rtr = given & mask::STATE != 0 && wanted.qp_state == QpState::Rtr as u8;
            if to_rtr && wanted.dest.port_num != context.port {
                return Err(EINVAL);
            }
            if !to_rtr && given & mask::PORT == 0 {
                wanted.attr_mask |= mask::PORT;
                wanted.port_num = wanted.dest.port_num;
            }
        }
        // Alternate paths are not offered.
        if given & mask::ALT_PATH != 0 { Err(EINVAL) } else { Ok(()) }
    }

    fn check_path(&mut self, dest: &QpDest) -> Result<()> {
        let global = dest.is_global != 0;
        if self.core.link == LinkLayer::Ethernet && !global {
            return Err(EINVAL);
        }
        if global {
            self.check_gid(1, dest.sgid_index, &dest.dgid)?;
        }
        // IBV_RATE_MAX, or one of the rates up to 800 Gb/s except the unused number 1.
        if dest.static_rate == 1 || dest.static_rate > 25 { Err(EINVAL) } else { Ok(()) }
    }
}

fn check_values(wanted: &ModifyQp) -> Result<()> {
    let given = |bit| wanted.attr_mask & bit != 0;
    let fits = (!given(mask::PKEY_INDEX) || wanted.pkey_index < limits::PKEYS)
        && (!given(mask::MAX_QP_RD_ATOMIC) || wanted.max_rd_atomic <= limits::MAX_RD_ATOMIC)
        && (!given(mask::MAX_DEST_RD_ATOMIC) || wanted.max_dest_rd_atomic <= limits::MAX_RD_ATOMIC)
        && (!given(mask::PATH_MTU) || (1..=5).contains(&wanted.path_mtu))
        && (!given(mask::PATH_MIG_STATE) || wanted.path_mig_state == MIGRATED);
    if fits { Ok(()) } else { Err(EINVAL) }
}

fn change(wanted: &ModifyQp) -> QpModify {
    macro_rules! given {
        ($bit:ident, $value:expr) => {
            // A value that is not given may be anything.
            (wanted.attr_mask & mask::$bit != 0).then(|| $value)
        };
    }
    QpModify {
        state: None,
        access: given!(ACCESS_FLAGS, wanted.qp_access_flags),
        pkey_index: given!(PKEY_INDEX, wanted.pkey_index),
        port: given!(PORT, wanted.port_num),
        qkey: given!(QKEY, wanted.qkey),
        av: given!(AV, address_vector(&wanted.dest)),
        path_mtu: given!(PATH_MTU, 128 << wanted.path_mtu),
        dest_qpn: given!(DEST_QPN, wanted.dest_qp_num & PSN_MASK),
        rq_psn: given!(RQ_PSN, wanted.rq_psn & PSN_MASK),
        sq_psn: given!(SQ_PSN, wanted.sq_psn & PSN_MASK),
        max_dest_rd_atomic: given!(MAX_DEST_RD_ATOMIC, wanted.max_dest_rd_atomic),
        max_rd_atomic: given!(MAX_QP_RD_ATOMIC, wanted.max_rd_atomic),
        min_rnr_timer: given!(MIN_RNR_TIMER, wanted.min_rnr_timer & 0x1f),
        timeout: given!(TIMEOUT, wanted.timeout & 0x1f),
        retry_cnt: given!(RETRY_CNT, wanted.retry_cnt & 7),
        rnr_retry: given!(RNR_RETRY, wanted.rnr_retry & 7),
    }
}

fn address_vector(dest: &QpDest) -> AddressVector {
    AddressVector {
        dlid: dest.dlid,
        sl: dest.sl & 0xf,
        src_path_bits: dest.src_path_bits & 0x7f,
        grh: (dest.is_global != 0).then_some(Grh {
            dgid: dest.dgid,
            sgid_index: dest.sgid_index,
            flow_label: dest.flow_label & 0xf_ffff,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        }),
    }
}

fn remember(context: &mut QpContext, wanted: &ModifyQp, state: QpState) {
    if state == QpState::Reset {
        *context = QpContext::default();
        return;
    }
    macro_rules! keep {
        ($($bit:ident $field:ident = $value:expr;)*) => {$(
            if wanted.attr_mask & mask::$bit != 0 {
                context.$field = $value;
            }
        )*};
    }
    keep! {
        ACCESS_FLAGS access = wanted.qp_access_flags;
        PKEY_INDEX pkey_index = wanted.pkey_index;
        PORT port = wanted.port_num;
        QKEY qkey = wanted.qkey;
        AV dest = wanted.dest;
        PATH_MTU path_mtu = wanted.path_mtu;
        DEST_QPN dest_qpn = wanted.dest_qp_num & PSN_MASK;
        MAX_QP_RD_ATOMIC max_rd_atomic = wanted.max_rd_atomic;
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic = wanted.max_dest_rd_atomic;
        MIN_RNR_TIMER min_rnr_timer = wanted.min_rnr_timer & 0x1f;
        TIMEOUT timeout = wanted.timeout & 0x1f;
        RETRY_CNT retry_cnt = wanted.retry_cnt & 7;
        RNR_RETRY rnr_retry = wanted.rnr_retry & 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_mask_names_reaches_the_device() {
        let wanted = ModifyQp {
            attr_mask: mask::PATH_MTU | mask::RQ_PSN,
            path_mtu: 5,
            rq_psn: 0x1200_0034,
            qkey: 7,
            ..ModifyQp::default()
        };
        let change = change(&wanted);
        assert_eq!((change.path_mtu, change.rq_psn), (Some(4096), Some(0x34)));
        assert_eq!((change.qkey, change.sq_psn, change.av), (None, None, None));
    }

    #[test]
    fn values_beyond_the_device_are_invalid() {
        let fine = ModifyQp { attr_mask: u32::MAX, path_mtu: 1, ..ModifyQp::default() };
        assert_eq!(check_values(&fine), Ok(()));
        for bad in [
            ModifyQp { path_mtu: 0, ..fine },
            ModifyQp { path_mtu: 6, ..fine },
            ModifyQp { pkey_index: 128, ..fine },
            ModifyQp { max_rd_atomic: 17, ..fine },
            ModifyQp { max_dest_rd_atomic: 17, ..fine },
            ModifyQp { path_mig_state: 1, ..fine },
        ] {
            assert_eq!(check_values(&bad), Err(EINVAL));
            assert_eq!(check_values(&ModifyQp { attr_mask: 0, ..bad }), Ok(()));
        }
    }

    #[test]
    fn reset_forgets_everything() {
        let mut context = QpContext { qkey: 9, port: 1, ..QpContext::default() };
        remember(&mut context, &ModifyQp::default(), QpState::Reset);
        assert_eq!((context.qkey, context.port), (0, 0));
    }
}
