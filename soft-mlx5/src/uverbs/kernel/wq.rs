//! Receive work queues (WQs).

use super::abi::uverbs::{ExCreateWq, ExCreateWqResp, ExDestroyWq, ExDestroyWqResp, ExModifyWq};
use super::abi::{Abi, mlx5};
use super::async_event::{AsyncTarget, Reported, event_type};
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS as FLAG_BITS, Spec, exactly, room};
use super::cq::Cq;
use super::errno::{EINVAL, EOPNOTSUPP};
use super::events::Carries as EventKind;
use super::memlock::Pinned;
use super::pd::Pd;
use super::udata::{Request, Udata};
use super::{Call, Number, user};
use crate::commands::frames::rq_context;
use crate::commands::limits;
use crate::commands::objects::{Entry, Id, Kind};
use crate::fabric::LinkLayer;
use crate::objects::{Result, RwqAttr, RxOffloads, Striding, WqAttr, WqState, Wqn};

/// A receive work queue.
#[derive(Debug)]
pub struct Wq {
    /// Its number at the device.
    pub wqn: Wqn,
    /// Its asynchronous events.
    pub events: AsyncTarget,
    _pinned: Pinned,
}

/// Object type (`UVERBS_OBJECT_WQ`).
pub const TYPE_ID: u16 = 12;

const RECEIVE_QUEUE: u32 = 0;

mod create_flag {
    pub const CVLAN_STRIPPING: u32 = 1 << 0;
    pub const SCATTER_FCS: u32 = 1 << 1;
    pub const DELAY_DROP: u32 = 1 << 2;
    pub const PCI_WRITE_END_PADDING: u32 = 1 << 3;
    pub const KNOWN: u32 = CVLAN_STRIPPING | SCATTER_FCS | DELAY_DROP | PCI_WRITE_END_PADDING;
    // End padding does not change the data.
    pub const OFFERED: u32 = CVLAN_STRIPPING | SCATTER_FCS | PCI_WRITE_END_PADDING;
}

const DRIVER_STRIDING: u32 = 1;

const HANDLE: u16 = 0;
const PD: u16 = 1;
const CQ: u16 = 2;
const USER_HANDLE: u16 = 3;
const TYPE: u16 = 4;
const EVENT_FD: u16 = 5;
const MAX_WR: u16 = 6;
const MAX_SGE: u16 = 7;
const FLAGS: u16 = 8;
const RESP_MAX_WR: u16 = 9;
const RESP_MAX_SGE: u16 = 10;
const RESP_WQ_NUM: u16 = 11;

/// Attributes of the creation.
pub const CREATE: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(PD, Carries::Handle),
    Spec::needs(CQ, Carries::Handle),
    Spec::needs(USER_HANDLE, exactly(8)),
    Spec::needs(TYPE, CONSTANT),
    Spec::takes(EVENT_FD, Carries::Descriptor),
    Spec::needs(MAX_WR, exactly(4)),
    Spec::needs(MAX_SGE, exactly(4)),
    Spec::needs(FLAGS, FLAG_BITS),
    Spec::needs(RESP_MAX_WR, room(4)),
    Spec::needs(RESP_MAX_SGE, room(4)),
    Spec::takes(RESP_WQ_NUM, room(4)),
];
/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle), Spec::needs(1, room(4))];

struct Wanted {
    user_handle: u64,
    wq_type: u32,
    pd: u32,
    cq: u32,
    max_wr: u32,
    flags: u32,
    event_fd: Option<i32>,
}

/// Creates a WQ, ioctl form.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let (max_wr, max_sge): (u32, u32) = (attrs.get(MAX_WR)?, attrs.get(MAX_SGE)?);
    let wanted = Wanted {
        user_handle: attrs.get(USER_HANDLE)?,
        wq_type: attrs.constant(TYPE)?,
        pd: attrs.handle(PD)?,
        cq: attrs.handle(CQ)?,
        max_wr,
        flags: attrs.flags(FLAGS, create_flag::KNOWN)?,
        event_fd: attrs.descriptor(EVENT_FD)?,
    };
    let handle = call.create_wq(&wanted, &attrs.driver())?;
    let wqn = call.get::<Wq>(handle)?.wqn;
    let answered = attrs
        .put(RESP_MAX_WR, &max_wr)
        .and_then(|()| attrs.put(RESP_MAX_SGE, &max_sge))
        .and_then(|()| attrs.put(RESP_WQ_NUM, &wqn.0))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Creates a WQ, extended write form.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExCreateWq = request.core.input.request()?;
    if core.comp_mask != 0 || core.create_flags & !create_flag::KNOWN != 0 {
        return Err(EOPNOTSUPP);
    }
    let wanted = Wanted {
        user_handle: core.user_handle,
        wq_type: core.wq_type,
        pd: core.pd_handle,
        cq: core.cq_handle,
        max_wr: core.max_wr,
        flags: core.create_flags,
        event_fd: None,
    };
    let wq_handle = call.create_wq(&wanted, &request.driver)?;
    let answer = ExCreateWqResp {
        comp_mask: 0,
        response_length: request.core.output.len.min(ExCreateWqResp::SIZE) as u32,
        wq_handle,
        max_wr: core.max_wr,
        max_sge: core.max_sge,
        wqn: call.get::<Wq>(wq_handle)?.wqn.0,
    };
    let answered = request.core.output.respond(&answer);
    call.or_destroy(wq_handle, answered)
}

fn state(number: u32) -> Result<WqState> {
    Ok(match number {
        0 => WqState::Reset,
        1 => WqState::Ready,
        2 => WqState::Err,
        _ => return Err(EINVAL),
    })
}

/// Runs MODIFY_WQ.
pub fn write_modify(call: &mut Call, request: &Request) -> Result<()> {
    const STATE: u32 = 1 << 0;
    const CURRENT_STATE: u32 = 1 << 1;
    const FLAGS: u32 = 1 << 2;
    let core: ExModifyWq = request.core.input.request()?;
    let given = |bit| core.attr_mask & bit != 0;
    if core.attr_mask == 0 || core.attr_mask & !(STATE | CURRENT_STATE | FLAGS) != 0 {
        return Err(EINVAL);
    }
    let wqn = call.get::<Wq>(core.wq_handle)?.wqn;
    let known = create_flag::CVLAN_STRIPPING;
    if given(FLAGS) && core.flags_mask & !known != 0 || !request.driver.input.is_zero_from(0)? {
        return Err(EOPNOTSUPP);
    }
    let is = call.nic().wq_state(wqn)?;
    let from = if given(CURRENT_STATE) { state(core.curr_wq_state)? } else { is };
    let to = if given(STATE) { state(core.wq_state)? } else { from };
    call.nic().modify_wq(wqn, from, to)?;
    if given(FLAGS) && core.flags_mask != 0 {
        call.nic().set_vlan_stripping(wqn, core.flags & known != 0)?;
    }
    Ok(())
}

/// Destroys a WQ, ioctl form.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let reported = call.destroy(attrs.handle(HANDLE)?, TYPE_ID)?;
    attrs.respond(1, &reported.asynchronous)
}

/// Destroys a WQ, extended write form.
pub fn write_destroy(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExDestroyWq = request.core.input.request()?;
    if core.comp_mask != 0 {
        return Err(EOPNOTSUPP);
    }
    let reported = call.destroy(core.wq_handle, TYPE_ID)?;
    request.core.output.respond(&ExDestroyWqResp {
        comp_mask: 0,
        response_length: request.core.output.len.min(ExDestroyWqResp::SIZE) as u32,
        events_reported: reported.asynchronous,
        reserved: 0,
    })
}

impl Call<'_> {
    fn create_wq(&mut self, wanted: &Wanted, driver: &Udata) -> Result<u32> {
        self.context()?;
        self.get::<Pd>(wanted.pd)?;
        self.get::<Cq>(wanted.cq)?;
        if wanted.wq_type != RECEIVE_QUEUE {
            return Err(EINVAL);
        }
        if self.core.link != LinkLayer::Ethernet || wanted.flags & !create_flag::OFFERED != 0 {
            return Err(EOPNOTSUPP);
        }
        let fd = wanted.event_fd;
        let event_file = fd.map(|fd| self.event_file(fd, EventKind::Asynchronous)).transpose()?;
        let (given, ring, striding) = ring(wanted.max_wr, driver)?;
        let bytes = u64::from(ring.count) << ring.shift;
        let pinned = self.core.memlock.pin(given.buf_addr, bytes, false)?;
        user::pin(given.db_addr, 8, false)?;
        let attr = RwqAttr {
            pd: self.get::<Pd>(wanted.pd)?.pdn,
            cq: self.get::<Cq>(wanted.cq)?.cqn,
            ring,
            dbrec: given.db_addr,
            user_index: given.user_index,
            striding,
            offloads: RxOffloads {
                strip_vlan: wanted.flags & create_flag::CVLAN_STRIPPING != 0,
                scatter_fcs: wanted.flags & create_flag::SCATTER_FCS != 0,
            },
        };
        let wqn = self.nic().create_wq(attr)?;
        let file = event_file.or(self.file().async_file);
        let made = Wq { wqn, events: AsyncTarget { file, element: wanted.user_handle, delivered: 0 }, _pinned: pinned };
        let (id, uid, uses) = (Id(Kind::Rq, wqn.0), self.uid(), self.ids(&[wanted.pd, wanted.cq]));
        let context = rq_context(&attr);
        self.core.commands.objects.insert(id, Entry { uid, uses, context, ..Entry::default() });
        let handle = self.handles().insert(vec![id], made);
        self.core.routes.add(Number::Wq(wqn), self.file, handle);
        let response_length = driver.output.len.min(mlx5::ResponseLength::SIZE) as u32;
        let answer = mlx5::ResponseLength { response_length, reserved: 0 };
        let answered = driver.output.put(&answer);
        self.or_destroy(handle, answered)?;
        Ok(handle)
    }

    pub(super) fn destroy_wq(&mut self, handle: u32) -> Result<Reported> {
        let wqn = self.get::<Wq>(handle)?.wqn;
        self.nic().destroy_wq(wqn)?;
        self.core.deliver_events();
        self.core.routes.remove(Number::Wq(wqn));
        let events = self.get::<Wq>(handle)?.events;
        let asynchronous = self.core.read_async_events(&events, event_type::OF_WQ);
        Ok(Reported { completions: 0, asynchronous })
    }
}

fn ring(max_wr: u32, driver: &Udata) -> Result<(mlx5::CreateWq, WqAttr, Option<Striding>)> {
    // The structure from before striding queues ends after `flags` and `comp_mask`.
    const LEAST: usize = 40;
    if driver.input.len() < LEAST {
        return Err(EINVAL);
    }
    if !driver.input.is_zero_from(mlx5::CreateWq::SIZE)? {
        return Err(EOPNOTSUPP);
    }
    let given: mlx5::CreateWq = driver.input.get()?;
    // WQEs with signatures (`MLX5_WQ_FLAG_SIGNATURE`) are not offered.
    if given.comp_mask & !DRIVER_STRIDING != 0 || given.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let striding = (given.comp_mask != 0).then_some(Striding {
        log_stride: given.single_stride_log_num_of_bytes,
        log_strides: given.single_wqe_log_num_of_strides,
        two_byte_shift: given.two_byte_shift_en != 0,
    });
    let fits = striding.is_none_or(|striding| {
        limits::LOG_STRIDE.contains(&striding.log_stride) && limits::LOG_STRIDES.contains(&striding.log_strides)
    });
    let (count, shift) = (given.rq_wqe_count, given.rq_wqe_shift);
    // A WQE of a striding queue has a link and a data segment.
    let least_shift = if striding.is_some() { 5 } else { 4 };
    let sound = (1..=limits::MAX_QP_WR).contains(&max_wr)
        && count.is_power_of_two()
        && count <= limits::MAX_QP_WR
        && (least_shift..=limits::MAX_RQ_DESC.ilog2()).contains(&shift);
    if !fits || !sound {
        return Err(EINVAL);
    }
    Ok((given, WqAttr { buf: given.buf_addr, count, shift }, striding))
}
