//! Creation of queue pairs.

use super::abi::Abi;
use super::abi::mlx5::{self, driver_flag};
use super::abi::uverbs::{CreateQp, CreateQpResp, ExCreateQp, ExCreateQpResp, QpCap};
use super::async_event::AsyncTarget;
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS, Spec, exactly, room};
use super::cq::Cq;
use super::errno::{EINVAL, EOPNOTSUPP, EPERM};
use super::events::Carries as EventKind;
use super::pd::Pd;
use super::qp::{Qp, QpContext, Uses};
use super::qp_rings::Queues;
use super::rss::WantedRss;
use super::srq::Srq;
use super::uar::gross;
use super::udata::{Request, Udata};
use super::{Call, Number};
use crate::commands::capabilities::LOG_STREAMS;
use crate::fabric::LinkLayer;
use crate::objects::{DcAttr, Loopback, QpAttr, RawAttr, Register, Result, RxOffloads, Service, Srqn, WqAttr};

const HANDLE: u16 = 0;
const XRCD: u16 = 1;
const PD: u16 = 2;
const SRQ: u16 = 3;
const SEND_CQ: u16 = 4;
const RECV_CQ: u16 = 5;
const IND_TABLE: u16 = 6;
const USER_HANDLE: u16 = 7;
const CAP: u16 = 8;
const TYPE: u16 = 9;
const CREATE_FLAGS: u16 = 10;
const SOURCE_QPN: u16 = 11;
const EVENT_FD: u16 = 12;
const RESP_CAP: u16 = 13;
const RESP_QP_NUM: u16 = 14;

/// Attributes of the creation.
pub const CREATE: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::takes(XRCD, Carries::Handle),
    Spec::takes(PD, Carries::Handle),
    Spec::takes(SRQ, Carries::Handle),
    Spec::takes(SEND_CQ, Carries::Handle),
    Spec::takes(RECV_CQ, Carries::Handle),
    Spec::takes(IND_TABLE, Carries::Handle),
    Spec::needs(USER_HANDLE, exactly(8)),
    Spec::needs(CAP, Carries::Structure(20, 20)),
    Spec::needs(TYPE, CONSTANT),
    Spec::takes(CREATE_FLAGS, FLAGS),
    Spec::takes(SOURCE_QPN, exactly(4)),
    Spec::takes(EVENT_FD, Carries::Descriptor),
    Spec::needs(RESP_CAP, Carries::Out(20, u16::MAX)),
    Spec::needs(RESP_QP_NUM, room(4)),
];

mod qp_type {
    pub const RC: u32 = 2;
    pub const UC: u32 = 3;
    pub const UD: u32 = 4;
    pub const RAW_PACKET: u32 = 8;
    pub const XRC_INI: u32 = 9;
    pub const XRC_TGT: u32 = 10;
    pub const DRIVER: u32 = 0xff;
}

mod create_flag {
    pub const BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
    pub const SCATTER_FCS: u32 = 1 << 8;
    pub const CVLAN_STRIPPING: u32 = 1 << 9;
    pub const PCI_WRITE_END_PADDING: u32 = 1 << 11;
    pub const SQ_SIG_ALL: u32 = 1 << 12;
    pub const KNOWN: u32 =
        BLOCK_MULTICAST_LOOPBACK | SCATTER_FCS | CVLAN_STRIPPING | PCI_WRITE_END_PADDING | SQ_SIG_ALL;
}

/// The response of a QP whose register the library chose itself.
const NO_BFREG: u32 = 1 << 31;
/// A queue pair without queues has no number.
const RSS_QP_NUMBER: u32 = 0;

struct Wanted {
    user_handle: u64,
    qp_type: u32,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    cap: QpCap,
    flags: u32,
    event_fd: Option<i32>,
}

/// Creates a queue pair, ioctl form.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let qp_type = attrs.constant(TYPE)?;
    call.check_type(qp_type)?;
    if attrs.has(XRCD) {
        return Err(EINVAL);
    }
    let cap: QpCap = attrs.get(CAP)?;
    let flags = attrs.flags(CREATE_FLAGS, create_flag::KNOWN)?;
    if attrs.has(SOURCE_QPN) {
        return Err(EOPNOTSUPP);
    }
    if attrs.has(IND_TABLE) {
        let (pd, table) = (attrs.handle(PD)?, attrs.handle(IND_TABLE)?);
        let sends = attrs.has(SEND_CQ) || cap.max_send_wr != 0;
        let rss = WantedRss { pd, table, flags, sends };
        let handle = call.create_rss_by_type(qp_type, &rss, &attrs.driver())?;
        let answered = attrs
            .respond(RESP_CAP, &cap)
            .and_then(|()| attrs.put(RESP_QP_NUM, &RSS_QP_NUMBER))
            .and_then(|()| attrs.put_new(HANDLE, handle));
        return call.or_destroy(handle, answered);
    }
    let srq = attrs.has(SRQ).then(|| attrs.handle(SRQ)).transpose()?;
    let wanted = Wanted {
        user_handle: attrs.get(USER_HANDLE)?,
        qp_type,
        pd: attrs.handle(PD)?,
        send_cq: attrs.handle(SEND_CQ)?,
        recv_cq: attrs.handle(RECV_CQ)?,
        srq,
        cap,
        flags,
        event_fd: attrs.descriptor(EVENT_FD)?,
    };
    let handle = call.create_qp(&wanted, &attrs.driver())?;
    let qpn = call.get::<Qp>(handle)?.number_at_first();
    let answered = attrs
        .respond(RESP_CAP, &cap)
        .and_then(|()| attrs.put(RESP_QP_NUM, &qpn))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Creates a queue pair, write form.
pub fn write_create(call: &mut Call, request: &Request) -> Result<()> {
    let core: CreateQp = request.core.input.request()?;
    let wanted = Wanted {
        user_handle: core.user_handle,
        qp_type: core.qp_type.into(),
        pd: core.pd_handle,
        send_cq: core.send_cq_handle,
        recv_cq: core.recv_cq_handle,
        srq: (core.is_srq != 0).then_some(core.srq_handle),
        cap: core.cap,
        flags: if core.sq_sig_all != 0 { create_flag::SQ_SIG_ALL } else { 0 },
        event_fd: None,
    };
    let (handle, answer) = call.create_by_write(&wanted, &request.driver)?;
    let answered = request.core.output.respond(&answer);
    call.or_destroy(handle, answered)
}

/// Creates a queue pair, extended write form.
pub fn write_create_ex(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExCreateQp = request.core.input.request()?;
    // The only addition in this form is an indirection table.
    if core.comp_mask & !1 != 0 || core.reserved != 0 {
        return Err(EINVAL);
    }
    if core.source_qpn != 0 {
        return Err(EOPNOTSUPP);
    }
    if core.create_flags & !create_flag::KNOWN != 0 {
        return Err(EINVAL);
    }
    let response_length = request.core.output.len.min(ExCreateQpResp::SIZE) as u32;
    if core.comp_mask != 0 {
        let (pd, table, flags) = (core.pd_handle, core.rwq_ind_tbl_handle, core.create_flags);
        let rss = WantedRss { pd, table, flags, sends: core.cap.max_send_wr != 0 };
        let qp_handle = call.create_rss_by_type(core.qp_type.into(), &rss, &request.driver)?;
        let base = CreateQpResp { qp_handle, qpn: RSS_QP_NUMBER, cap: core.cap, reserved: 0 };
        let answer = ExCreateQpResp { base, comp_mask: 0, response_length };
        let answered = request.core.output.respond(&answer);
        return call.or_destroy(qp_handle, answered);
    }
    let signal = if core.sq_sig_all != 0 { create_flag::SQ_SIG_ALL } else { 0 };
    let wanted = Wanted {
        user_handle: core.user_handle,
        qp_type: core.qp_type.into(),
        pd: core.pd_handle,
        send_cq: core.send_cq_handle,
        recv_cq: core.recv_cq_handle,
        srq: (core.is_srq != 0).then_some(core.srq_handle),
        cap: core.cap,
        flags: core.create_flags | signal,
        event_fd: None,
    };
    let (handle, base) = call.create_by_write(&wanted, &request.driver)?;
    let answer = ExCreateQpResp { base, comp_mask: 0, response_length };
    let answered = request.core.output.respond(&answer);
    call.or_destroy(handle, answered)
}

/// Checks the flags as the driver does: most belong to all services, and have no effect on some.
fn check_flags(service: Service, flags: u32) -> Result<()> {
    use create_flag::*;
    let of_frames = if service == Service::Raw { SCATTER_FCS | CVLAN_STRIPPING } else { 0 };
    let known = SQ_SIG_ALL | BLOCK_MULTICAST_LOOPBACK | PCI_WRITE_END_PADDING | of_frames;
    if flags & !known != 0 { Err(EOPNOTSUPP) } else { Ok(()) }
}

/// Returns `true` for a target of dynamic connections, and `false` for an initiator.
fn is_target(driver: &Udata) -> Result<bool> {
    if !driver.input.is_zero_from(mlx5::CreateQp::SIZE)? {
        return Err(EINVAL);
    }
    let mlx5::CreateQp { flags, reserved, .. } = driver.input.get()?;
    match (flags & driver_flag::TYPE_DCT != 0, flags & driver_flag::TYPE_DCI != 0) {
        (is_target, is_initiator) if is_target != is_initiator && reserved == 0 => Ok(is_target),
        _ => Err(EINVAL),
    }
}

fn initiator(given: &mlx5::CreateQp) -> Result<DcAttr> {
    let [streams, errors] = given.dci_streams;
    if given.flags & driver_flag::DCI_STREAM == 0 {
        return Ok(DcAttr::Initiator { streams_in_error: None });
    }
    if streams > LOG_STREAMS || errors > LOG_STREAMS {
        return Err(EINVAL);
    }
    Ok(DcAttr::Initiator { streams_in_error: Some(1 << errors) })
}

impl Call<'_> {
    fn check_type(&self, wanted: u32) -> Result<Service> {
        match wanted {
            qp_type::RC => Ok(Service::Rc),
            qp_type::UC => Ok(Service::Uc),
            qp_type::UD => Ok(Service::Ud),
            qp_type::RAW_PACKET if !self.may_use_frames() => Err(EPERM),
            qp_type::RAW_PACKET if self.core.link == LinkLayer::Ethernet => Ok(Service::Raw),
            // The library names the kind of a driver's queue pair: an initiator or a target of dynamic connections.
            qp_type::DRIVER => Ok(Service::Dc),
            // XRC is not offered, nor are frames on InfiniBand.
            qp_type::RAW_PACKET | qp_type::XRC_INI | qp_type::XRC_TGT => Err(EOPNOTSUPP),
            _ => Err(EINVAL),
        }
    }

    fn create_rss_by_type(&mut self, kind: u32, rss: &WantedRss, driver: &Udata) -> Result<u32> {
        match self.check_type(kind)? {
            Service::Raw => self.create_rss_qp(rss, driver),
            _ => Err(EOPNOTSUPP),
        }
    }

    fn create_by_write(&mut self, wanted: &Wanted, driver: &Udata) -> Result<(u32, CreateQpResp)> {
        let qp_handle = self.create_qp(wanted, driver)?;
        let qpn = self.get::<Qp>(qp_handle)?.number_at_first();
        Ok((qp_handle, CreateQpResp { qp_handle, qpn, cap: wanted.cap, reserved: 0 }))
    }

    /// Checks that the timestamps of both directions have the same form, and that the device has this form.
    fn check_clocks(&mut self, uses: &Uses) -> Result<()> {
        let send = self.get::<Cq>(uses.send_cq)?.real_time;
        let recv = self.get::<Cq>(uses.recv_cq)?.real_time;
        if send != recv || send && !self.core.real_time { Err(EOPNOTSUPP) } else { Ok(()) }
    }

    fn create_qp(&mut self, wanted: &Wanted, driver: &Udata) -> Result<u32> {
        self.context()?;
        let service = self.check_type(wanted.qp_type)?;
        // CQEs of frames name no queue pair: without a user index nobody would know theirs.
        if service == Service::Raw && self.context()?.cqe_version == 0 {
            return Err(EINVAL);
        }
        let uses = Uses { pd: wanted.pd, send_cq: wanted.send_cq, recv_cq: wanted.recv_cq, srq: wanted.srq };
        self.get::<Pd>(uses.pd)?;
        self.check_clocks(&uses)?;
        uses.srq.map(|srq| self.get::<Srq>(srq).map(drop)).transpose()?;
        check_flags(service, wanted.flags)?;
        let fd = wanted.event_fd;
        let event_file = fd.map(|fd| self.event_file(fd, EventKind::Asynchronous)).transpose()?;
        let is_target = service == Service::Dc && is_target(driver)?;
        let queues = if is_target {
            self.no_queues(wanted, driver)?
        } else {
            self.queues(&wanted.cap, wanted.srq.is_some(), service, driver)?
        };
        let signal_all = wanted.flags & create_flag::SQ_SIG_ALL != 0;
        let (bfreg, attr) = if is_target {
            (None, self.target_attr(&uses, &queues)?)
        } else {
            let (bfreg, register) = self.take_register(&queues.driver)?;
            (bfreg, self.qp_attr(wanted, service, &uses, &queues, register)?)
        };
        let used = [uses.pd, uses.send_cq, uses.recv_cq].into_iter().chain(uses.srq);
        let used = self.ids(&used.collect::<Vec<_>>());
        let created = self.admit(super::QP).and_then(|()| self.nic().create_qp(attr));
        let entered = created.and_then(|qpn| Ok((qpn, self.enter_parts(qpn, &attr, used)?)));
        let (qpn, parts) = match entered {
            Ok(entered) => entered,
            Err(error) => {
                self.release_register(bfreg);
                return Err(error);
            }
        };
        let default_file = self.file().async_file;
        let element = wanted.user_handle;
        let made = Qp {
            qpn,
            service,
            is_target,
            uses,
            bfreg,
            cap: QpCap {
                max_recv_wr: queues.rq.count,
                max_recv_sge: if queues.rq.count == 0 { 0 } else { 1 << queues.rq.shift >> 4 },
                max_inline_data: wanted.cap.max_inline_data,
                // The library knows the size of its send queue itself.
                ..QpCap::default()
            },
            signal_all,
            attr: QpContext::default(),
            groups: Vec::new(),
            _pinned: queues.pinned,
            events: AsyncTarget { file: event_file.or(default_file), element, delivered: 0 },
        };
        let numbers = self.answer_parts(&parts);
        let handle = self.handles().insert(parts, made);
        self.core.routes.add(Number::Qp(qpn), self.file, handle);
        let answered = driver.output.put(&mlx5::CreateQpResp {
            bfreg_index: if is_target { 0 } else { bfreg.map_or(NO_BFREG, gross) },
            // The device agrees to what the program asks for.
            ece_options: queues.driver.ece_options,
            ..numbers
        });
        self.or_destroy(handle, answered)?;
        Ok(handle)
    }

    fn qp_attr(
        &mut self,
        wanted: &Wanted,
        service: Service,
        uses: &Uses,
        queues: &Queues,
        register: Register,
    ) -> Result<QpAttr> {
        let signal_all = wanted.flags & create_flag::SQ_SIG_ALL != 0;
        let scatter =
            queues.driver.flags & driver_flag::SCATTER_CQE != 0 && matches!(service, Service::Rc | Service::Uc);
        let any_signaling = queues.driver.flags & driver_flag::ALLOW_SCATTER_CQE != 0;
        Ok(QpAttr {
            pd: self.get::<Pd>(uses.pd)?.pdn,
            service,
            send_cq: self.get::<Cq>(uses.send_cq)?.cqn,
            recv_cq: self.get::<Cq>(uses.recv_cq)?.cqn,
            // An initiator may name an SRQ, and does not use it.
            srq: self.srqn(uses)?.filter(|_| service != Service::Dc),
            rq: queues.rq,
            sq: queues.sq,
            dbrec: queues.driver.db_addr,
            register,
            user_index: queues.user_index,
            signal_all,
            scatter_to_cqe_rq: scatter,
            scatter_to_cqe_sq: scatter && (signal_all || any_signaling),
            block_multicast_loopback: wanted.flags & create_flag::BLOCK_MULTICAST_LOOPBACK != 0,
            raw: RawAttr {
                domain: self.context()?.domain,
                loopback: Loopback {
                    unicast: queues.driver.flags & driver_flag::LOOPBACK_UNICAST != 0,
                    multicast: queues.driver.flags & driver_flag::LOOPBACK_MULTICAST != 0,
                },
                offloads: RxOffloads {
                    strip_vlan: wanted.flags & create_flag::CVLAN_STRIPPING != 0,
                    scatter_fcs: wanted.flags & create_flag::SCATTER_FCS != 0,
                },
            },
            dc: if service == Service::Dc { initiator(&queues.driver)? } else { DcAttr::None },
        })
    }

    fn srqn(&self, uses: &Uses) -> Result<Option<Srqn>> {
        uses.srq.map(|srq| self.get::<Srq>(srq).map(|srq| srq.srqn)).transpose()
    }

    /// Returns the request of the driver's library for a target, which has no queues.
    fn no_queues(&mut self, wanted: &Wanted, driver: &Udata) -> Result<Queues> {
        let given: mlx5::CreateQp = driver.input.get()?;
        let known = driver_flag::TYPE_DCT | driver_flag::SCATTER_CQE;
        if given.flags & !known != 0 || wanted.flags & !create_flag::SQ_SIG_ALL != 0 {
            return Err(EINVAL);
        }
        let user_index = self.user_index(&given)?;
        let none = WqAttr::default();
        Ok(Queues { rq: none, sq: none, user_index, driver: given, pinned: Vec::new() })
    }

    fn target_attr(&mut self, uses: &Uses, queues: &Queues) -> Result<QpAttr> {
        let pd = self.get::<Pd>(uses.pd)?.pdn;
        let cq = self.get::<Cq>(uses.recv_cq)?.cqn;
        let srq = self.srqn(uses)?.ok_or(EINVAL)?;
        let key = queues.driver.sq_buf_addr;
        Ok(QpAttr { user_index: queues.user_index, ..QpAttr::of_target(pd, cq, srq, key) })
    }

    fn take_register(&mut self, driver: &mlx5::CreateQp) -> Result<(Option<usize>, Register)> {
        if driver.flags & driver_flag::UAR_PAGE_INDEX != 0 {
            // The library does not say which of its registers it uses.
            let page = self.check_uar_page(driver.bfreg_index)?;
            return Ok((None, Register { page, offset: Register::ANY }));
        }
        let context = self.context()?;
        if driver.flags & driver_flag::BFREG_INDEX != 0 {
            let register = context.dynamic_register(driver.bfreg_index as usize).ok_or(EINVAL)?;
            return Ok((None, register));
        }
        let bfreg = context.allocate_bfreg()?;
        Ok((Some(bfreg), context.register(bfreg)))
    }

    fn release_register(&mut self, bfreg: Option<usize>) {
        if let (Some(bfreg), Ok(context)) = (bfreg, self.context()) {
            context.release_bfreg(bfreg);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_belong_to_services() {
        use create_flag::*;
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            assert_eq!(check_flags(service, SQ_SIG_ALL | BLOCK_MULTICAST_LOOPBACK), Ok(()));
            assert_eq!(check_flags(service, SCATTER_FCS), Err(EOPNOTSUPP));
        }
        assert_eq!(check_flags(Service::Raw, SCATTER_FCS | CVLAN_STRIPPING), Ok(()));
        assert_eq!(check_flags(Service::Ud, CVLAN_STRIPPING), Err(EOPNOTSUPP));
    }
}
