//! Creation of queue pairs.

use super::abi::Abi;
use super::abi::mlx5;
use super::abi::uverbs::{CreateQp, CreateQpResp, ExCreateQp, ExCreateQpResp, QpCap};
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS, Spec, exactly, room};
use super::cq::Cq;
use super::errno::{EINVAL, EOPNOTSUPP, EPERM};
use super::events::Carries as EventKind;
use super::memlock::Pinned;
use super::pd::Pd;
use super::qp::{Qp, QpContext, Uses};
use super::report::AsyncTarget;
use super::srq::Srq;
use super::uar::gross;
use super::udata::{Request, Udata};
use super::{Call, Number, limits, user};
use crate::nic::objects::{QpAttr, Register, Result, Service, WqAttr};

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
    pub const KNOWN: u32 = BLOCK_MULTICAST_LOOPBACK
        | SCATTER_FCS
        | CVLAN_STRIPPING
        | PCI_WRITE_END_PADDING
        | SQ_SIG_ALL;
}

mod driver_flag {
    pub const SCATTER_CQE: u32 = 1 << 1;
    pub const BFREG_INDEX: u32 = 1 << 3;
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}

/// The response of a QP whose register the library chose itself.
const NO_BFREG: u32 = 1 << 31;
const DEFAULT_USER_INDEX: u32 = 0xff_ffff;

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

/// Creation, ioctl form.
pub fn create(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let qp_type = attrs.constant(TYPE)?;
    check_type(qp_type)?;
    if attrs.has(XRCD) {
        return Err(EINVAL);
    }
    let cap: QpCap = attrs.get(CAP)?;
    let flags = attrs.flags(CREATE_FLAGS, create_flag::KNOWN)?;
    if attrs.has(SOURCE_QPN) || attrs.has(IND_TABLE) {
        return Err(EOPNOTSUPP);
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
    let qpn = call.get::<Qp>(handle)?.qpn;
    let told = attrs
        .respond(RESP_CAP, &cap)
        .and_then(|()| attrs.put(RESP_QP_NUM, &qpn.0))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, told)
}

/// Creation, write form.
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
    let told = request.core.output.respond(&answer);
    call.or_destroy(handle, told)
}

/// Creation, extended write form.
pub fn write_create_ex(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExCreateQp = request.core.input.request()?;
    // An indirection table is the one addition that the form has room for.
    if core.comp_mask & !1 != 0 || core.reserved != 0 {
        return Err(EINVAL);
    }
    if core.comp_mask != 0 || core.source_qpn != 0 {
        return Err(EOPNOTSUPP);
    }
    if core.create_flags & !create_flag::KNOWN != 0 {
        return Err(EINVAL);
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
    let response_length = request.core.output.len.min(ExCreateQpResp::SIZE) as u32;
    let answer = ExCreateQpResp { base, comp_mask: 0, response_length };
    let told = request.core.output.respond(&answer);
    call.or_destroy(handle, told)
}

fn check_type(wanted: u32) -> Result<Service> {
    match wanted {
        qp_type::RC => Ok(Service::Rc),
        qp_type::UC => Ok(Service::Uc),
        qp_type::UD => Ok(Service::Ud),
        // SAFETY: no arguments, no memory.
        qp_type::RAW_PACKET if unsafe { libc::geteuid() } != 0 => Err(EPERM),
        // XRC, raw packets and dynamic connections are not offered.
        qp_type::RAW_PACKET | qp_type::XRC_INI | qp_type::XRC_TGT | qp_type::DRIVER => {
            Err(EOPNOTSUPP)
        }
        _ => Err(EINVAL),
    }
}

fn check_flags(service: Service, flags: u32) -> Result<()> {
    let ud = if service == Service::Ud { create_flag::BLOCK_MULTICAST_LOOPBACK } else { 0 };
    if flags & !(create_flag::SQ_SIG_ALL | ud) != 0 { Err(EINVAL) } else { Ok(()) }
}

impl Call<'_> {
    fn create_by_write(&mut self, wanted: &Wanted, driver: &Udata) -> Result<(u32, CreateQpResp)> {
        let qp_handle = self.create_qp(wanted, driver)?;
        let qpn = self.get::<Qp>(qp_handle)?.qpn.0;
        Ok((qp_handle, CreateQpResp { qp_handle, qpn, cap: wanted.cap, reserved: 0 }))
    }

    /// The timestamps of both directions have one form, and it is one that the device has.
    fn check_clocks(&mut self, uses: &Uses) -> Result<()> {
        let send = self.get::<Cq>(uses.send_cq)?.real_time;
        let recv = self.get::<Cq>(uses.recv_cq)?.real_time;
        if send != recv || send && !self.core.real_time { Err(EOPNOTSUPP) } else { Ok(()) }
    }

    fn create_qp(&mut self, wanted: &Wanted, driver: &Udata) -> Result<u32> {
        self.context()?;
        let service = check_type(wanted.qp_type)?;
        let uses = Uses {
            pd: wanted.pd,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
        };
        self.get::<Pd>(uses.pd)?;
        self.check_clocks(&uses)?;
        uses.srq.map(|srq| self.get::<Srq>(srq).map(drop)).transpose()?;
        check_flags(service, wanted.flags)?;
        let fd = wanted.event_fd;
        let event_file = fd.map(|fd| self.event_file(fd, EventKind::Asynchronous)).transpose()?;
        let queues = self.queues(wanted, driver)?;
        let (bfreg, register) = self.take_register(&queues.driver)?;
        let signal_all = wanted.flags & create_flag::SQ_SIG_ALL != 0;

        let attr = self.qp_attr(wanted, service, &uses, &queues, register)?;
        let qpn = match self.nic().create_qp(attr) {
            Ok(qpn) => qpn,
            Err(error) => {
                self.release_uses(&uses);
                self.release_register(bfreg);
                return Err(error);
            }
        };
        let default_file = self.file().async_file;
        let element = wanted.user_handle;
        let handle = self.insert(Qp {
            qpn,
            service,
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
        });
        self.core.routes.add(Number::Qp(qpn), self.file, handle);
        let told = driver.output.put(&mlx5::CreateQpResp {
            bfreg_index: bfreg.map_or(NO_BFREG, gross),
            ..mlx5::CreateQpResp::default()
        });
        self.or_destroy(handle, told)?;
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
        let scatter = queues.driver.flags & driver_flag::SCATTER_CQE != 0 && service != Service::Ud;
        let any_signaling = queues.driver.flags & driver_flag::ALLOW_SCATTER_CQE != 0;
        Ok(QpAttr {
            pd: self.hold_pd(uses.pd)?,
            service,
            send_cq: self.hold_cq(uses.send_cq)?,
            recv_cq: self.hold_cq(uses.recv_cq)?,
            srq: uses.srq.map(|srq| self.hold_srq(srq)).transpose()?,
            rq: queues.rq,
            sq: queues.sq,
            dbrec: queues.driver.db_addr,
            register,
            user_index: queues.user_index,
            signal_all,
            scatter_to_cqe_rq: scatter,
            scatter_to_cqe_sq: scatter && (signal_all || any_signaling),
            block_multicast_loopback: wanted.flags & create_flag::BLOCK_MULTICAST_LOOPBACK != 0,
        })
    }

    fn queues(&mut self, wanted: &Wanted, driver: &Udata) -> Result<Queues> {
        if !driver.input.is_zero_from(mlx5::CreateQp::SIZE)? {
            return Err(EINVAL);
        }
        let has_rq = wanted.srq.is_none() && wanted.cap.max_recv_wr != 0;
        if wanted.cap.max_recv_wr > limits::MAX_QP_WR {
            return Err(EINVAL);
        }
        let given: mlx5::CreateQp = driver.input.get()?;
        let known = driver_flag::SCATTER_CQE
            | driver_flag::BFREG_INDEX
            | driver_flag::ALLOW_SCATTER_CQE
            | driver_flag::UAR_PAGE_INDEX;
        if given.flags & !known != 0 {
            return Err(EINVAL);
        }
        let user_index = match self.context()?.cqe_version {
            0 => DEFAULT_USER_INDEX,
            _ if given.uidx >= DEFAULT_USER_INDEX => return Err(EINVAL),
            _ => given.uidx,
        };
        let (rq, sq) = rings(has_rq, &given)?;
        let bytes = (u64::from(rq.count) << rq.shift) + (u64::from(sq.count) << sq.shift);
        let pinned = self.core.memlock.pin(given.buf_addr, bytes, false)?;
        user::pin(given.db_addr, 8, false)?;
        Ok(Queues { rq, sq, user_index, driver: given, pinned })
    }

    fn take_register(&mut self, driver: &mlx5::CreateQp) -> Result<(Option<usize>, Register)> {
        if driver.flags & driver_flag::UAR_PAGE_INDEX != 0 {
            // Which of its registers the library uses, it does not tell.
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

struct Queues {
    rq: WqAttr,
    sq: WqAttr,
    user_index: u32,
    driver: mlx5::CreateQp,
    pinned: Pinned,
}

// The buffer holds the receive queue and behind it the send queue.
fn rings(has_rq: bool, given: &mlx5::CreateQp) -> Result<(WqAttr, WqAttr)> {
    let power_of_two = |count: u32| count == 0 || count.is_power_of_two();
    let mut rq = WqAttr { buf: given.buf_addr, count: 0, shift: 0 };
    if has_rq {
        (rq.count, rq.shift) = (given.rq_wqe_count, given.rq_wqe_shift);
        let stride_fits = (4..=limits::MAX_RQ_DESC.ilog2()).contains(&rq.shift);
        if !stride_fits || !power_of_two(rq.count) || rq.count > limits::MAX_QP_WR {
            return Err(EINVAL);
        }
    }
    let sq_count = given.sq_wqe_count;
    if !power_of_two(sq_count) || sq_count > limits::MAX_QP_WR {
        return Err(EINVAL);
    }
    let buf = given.buf_addr.wrapping_add(u64::from(rq.count) << rq.shift);
    Ok((rq, WqAttr { buf, count: sq_count, shift: 6 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_send_queue_follows_the_receive_queue() {
        let given = mlx5::CreateQp {
            buf_addr: 0x1000,
            sq_wqe_count: 64,
            rq_wqe_count: 16,
            rq_wqe_shift: 6,
            ..mlx5::CreateQp::default()
        };
        let (rq, sq) = rings(true, &given).unwrap();
        assert_eq!((rq.buf, rq.count, rq.shift), (0x1000, 16, 6));
        assert_eq!((sq.buf, sq.count, sq.shift), (0x1400, 64, 6));
        let (rq, sq) = rings(false, &given).unwrap();
        assert_eq!((rq.count, sq.buf), (0, 0x1000));
    }

    #[test]
    fn sizes_beyond_the_device_are_invalid() {
        let fine = mlx5::CreateQp { rq_wqe_count: 4, rq_wqe_shift: 4, ..Default::default() };
        assert!(rings(true, &fine).is_ok());
        for bad in [
            mlx5::CreateQp { sq_wqe_count: 3, ..fine },
            mlx5::CreateQp { sq_wqe_count: 1 << 16, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 10, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 3, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 200, ..fine },
            mlx5::CreateQp { rq_wqe_count: 5, ..fine },
            mlx5::CreateQp { rq_wqe_count: 1 << 16, ..fine },
        ] {
            assert_eq!(rings(true, &bad).err(), Some(EINVAL));
        }
    }

    #[test]
    fn other_transports_are_refused_as_a_device_without_them_refuses() {
        assert_eq!(check_type(qp_type::XRC_INI).err(), Some(EOPNOTSUPP));
        assert_eq!(check_type(qp_type::DRIVER).err(), Some(EOPNOTSUPP));
        assert_eq!(check_type(0).err(), Some(EINVAL));
        assert_eq!(check_flags(Service::Rc, create_flag::SQ_SIG_ALL), Ok(()));
        assert_eq!(check_flags(Service::Rc, create_flag::SCATTER_FCS), Err(EINVAL));
        assert_eq!(check_flags(Service::Rc, create_flag::BLOCK_MULTICAST_LOOPBACK), Err(EINVAL));
        assert_eq!(check_flags(Service::Ud, create_flag::BLOCK_MULTICAST_LOOPBACK), Ok(()));
    }
}
