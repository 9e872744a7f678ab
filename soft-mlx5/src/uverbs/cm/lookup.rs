//! Lookups of the queue pair of a datagram service (SIDR), and inquiries of others.

use super::connection::{MAX_RETRIES, RESPONSE_TIMEOUT};
use super::message::{Message, SIDR_REP_DATA, SIDR_REQ_DATA, SidrRep, SidrReq, padded};
use super::{Cm, Event, Id, Path, Result, WrongState, sidr_status, time};
use crate::fabric::mad::Mad;

/// A lookup of this side.
#[derive(Debug)]
pub struct Lookup {
    pub(super) path: Path,
    mad: Mad,
    retries: u8,
    deadline: Option<u64>,
}

impl Lookup {
    pub(super) fn waits(&self) -> bool {
        self.deadline.is_some()
    }
}

/// An inquiry of another port.
#[derive(Debug)]
pub struct Inquiry {
    path: Path,
    transaction: u64,
    request: Id,
    service_id: u64,
    answered: bool,
}

/// Answer to an inquiry.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Status.
    pub status: u8,
    /// Queue pair.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Private data.
    pub data: &'a [u8],
}

impl Cm {
    /// Looks for the queue pair of a service.
    pub fn look_up(&mut self, path: &Path, service_id: u64, pkey: u16, data: &[u8]) -> Id {
        let id = self.fresh_id();
        let req = SidrReq { id, pkey, service_id, data: padded::<SIDR_REQ_DATA>(data) };
        let transaction = self.fresh_transaction(id);
        let mad = self.send(path, transaction, &Message::SidrReq(req));
        let deadline = self.now + time(RESPONSE_TIMEOUT);
        let lookup = Lookup { path: *path, mad, retries: MAX_RETRIES, deadline: Some(deadline) };
        self.lookups.insert(id, lookup);
        self.timers.insert((deadline, id));
        id
    }

    /// Answers an inquiry.
    pub fn answer(&mut self, id: Id, answer: &Answer) -> Result<()> {
        let inquiry = self.inquiries.get_mut(&id).filter(|inquiry| !inquiry.answered);
        let inquiry = inquiry.ok_or(WrongState)?;
        inquiry.answered = true;
        let rep = SidrRep {
            id: inquiry.request,
            status: answer.status,
            qpn: answer.qpn,
            service_id: inquiry.service_id,
            qkey: answer.qkey,
            data: padded::<SIDR_REP_DATA>(answer.data),
        };
        let (path, transaction) = (inquiry.path, inquiry.transaction);
        self.by_request.remove(&(path.remote_lid, rep.id));
        self.send(&path, transaction, &Message::SidrRep(rep));
        Ok(())
    }

    /// Returns the path of an inquiry.
    pub fn path_of_inquiry(&self, id: Id) -> Option<Path> {
        self.inquiries.get(&id).map(|inquiry| inquiry.path)
    }

    pub(super) fn receive_sidr_req(&mut self, from: &Path, transaction: u64, req: SidrReq) {
        let by_request = (from.remote_lid, req.id);
        if self.by_request.contains_key(&by_request) {
            return;
        }
        if !self.services.contains_key(&req.service_id) {
            let rep = SidrRep {
                id: req.id,
                status: sidr_status::UNSUPPORTED,
                qpn: 0,
                service_id: req.service_id,
                qkey: 0,
                data: [0; SIDR_REP_DATA],
            };
            self.send(from, transaction, &Message::SidrRep(rep));
            return;
        }
        let id = self.fresh_id();
        self.by_request.insert(by_request, id);
        let inquiry =
            Inquiry { path: *from, transaction, request: req.id, service_id: req.service_id, answered: false };
        self.inquiries.insert(id, inquiry);
        self.event(id, Event::Inquiry(Box::new(req)));
    }

    pub(super) fn receive_sidr_rep(&mut self, rep: SidrRep) {
        if self.stop_lookup(rep.id) {
            self.event(rep.id, Event::Found(Box::new(rep)));
        }
    }

    // Returns `true` if the lookup was waiting.
    fn stop_lookup(&mut self, id: Id) -> bool {
        let Some(lookup) = self.lookups.get_mut(&id) else { return false };
        let Some(at) = lookup.deadline.take() else { return false };
        self.timers.remove(&(at, id));
        true
    }

    pub(super) fn expire_lookup(&mut self, id: Id) {
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        if lookup.retries == 0 {
            lookup.deadline = None;
            return self.event(id, Event::Unreachable);
        }
        lookup.retries -= 1;
        let deadline = self.now + time(RESPONSE_TIMEOUT);
        lookup.deadline = Some(deadline);
        self.outgoing.push_back((lookup.path, lookup.mad));
        self.timers.insert((deadline, id));
    }

    pub(super) fn lookups_lost(&mut self, lid: u16) {
        let lookups = self.lookups.iter().filter(|(_, lookup)| lookup.path.remote_lid == lid);
        let ids: Vec<_> = lookups.map(|(id, _)| *id).collect();
        for id in ids {
            if self.stop_lookup(id) {
                self.event(id, Event::Unreachable);
            }
        }
    }

    // Returns `true` if there was a lookup or an inquiry of this identifier.
    pub(super) fn destroy_lookup(&mut self, id: Id) -> bool {
        if self.inquiries.contains_key(&id) {
            let reject = Answer { status: sidr_status::REJECT, qpn: 0, qkey: 0, data: &[] };
            let _ = self.answer(id, &reject);
            self.inquiries.remove(&id);
        } else {
            self.stop_lookup(id);
            if self.lookups.remove(&id).is_none() {
                return false;
            }
        }
        self.events.retain(|(of, _)| *of != id);
        true
    }
}
