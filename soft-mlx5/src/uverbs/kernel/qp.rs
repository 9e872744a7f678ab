//! Queue pairs: the driver's state of them, and their destruction.

use super::abi::uverbs::{Destroy, QpCap, QpDest};
use super::async_event::{AsyncTarget, Reported, event_type};
use super::attrs::{Attrs, Carries, Spec, room};
use super::errno::EBUSY;
use super::memlock::Pinned;
use super::udata::Request;
use super::{Call, Number};
use crate::objects::{Qpn, Result, Service};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its number at the device.
    pub qpn: Qpn,
    /// Transport service.
    pub service: Service,
    /// It is a target of dynamic connections. Programs learn its number when it listens.
    pub is_target: bool,
    /// Objects that it needs, by handle.
    pub uses: Uses,
    /// Its register, unless a thread domain owns it.
    pub bfreg: Option<usize>,
    /// Sizes as QUERY_QP reports them.
    pub cap: QpCap,
    /// Every send completes with a CQE.
    pub signal_all: bool,
    /// Context as last set.
    pub attr: QpContext,
    /// Multicast groups, with their LIDs.
    pub groups: Vec<([u8; 16], u16)>,
    /// Its asynchronous events.
    pub events: AsyncTarget,
    /// Its rings.
    pub _pinned: Vec<Pinned>,
}

/// Objects that a QP needs, by handle.
#[derive(Debug, Clone, Copy)]
pub struct Uses {
    /// Domain.
    pub pd: u32,
    /// CQ of the send queue.
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
}

/// Attributes as MODIFY_QP last set them.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpContext {
    /// Address vector.
    pub dest: QpDest,
    pub qkey: u32,
    pub dest_qpn: u32,
    /// Rights of the peer in effect.
    pub access: u32,
    /// Rights as given.
    pub granted: u32,
    /// `max_dest_rd_atomic` as given.
    pub resources: u8,
    pub pkey_index: u16,
    pub port: u8,
    /// `enum ibv_mtu`.
    pub path_mtu: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

impl Qp {
    /// Returns the number that the creation answers.
    pub fn number_at_first(&self) -> u32 {
        if self.is_target { 0 } else { self.qpn.0 }
    }
}

impl Call<'_> {
    pub(super) fn destroy_qp(&mut self, handle: u32) -> Result<Reported> {
        let qp = self.get::<Qp>(handle)?;
        if !qp.groups.is_empty() {
            return Err(EBUSY);
        }
        let (qpn, bfreg, is_target) = (qp.qpn, qp.bfreg, qp.is_target);
        self.core.settle();
        if is_target {
            self.nic().drain_target(qpn)?;
        }
        self.nic().destroy_qp(qpn)?;
        self.core.deliver_events();
        self.core.routes.remove(Number::Qp(qpn));
        self.core.bound.remove(qpn);
        if let Some(bfreg) = bfreg {
            self.context()?.release_bfreg(bfreg);
        }
        let events = self.get::<Qp>(handle)?.events;
        let asynchronous = self.core.read_async_events(&events, event_type::OF_QP);
        Ok(Reported { completions: 0, asynchronous })
    }
}

/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(0, Carries::Handle), Spec::needs(1, room(4))];

/// Destroys a queue pair, ioctl form.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let reported = call.destroy(attrs.handle(0)?, 4)?;
    attrs.respond(1, &reported.asynchronous)
}

/// Destroys a queue pair, write form.
pub fn write_destroy(call: &mut Call, request: &Request) -> Result<()> {
    let core: Destroy = request.core.input.request()?;
    let reported = call.destroy(core.handle, 4)?;
    request.core.output.respond(&reported.asynchronous)
}
