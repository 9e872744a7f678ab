//! Flows: rules that lead frames to a queue pair.

mod spec;

use std::sync::atomic::{AtomicBool, Ordering};

use super::abi::Abi;
use super::abi::uverbs::{CreateFlow, CreateFlowResp, ExDestroyFlow};
use super::async_event::Reported;
use super::errno::{EINVAL, ENOMEM, EOPNOTSUPP, EPERM};
use super::qp::Qp;
use super::rss::RssQp;
use super::udata::Request;
use super::{Call, Core};
use crate::commands::objects::Kind;
use crate::objects::flow::{FIELDS, Rule, Target, at};
use crate::objects::{Result, Service};

use self::spec::Specs;

/// A flow.
#[derive(Debug)]
pub struct Flow {
    // Its number at the device.
    number: u32,
}

/// Object type (`UVERBS_OBJECT_FLOW`).
pub const TYPE_ID: u16 = 9;

const NORMAL: u32 = 0;
const ALL_DEFAULT: u32 = 1;
const MC_DEFAULT: u32 = 2;

const DONT_TRAP: u32 = 1 << 1;
const EGRESS: u32 = 1 << 2;

const MOST_SPECS: u8 = 10;
/// Bytes of the largest spec (`struct ib_uverbs_flow_spec`).
const LARGEST_SPEC: usize = 112;

/// Levels as the kernel numbers them (`mlx5_ib.h`): for the priorities of users, each with and without DONT_TRAP; for
/// rules that match multicast only; for rules that get the remaining frames.
const LAST_PRIORITY: u16 = 15;
const MULTICAST_LEVEL: u8 = 32;
const LEFTOVERS_LEVEL: u8 = 33;

/// Runs CREATE_FLOW.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    let core: CreateFlow = request.core.input.get()?;
    if core.comp_mask != 0 {
        return Err(EINVAL);
    }
    if !call.may_use_frames() {
        return Err(EPERM);
    }
    let dont_trap = core.flags & DONT_TRAP != 0;
    let default = matches!(core.flow_type, ALL_DEFAULT | MC_DEFAULT);
    let size = usize::from(core.size);
    if core.flags & !(DONT_TRAP | EGRESS) != 0
        || dont_trap && default
        || core.num_of_specs > MOST_SPECS
        || size > usize::from(core.num_of_specs) * LARGEST_SPEC
        || core.reserved != [0; 2]
        || core.port != 1
    {
        return Err(EINVAL);
    }
    let bytes = request.core.input.bytes(CreateFlow::SIZE, CreateFlow::SIZE + size)?;
    if bytes.len() != size || !request.core.input.is_zero_from(CreateFlow::SIZE + size)? {
        return Err(EINVAL);
    }
    let target = call.target(core.qp_handle)?;
    let specs = Specs::parse(&bytes, core.num_of_specs)?;
    check_driver(request)?;
    if core.priority > LAST_PRIORITY {
        return Err(ENOMEM);
    }
    if core.flags & EGRESS != 0 {
        return Err(EOPNOTSUPP);
    }
    let target = if specs.drop { Target::Drop } else { target };
    let rules = match core.flow_type {
        NORMAL => {
            specs.check_types()?;
            let level = if specs.multicast_only && !dont_trap {
                MULTICAST_LEVEL
            } else {
                2 * core.priority as u8 + u8::from(!dont_trap)
            };
            let Specs { mask, value, tag, .. } = specs;
            vec![Rule { level, mask, value, tag, target, continues: dont_trap }]
        }
        ALL_DEFAULT | MC_DEFAULT if specs.tag.is_some() => return Err(EINVAL),
        ALL_DEFAULT => vec![leftovers(true, target), leftovers(false, target)],
        MC_DEFAULT => vec![leftovers(true, target)],
        // Sniffers are not offered.
        3 => return Err(EOPNOTSUPP),
        _ => return Err(EINVAL),
    };
    call.core.warn_of_sockets();
    let number = call.nic().create_flow(&rules)?;
    let entered = call.enter_new(Kind::FlowEntry, &[core.qp_handle], Flow { number });
    let flow_handle = entered.inspect_err(|_| call.core.nic.destroy_flow(number))?;
    let answered = request.core.output.respond(&CreateFlowResp { comp_mask: 0, flow_handle });
    call.or_destroy(flow_handle, answered)
}

/// Runs DESTROY_FLOW.
pub fn write_destroy(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExDestroyFlow = request.core.input.request()?;
    if core.comp_mask != 0 {
        return Err(EINVAL);
    }
    call.destroy(core.flow_handle, TYPE_ID).map(drop)
}

// Counters and the fields of a longer structure are not offered.
fn check_driver(request: &Request) -> Result<()> {
    let input = &request.driver.input;
    if input.len() != 0 && (input.len() < 8 || !input.is_zero_from(0)?) {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

/// Returns the rule for frames that no other rule takes, of one kind of address.
fn leftovers(multicast: bool, target: Target) -> Rule {
    let (mut mask, mut value) = ([0; FIELDS], [0; FIELDS]);
    (mask[at::DESTINATION_MAC], value[at::DESTINATION_MAC]) = (1, u8::from(multicast));
    Rule { level: LEFTOVERS_LEVEL, mask, value, tag: None, target, continues: false }
}

impl Core {
    /// Says, once, that frames of a flow also reach the sockets of the machine. An adapter would take them away.
    fn warn_of_sockets(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let Some(name) = &self.netdev else { return };
        if !SAID.swap(true, Ordering::Relaxed) {
            eprintln!(
                "soft-mlx5: frames of flows on {name} also reach the sockets of this machine: to keep them away, drop them at the ingress of {name} (tc clsact)"
            );
        }
    }
}

impl Call<'_> {
    fn target(&mut self, handle: u32) -> Result<Target> {
        if let Ok(rss) = self.get::<RssQp>(handle) {
            return Ok(Target::Tir(rss.tir));
        }
        let qp = self.get::<Qp>(handle).map_err(|_| EINVAL)?;
        let (qpn, service) = (qp.qpn, qp.service);
        let receiver = if service == Service::Raw { self.nic().receiver_of(qpn) } else { None };
        receiver.map(|(_, tir)| Target::Tir(tir)).ok_or(EINVAL)
    }

    pub(super) fn destroy_flow(&mut self, handle: u32) -> Result<Reported> {
        let Flow { number } = *self.get::<Flow>(handle)?;
        self.nic().destroy_flow(number);
        Ok(Reported::default())
    }
}
