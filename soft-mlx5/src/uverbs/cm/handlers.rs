//! Handlers of messages: their effect on a connection.

use super::connection::{ACK_TIMEOUT, Connection, MAX_RETRIES};
use super::message::{Answered, Dreq, Ids, Message, Mra, Rej, Rep, Req};
use super::{Cm, Event, Id, Path, QpValues, State, reason, time};

impl Cm {
    pub(super) fn receive_req(&mut self, from: &Path, transaction: u64, req: Req) {
        let by_id = (req.ca_guid, req.local_id);
        if let Some(id) = self.by_remote_id.get(&by_id).copied() {
            return self.repeat_for_req(id, from, transaction, &req);
        }
        let refused = Ids { local: 0, remote: req.local_id };
        if !self.services.contains_key(&req.service_id) {
            let why = reason::INVALID_SERVICE_ID;
            return self.refuse(from, transaction, refused, Answered::Req, why);
        }
        let by_qpn = (req.ca_guid, req.qpn);
        let stale = self.by_remote_qpn.get(&by_qpn).copied();
        if stale.is_some_and(|stale| self.state(stale) == Some(State::DreqReceived)) {
            // The program of this side has not ended the old connection yet.
            return self.refuse(from, transaction, refused, Answered::Req, reason::STALE_CONNECTION);
        }
        if let Some(stale) = stale {
            // The other side knows nothing of its old connection, whose queue pair it has created anew.
            self.lose(stale);
        }
        let id = self.fresh_id();
        let path = Path::from_req(&req.path, from);
        let connection = Connection {
            state: State::ReqReceived,
            path: *from,
            transaction,
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            values: QpValues {
                path,
                mtu: req.mtu,
                remote_qpn: req.qpn,
                // One number serves both directions.
                receive_psn: req.psn,
                send_psn: req.psn,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: if req.path.ack_timeout == 0 { ACK_TIMEOUT } else { req.path.ack_timeout },
            },
            mra: None,
            rtu: None,
            drep: None,
            waiting: None,
            max_retries: req.max_cm_retries.min(MAX_RETRIES),
            timeout: time(req.local_response_timeout) + 2 * time(ACK_TIMEOUT - 1),
            deadline: None,
        };
        self.connections.insert(id, connection);
        self.by_remote_id.insert(by_id, id);
        self.by_remote_qpn.insert(by_qpn, id);
        self.event(id, Event::Request(Box::new(req)));
    }

    // A REQ that was sent again because its answer is late or was lost.
    fn repeat_for_req(&mut self, id: Id, from: &Path, transaction: u64, req: &Req) {
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            State::ReqReceived => {
                let mra = connection.mra.map(|mra| (connection.path, mra));
                self.outgoing.extend(mra);
            }
            State::Timewait => {
                let ids = Ids { local: id, remote: req.local_id };
                self.refuse(from, transaction, ids, Answered::Req, reason::STALE_CONNECTION);
            }
            _ => {}
        }
    }

    fn lose(&mut self, id: Id) {
        match self.state(id) {
            Some(State::Established | State::RepSent | State::DreqSent) => {
                self.enter_timewait(id);
                self.event(id, Event::Disconnected { timed_out: false });
            }
            Some(State::ReqReceived) => self.rest(id),
            _ => {}
        }
    }

    pub(super) fn receive_mra(&mut self, mra: &Mra) {
        let state = match mra.answered {
            Answered::Req => State::ReqSent,
            Answered::Rep => State::RepSent,
            Answered::Other => return,
        };
        let now = self.now;
        let Ok(connection) = self.in_state(mra.ids.remote, &[state]) else { return };
        if state == State::RepSent && connection.remote_id != mra.ids.local {
            return;
        }
        let until = now + time(mra.service_timeout) + connection.timeout;
        self.set_deadline(mra.ids.remote, Some(until));
    }

    pub(super) fn receive_rej(&mut self, rej: &Rej) {
        use State::*;
        let mut id = rej.ids.remote;
        if id == 0 && rej.reason == reason::TIMEOUT {
            // The sender gave up before it had an answer.
            let Some(own) = self.by_remote_id.get(&(rej.guid, rej.ids.local)) else { return };
            id = *own;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let of_this = connection.remote_id == rej.ids.local;
        match connection.state {
            ReqSent => self.rest(id),
            ReqReceived | RepSent if of_this => self.rest(id),
            RepReceived | Established | DreqSent if of_this => self.enter_timewait(id),
            _ => return,
        }
        self.event(id, Event::Rejected { reason: rej.reason, data: Box::new(rej.data) });
    }

    pub(super) fn receive_rep(&mut self, from: &Path, transaction: u64, rep: Rep) {
        let id = rep.ids.remote;
        let Some(connection) = self.connections.get_mut(&id) else {
            let ids = Ids { local: id, remote: rep.ids.local };
            let why = reason::INVALID_COMM_ID;
            return self.refuse(from, transaction, ids, Answered::Rep, why);
        };
        match connection.state {
            State::ReqSent => {}
            // The answer to an earlier one was lost.
            State::RepReceived if connection.remote_id == rep.ids.local => {
                let mra = connection.mra.map(|mra| (connection.path, mra));
                return self.outgoing.extend(mra);
            }
            State::Established if connection.remote_id == rep.ids.local => {
                let rtu = connection.rtu.map(|rtu| (connection.path, rtu));
                return self.outgoing.extend(rtu);
            }
            _ => return,
        }
        connection.state = State::RepReceived;
        connection.remote_id = rep.ids.local;
        connection.remote_guid = rep.ca_guid;
        let values = &mut connection.values;
        values.remote_qpn = rep.qpn;
        values.send_psn = rep.psn;
        values.initiator_depth = rep.responder_resources;
        values.responder_resources = rep.initiator_depth;
        values.rnr_retry_count = rep.rnr_retry_count;
        self.stop_waiting(id);
        self.event(id, Event::Reply(Box::new(rep)));
    }

    pub(super) fn receive_rtu(&mut self, ids: Ids) {
        let Ok(connection) = self.in_state(ids.remote, &[State::RepSent]) else { return };
        if connection.remote_id == ids.local {
            connection.state = State::Established;
            self.stop_waiting(ids.remote);
            self.event(ids.remote, Event::Ready);
        }
    }

    pub(super) fn receive_dreq(&mut self, from: &Path, transaction: u64, dreq: &Dreq) {
        use State::*;
        let id = dreq.ids.remote;
        let answer = Ids { local: id, remote: dreq.ids.local };
        let known = self.connections.get_mut(&id);
        let Some(connection) = known.filter(|known| known.remote_id == dreq.ids.local) else {
            // The connection is gone, which is what the other side wants.
            self.send(from, transaction, &Message::Drep(answer));
            return;
        };
        match connection.state {
            RepSent | Established | DreqSent => {
                (connection.state, connection.transaction) = (DreqReceived, transaction);
                self.stop_waiting(id);
                self.event(id, Event::DisconnectRequest);
            }
            Timewait => {
                let (path, drep) = (connection.path, connection.drep);
                match drep {
                    Some(mad) => self.outgoing.push_back((path, mad)),
                    None => {
                        self.send(from, transaction, &Message::Drep(answer));
                    }
                }
            }
            Idle => {
                self.send(from, transaction, &Message::Drep(answer));
            }
            ReqSent | ReqReceived | RepReceived | DreqReceived => {}
        }
    }

    pub(super) fn receive_drep(&mut self, ids: Ids) {
        let states = [State::DreqSent, State::DreqReceived];
        let Ok(connection) = self.in_state(ids.remote, &states) else { return };
        if connection.remote_id == ids.local {
            self.enter_timewait(ids.remote);
            self.event(ids.remote, Event::Disconnected { timed_out: false });
        }
    }
}
