//! Address handles of the kernel: libmlx5 asks for them on Ethernet to learn a MAC address.

use super::Call;
use super::abi::Abi;
use super::abi::mlx5::CreateAhResp;
use super::abi::uverbs::CreateAh;
use super::errno::EINVAL;
use super::report::Reported;
use super::udata::Request;
use crate::fabric::{LinkLayer, address};
use crate::nic::objects::Result;

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    pd: u32,
}

impl Call<'_> {
    pub(super) fn destroy_ah(&mut self, handle: u32) -> Result<Reported> {
        let pd = self.get::<Ah>(handle)?.pd;
        self.release_pd(pd);
        Ok(Reported::default())
    }
}

/// Runs CREATE_AH.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let core: CreateAh = request.core.input.request()?;
    let ethernet = call.core.link == LinkLayer::Ethernet;
    if core.attr.port_num != 1 || (ethernet && core.attr.is_global == 0) {
        return Err(EINVAL);
    }
    if core.attr.is_global != 0 {
        call.check_gid(1, core.attr.grh.sgid_index, &core.attr.grh.dgid)?;
    }
    let room = request.driver.output;
    let dmac = mac_of(&core.attr.grh.dgid);
    call.hold_pd(core.pd_handle)?;
    let handle = call.insert(Ah { pd: core.pd_handle });
    let mut answered = Ok(());
    if ethernet && room.len >= 10 {
        let response_length = room.len.min(CreateAhResp::SIZE) as u32;
        answered = room.put(&CreateAhResp { response_length, dmac, reserved: [0; 6] });
    }
    let answered = answered.and_then(|()| request.core.output.respond(&handle));
    call.or_destroy(handle, answered)
}

fn mac_of(gid: &[u8; 16]) -> [u8; 6] {
    match address::lid_of_gid(gid) {
        Some(lid) => address::mac(lid),
        None if address::is_multicast_gid(gid) => address::multicast_mac(gid),
        // Out of reach, as after a failed neighbour lookup.
        None => [0; 6],
    }
}
