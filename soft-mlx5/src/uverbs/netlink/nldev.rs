//! Commands of the family `nldev`: those that read, and those that bind counters to queue pairs.

use super::Described;
use super::abi::{attr, command};
use super::message::{Attributes, Header, Writer};
use crate::commands::limits;
use crate::fabric::LinkLayer;
use crate::objects::{Errno, QpState, Service};
use crate::uverbs::kernel::{Counted, DEVICE_CAPS, Resource, has, mappings};

const FAMILY: u16 = 5;

const NODE_CA: u8 = 1;
const DRIVER_MLX5: u32 = 1;
/// All network namespaces see the device.
const NETNS_SHARED: u8 = 1;
const PORT: u32 = 1;
const MIGRATED: u8 = 0;
/// A counter is bound by hand (`RDMA_COUNTER_MODE_MANUAL`).
const MANUAL: u32 = 2;
const NET_ADMIN: u32 = 12;

const EINVAL: Errno = Errno(libc::EINVAL);
const EPERM: Errno = Errno(libc::EPERM);
const ENODEV: Errno = Errno(libc::ENODEV);
const ENOENT: Errno = Errno(libc::ENOENT);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// A kind of resources.
struct Table {
    command: u8,
    name: &'static str,
    table: u16,
    /// Attribute that names one of them.
    key: u16,
    number: fn(&Resource) -> Option<u32>,
}

macro_rules! number {
    ($kind:ident) => {
        |resource| if let Resource::$kind { number, .. } = resource { Some(*number) } else { None }
    };
}

const TABLES: [Table; 7] = [
    Table { command: command::RES_PD_GET, name: "pd", table: attr::RES_PD, key: attr::RES_PDN, number: number!(Pd) },
    Table { command: command::RES_CQ_GET, name: "cq", table: attr::RES_CQ, key: attr::RES_CQN, number: number!(Cq) },
    Table { command: command::RES_QP_GET, name: "qp", table: attr::RES_QP, key: attr::RES_LQPN, number: number!(Qp) },
    Table {
        command: command::RES_CM_ID_GET,
        name: "cm_id",
        table: attr::RES_CM_ID,
        key: attr::RES_CM_ID,
        // Identifiers of connections are not the device's.
        number: |_| None,
    },
    Table { command: command::RES_MR_GET, name: "mr", table: attr::RES_MR, key: attr::RES_MRN, number: number!(Mr) },
    Table {
        command: command::RES_CTX_GET,
        name: "ctx",
        table: attr::RES_CTX,
        key: attr::RES_CTXN,
        number: number!(Context),
    },
    Table {
        command: command::RES_SRQ_GET,
        name: "srq",
        table: attr::RES_SRQ,
        key: attr::RES_SRQN,
        number: number!(Srq),
    },
];

/// Runs a command on the devices of this process.
pub fn run(header: &Header, body: &[u8], devices: &[Described], writer: &mut Writer) {
    let [command, family] = header.kind.to_ne_bytes();
    // The upper byte of the type is the family in its upper six bits.
    let outcome = match u16::from(family) >> 2 {
        FAMILY => execute(command, header, Attributes(body), devices, writer),
        _ => Err(EINVAL),
    };
    writer.end_with(outcome);
}

fn execute(
    command: u8,
    header: &Header,
    given: Attributes,
    devices: &[Described],
    writer: &mut Writer,
) -> Result<(), Errno> {
    let kind = header.kind;
    let device = || {
        let index = given.number(attr::DEV_INDEX).ok_or(EINVAL)?;
        devices.iter().find(|device| device.index == index).ok_or(EINVAL)
    };
    let port = || match given.number(attr::PORT_INDEX) {
        Some(PORT) => Ok(()),
        _ => Err(EINVAL),
    };
    match command {
        command::GET if header.is_dump() => {
            devices.iter().for_each(|device| writer.message(kind, |w| put_device(w, device)));
        }
        command::GET => {
            let device = device()?;
            writer.message(kind, |w| put_device(w, device));
        }
        command::PORT_GET => {
            let device = device()?;
            if !header.is_dump() {
                port()?;
            }
            writer.message(kind, |w| put_port(w, device));
        }
        command::SYS_GET => writer.message(kind, |w| {
            w.u8(attr::NETNS_MODE, NETNS_SHARED);
            // A fork never takes pages from a device that reads the memory of its process. With a limit on mappings
            // libibverbs must not know that.
            if !mappings::are_limited() {
                w.u8(attr::COPY_ON_FORK, 1);
            }
        }),
        command::GET_CHARDEV => {
            // Only verbs: programs find all other character devices in sysfs.
            let device = device()?;
            if given.text(attr::CHARDEV_TYPE) != Some("uverbs") {
                return Err(ENODEV);
            }
            writer.message(kind, |w| put_chardev(w, device));
        }
        command::RES_GET if header.is_dump() => {
            devices.iter().for_each(|device| writer.message(kind, |w| put_summary(w, device)));
        }
        command::RES_GET => {
            let device = device()?;
            writer.message(kind, |w| put_summary(w, device));
        }
        command::STAT_GET if given.get(attr::STAT_RES).is_none() && !header.is_dump() => {
            let device = device()?;
            port()?;
            writer.message(kind, |w| put_statistics(w, device));
        }
        command::STAT_GET if header.is_dump() => {
            let device = device()?;
            if given.number(attr::STAT_RES) != Some(attr::RES_QP.into()) {
                return Err(EINVAL);
            }
            let put =
                |w: &mut Writer, counted: &Counted| w.nest(attr::STAT_COUNTER_ENTRY, |w| put_counted(w, *counted));
            writer.table(kind, |w| put_handle(w, device), attr::STAT_COUNTER, &device.core.bound, put);
        }
        command::STAT_SET | command::STAT_DEL => {
            let device = device()?;
            port()?;
            if !has(NET_ADMIN) {
                return Err(EPERM);
            }
            let of_qp = given.number(attr::STAT_RES) == Some(attr::RES_QP.into());
            let qpn = given.number(attr::RES_LQPN).filter(|_| of_qp).ok_or(EINVAL)?;
            let id = match (command, given.number(attr::STAT_COUNTER_ID)) {
                (command::STAT_SET, None) if given.number(attr::STAT_MODE) == Some(MANUAL) => {
                    super::device(device.index, |core| core.bind_counter(qpn))?
                }
                // The modes that bind by themselves, and counters that several queue pairs share.
                (command::STAT_SET, _) => return Err(EOPNOTSUPP),
                (_, Some(id)) => super::device(device.index, |core| core.unbind_counter(id, qpn)).map(|()| id)?,
                (_, None) => return Err(EINVAL),
            };
            writer.message(kind, |w| {
                put_handle(w, device);
                w.u32(attr::PORT_INDEX, PORT);
                w.u32(attr::STAT_COUNTER_ID, id);
                w.u32(attr::RES_LQPN, qpn);
            });
        }
        _ => {
            let Some(table) = TABLES.iter().find(|table| table.command == command) else {
                return Err(if command <= command::LAST { EOPNOTSUPP } else { EINVAL });
            };
            put_resources(table, header, given, device()?, writer)?;
        }
    }
    Ok(())
}

fn put_resources(
    table: &Table,
    header: &Header,
    given: Attributes,
    device: &Described,
    writer: &mut Writer,
) -> Result<(), Errno> {
    let all = device.core.resources.iter();
    let entries: Vec<_> = all.filter(|resource| (table.number)(resource).is_some()).collect();
    if header.is_dump() {
        // The attribute of an entry follows that of its table.
        let entry = table.table + 1;
        let put = |w: &mut Writer, resource: &&Resource| {
            w.nest(entry, |w| put_resource(w, resource));
        };
        writer.table(header.kind, |w| put_handle(w, device), table.table, &entries, put);
        return Ok(());
    }
    let wanted = given.number(table.key).ok_or(EINVAL)?;
    let found = entries.into_iter().find(|resource| (table.number)(resource) == Some(wanted));
    let found = found.ok_or(ENOENT)?;
    writer.message(header.kind, |w| {
        put_handle(w, device);
        put_resource(w, found);
    });
    Ok(())
}

fn put_handle(w: &mut Writer, device: &Described) {
    w.u32(attr::DEV_INDEX, device.index);
    w.text(attr::DEV_NAME, &device.name);
}

fn put_device(w: &mut Writer, device: &Described) {
    put_handle(w, device);
    let guid = device.core.port.guid;
    let [major, minor, sub] = limits::FW_VERSION;
    w.u32(attr::PORT_INDEX, PORT);
    w.u64(attr::CAP_FLAGS, DEVICE_CAPS.into());
    w.text(attr::FW_VERSION, &format!("{major}.{minor}.{sub:04}"));
    w.u64(attr::NODE_GUID, guid);
    w.u64(attr::SYS_IMAGE_GUID, guid);
    w.u8(attr::DEV_NODE_TYPE, NODE_CA);
    let roce = device.core.link == LinkLayer::Ethernet;
    w.text(attr::DEV_PROTOCOL, if roce { "roce" } else { "ib" });
}

fn put_port(w: &mut Writer, device: &Described) {
    put_handle(w, device);
    let core = &device.core;
    w.u32(attr::PORT_INDEX, PORT);
    if core.link == LinkLayer::InfiniBand {
        w.u64(attr::CAP_FLAGS, limits::PORT_CAPS_INFINIBAND.into());
        let prefix = u128::from_be_bytes(core.port.gid) >> 64;
        w.u64(attr::SUBNET_PREFIX, prefix as u64);
        w.u32(attr::LID, core.port.lid.into());
        w.u32(attr::SM_LID, core.sm_lid.into());
        w.u8(attr::LMC, 0);
    }
    let (state, physical) = if core.port.up { (4, 5) } else { (1, 3) };
    w.u8(attr::PORT_STATE, state);
    w.u8(attr::PORT_PHYS_STATE, physical);
    if let Some((index, name)) = &core.netdev {
        w.u32(attr::NDEV_INDEX, *index);
        w.text(attr::NDEV_NAME, name);
    }
}

fn put_chardev(w: &mut Writer, device: &Described) {
    let (major, minor) = device.dev;
    let encoded = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    w.u64(attr::CHARDEV, encoded.into());
    w.u64(attr::CHARDEV_ABI, 1);
    w.text(attr::CHARDEV_NAME, &format!("uverbs{}", device.uverbs));
    w.u32(attr::UVERBS_DRIVER_ID, DRIVER_MLX5);
}

fn put_summary(w: &mut Writer, device: &Described) {
    put_handle(w, device);
    w.nest(attr::RES_SUMMARY, |w| {
        for table in &TABLES {
            let count = device.core.resources.iter().filter_map(table.number).count();
            w.nest(attr::RES_SUMMARY_ENTRY, |w| {
                w.text(attr::RES_SUMMARY_ENTRY_NAME, table.name);
                w.u64(attr::RES_SUMMARY_ENTRY_CURR, count as u64);
            });
        }
    });
}

fn put_statistics(w: &mut Writer, device: &Described) {
    put_handle(w, device);
    w.u32(attr::PORT_INDEX, PORT);
    w.nest(attr::STAT_HWCOUNTERS, |w| {
        for (name, value) in device.core.counters.hardware.named() {
            w.nest(attr::STAT_HWCOUNTER_ENTRY, |w| {
                w.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                w.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
            });
        }
    });
}

fn put_counted(w: &mut Writer, Counted { id, qpn, out_of_buffer }: Counted) {
    w.u32(attr::PORT_INDEX, PORT);
    w.u32(attr::STAT_COUNTER_ID, id);
    w.nest(attr::RES_QP, |w| w.nest(attr::RES_QP_ENTRY, |w| w.u32(attr::RES_LQPN, qpn)));
    w.nest(attr::STAT_HWCOUNTERS, |w| {
        w.nest(attr::STAT_HWCOUNTER_ENTRY, |w| {
            w.text(attr::STAT_HWCOUNTER_ENTRY_NAME, "out_of_buffer");
            w.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, out_of_buffer);
        });
    });
}

fn put_resource(w: &mut Writer, resource: &Resource) {
    match *resource {
        Resource::Context { number } => w.u32(attr::RES_CTXN, number),
        Resource::Pd { number, users, context } => {
            w.u64(attr::RES_USECNT, users.into());
            w.u32(attr::RES_PDN, number);
            w.u32(attr::RES_CTXN, context);
        }
        Resource::Cq { number, entries, users, context } => {
            w.u32(attr::RES_CQE, entries);
            w.u64(attr::RES_USECNT, users.into());
            w.u32(attr::RES_CQN, number);
            w.u32(attr::RES_CTXN, context);
        }
        Resource::Qp { number, pd, service, status, peer, has_port } => {
            if has_port {
                w.u32(attr::PORT_INDEX, PORT);
            }
            w.u32(attr::RES_LQPN, number);
            let kind = match service {
                Service::Rc => 2,
                Service::Uc => 3,
                Service::Ud => 4,
                Service::Raw => 8,
                Service::Dc => 0xff,
            };
            if matches!(service, Service::Rc | Service::Uc) {
                w.u32(attr::RES_RQPN, peer);
                w.u32(attr::RES_RQ_PSN, status.rq_psn);
            }
            w.u32(attr::RES_SQ_PSN, status.sq_psn);
            if matches!(service, Service::Rc | Service::Uc) {
                w.u8(attr::RES_PATH_MIG_STATE, MIGRATED);
            }
            w.u8(attr::RES_TYPE, kind);
            w.u8(attr::RES_STATE, state(status.state));
            w.u32(attr::RES_PDN, pd);
        }
        Resource::Mr { number, key, length, pd } => {
            w.u32(attr::RES_RKEY, key);
            w.u32(attr::RES_LKEY, key);
            w.u64(attr::RES_MRLEN, length);
            w.u32(attr::RES_MRN, number);
            w.u32(attr::RES_PDN, pd);
        }
        Resource::Srq { number, pd, cq } => {
            w.u32(attr::RES_SRQN, number);
            // A shared receive queue with tags has a CQ of its own.
            w.u8(attr::RES_TYPE, if cq.is_some() { 2 } else { 0 });
            w.u32(attr::RES_PDN, pd);
            if let Some(cq) = cq {
                w.u32(attr::RES_CQN, cq);
            }
        }
    }
    w.u32(attr::RES_PID, std::process::id());
}

fn state(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}
