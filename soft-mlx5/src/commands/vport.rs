//! Virtual ports: of InfiniBand, and of Ethernet with the address table of RoCE.

use mlx5_wire::firmware::vport::{
    GidsReply, HcaVportContext, ModifyNicVport, ModifyVportState, NicVportContext, QueryHcaVportReply,
    QueryNicVportReply, QueryRoceAddressReply, QueryVport, QueryVportStateReply, RoceAddress, SetRoceAddress, field,
};

use super::opcodes::{Command, Result, answer};
use super::refusal::Refusal;
use super::{Execution, capabilities};
use crate::engine::PortAddress;
use crate::fabric::LinkLayer;
use crate::fabric::address::GidType;

const DOWN: u8 = 1;
const ACTIVE: u8 = 4;
const PHYSICAL_UP: u8 = 5;
const PHYSICAL_DISABLED: u8 = 3;
/// Capability of PortInfo: connection management, which a driver may change.
const CAP_CM: u32 = 1 << 16;
const SUBNET_TIMEOUT: u8 = 18;
/// Index that stands for a whole table.
const ALL: u16 = u16::MAX;
/// States that a driver asks of its virtual port.
const ADMIN_STATES: u8 = 2;

/// State of the virtual port.
#[derive(Debug)]
pub struct Vport {
    /// The driver has taken the port down.
    pub admin_down: bool,
    /// Description of the node.
    pub node_desc: [u8; 0x40],
    /// MTU of the port that the driver has set, with headers of Ethernet.
    pub port_mtu: Option<u16>,
    admin_state: u8,
    // Context of Ethernet as the driver has set it.
    context: NicVportContext,
    addresses: Vec<RoceAddress>,
}

impl Vport {
    /// Returns the state after reset.
    pub fn new(port: &PortAddress) -> Self {
        let mut node_desc = [0; 0x40];
        node_desc[..9].copy_from_slice(b"soft-mlx5");
        let [a, b, c, d, e, f] = port.mac;
        Self {
            admin_down: false,
            node_desc,
            port_mtu: None,
            admin_state: 1,
            context: NicVportContext {
                mtu: 1500,
                system_image_guid: port.guid,
                port_guid: port.guid,
                node_guid: port.guid,
                mac: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
                ..NicVportContext::ZERO
            },
            addresses: vec![RoceAddress::ZERO; capabilities::GIDS_ETHERNET as usize],
        }
    }
}

impl Execution<'_> {
    /// Bytes of the answer of QUERY_VPORT_COUNTER.
    pub(super) const VPORT_COUNTERS: usize = 0x210;

    fn query_of(&self, command: &Command, layer: LinkLayer) -> Result<QueryVport> {
        let query: QueryVport = command.parse()?;
        if self.state.layer != layer {
            return Err(Refusal::LINK_LAYER);
        }
        Self::check_vport(&query)?;
        Ok(query)
    }

    fn check_vport(query: &QueryVport) -> Result {
        if query.other_vport || query.vport != 0 {
            return Err(Refusal::FUNCTION);
        }
        // Drivers of some kernels ask for a second port, too, and take the answer of the first.
        if query.port > 2 { Err(Refusal::PORT) } else { Ok(()) }
    }

    pub(super) fn query_hca_vport(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.query_of(command, LinkLayer::InfiniBand)?;
        let port = self.nic.port();
        let state = if port.up { ACTIVE } else { DOWN };
        answer(
            output,
            QueryHcaVportReply {
                context: HcaVportContext {
                    physical_state: if port.up { PHYSICAL_UP } else { PHYSICAL_DISABLED },
                    port_state: state,
                    vport_state: state,
                    system_image_guid: port.guid,
                    port_guid: port.guid,
                    node_guid: port.guid,
                    cap_mask1_perm: CAP_CM,
                    lid: port.lid,
                    subnet_timeout: SUBNET_TIMEOUT,
                    sm_lid: 1,
                    ..HcaVportContext::ZERO
                },
            },
        )
    }

    /// The driver sets bits for a subnet manager, which this fabric does not have.
    pub(super) fn modify_hca_vport(&mut self, command: &Command, _: &mut [u8]) -> Result {
        self.query_of(command, LinkLayer::InfiniBand).map(drop)
    }

    pub(super) fn query_gids(&mut self, command: &Command, output: &mut [u8]) -> Result {
        const SIZE: usize = 16;
        let query = self.query_of(command, LinkLayer::InfiniBand)?;
        let gids = capabilities::GIDS_INFINIBAND as u16;
        if query.index >= gids && query.index != ALL {
            return Err(Refusal::GID_INDEX);
        }
        let (first, count) = if query.index == ALL { (0, gids) } else { (query.index, 1) };
        let list = output.get_mut(GidsReply::SIZE..).unwrap_or_default();
        let list = list.get_mut(..usize::from(count) * SIZE).ok_or(Refusal::OUTPUT_LENGTH)?;
        // Only the first entry holds a GID.
        if first == 0 {
            list[..SIZE].copy_from_slice(&self.nic.port().gid);
        }
        answer(output, GidsReply { count, ..GidsReply::ZERO })
    }

    /// The driver of Linux asks for partition keys of RoCE, too.
    pub(super) fn query_pkeys(&mut self, command: &Command, output: &mut [u8]) -> Result {
        const SIZE: usize = 4;
        let query: QueryVport = command.parse()?;
        Self::check_vport(&query)?;
        if query.index >= capabilities::PKEYS && query.index != ALL {
            return Err(Refusal::PKEY_INDEX);
        }
        let whole = query.index == ALL;
        let count = if whole { capabilities::PKEYS.into() } else { 1 };
        let list = output.get_mut(GidsReply::SIZE..).unwrap_or_default();
        let list = list.get_mut(..count * SIZE).ok_or(Refusal::OUTPUT_LENGTH)?;
        // Only the first entry holds a key.
        if whole || query.index == 0 {
            list[..SIZE].copy_from_slice(&u32::from(capabilities::DEFAULT_PKEY).to_be_bytes());
        }
        Ok(())
    }

    pub(super) fn query_vport_state(&mut self, command: &Command, output: &mut [u8]) -> Result {
        Self::check_vport(&command.parse()?)?;
        answer(
            output,
            QueryVportStateReply { admin_state: self.state.vport.admin_state, state: u8::from(self.nic.port().up) },
        )
    }

    pub(super) fn modify_vport_state(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let ModifyVportState { admin_state, .. } = command.parse()?;
        if admin_state > ADMIN_STATES {
            return Err(Refusal::ATTRIBUTES);
        }
        self.state.vport.admin_state = admin_state;
        Ok(())
    }

    /// Counters of the virtual port: nothing is counted.
    pub(super) fn query_vport_counter(&mut self, command: &Command, _: &mut [u8]) -> Result {
        Self::check_vport(&command.parse()?)
    }

    pub(super) fn query_nic_vport(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let query = self.query_of(command, LinkLayer::Ethernet)?;
        // The address lists are empty: the port takes every frame for its own address and for groups.
        let context = NicVportContext { list_type: query.list_type, ..self.state.vport.context };
        answer(output, QueryNicVportReply { context })
    }

    pub(super) fn modify_nic_vport(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const IGNORED: u32 = field::ADDRESSES | field::CHANGE_EVENT;
        const SET: u32 = field::ROCE | field::MAC | field::PROMISCUOUS | field::MTU;
        self.query_of(command, LinkLayer::Ethernet)?;
        let modify: ModifyNicVport = command.parse()?;
        if modify.field_select & !(SET | IGNORED | field::LOOPBACK) != 0 {
            return Err(Refusal::FIELDS);
        }
        let (now, given) = (&mut self.state.vport.context, &modify.context);
        let selected = |field| modify.field_select & field != 0;
        if selected(field::ROCE) {
            now.roce_en = given.roce_en;
        }
        if selected(field::MAC) {
            now.mac = given.mac;
        }
        if selected(field::PROMISCUOUS) {
            now.promiscuous = given.promiscuous;
        }
        if selected(field::MTU) {
            now.mtu = given.mtu;
        }
        if selected(field::LOOPBACK) {
            now.disable_uc_local_lb = given.disable_uc_local_lb;
        }
        Ok(())
    }

    fn roce_address(&mut self, index: u16) -> Result<&mut RoceAddress> {
        if self.state.layer != LinkLayer::Ethernet {
            return Err(Refusal::LINK_LAYER);
        }
        self.state.vport.addresses.get_mut(usize::from(index)).ok_or(Refusal::GID_INDEX)
    }

    pub(super) fn query_roce_address(&mut self, command: &Command, output: &mut [u8]) -> Result {
        // The index stands in the upper half of its word, as in SET_ROCE_ADDRESS.
        let bytes = command.input.get(8..10).ok_or(Refusal::INPUT_LENGTH)?;
        let index = u16::from_be_bytes([bytes[0], bytes[1]]);
        let address = *self.roce_address(index)?;
        answer(output, QueryRoceAddressReply { address, ..QueryRoceAddressReply::ZERO })
    }

    pub(super) fn set_roce_address(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let SetRoceAddress { index, address, .. } = command.parse()?;
        *self.roce_address(index)? = address;
        const ROCE_V1: u8 = 0;
        let gid_type = if address.version == ROCE_V1 { GidType::RoceV1 } else { GidType::RoceV2 };
        // An entry of zeros is an empty one.
        let entry = (address.gid != [0; 16]).then_some((gid_type, address.gid));
        self.nic.gids().set(index, entry);
        Ok(())
    }
}
