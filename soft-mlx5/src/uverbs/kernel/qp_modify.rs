//! MODIFY_QP: the checks of the core and of the driver, then the change.

use super::abi::uverbs::{ExModifyQp, ExModifyQpResp, ModifyQp, QpDest};
use super::abi::{Abi, mlx5};
use super::errno::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM};
use super::mr::access::{self, REMOTE_WRITE};
use super::qp::{Qp, QpContext};
use super::qp_state::{self, mask};
use super::rss::RssQp;
use super::udata::{Request, Udata};
use super::{Call, path};
use crate::commands::limits;
use crate::fabric::LinkLayer;
use crate::objects::{AddressVector, Grh, QpModify, QpState, Result, Service};

const MIGRATED: u8 = 0;
/// Bytes of the driver's answer up to the number of a target.
const THROUGH_DCTN: usize = 8;
const PSN_MASK: u32 = 0xff_ffff;
// A queue key that only privileged programs may set (`IB_QP_SET_QKEY`).
const PRIVILEGED_QKEY: u32 = 1 << 31;
const REMOTE_RIGHTS: u32 = REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// Runs MODIFY_QP, first form.
pub fn write_modify(call: &mut Call, request: &Request) -> Result<()> {
    let core: ModifyQp = request.core.input.request()?;
    if core.attr_mask & !mask::STANDARD != 0 {
        return Err(EOPNOTSUPP);
    }
    // The answer has no room for the number of a target.
    if call.is_target(core.qp_handle) && core.qp_state == QpState::Rtr as u8 {
        return Err(EINVAL);
    }
    call.modify_qp(&core)
}

/// Runs MODIFY_QP, extended form.
pub fn write_modify_ex(call: &mut Call, request: &Request) -> Result<()> {
    let mut core: ExModifyQp = request.core.input.request()?;
    if core.base.attr_mask & !(mask::STANDARD | mask::RATE_LIMIT) != 0 {
        return Err(EOPNOTSUPP);
    }
    let ece_options = check_driver(&request.driver)?;
    if core.base.attr_mask & mask::RATE_LIMIT != 0 {
        call.check_rate(&core)?;
        core.base.attr_mask &= !mask::RATE_LIMIT;
    }
    let room = request.driver.output;
    let listens = call.is_target(core.base.qp_handle) && core.base.qp_state == QpState::Rtr as u8;
    if listens && room.len < THROUGH_DCTN {
        return Err(EINVAL);
    }
    call.modify_qp(&core.base)?;
    let dctn = if listens { call.get::<Qp>(core.base.qp_handle)?.qpn.0 } else { 0 };
    if room.len >= mlx5::ModifyQpResp::SIZE || listens {
        let response_length = room.len.min(mlx5::ModifyQpResp::SIZE) as u32;
        // The device agrees to what the program asks for.
        room.put(&mlx5::ModifyQpResp { response_length, dctn, ece_options, reserved: 0 })?;
    }
    let response_length = request.core.output.len.min(8) as u32;
    request.core.output.respond(&ExModifyQpResp { comp_mask: 0, response_length })
}

/// Returns the options for enhanced connection establishment. Only the rate of a raw packet QP has a burst.
fn check_driver(driver: &Udata) -> Result<u32> {
    if driver.input.len() == 0 {
        return Ok(0);
    }
    if driver.input.len() < 16 {
        return Err(EINVAL);
    }
    let given: mlx5::ModifyQp = driver.input.request()?;
    if given.comp_mask != 0 || given.reserved != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(given.ece_options)
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
    // Only raw packet QPs have a rate. The device has no packet pacing, so that it takes no rate but "no limit".
    fn check_rate(&self, core: &ExModifyQp) -> Result<()> {
        if self.get::<Qp>(core.base.qp_handle)?.service != Service::Raw {
            return Err(EINVAL);
        }
        if core.rate_limit == 0 { Ok(()) } else { Err(EOPNOTSUPP) }
    }

    fn modify_qp(&mut self, core: &ModifyQp) -> Result<()> {
        if self.get::<RssQp>(core.qp_handle).is_ok() {
            return Err(ENOSYS);
        }
        let qp = self.get::<Qp>(core.qp_handle)?;
        let (qpn, service, is_target, mut context) = (qp.qpn, qp.service, qp.is_target, qp.attr);
        let mut wanted = *core;
        self.check_ports(&mut wanted, &context)?;

        let given = wanted.attr_mask;
        let named = if given & mask::CUR_STATE != 0 { Some(state(wanted.cur_qp_state)?) } else { None };
        let target = if given & mask::STATE != 0 { Some(state(wanted.qp_state)?) } else { None };
        if given & mask::QKEY != 0 && wanted.qkey & PRIVILEGED_QKEY != 0 && !self.may_use_frames() {
            return Err(EPERM);
        }
        // The device may have left the state that the driver remembers, and refuses commands for any other state
        // than its own.
        let from = self.nic().query_qp(qpn)?.state;
        if named.is_some_and(|named| named != from) {
            return Err(EINVAL);
        }
        let to = target.unwrap_or(from);
        if given & mask::AV != 0 {
            self.find_path(&mut wanted.dest, service)?;
        }
        let is_allowed = if is_target {
            qp_state::is_allowed_for_target(from, to, given)
        } else {
            qp_state::is_allowed(from, to, service, given)
        };
        if !is_allowed {
            return Err(EINVAL);
        }
        check_values(&wanted, self.port(1)?.active_mtu)?;
        if !qp_state::device_can(from, to) {
            return Err(EINVAL);
        }

        remember(&mut context, &wanted, to);
        if is_target {
            // It has no attribute for resources of READs, on which the rights of others depend.
            context.access = context.granted;
        }
        let mut change = change(&wanted);
        change.state = target;
        change.access = (given & (mask::ACCESS_FLAGS | mask::MAX_DEST_RD_ATOMIC) != 0).then_some(context.access);
        self.nic().modify_qp(qpn, &change)?;
        self.core.commands.keep_change(qpn.0, &change);
        self.core.command_time = self.nic().modify_time();
        self.get_mut::<Qp>(core.qp_handle)?.attr = context;
        Ok(())
    }

    fn is_target(&self, handle: u32) -> bool {
        self.get::<Qp>(handle).is_ok_and(|qp| qp.is_target)
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

    /// Checks the source of a path and finds its destination. The kernel sets the hop limit of a RoCE path.
    fn find_path(&mut self, dest: &mut QpDest, service: Service) -> Result<()> {
        let source = self.source(dest.is_global != 0, dest.sgid_index)?;
        let connected = matches!(service, Service::Rc | Service::Uc);
        if self.core.link == LinkLayer::Ethernet && connected {
            let source = source.ok_or(EINVAL)?;
            let neighbour = self.neighbour(&source, &dest.dgid)?;
            dest.hop_limit = neighbour.hop_limit.unwrap_or(dest.hop_limit);
        }
        Ok(())
    }
}

fn check_values(wanted: &ModifyQp, active_mtu: u8) -> Result<()> {
    let given = |bit| wanted.attr_mask & bit != 0;
    let fits = (!given(mask::PKEY_INDEX) || wanted.pkey_index < limits::PKEYS)
        && (!given(mask::MAX_QP_RD_ATOMIC) || wanted.max_rd_atomic <= limits::MAX_RD_ATOMIC)
        && (!given(mask::MAX_DEST_RD_ATOMIC) || wanted.max_dest_rd_atomic <= limits::MAX_RD_ATOMIC)
        // The driver compares with the largest MTU, and the firmware with that of the port.
        && (!given(mask::PATH_MTU) || (1..=active_mtu).contains(&wanted.path_mtu))
        && (!given(mask::AV) || path::check_rate(wanted.dest.static_rate).is_ok())
        && (!given(mask::PATH_MIG_STATE) || wanted.path_mig_state == MIGRATED);
    if fits { Ok(()) } else { Err(EINVAL) }
}

/// Returns what the device makes of a number of READs and atomics, of which it stores the logarithm.
pub fn depth(count: u8) -> u8 {
    count.max(1).next_power_of_two()
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
        access: None,
        pkey_index: given!(PKEY_INDEX, wanted.pkey_index),
        port: given!(PORT, wanted.port_num),
        qkey: given!(QKEY, wanted.qkey),
        av: given!(AV, address_vector(&wanted.dest)),
        path_mtu: given!(PATH_MTU, 128 << wanted.path_mtu),
        dest_qpn: given!(DEST_QPN, wanted.dest_qp_num & PSN_MASK),
        rq_psn: given!(RQ_PSN, wanted.rq_psn & PSN_MASK),
        sq_psn: given!(SQ_PSN, wanted.sq_psn & PSN_MASK),
        max_dest_rd_atomic: given!(MAX_DEST_RD_ATOMIC, depth(wanted.max_dest_rd_atomic)),
        max_rd_atomic: given!(MAX_QP_RD_ATOMIC, depth(wanted.max_rd_atomic)),
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
        let QpContext { granted, resources, .. } = *context;
        *context = QpContext { granted, resources, ..QpContext::default() };
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
        ACCESS_FLAGS granted = wanted.qp_access_flags;
        PKEY_INDEX pkey_index = wanted.pkey_index;
        PORT port = wanted.port_num;
        QKEY qkey = wanted.qkey;
        AV dest = wanted.dest;
        PATH_MTU path_mtu = wanted.path_mtu;
        DEST_QPN dest_qpn = wanted.dest_qp_num & PSN_MASK;
        MAX_QP_RD_ATOMIC max_rd_atomic = wanted.max_rd_atomic;
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic = wanted.max_dest_rd_atomic;
        MAX_DEST_RD_ATOMIC resources = wanted.max_dest_rd_atomic;
        MIN_RNR_TIMER min_rnr_timer = wanted.min_rnr_timer & 0x1f;
        TIMEOUT timeout = wanted.timeout & 0x1f;
        RETRY_CNT retry_cnt = wanted.retry_cnt & 7;
        RNR_RETRY rnr_retry = wanted.rnr_retry & 7;
    }
    if wanted.attr_mask & (mask::ACCESS_FLAGS | mask::MAX_DEST_RD_ATOMIC) != 0 {
        // Without resources for READs and atomics a QP has no right to them. The driver remembers both attributes, also
        // over RESET.
        let rights = if context.resources == 0 { REMOTE_WRITE } else { REMOTE_RIGHTS };
        context.access = context.granted & rights;
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
        assert_eq!(check_values(&fine, 5), Ok(()));
        for bad in [
            ModifyQp { path_mtu: 0, ..fine },
            ModifyQp { path_mtu: 4, ..fine },
            ModifyQp { dest: QpDest { static_rate: 24, ..fine.dest }, ..fine },
            ModifyQp { pkey_index: 128, ..fine },
            ModifyQp { max_rd_atomic: 17, ..fine },
            ModifyQp { max_dest_rd_atomic: 17, ..fine },
            ModifyQp { path_mig_state: 1, ..fine },
        ] {
            assert_eq!(check_values(&bad, 3), Err(EINVAL));
            assert_eq!(check_values(&ModifyQp { attr_mask: 0, ..bad }, 3), Ok(()));
        }
    }

    #[test]
    fn rights_need_resources_whichever_attribute_comes_last() {
        let mut context = QpContext::default();
        let all = ModifyQp {
            attr_mask: mask::ACCESS_FLAGS,
            qp_access_flags: REMOTE_RIGHTS | access::LOCAL_WRITE,
            ..ModifyQp::default()
        };
        let depth =
            |count| ModifyQp { attr_mask: mask::MAX_DEST_RD_ATOMIC, max_dest_rd_atomic: count, ..ModifyQp::default() };
        let mut rights = |wanted: &ModifyQp, state| {
            remember(&mut context, wanted, state);
            context.access
        };
        assert_eq!(rights(&all, QpState::Init), REMOTE_WRITE);
        assert_eq!(rights(&depth(1), QpState::Rtr), REMOTE_RIGHTS);
        assert_eq!(rights(&depth(0), QpState::Rtr), REMOTE_WRITE);
        assert_eq!(rights(&all, QpState::Rts), REMOTE_WRITE);
        assert_eq!(rights(&depth(7), QpState::Rtr), REMOTE_RIGHTS);
        assert_eq!(rights(&ModifyQp::default(), QpState::Reset), 0);
        assert_eq!(rights(&all, QpState::Init), REMOTE_RIGHTS, "as remembered");
    }

    #[test]
    fn the_device_stores_logarithms() {
        assert_eq!([0, 1, 2, 3, 5, 9, 16].map(depth), [1, 1, 2, 4, 8, 16, 16]);
    }

    #[test]
    fn reset_forgets_what_the_device_forgets() {
        let mut context = QpContext { qkey: 9, port: 1, ..QpContext::default() };
        remember(&mut context, &ModifyQp::default(), QpState::Reset);
        assert_eq!((context.qkey, context.port), (0, 0));
    }
}
