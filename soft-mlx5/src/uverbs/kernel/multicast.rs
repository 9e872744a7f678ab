//! Multicast groups of UD QPs.

use super::Call;
use super::abi::uverbs::Multicast;
use super::errno::{EINVAL, ENOMEM};
use super::qp::Qp;
use super::udata::Request;
use crate::commands::limits;
use crate::fabric::{LinkLayer, address};
use crate::objects::{Result, Service};

/// Runs ATTACH_MCAST.
pub fn write_attach(call: &mut Call, request: &Request) -> Result<()> {
    let core: Multicast = request.core.input.request()?;
    let group = (core.gid, core.mlid);
    let (qpn, service) = {
        let qp = call.get::<Qp>(core.qp_handle)?;
        if qp.groups.contains(&group) {
            return Ok(());
        }
        (qp.qpn, qp.service)
    };
    let lid_fits = call.core.link == LinkLayer::Ethernet || (0xc000..0xffff).contains(&core.mlid);
    if !address::is_multicast_gid(&core.gid) || service != Service::Ud || !lid_fits {
        return Err(EINVAL);
    }
    if call.get::<Qp>(core.qp_handle)?.groups.len() >= limits::MAX_MCAST_QPS as usize {
        return Err(ENOMEM);
    }
    call.nic().attach_multicast(qpn, core.gid)?;
    call.get_mut::<Qp>(core.qp_handle)?.groups.push(group);
    Ok(())
}

/// Runs DETACH_MCAST.
pub fn write_detach(call: &mut Call, request: &Request) -> Result<()> {
    let core: Multicast = request.core.input.request()?;
    let group = (core.gid, core.mlid);
    let qp = call.get_mut::<Qp>(core.qp_handle)?;
    let at = qp.groups.iter().position(|&other| other == group).ok_or(EINVAL)?;
    qp.groups.remove(at);
    let qpn = qp.qpn;
    call.nic().detach_multicast(qpn, core.gid)
}

impl Call<'_> {
    /// Ends all memberships when the device is closed. Otherwise a QP must leave its groups before it is destroyed.
    pub(super) fn detach_all_multicast(&mut self) {
        for handle in self.handles().of_type(4) {
            let Ok(qp) = self.get_mut::<Qp>(handle) else { continue };
            let (qpn, groups) = (qp.qpn, std::mem::take(&mut qp.groups));
            for (gid, _) in groups {
                let _ = self.nic().detach_multicast(qpn, gid);
            }
        }
    }
}
