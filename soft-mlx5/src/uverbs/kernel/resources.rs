//! Devices and the objects on them, as the kernel shows them.

use super::bound::Counted;
use super::cq::Cq;
use super::handles::Object;
use super::{Core, File};
use crate::base::counters::Counters;
use crate::commands::objects::Kind;
use crate::engine::PortAddress;
use crate::fabric::{LinkLayer, address};
use crate::objects::{QpState, QpStatus, Service};
use crate::uverbs::netdev;

/// A device, its port and its objects.
#[derive(Debug)]
pub struct Description {
    /// The port.
    pub port: PortAddress,
    /// Kind of link.
    pub link: LinkLayer,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// Number and name of the network interface of an Ethernet port.
    pub netdev: Option<(u32, String)>,
    /// Counters.
    pub counters: Counters,
    /// Objects of programs.
    pub resources: Vec<Resource>,
    /// Counters that are bound to queue pairs.
    pub bound: Vec<Counted>,
}

/// An object of a program. Objects of one kind have different numbers.
#[derive(Debug, Clone, Copy)]
pub enum Resource {
    /// An open device.
    Context {
        /// Its number.
        number: u32,
    },
    /// Protection domain.
    Pd {
        /// Its number.
        number: u32,
        /// Objects in it.
        users: u32,
        /// Open device.
        context: u32,
    },
    /// Completion queue.
    Cq {
        /// Its number.
        number: u32,
        /// Entries.
        entries: u32,
        /// Queues that complete there.
        users: u32,
        /// Open device.
        context: u32,
    },
    /// Queue pair.
    Qp {
        /// Its number.
        number: u32,
        /// Its domain.
        pd: u32,
        /// Transport service.
        service: Service,
        /// State and packet sequence numbers.
        status: QpStatus,
        /// Its peer.
        peer: u32,
        /// It was bound to the port.
        has_port: bool,
    },
    /// Memory region.
    Mr {
        /// Its number.
        number: u32,
        /// Its key.
        key: u32,
        /// Bytes.
        length: u64,
        /// Its domain.
        pd: u32,
    },
    /// Shared receive queue.
    Srq {
        /// Its number.
        number: u32,
        /// Its domain.
        pd: u32,
        /// CQ of its own.
        cq: Option<u32>,
    },
}

impl Core {
    /// Returns what the kernel shows, or `None` after the device was removed.
    pub fn describe(&mut self) -> Option<Description> {
        if self.is_removed() {
            return None;
        }
        let joined = self.netdev.as_deref();
        let is_ethernet = self.link == LinkLayer::Ethernet;
        Some(Description {
            port: self.nic.port(),
            link: self.link,
            sm_lid: address::SWITCH_LID,
            netdev: is_ethernet.then(|| (netdev::index(joined), netdev::name(joined))),
            counters: self.nic.counters(),
            resources: self.resources(),
            bound: self.counted(),
        })
    }

    fn resources(&self) -> Vec<Resource> {
        let mut found = Vec::new();
        for (&context, file) in self.files.iter().filter(|(_, file)| file.context.is_some()) {
            found.push(Resource::Context { number: context });
            let objects = file.handles.objects();
            found.extend(objects.filter_map(|object| self.resource(context, file, object)));
        }
        found
    }

    fn resource(&self, context: u32, file: &File, object: &Object) -> Option<Resource> {
        let domain = |handle| file.handles.get::<super::pd::Pd>(handle).map_or(0, |pd| pd.pdn.0);
        let users = |kind, number| self.commands.objects.get(kind, number).map_or(0, |entry| entry.users);
        Some(match object {
            Object::Pd(pd) => Resource::Pd { number: pd.pdn.0, users: users(Kind::Pd, pd.pdn.0), context },
            Object::Cq(Cq { cqn, entries, .. }) => {
                Resource::Cq { number: cqn.0, entries: *entries, users: users(Kind::Cq, cqn.0), context }
            }
            Object::Qp(qp) => {
                let status = self.nic.query_qp(qp.qpn).ok()?;
                Resource::Qp {
                    number: qp.qpn.0,
                    pd: domain(qp.uses.pd),
                    service: qp.service,
                    status,
                    peer: qp.attr.dest_qpn,
                    has_port: status.state != QpState::Reset,
                }
            }
            Object::Mr(mr) => {
                Resource::Mr { number: mr.mkey.0 >> 8, key: mr.mkey.0, length: mr.length(), pd: domain(mr.domain()) }
            }
            Object::Srq(srq) => Resource::Srq {
                number: srq.srqn.0,
                pd: domain(srq.domain()),
                cq: srq.own_cq().and_then(|cq| Some(file.handles.get::<Cq>(cq).ok()?.cqn.0)),
            },
            _ => return None,
        })
    }
}
