//! Events of the protocol on their way to the program.

use super::accept::ah_attr;
use super::events::{Param, Queued};
use super::identifier::{Identifier, State};
use super::service::Asked;
use super::{event, status_of};
use crate::objects::Service;
use crate::uverbs::cm::message::{Rep, Req, SidrRep, SidrReq};
use crate::uverbs::cm::{self, Event, Path, reason, sidr_status};
use crate::uverbs::kernel::Core;
use crate::uverbs::kernel::abi::rdma_cm::{ConnParam, EventHead, PrivateData, UdParam};
use crate::uverbs::kernel::errno::ETIMEDOUT;

impl Core {
    /// Delivers an event of the protocol.
    pub(super) fn deliver_cm(&mut self, cm: cm::Id, event: Event) {
        let number = self.rdma_cm.by_cm.get(&cm).copied();
        match (event, number) {
            (Event::Request(req), None) => {
                if !self.deliver_request(cm, &req) {
                    let _ = self.rdma_cm.cm.reject(cm, reason::INVALID_SERVICE_ID, &[]);
                    self.rdma_cm.cm.destroy(cm);
                }
            }
            (Event::Inquiry(req), None) => {
                if !self.deliver_inquiry(cm, &req) {
                    self.rdma_cm.cm.destroy(cm);
                }
            }
            (event, Some(number)) => self.deliver_to(number, cm, event),
            (_, None) => {}
        }
    }

    fn deliver_to(&mut self, number: u32, cm: cm::Id, event: Event) {
        let timed_out = status_of(ETIMEDOUT);
        match event {
            Event::Reply(rep) => {
                let _ = self.rdma_cm.cm.ask_for_time(cm);
                let param = of_reply(&rep);
                self.raise_conn(number, event::CONNECT_RESPONSE, 0, param);
            }
            Event::Ready => self.raise(number, event::ESTABLISHED, 0),
            Event::Rejected { reason, .. } if reason == reason::INVALID_SERVICE_ID && self.ask_next(number) => {}
            Event::Unreachable if self.ask_next(number) => {}
            Event::Rejected { reason, data } => {
                let param = with_data(&data[..]);
                self.raise_conn(number, event::REJECTED, reason.into(), param);
            }
            Event::Unreachable => self.raise(number, event::UNREACHABLE, timed_out),
            Event::DisconnectRequest => self.end(number, 0),
            Event::Disconnected { timed_out: true } => self.end(number, timed_out),
            Event::Disconnected { timed_out: false } => self.end(number, 0),
            Event::TimewaitExit => self.raise(number, event::TIMEWAIT_EXIT, 0),
            Event::Found(rep) if rep.status == sidr_status::UNSUPPORTED && self.ask_next(number) => {}
            Event::Found(rep) => self.deliver_found(number, &rep),
            // New identifiers only.
            Event::Request(_) | Event::Inquiry(_) => {}
        }
    }

    // Reports the end of a connection, once.
    fn end(&mut self, number: u32, status: u32) {
        let Some(id) = self.rdma_cm.ids.get_mut(&number) else { return };
        if id.state == State::Connect {
            id.state = State::Disconnect;
            self.raise(number, event::DISCONNECTED, status);
        }
    }

    // The program hears nothing of a connection that it has not accepted yet.
    fn hears(&self, number: u32) -> bool {
        self.rdma_cm.ids.get(&number).is_some_and(|id| id.uid != 0)
    }

    fn raise_conn(&mut self, of: u32, event: u32, status: u32, param: ConnParam) {
        let Some(uid) = self.rdma_cm.ids.get(&of).map(|id| id.uid) else { return };
        let head = EventHead { uid, id: of, event, status };
        let param = Param::Conn(Box::new(param));
        if self.hears(of) {
            self.rdma_cm.push(Queued { of, group: None, fresh: None, head, param });
        }
    }

    fn deliver_found(&mut self, number: u32, rep: &SidrRep) {
        if rep.status != sidr_status::SUCCESS {
            return self.raise(number, event::UNREACHABLE, rep.status.into());
        }
        let Some(id) = self.rdma_cm.ids.get(&number) else { return };
        let param = UdParam {
            qp_num: rep.qpn,
            qkey: rep.qkey,
            ah_attr: ah_attr(&id.path.unwrap_or_default(), self.link),
            private_data: rows(&rep.data),
            private_data_len: rep.data.len() as u8,
            ..UdParam::default()
        };
        let head = EventHead { uid: id.uid, id: number, event: event::ESTABLISHED, status: 0 };
        let param = Param::Ud(Box::new(param));
        self.rdma_cm.push(Queued { of: number, group: None, fresh: None, head, param });
    }

    // Returns `false` if nobody takes the request.
    fn deliver_request(&mut self, cm: cm::Id, req: &Req) -> bool {
        let service = match req.transport {
            0 => Service::Rc,
            1 => Service::Uc,
            _ => return false,
        };
        let Some(values) = self.rdma_cm.cm.qp_values(cm) else { return false };
        let gids = [values.path.local_gid, values.path.remote_gid];
        let asked = Asked { service_id: req.service_id, service, data: &req.data, gids };
        let Some((fresh, header)) = self.take_request(cm, &asked, values.path) else {
            return false;
        };
        let Some(fresh) = fresh else { return true };
        let data = &req.data[header..];
        let param = ConnParam {
            qp_num: req.qpn,
            private_data: rows(data),
            private_data_len: data.len() as u8,
            srq: req.srq.into(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control.into(),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ..ConnParam::default()
        };
        self.announce(fresh, Param::Conn(Box::new(param)));
        let _ = self.rdma_cm.cm.ask_for_time(cm);
        true
    }

    fn deliver_inquiry(&mut self, cm: cm::Id, req: &SidrReq) -> bool {
        let Some(path) = self.rdma_cm.cm.path_of_inquiry(cm) else { return false };
        let gids = [path.local_gid, path.remote_gid];
        let service = Service::Ud;
        let asked = Asked { service_id: req.service_id, service, data: &req.data, gids };
        let Some((Some(fresh), header)) = self.take_request(cm, &asked, path) else { return false };
        let data = &req.data[header..];
        let param = UdParam { private_data: rows(data), private_data_len: data.len() as u8, ..UdParam::default() };
        self.announce(fresh, Param::Ud(Box::new(param)));
        true
    }

    // Makes the identifier of a request; returns the length of the header before its private data, too. `None` for a
    // request that no listener fits. A listener whose backlog is full refuses: there is no identifier.
    fn take_request(&mut self, cm: cm::Id, asked: &Asked, path: Path) -> Option<(Option<(u32, u32)>, usize)> {
        let rdma_cm = &mut self.rdma_cm;
        let (listener, (ps, own, other)) = rdma_cm.listener_for(asked)?;
        let parent = rdma_cm.ids.get_mut(&listener)?;
        let header = parent.header();
        if parent.backlog == 0 {
            let _ = rdma_cm.cm.reject(cm, reason::CONSUMER_DEFINED, &[]);
            rdma_cm.cm.destroy(cm);
            return Some((None, header));
        }
        parent.backlog -= 1;
        let (file, service, tos) = (parent.file, parent.service, parent.tos);
        let number = rdma_cm.numbers.take();
        let mut id = Identifier::new(0, file, ps, service);
        (id.state, id.on_device, id.tos) = (State::Connect, true, tos);
        (id.source, id.destination) = (Some(own), Some(other));
        (id.path, id.cm) = (Some(path), Some(cm));
        rdma_cm.ids.insert(number, id);
        rdma_cm.by_cm.insert(cm, number);
        Some((Some((listener, number)), header))
    }

    // Tells the listener of a new identifier.
    fn announce(&mut self, (listener, fresh): (u32, u32), param: Param) {
        let Some(uid) = self.rdma_cm.ids.get(&listener).map(|id| id.uid) else { return };
        let head = EventHead { uid, id: fresh, event: event::CONNECT_REQUEST, status: 0 };
        let queued = Queued { of: listener, group: None, fresh: Some(fresh), head, param };
        self.rdma_cm.push(queued);
    }

    /// Tells all identifiers of the device that it is gone.
    pub fn remove_rdma_cm(&mut self) {
        let of_device = self.rdma_cm.ids.iter().filter(|(_, id)| id.on_device);
        let numbers: Vec<_> = of_device.map(|(number, _)| *number).collect();
        for number in numbers {
            self.raise(number, event::DEVICE_REMOVAL, 0);
        }
    }
}

/// Returns private data in rows.
pub fn rows(data: &[u8]) -> PrivateData {
    let mut all = PrivateData::default();
    let len = data.len().min(256);
    all.as_flattened_mut()[..len].copy_from_slice(&data[..len]);
    all
}

fn with_data(data: &[u8]) -> ConnParam {
    let private_data_len = data.len() as u8;
    ConnParam { private_data: rows(data), private_data_len, ..ConnParam::default() }
}

fn of_reply(rep: &Rep) -> ConnParam {
    ConnParam {
        qp_num: rep.qpn,
        srq: rep.srq.into(),
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control.into(),
        rnr_retry_count: rep.rnr_retry_count,
        ..with_data(&rep.data)
    }
}
