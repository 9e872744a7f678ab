//! GET_CONTEXT: the first command of an open file, which returns the properties of the device.

use super::abi::Abi;
use super::abi::mlx5::{AllocContext, AllocContextResp};
use super::abi::uverbs::{GetContextResp, Respond};
use super::attrs::{Attrs, Carries, Spec};
use super::errno::{EINVAL, ENOMEM, EOPNOTSUPP};
use super::events::Carries as EventKind;
use super::udata::{Request, Udata};
use super::{Call, uar};
use crate::commands::limits;
use crate::commands::objects::{Entry, Kind};
use crate::fabric::LinkLayer;
use crate::objects::Result;
use crate::objects::mkey::DUMP_FILL_MKEY;

pub use uar::Context;

const NUM_COMP_VECTORS: u16 = 0;
const CORE_SUPPORT: u16 = 1;

/// Registrations may carry the optional access flags (relaxed ordering).
const OPTIONAL_MR_ACCESS: u64 = 1;

const FLAG_DEVX: u32 = 1;
const LIB_CAP_DYN_UAR: u64 = 1 << 1;
const RESP_MASK_CORE_CLOCK_OFFSET: u32 = 1 << 0;
const RESP_MASK_DUMP_FILL_MKEY: u32 = 1 << 1;
/// Queue pairs have options for enhanced connection establishment.
const RESP_MASK_ECE: u32 = 1 << 2;
const RESP_MASK_REAL_TIME: u32 = 1 << 4;
const CLOCK_INFO_V1: u8 = 1;
const UHW_QUERY_DEVICE: u8 = 1;
const UHW_CREATE_AH: u8 = 2;
// The interface is off by one: 1 means that no header must be inlined.
const ETH_MIN_INLINE_NONE: u8 = 1;

/// Attributes of GET_CONTEXT.
pub const GET: &[Spec] =
    &[Spec::takes(NUM_COMP_VECTORS, Carries::Out(4, 4)), Spec::takes(CORE_SUPPORT, Carries::Out(8, 8))];
/// Attributes of the allocation of an asynchronous event file.
pub const ASYNC_FILE: &[Spec] = &[Spec::needs(0, Carries::New)];

/// Runs GET_CONTEXT, ioctl form.
pub fn get(call: &mut Call, attrs: &Attrs) -> Result<()> {
    attrs.put(NUM_COMP_VECTORS, &call.core.vectors)?;
    attrs.put(CORE_SUPPORT, &OPTIONAL_MR_ACCESS)?;
    allocate(call, &attrs.driver())
}

const RESP_UCTX: u16 = 0x1000;

/// Attributes of QUERY_CONTEXT.
pub const QUERY: &[Spec] = &[
    Spec::takes(NUM_COMP_VECTORS, Carries::Out(4, 4)),
    Spec::takes(CORE_SUPPORT, Carries::Out(8, 8)),
    Spec::needs(RESP_UCTX, Carries::Out(8, u16::MAX)),
];

/// Runs QUERY_CONTEXT, for a program that imports the device.
pub fn query(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let real_time = call.core.real_time;
    let answer = answer(call.context()?, real_time);
    attrs.put(NUM_COMP_VECTORS, &call.core.vectors)?;
    attrs.put(CORE_SUPPORT, &OPTIONAL_MR_ACCESS)?;
    let response_length = attrs.output(RESP_UCTX).len.min(AllocContextResp::SIZE) as u32;
    attrs.respond(RESP_UCTX, &AllocContextResp { response_length, ..answer })
}

/// Runs GET_CONTEXT, write form: also opens the asynchronous event file.
pub fn write_get(call: &mut Call, request: &Request) -> Result<()> {
    let _: Respond = request.core.input.request()?;
    allocate(call, &request.driver)?;
    let num_comp_vectors = call.core.vectors;
    let fd = call.open_events(EventKind::Asynchronous)?;
    let answered = request.core.output.respond(&GetContextResp { async_fd: fd as u32, num_comp_vectors });
    if answered.is_err() {
        call.close_events(fd);
    }
    answered
}

/// Allocates an asynchronous event file.
pub fn async_file(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let fd = call.open_events(EventKind::Asynchronous)?;
    let answered = attrs.put_new(0, fd as u32);
    if answered.is_err() {
        call.close_events(fd);
    }
    answered
}

/// Runs CREATE_COMP_CHANNEL.
pub fn comp_channel(call: &mut Call, request: &Request) -> Result<()> {
    let _: Respond = request.core.input.request()?;
    let fd = call.open_events(EventKind::Completions)?;
    let answered = request.core.output.respond(&(fd as u32));
    if answered.is_err() {
        call.close_events(fd);
    }
    answered
}

fn allocate(call: &mut Call, driver: &Udata) -> Result<()> {
    if call.file().context.is_some() {
        return Err(EINVAL);
    }
    let given = driver.input.len();
    let first_version = given == 8;
    if !first_version && given < 16 {
        return Err(EINVAL);
    }
    let request: AllocContext = driver.input.get()?;
    if request.flags & !FLAG_DEVX != 0
        || request.comp_mask != 0
        || (request.reserved0, request.reserved1, request.reserved2) != (0, 0, 0)
    {
        return Err(EOPNOTSUPP);
    }
    let per_page = uar::BFREGS_PER_PAGE as u32;
    let bfregs = request.total_num_bfregs.checked_next_multiple_of(per_page).ok_or(EINVAL)?;
    let devx = request.flags & FLAG_DEVX != 0;
    // Firmware without users refuses DEVX like this.
    if request.num_low_latency_bfregs >= bfregs || devx && !call.core.devx {
        return Err(EINVAL);
    }
    let uid = if devx { call.core.create_user()? } else { 0 };
    let cqe_version = request.max_cqe_version.min(1);
    let objects = call.core.shared_registers && request.lib_caps & LIB_CAP_DYN_UAR != 0;
    let made = if objects {
        Ok(Context::of_objects(uid, cqe_version))
    } else {
        let registry = &mut call.core.commands.objects;
        let bfregs = uar::registers(registry, bfregs as usize);
        Context::new(registry, uid, cqe_version, bfregs)
    };
    let mut context = made.inspect_err(|_| call.core.destroy_user(uid))?;
    if call.core.link == LinkLayer::Ethernet {
        let entry = Entry { uid, ..Entry::default() };
        match call.core.commands.objects.insert_new(Kind::TransportDomain, entry) {
            Ok(domain) => context.domain = domain,
            Err(_) => {
                call.core.end_context(context);
                return Err(ENOMEM);
            }
        }
    }
    let answer = answer(&context, call.core.real_time);
    call.file().context = Some(context);
    let answered = driver
        .output
        .put(&AllocContextResp { response_length: driver.output.len.min(AllocContextResp::SIZE) as u32, ..answer });
    if answered.is_err() {
        if let Some(context) = call.file().context.take() {
            call.core.end_context(context);
        }
    }
    answered
}

fn answer(context: &Context, real_time: bool) -> AllocContextResp {
    let real_time = if real_time { RESP_MASK_REAL_TIME } else { 0 };
    AllocContextResp {
        qp_tab_size: limits::MAX_QP,
        bf_reg_size: uar::BFREG_SIZE as u32,
        // 0 for a library that manages UAR objects.
        tot_bfregs: if context.has_objects() { 0 } else { context.bfregs() as u32 },
        cache_line_size: 64,
        max_sq_desc_sz: limits::MAX_SQ_DESC as u16,
        max_rq_desc_sz: limits::MAX_RQ_DESC as u16,
        max_send_wqebb: limits::MAX_QP_WR,
        max_recv_wr: limits::MAX_QP_WR,
        max_srq_recv_wr: limits::MAX_SRQ_SLOTS,
        num_ports: 1,
        comp_mask: RESP_MASK_CORE_CLOCK_OFFSET | RESP_MASK_DUMP_FILL_MKEY | RESP_MASK_ECE | real_time,
        response_length: AllocContextResp::SIZE as u32,
        cqe_version: context.cqe_version,
        cmds_supp_uhw: UHW_QUERY_DEVICE | UHW_CREATE_AH,
        eth_min_inline: ETH_MIN_INLINE_NONE,
        clock_info_versions: CLOCK_INFO_V1,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: if context.has_objects() { 0 } else { uar::DYNAMIC_BFREGS as u32 },
        dump_fill_mkey: DUMP_FILL_MKEY.0,
        ..AllocContextResp::default()
    }
}
