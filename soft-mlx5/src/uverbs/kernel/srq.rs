//! Shared receive queues.

use super::abi::mlx5;
use super::abi::uverbs::{CreateSrq, CreateSrqResp, CreateXsrq, Destroy, ModifySrq, QuerySrqResp};
use super::async_event::{AsyncTarget, Reported, event_type};
use super::attrs::{Attrs, CONSTANT, Carries, Spec, exactly, room};
use super::cq::Cq;
use super::errno::{EINVAL, EOPNOTSUPP};
use super::events::Carries as EventKind;
use super::memlock::{Memlock, Pinned};
use super::udata::{Request, Udata};
use super::{Call, Number, user};
use crate::commands::limits;
use crate::commands::objects::{Id, Kind};
use crate::objects::{Result, SrqAttr, SrqKind, Srqn};

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Its number at the device.
    pub srqn: Srqn,
    /// Usable slots, one less than the queue has.
    pub max_wr: u32,
    /// SGEs that fit into a slot.
    pub max_sge: u32,
    /// Its asynchronous events.
    pub events: AsyncTarget,
    pd: u32,
    // CQ of its own completions.
    cq: Option<u32>,
    _pinned: Pinned,
}

impl Srq {
    /// Returns the handle of its domain.
    pub fn domain(&self) -> u32 {
        self.pd
    }

    /// Returns the handle of the CQ of its own completions.
    pub fn own_cq(&self) -> Option<u32> {
        self.cq
    }
}

const BASIC: u32 = 0;
const XRC: u32 = 1;
const TAG_MATCHING: u32 = 2;

const ATTR_MAX_WR: u32 = 1;
const ATTR_LIMIT: u32 = 2;

const HANDLE: u16 = 0;
const PD: u16 = 1;
const XRCD: u16 = 2;
const CQ: u16 = 3;
const USER_HANDLE: u16 = 4;
const MAX_WR: u16 = 5;
const MAX_SGE: u16 = 6;
const LIMIT: u16 = 7;
const MAX_NUM_TAGS: u16 = 8;
const TYPE: u16 = 9;
const EVENT_FD: u16 = 10;
const RESP_MAX_WR: u16 = 11;
const RESP_MAX_SGE: u16 = 12;
const RESP_SRQ_NUM: u16 = 13;

/// Attributes of the creation.
pub const CREATE: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(PD, Carries::Handle),
    Spec::takes(XRCD, Carries::Handle),
    Spec::takes(CQ, Carries::Handle),
    Spec::needs(USER_HANDLE, exactly(8)),
    Spec::needs(MAX_WR, exactly(4)),
    Spec::needs(MAX_SGE, exactly(4)),
    Spec::needs(LIMIT, exactly(4)),
    Spec::takes(MAX_NUM_TAGS, exactly(4)),
    Spec::needs(TYPE, CONSTANT),
    Spec::takes(EVENT_FD, Carries::Descriptor),
    Spec::needs(RESP_MAX_WR, room(4)),
    Spec::needs(RESP_MAX_SGE, room(4)),
    Spec::takes(RESP_SRQ_NUM, room(4)),
];
/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle), Spec::needs(1, room(4))];

struct Wanted {
    user_handle: u64,
    srq_type: u32,
    pd: u32,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    max_num_tags: u32,
    cq: Option<u32>,
    event_fd: Option<i32>,
}

/// Creates an SRQ, ioctl form.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let wanted = Wanted {
        user_handle: attrs.get(USER_HANDLE)?,
        srq_type: attrs.constant(TYPE)?,
        pd: attrs.handle(PD)?,
        max_wr: attrs.get(MAX_WR)?,
        max_sge: attrs.get(MAX_SGE)?,
        limit: attrs.get(LIMIT)?,
        max_num_tags: if attrs.has(MAX_NUM_TAGS) { attrs.get(MAX_NUM_TAGS)? } else { 0 },
        cq: attrs.has(CQ).then(|| attrs.handle(CQ)).transpose()?,
        event_fd: attrs.descriptor(EVENT_FD)?,
    };
    let handle = call.create_srq(&wanted, &attrs.driver())?;
    let srq = call.get::<Srq>(handle)?;
    let (srqn, max_wr, max_sge) = (srq.srqn, srq.max_wr, srq.max_sge);
    let answered = attrs
        .put(RESP_MAX_WR, &max_wr)
        .and_then(|()| attrs.put(RESP_MAX_SGE, &max_sge))
        .and_then(|()| attrs.put(RESP_SRQ_NUM, &srqn.0))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Creates an SRQ, write form.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    let core: CreateSrq = request.core.input.request()?;
    let wanted = Wanted {
        user_handle: core.user_handle,
        srq_type: BASIC,
        pd: core.pd_handle,
        max_wr: core.max_wr,
        max_sge: core.max_sge,
        limit: core.srq_limit,
        max_num_tags: 0,
        cq: None,
        event_fd: None,
    };
    answer_create(call, &wanted, request)
}

/// Creates an SRQ of any type, write form.
pub fn write_create_any(call: &mut Call, request: &Request) -> Result<()> {
    let core: CreateXsrq = request.core.input.request()?;
    let wanted = Wanted {
        user_handle: core.user_handle,
        srq_type: core.srq_type,
        pd: core.pd_handle,
        max_wr: core.max_wr,
        max_sge: core.max_sge,
        limit: core.srq_limit,
        max_num_tags: core.max_num_tags,
        cq: Some(core.cq_handle),
        event_fd: None,
    };
    answer_create(call, &wanted, request)
}

fn answer_create(call: &mut Call, wanted: &Wanted, request: &Request) -> Result<()> {
    let srq_handle = call.create_srq(wanted, &request.driver)?;
    let srq = call.get::<Srq>(srq_handle)?;
    let (max_wr, max_sge, srqn) = (srq.max_wr, srq.max_sge, srq.srqn.0);
    let answer = CreateSrqResp { srq_handle, max_wr, max_sge, srqn };
    let answered = request.core.output.respond(&answer);
    call.or_destroy(srq_handle, answered)
}

/// Destroys an SRQ, ioctl form.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let reported = call.destroy(attrs.handle(HANDLE)?, 5)?;
    attrs.respond(1, &reported.asynchronous)
}

/// Destroys an SRQ, write form.
pub fn write_destroy(call: &mut Call, request: &Request) -> Result<()> {
    let core: Destroy = request.core.input.request()?;
    let reported = call.destroy(core.handle, 5)?;
    request.core.output.respond(&reported.asynchronous)
}

/// Runs MODIFY_SRQ: arms the limit. The driver cannot change the size.
pub fn write_modify(call: &mut Call, request: &Request) -> Result<()> {
    let core: ModifySrq = request.core.input.request()?;
    let srq = call.get::<Srq>(core.srq_handle)?;
    let (srqn, max_wr) = (srq.srqn, srq.max_wr);
    if core.attr_mask & ATTR_MAX_WR != 0 {
        return Err(EINVAL);
    }
    if core.attr_mask & ATTR_LIMIT != 0 {
        if core.srq_limit > max_wr {
            return Err(EINVAL);
        }
        call.nic().modify_srq_limit(srqn, core.srq_limit)?;
    }
    Ok(())
}

/// Runs QUERY_SRQ.
pub fn write_query(call: &mut Call, request: &Request) -> Result<()> {
    let core: Destroy = request.core.input.request()?;
    let srq = call.get::<Srq>(core.handle)?;
    let (srqn, max_wr, max_sge) = (srq.srqn, srq.max_wr, srq.max_sge);
    let srq_limit = call.nic().srq_limit(srqn)?;
    request.core.output.respond(&QuerySrqResp { max_wr, max_sge, srq_limit, reserved: 0 })
}

impl Call<'_> {
    fn create_srq(&mut self, wanted: &Wanted, driver: &Udata) -> Result<u32> {
        self.context()?;
        let pdn = self.get::<super::pd::Pd>(wanted.pd)?.pdn;
        let cq = match wanted.srq_type {
            BASIC => None,
            TAG_MATCHING if (1..=limits::MAX_TAGS).contains(&wanted.max_num_tags) => Some(wanted.cq.ok_or(EINVAL)?),
            // The device has no XRC domains.
            XRC => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        };
        cq.map(|cq| self.get::<Cq>(cq).map(drop)).transpose()?;
        let fd = wanted.event_fd;
        let event_file = fd.map(|fd| self.event_file(fd, EventKind::Asynchronous)).transpose()?;
        let shape = Shape::new(wanted.max_wr, wanted.max_sge)?;
        let (buffers, pinned) = buffers(&shape, driver, &self.core.memlock)?;
        let kind = match cq {
            Some(cq) => SrqKind::TagMatching {
                cq: self.get::<Cq>(cq)?.cqn,
                max_tags: wanted.max_num_tags,
                max_ops: limits::MAX_TAG_OPS,
            },
            None => SrqKind::Basic,
        };
        let attr = SrqAttr {
            pd: pdn,
            kind,
            buf: buffers.buf_addr,
            dbrec: buffers.db_addr,
            wqe_count: shape.slots,
            wqe_shift: shape.shift,
            user_index: buffers.uidx,
            limit: wanted.limit,
            cyclic: false,
        };
        self.admit(super::SRQ)?;
        let srqn = self.nic().create_srq(attr)?;
        let default_file = self.file().async_file;
        let element = wanted.user_handle;
        let made = Srq {
            srqn,
            max_wr: shape.slots - 1,
            max_sge: wanted.max_sge,
            events: AsyncTarget { file: event_file.or(default_file), element, delivered: 0 },
            pd: wanted.pd,
            cq,
            _pinned: pinned,
        };
        let uses: Vec<u32> = [wanted.pd].into_iter().chain(cq).collect();
        let kind = if cq.is_some() { Kind::Xrq } else { Kind::Rmp };
        let id = Id(kind, srqn.0);
        let handle = self.enter(id, &uses, made);
        self.core.commands.objects.set_context(id, attr.context());
        self.core.routes.add(Number::Srq(srqn), self.file, handle);
        let answered = driver.output.put(&mlx5::Number { number: srqn.0, reserved: 0 });
        self.or_destroy(handle, answered)?;
        Ok(handle)
    }

    pub(super) fn destroy_srq(&mut self, handle: u32) -> Result<Reported> {
        let srqn = self.get::<Srq>(handle)?.srqn;
        self.nic().destroy_srq(srqn)?;
        self.core.deliver_events();
        self.core.routes.remove(Number::Srq(srqn));
        let events = self.get::<Srq>(handle)?.events;
        let asynchronous = self.core.read_async_events(&events, event_type::OF_SRQ);
        Ok(Reported { completions: 0, asynchronous })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Shape {
    slots: u32,
    shift: u32,
}

impl Shape {
    fn new(max_wr: u32, max_sge: u32) -> Result<Self> {
        if max_wr >= limits::MAX_SRQ_SLOTS || max_sge > limits::MAX_SRQ_SGE {
            return Err(EINVAL);
        }
        let stride = (16 + 16 * max_sge).next_power_of_two().max(32);
        Ok(Self { slots: (max_wr + 1).next_power_of_two(), shift: stride.ilog2() })
    }
}

fn buffers(shape: &Shape, driver: &Udata, memlock: &Memlock) -> Result<(mlx5::CreateSrq, Pinned)> {
    let wanted: mlx5::CreateSrq = driver.input.get()?;
    if wanted.reserved0 != 0 || wanted.reserved1 != 0 || !driver.input.is_zero_from(32)? {
        return Err(EINVAL);
    }
    // WQEs with signatures (`MLX5_SRQ_FLAG_SIGNATURE`) are not offered.
    if wanted.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let bytes = u64::from(shape.slots) << shape.shift;
    let pinned = memlock.pin(wanted.buf_addr, bytes, false)?;
    user::pin(wanted.db_addr, 8, false)?;
    Ok((wanted, pinned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_stride_follow_from_the_request() {
        assert_eq!(Shape::new(127, 1), Ok(Shape { slots: 128, shift: 5 }));
        assert_eq!(Shape::new(128, 2), Ok(Shape { slots: 256, shift: 6 }));
        assert_eq!(Shape::new(1, 31), Ok(Shape { slots: 2, shift: 9 }));
        assert_eq!(Shape::new(1, 0), Ok(Shape { slots: 2, shift: 5 }));
        assert_eq!(Shape::new(32767, 1), Ok(Shape { slots: 32768, shift: 5 }));
        assert_eq!(Shape::new(32768, 1), Err(EINVAL));
        assert_eq!(Shape::new(1, 32), Err(EINVAL));
    }
}
