//! The side that asks: connecting, and what both sides do with a connection.

use super::Call;
use super::commands::Request;
use super::identifier::{Identifier, State};
use crate::commands::limits::DEFAULT_PKEY;
use crate::fabric::LinkLayer;
use crate::objects::{Result, Service};
use crate::uverbs::cm::header::IpHeader;
use crate::uverbs::cm::{Cm, Connect, reason};
use crate::uverbs::kernel::Core;
use crate::uverbs::kernel::abi::rdma_cm::{ConnParam, Connect as Wanted, Notify, Reject};
use crate::uverbs::kernel::errno::{EINVAL, ENOMEM};

/// Code of 100 Gb/s in a path record.
pub const RATE: u8 = 16;

/// Returns the code of the path MTU of a port.
pub fn mtu(link: LinkLayer) -> u8 {
    match link {
        LinkLayer::InfiniBand => 5,
        LinkLayer::Ethernet => 3,
    }
}

/// Returns the private data that a program gives.
pub fn private(param: &ConnParam) -> &[u8] {
    &param.private_data.as_flattened()[..param.private_data_len.into()]
}

impl Call<'_> {
    pub(super) fn connect(&mut self, request: &Request) -> Result<()> {
        let wanted: Wanted = request.input.get()?;
        let now = self.core.clock.now();
        let id = self.id(wanted.id)?;
        if id.state != State::RouteResolved || wanted.conn_param.valid == 0 {
            return Err(EINVAL);
        }
        // With the header, there is less room than the message has.
        let room = match id.service {
            Service::Ud => crate::uverbs::cm::message::SIDR_REQ_DATA,
            _ => crate::uverbs::cm::message::REQ_DATA,
        };
        if id.header() + usize::from(wanted.conn_param.private_data_len) > room {
            return Err(EINVAL);
        }
        id.wanted = Some(Box::new(wanted.conn_param));
        let peers = self.core.nic.peers(now);
        let candidates = self.core.candidates(wanted.id, &peers).into();
        self.id(wanted.id)?.candidates = candidates;
        if !self.core.ask_next(wanted.id) {
            return Err(EINVAL);
        }
        self.id(wanted.id)?.state = State::Connect;
        Ok(())
    }

    pub(super) fn disconnect(&mut self, request: &Request) -> Result<()> {
        let number: u32 = request.input.get()?;
        let cm = self.id(number)?.cm.ok_or(EINVAL)?;
        // The kernel does not tell the program, either, when there is nothing to disconnect.
        let _ = self.core.rdma_cm.cm.disconnect(cm);
        Ok(())
    }

    pub(super) fn reject(&mut self, request: &Request) -> Result<()> {
        let wanted: Reject = request.input.get()?;
        let why = match wanted.reason {
            0 => reason::CONSUMER_DEFINED,
            // A vendor's option is not supported.
            35 => 35,
            given if u16::from(given) == reason::CONSUMER_DEFINED => reason::CONSUMER_DEFINED,
            _ => return Err(EINVAL),
        };
        let data = &wanted.private_data.as_flattened()[..wanted.private_data_len.into()];
        let id = self.id(wanted.id)?;
        let (cm, service) = (id.cm.ok_or(EINVAL)?, id.service);
        let cms = &mut self.core.rdma_cm.cm;
        if service == Service::Ud {
            return refuse_lookup(cms, cm, data);
        }
        if data.len() > crate::uverbs::cm::message::REJ_DATA {
            return Err(EINVAL);
        }
        cms.reject(cm, why, data).map_err(|_| EINVAL)
    }

    pub(super) fn notify(&mut self, request: &Request) -> Result<()> {
        const COMMUNICATION_ESTABLISHED: u32 = 4;
        let wanted: Notify = request.input.get()?;
        let cm = self.id(wanted.id)?.cm.ok_or(EINVAL)?;
        if wanted.event != COMMUNICATION_ESTABLISHED {
            return Err(EINVAL);
        }
        self.core.rdma_cm.cm.communication_established(cm).map_err(|_| EINVAL)
    }
}

fn refuse_lookup(cm: &mut Cm, id: u32, data: &[u8]) -> Result<()> {
    let status = crate::uverbs::cm::sidr_status::REJECT;
    let answer = crate::uverbs::cm::Answer { status, qpn: 0, qkey: 0, data };
    cm.answer(id, &answer).map_err(|_| EINVAL)
}

impl Core {
    /// Asks the next port that an identifier may mean; returns `false` if there is none.
    pub(super) fn ask_next(&mut self, number: u32) -> bool {
        self.try_ask(number).is_ok()
    }

    fn try_ask(&mut self, number: u32) -> Result<()> {
        let own = self.nic.port().lid;
        let link = self.link;
        let rdma_cm = &mut self.rdma_cm;
        let id = rdma_cm.ids.get_mut(&number).ok_or(EINVAL)?;
        let lid = id.candidates.pop_front().ok_or(ENOMEM)?;
        let to = id.destination.ok_or(EINVAL)?;
        let path = super::resolve::path(own, lid, &to, link, id.tos);
        id.path = Some(path);
        let param = *id.wanted.as_deref().ok_or(EINVAL)?;
        let mut data = header(id).unwrap_or_else(|| vec![0; id.header()]);
        data.extend(private(&param));
        let service_id = id.service_id(&to);
        let (service, before) = (id.service, id.cm.take());
        if let Some(before) = before {
            rdma_cm.by_cm.remove(&before);
            rdma_cm.cm.destroy(before);
        }
        let cm = match service {
            Service::Ud => rdma_cm.cm.look_up(&path, service_id, DEFAULT_PKEY, &data),
            _ => {
                let psn = rdma_cm.cm.random_psn();
                rdma_cm.cm.connect(&Connect {
                    service_id,
                    path,
                    link,
                    mtu: mtu(link),
                    rate: RATE,
                    pkey: DEFAULT_PKEY,
                    qpn: param.qp_num,
                    transport: u8::from(service == Service::Uc),
                    psn,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    flow_control: param.flow_control != 0,
                    retry_count: param.retry_count.min(7),
                    rnr_retry_count: param.rnr_retry_count.min(7),
                    srq: param.srq != 0,
                    data: &data,
                })
            }
        };
        rdma_cm.by_cm.insert(cm, number);
        rdma_cm.ids.get_mut(&number).ok_or(EINVAL)?.cm = Some(cm);
        Ok(())
    }
}

// Returns the header before the private data of a request between addresses of the Internet.
fn header(id: &Identifier) -> Option<Vec<u8>> {
    let (source, destination) = (id.source?, id.destination?);
    let header = IpHeader { port: source.port(), source: source.as_ip()?, destination: destination.as_ip()? };
    (id.header() > 0).then(|| header.emit().to_vec())
}
