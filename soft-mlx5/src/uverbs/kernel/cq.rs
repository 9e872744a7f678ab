//! Completion queues.

use super::abi::mlx5;
use super::abi::uverbs::{
    CreateCq, CreateCqResp, Destroy, DestroyCqResp, ExCreateCq, ExCreateCqResp, ResizeCq, ResizeCqResp,
};
use super::async_event::{AsyncTarget, Reported, event_type};
use super::attrs::{Attrs, Carries, FLAGS, Spec, exactly, room};
use super::errno::{EINVAL, EOPNOTSUPP};
use super::events::{Carries as EventKind, FileId};
use super::memlock::Pinned;
use super::udata::{Request, Udata};
use super::{Call, Number, user};
use crate::commands::limits;
use crate::commands::objects::{Id, Kind};
use crate::objects::{CqAttr, Cqn, Result};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Its number at the device.
    pub cqn: Cqn,
    /// 64 or 128.
    pub cqe_size: u32,
    /// Usable entries, one less than slots.
    pub entries: u32,
    /// Its timestamps are in real time.
    pub real_time: bool,
    /// Completion channel.
    pub channel: Option<FileId>,
    /// Completion events delivered.
    pub completions: u32,
    pinned: Pinned,
    /// Its asynchronous events; `element` is also what completion events carry.
    pub events: AsyncTarget,
}

const FLAG_TIMESTAMP: u32 = 1 << 0;
const FLAG_IGNORE_OVERRUN: u32 = 1 << 1;

const DRIVER_128B_PAD: u16 = 1 << 0;
const DRIVER_UAR_PAGE_INDEX: u16 = 1 << 1;
const DRIVER_REAL_TIME: u16 = 1 << 2;

const HANDLE: u16 = 0;
const CQE: u16 = 1;
const USER_HANDLE: u16 = 2;
const COMP_CHANNEL: u16 = 3;
const COMP_VECTOR: u16 = 4;
const CREATE_FLAGS: u16 = 5;
const RESP_CQE: u16 = 6;
const EVENT_FD: u16 = 7;

/// Attributes of the creation.
pub const CREATE: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(CQE, exactly(4)),
    Spec::needs(USER_HANDLE, exactly(8)),
    Spec::takes(COMP_CHANNEL, Carries::Descriptor),
    Spec::needs(COMP_VECTOR, exactly(4)),
    Spec::takes(CREATE_FLAGS, FLAGS),
    Spec::needs(RESP_CQE, room(4)),
    Spec::takes(EVENT_FD, Carries::Descriptor),
];
/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle), Spec::needs(1, room(8))];

struct Wanted {
    user_handle: u64,
    entries: u32,
    comp_vector: u32,
    channel: Option<i32>,
    event_fd: Option<i32>,
    flags: u32,
}

/// Creates a CQ, ioctl form.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let wanted = Wanted {
        user_handle: attrs.get(USER_HANDLE)?,
        entries: attrs.get(CQE)?,
        comp_vector: attrs.get(COMP_VECTOR)?,
        channel: attrs.descriptor(COMP_CHANNEL)?,
        event_fd: attrs.descriptor(EVENT_FD)?,
        flags: attrs.flags(CREATE_FLAGS, FLAG_TIMESTAMP | FLAG_IGNORE_OVERRUN)?,
    };
    let handle = call.create_cq(&wanted, &attrs.driver())?;
    let entries = call.get::<Cq>(handle)?.entries;
    let answered = attrs.put(RESP_CQE, &entries).and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Creates a CQ, write form.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    let core: CreateCq = request.core.input.request()?;
    let wanted = Wanted {
        user_handle: core.user_handle,
        entries: core.cqe,
        comp_vector: core.comp_vector,
        channel: (core.comp_channel >= 0).then_some(core.comp_channel),
        event_fd: None,
        flags: 0,
    };
    let cq_handle = call.create_cq(&wanted, &request.driver)?;
    let cqe = call.get::<Cq>(cq_handle)?.entries;
    let answered = request.core.output.respond(&CreateCqResp { cq_handle, cqe });
    call.or_destroy(cq_handle, answered)
}

/// Creates a CQ, extended write form.
pub fn write_create_ex(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExCreateCq = request.core.input.request()?;
    if core.comp_mask != 0 || core.reserved != 0 {
        return Err(EINVAL);
    }
    let wanted = Wanted {
        user_handle: core.user_handle,
        entries: core.cqe,
        comp_vector: core.comp_vector,
        channel: (core.comp_channel >= 0).then_some(core.comp_channel),
        event_fd: None,
        flags: core.flags,
    };
    let cq_handle = call.create_cq(&wanted, &request.driver)?;
    let cqe = call.get::<Cq>(cq_handle)?.entries;
    let answered = request.core.output.respond(&ExCreateCqResp {
        base: CreateCqResp { cq_handle, cqe },
        comp_mask: 0,
        response_length: request.core.output.len.min(16) as u32,
    });
    call.or_destroy(cq_handle, answered)
}

/// Destroys a CQ, ioctl form.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let reported = call.destroy(attrs.handle(HANDLE)?, 3)?;
    attrs.respond(1, &answer(reported))
}

/// Destroys a CQ, write form.
pub fn write_destroy(call: &mut Call, request: &Request) -> Result<()> {
    let core: Destroy = request.core.input.request()?;
    let reported = call.destroy(core.handle, 3)?;
    request.core.output.respond(&answer(reported))
}

fn answer(reported: Reported) -> DestroyCqResp {
    DestroyCqResp { comp_events_reported: reported.completions, async_events_reported: reported.asynchronous }
}

/// Runs RESIZE_CQ.
pub fn write_resize(call: &mut Call, request: &Request) -> Result<()> {
    let core: ResizeCq = request.core.input.request()?;
    let (entries, cqn) = {
        let cq = call.get::<Cq>(core.cq_handle)?;
        (cq.entries, cq.cqn)
    };
    let slots = slots(core.cqe)?;
    if core.cqe == 0 {
        return Err(EINVAL);
    }
    if slots != entries + 1 {
        let driver: mlx5::ResizeCq = request.driver.input.get()?;
        if driver.reserved0 != 0 || driver.reserved1 != 0 {
            return Err(EINVAL);
        }
        let bytes = u64::from(slots) * u64::from(driver.cqe_size);
        let pinned = call.core.memlock.pin(driver.buf_addr, bytes, true)?;
        if u32::from(driver.cqe_size) != call.get::<Cq>(core.cq_handle)?.cqe_size {
            return Err(EINVAL);
        }
        // Doorbells that were rung before belong to the old buffer.
        call.core.work_off();
        call.nic().resize_cq(cqn, driver.buf_addr, slots)?;
        let cq = call.get_mut::<Cq>(core.cq_handle)?;
        (cq.entries, cq.pinned) = (slots - 1, pinned);
    }
    request.core.output.respond(&ResizeCqResp { cqe: slots - 1, reserved: 0 })
}

/// Returns the number of slots for so many entries: one more, rounded up to a power of two.
fn slots(entries: u32) -> Result<u32> {
    if entries > limits::MAX_CQ_SLOTS {
        return Err(EINVAL);
    }
    let slots = (entries + 1).next_power_of_two();
    if slots > limits::MAX_CQ_SLOTS { Err(EINVAL) } else { Ok(slots) }
}

impl Call<'_> {
    fn create_cq(&mut self, wanted: &Wanted, driver: &Udata) -> Result<u32> {
        self.context()?;
        if wanted.comp_vector >= self.core.vectors {
            return Err(EINVAL);
        }
        let of_kind = |fd: Option<i32>, kind| fd.map(|fd| self.event_file(fd, kind)).transpose();
        let channel = of_kind(wanted.channel, EventKind::Completions)?;
        let event_file = of_kind(wanted.event_fd, EventKind::Asynchronous)?;
        let slots = slots(wanted.entries)?;
        if wanted.flags & !(FLAG_TIMESTAMP | FLAG_IGNORE_OVERRUN) != 0 {
            return Err(EOPNOTSUPP);
        }
        let (attr, pinned) = self.cq_attr(slots, wanted, driver)?;
        self.admit(super::CQ)?;
        let cqn = self.nic().create_cq(attr)?;
        let default_file = self.file().async_file;
        let element = wanted.user_handle;
        let made = Cq {
            cqn,
            cqe_size: attr.cqe_size,
            entries: slots - 1,
            real_time: attr.real_time.is_some(),
            channel,
            completions: 0,
            pinned,
            events: AsyncTarget { file: event_file.or(default_file), element, delivered: 0 },
        };
        let id = Id(Kind::Cq, cqn.0);
        let handle = self.enter(id, &[], made);
        let context = attr.context(self.core.commands.eqn(attr.comp_vector));
        self.core.commands.objects.set_context(id, context.to_bytes().to_vec());
        self.core.routes.add(Number::Cq(cqn), self.file, handle);
        let answered = driver.output.put(&mlx5::Number { number: cqn.0, reserved: 0 });
        self.or_destroy(handle, answered)?;
        Ok(handle)
    }

    fn cq_attr(&mut self, slots: u32, core: &Wanted, driver: &Udata) -> Result<(CqAttr, Pinned)> {
        // The oldest form of the structure ends before the flags.
        if driver.input.len() < 22 {
            return Err(EINVAL);
        }
        let wanted: mlx5::CreateCq = driver.input.get()?;
        let known = DRIVER_128B_PAD | DRIVER_UAR_PAGE_INDEX | DRIVER_REAL_TIME;
        if wanted.flags & !known != 0
            || !matches!(wanted.cqe_size, 64 | 128)
            || wanted.reserved0 != 0
            || wanted.reserved1 != 0
        {
            return Err(EINVAL);
        }
        let bytes = u64::from(slots) * u64::from(wanted.cqe_size);
        let pinned = self.core.memlock.pin(wanted.buf_addr, bytes, true)?;
        user::pin(wanted.db_addr, 8, true)?;
        if wanted.flags & DRIVER_128B_PAD != 0 {
            return Err(EOPNOTSUPP);
        }
        let uar = if wanted.flags & DRIVER_UAR_PAGE_INDEX != 0 {
            self.check_uar_page(wanted.uar_page_index.into())?
        } else {
            self.context()?.cq_page()?
        };
        let compression = match (wanted.cqe_comp_en, wanted.cqe_comp_res_format) {
            (1, format @ (1 | 2)) if wanted.cqe_size == 64 => Some(format),
            (1, _) => return Err(EOPNOTSUPP),
            _ => None,
        };
        let attr = CqAttr {
            buf: wanted.buf_addr,
            dbrec: wanted.db_addr,
            cqe_count: slots,
            cqe_size: wanted.cqe_size,
            compression,
            collapsed: false,
            real_time: (wanted.flags & DRIVER_REAL_TIME != 0).then_some(self.core.epoch),
            uar,
            ignore_overrun: core.flags & FLAG_IGNORE_OVERRUN != 0,
            comp_vector: core.comp_vector,
        };
        Ok((attr, pinned))
    }

    pub(super) fn destroy_cq(&mut self, handle: u32) -> Result<Reported> {
        let cqn = self.get::<Cq>(handle)?.cqn;
        self.nic().destroy_cq(cqn)?;
        // The last events of the device must be counted before the channel is searched.
        self.core.deliver_events();
        self.core.routes.remove(Number::Cq(cqn));
        let cq = self.get::<Cq>(handle)?;
        let (events, delivered, channel) = (cq.events, cq.completions, cq.channel);
        let retract = |channel| self.core.events.retract_completions(channel, events.element);
        let unread = channel.map_or(0, retract).min(delivered);
        let asynchronous = self.core.read_async_events(&events, event_type::OF_CQ);
        Ok(Reported { completions: delivered - unread, asynchronous })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_rounded_to_a_power_of_two_that_leaves_one_free() {
        assert_eq!(slots(1), Ok(2));
        assert_eq!(slots(255), Ok(256));
        assert_eq!(slots(256), Ok(512));
        assert_eq!(slots(limits::MAX_CQ_SLOTS - 1), Ok(limits::MAX_CQ_SLOTS));
        assert_eq!(slots(limits::MAX_CQ_SLOTS), Err(EINVAL));
        assert_eq!(slots(u32::MAX), Err(EINVAL));
    }
}
