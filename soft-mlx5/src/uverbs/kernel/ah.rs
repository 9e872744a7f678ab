//! Address handles of the kernel: libmlx5 asks for them on Ethernet to learn a MAC address.

use super::abi::Abi;
use super::abi::mlx5::CreateAhResp;
use super::abi::uverbs::{AhAttr, CreateAh};
use super::errno::EINVAL;
use super::path::Neighbour;
use super::pd::Pd;
use super::udata::Request;
use super::{Call, path};
use crate::commands::objects::Kind;
use crate::fabric::LinkLayer;
use crate::objects::Result;

/// Bytes of the response up to the MAC address.
const RESPONSE_WITH_MAC: usize = 10;

/// An address handle.
#[derive(Debug)]
pub struct Ah;

/// Runs CREATE_AH.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let core: CreateAh = request.core.input.request()?;
    let ethernet = call.core.link == LinkLayer::Ethernet;
    let AhAttr { grh, is_global, port_num, static_rate, .. } = core.attr;
    if port_num != 1 {
        return Err(EINVAL);
    }
    call.get::<Pd>(core.pd_handle)?;
    let source = call.source(is_global != 0, grh.sgid_index)?.filter(|_| ethernet);
    let neighbour = source.map(|source| call.neighbour(&source, &grh.dgid)).transpose()?;
    let room = request.driver.output;
    if neighbour.is_some() && room.len < RESPONSE_WITH_MAC {
        return Err(EINVAL);
    }
    path::check_rate(static_rate)?;
    call.admit(super::AH)?;
    let handle = call.enter_new(Kind::AddressHandle, &[core.pd_handle], Ah)?;
    let mut answered = Ok(());
    if let Some(Neighbour { mac: dmac, .. }) = neighbour {
        let response_length = room.len.min(CreateAhResp::SIZE) as u32;
        answered = room.put(&CreateAhResp { response_length, dmac, reserved: [0; 6] });
    }
    let answered = answered.and_then(|()| request.core.output.respond(&handle));
    call.or_destroy(handle, answered)
}
