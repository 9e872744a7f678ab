//! Two ports, and a network between them that loses, doubles and reorders datagrams.

use std::collections::HashMap;

use super::connection::MAX_RETRIES;
use super::message::{Answered, Dreq, Message, Mra, ReqPath, padded};
use super::*;
use crate::fabric::{LinkLayer, address};

const SERVICE: u64 = 0x0106_1234;
const SECOND: u64 = 1_000_000_000;

fn path(own: u16, other: u16) -> Path {
    Path {
        local_lid: own,
        remote_lid: other,
        local_gid: address::gid(own),
        remote_gid: address::gid(other),
        ..Path::default()
    }
}

fn wanted(path: Path, qpn: u32) -> Connect<'static> {
    Connect {
        service_id: SERVICE,
        path,
        link: LinkLayer::InfiniBand,
        mtu: 5,
        rate: 16,
        pkey: 0xffff,
        qpn,
        transport: 0,
        psn: 0x123456,
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        data: b"please",
    }
}

const ACCEPT: Accept = Accept {
    qpn: 0x77,
    responder_resources: 2,
    initiator_depth: 1,
    flow_control: true,
    rnr_retry_count: 5,
    srq: true,
    data: b"welcome",
};

/// Shares of datagrams that the network loses, doubles and delays, in tenths.
#[derive(Clone, Copy, Default)]
struct LinkFaults {
    loss: u64,
    duplication: u64,
    delay: u64,
}

/// Ports 1 and 2.
struct World {
    ports: [Cm; 2],
    faults: LinkFaults,
    rng: Rng,
    now: u64,
    // Arrival, receiver, bytes.
    flying: Vec<(u64, usize, Mad)>,
    sent: Vec<Message>,
}

impl World {
    fn new(faults: LinkFaults, seed: u64) -> Self {
        let mut ports = [Cm::new(1, seed), Cm::new(2, seed + 1)];
        ports[1].listen(SERVICE);
        Self { ports, faults, rng: Rng::new(seed), now: 0, flying: Vec::new(), sent: Vec::new() }
    }

    fn send_all(&mut self) {
        for (from, port) in self.ports.iter_mut().enumerate() {
            while let Some((path, mad)) = port.next_outgoing() {
                assert_eq!(usize::from(path.remote_lid), 2 - from);
                self.sent.push(Message::parse(&mad).expect("all that is sent is known").1);
                let mut tenth = |share| self.rng.below(10) < share;
                let copies = match (tenth(self.faults.loss), tenth(self.faults.duplication)) {
                    (true, _) => 0,
                    (_, true) => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let delay = match self.rng.below(10) < self.faults.delay {
                        true => self.rng.below(10 * SECOND),
                        false => 1000,
                    };
                    self.flying.push((self.now + delay, 1 - from, mad));
                }
            }
        }
    }

    /// Moves on to the next datagram or timer; returns `false` if there is none.
    fn step(&mut self) -> bool {
        self.send_all();
        let timers = self.ports.iter().filter_map(Cm::next_deadline);
        let Some(next) = timers.chain(self.flying.iter().map(|(at, ..)| *at)).min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.ports.iter_mut().for_each(|port| port.advance(self.now));
        if let Some(index) = self.flying.iter().position(|(at, ..)| *at <= self.now) {
            let (_, to, mad) = self.flying.swap_remove(index);
            let own = to as u16 + 1;
            self.ports[to].receive(&path(own, 3 - own), &mad);
        }
        self.send_all();
        true
    }

    fn events(&mut self, port: usize) -> Vec<(Id, Event)> {
        std::iter::from_fn(|| self.ports[port].next_event()).collect()
    }

    /// Lets all datagrams arrive.
    fn land(&mut self) {
        self.send_all();
        while !self.flying.is_empty() {
            self.step();
        }
    }

    /// Steps until a port reports an event.
    fn event(&mut self, port: usize) -> (Id, Event) {
        for _ in 0..10_000 {
            if let Some(event) = self.ports[port].next_event() {
                return event;
            }
            assert!(self.step(), "no event comes");
        }
        panic!("no event comes")
    }

    fn assert_empty(&mut self) {
        while self.step() {}
        for port in &self.ports {
            assert_eq!(port.sizes(), [0; 7]);
        }
    }

    /// Connects; returns the identifiers of both sides.
    fn connect(&mut self) -> [Id; 2] {
        let a = self.ports[0].connect(&wanted(path(1, 2), 0x55));
        let (b, request) = self.event(1);
        assert!(matches!(request, Event::Request(_)), "{request:?}");
        self.ports[1].ask_for_time(b).unwrap();
        self.ports[1].accept(b, &ACCEPT).unwrap();
        let (id, reply) = self.event(0);
        assert!(id == a && matches!(reply, Event::Reply(_)), "{reply:?}");
        self.ports[0].ready(a).unwrap();
        assert_eq!(self.event(1), (b, Event::Ready));
        [a, b]
    }
}

fn kinds(messages: &[Message]) -> Vec<&'static str> {
    let kind = |message: &Message| match message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
    };
    messages.iter().map(kind).collect()
}

#[test]
fn a_connection_from_begin_to_end() {
    let mut world = World::new(LinkFaults::default(), 1);
    let [a, b] = world.connect();
    let of_a = world.ports[0].qp_values(a).unwrap();
    let of_b = world.ports[1].qp_values(b).unwrap();
    assert_eq!((of_a.remote_qpn, of_b.remote_qpn), (0x77, 0x55));
    assert_eq!((of_a.send_psn, of_b.send_psn), (of_b.receive_psn, of_a.receive_psn));
    // The other side must hold the READs that one side wants outstanding.
    assert_eq!((of_a.responder_resources, of_a.initiator_depth), (1, 2));
    assert_eq!((of_b.responder_resources, of_b.initiator_depth), (2, 1));
    assert_eq!((of_a.rnr_retry_count, of_b.rnr_retry_count), (5, 6));
    assert_eq!((of_a.path.remote_lid, of_b.path.remote_lid), (2, 1));

    world.ports[0].disconnect(a).unwrap();
    assert_eq!(world.event(1), (b, Event::DisconnectRequest));
    world.ports[1].disconnect(b).unwrap();
    assert_eq!(world.event(0), (a, Event::Disconnected { timed_out: false }));
    assert_eq!(world.ports[0].disconnect(a), Err(WrongState));
    assert_eq!(world.event(0), (a, Event::TimewaitExit));
    assert_eq!(world.event(1), (b, Event::TimewaitExit));
    assert_eq!(kinds(&world.sent), ["REQ", "MRA", "REP", "RTU", "DREQ", "DREP"]);
    world.ports[0].destroy(a);
    world.ports[1].destroy(b);
    world.assert_empty();
}

#[test]
fn connections_are_made_and_end_on_a_link_that_loses_doubles_and_delays() {
    for seed in 0..300 {
        let faults = LinkFaults { loss: seed % 5, duplication: seed / 5 % 5, delay: if seed % 2 == 0 { 0 } else { 3 } };
        let mut world = World::new(faults, seed);
        let a = world.ports[0].connect(&wanted(path(1, 2), 0x55));
        let mut seen: [HashMap<Id, Vec<&str>>; 2] = Default::default();
        let mut asked = Vec::new();
        // As a program does it: accept, be ready, disconnect from one side or from both.
        for _ in 0..5_000 {
            for (port, seen) in seen.iter_mut().enumerate() {
                for (id, event) in world.events(port) {
                    let name = match event {
                        Event::Request(req) => {
                            assert_eq!(&req.data[..6], b"please");
                            asked.push(id);
                            world.ports[1].ask_for_time(id).unwrap();
                            world.ports[1].accept(id, &ACCEPT).unwrap();
                            "request"
                        }
                        Event::Reply(rep) => {
                            assert_eq!((&rep.data[..7], id), (&b"welcome"[..], a));
                            world.ports[0].ask_for_time(id).unwrap();
                            world.ports[0].ready(id).unwrap();
                            if seed % 3 > 0 {
                                world.ports[0].disconnect(id).unwrap();
                            }
                            "reply"
                        }
                        Event::Ready => {
                            let _ = world.ports[port].disconnect(id);
                            "ready"
                        }
                        Event::DisconnectRequest => {
                            world.ports[port].disconnect(id).unwrap();
                            "end"
                        }
                        Event::Disconnected { .. } => "end",
                        Event::TimewaitExit => "exit",
                        Event::Rejected { .. } | Event::Unreachable => "lost",
                        other => panic!("{other:?}"),
                    };
                    seen.entry(id).or_default().push(name);
                }
            }
            if !world.step() {
                break;
            }
        }
        // One request made one connection, whatever was repeated; a late copy may come when the first is forgotten.
        assert!(!asked.is_empty(), "seed {seed}: 16 copies were lost");
        for (port, seen) in seen.iter().enumerate() {
            for (id, names) in seen {
                for name in ["request", "reply", "ready", "exit"] {
                    let count = names.iter().filter(|seen| **seen == name).count();
                    assert!(count <= 1, "seed {seed}, port {port}, {id}: {names:?}");
                }
                let last = *names.last().unwrap();
                assert!(last == "exit" || last == "lost", "seed {seed}, port {port}: {names:?}");
            }
        }
        world.ports[0].destroy(a);
        asked.into_iter().for_each(|id| world.ports[1].destroy(id));
        world.assert_empty();
    }
}

#[test]
fn nobody_answers() {
    let mut world = World::new(LinkFaults { loss: 10, ..LinkFaults::default() }, 3);
    let a = world.ports[0].connect(&wanted(path(1, 2), 1));
    let lookup = world.ports[0].look_up(&path(1, 2), SERVICE, 0xffff, &[]);
    let first = world.event(0);
    let second = world.event(0);
    let mut ids = [first.0, second.0];
    ids.sort_unstable();
    assert_eq!(ids, [a, lookup]);
    assert!(first.1 == Event::Unreachable && second.1 == Event::Unreachable);
    let sent = kinds(&world.sent);
    for kind in ["REQ", "SIDR_REQ"] {
        let count = sent.iter().filter(|sent| **sent == kind).count();
        assert_eq!(count, 1 + usize::from(MAX_RETRIES));
    }
    assert!(world.now > 60 * SECOND, "{}", world.now);
    [a, lookup].into_iter().for_each(|id| world.ports[0].destroy(id));
    world.assert_empty();
}

#[test]
fn a_mra_extends_the_time_for_an_answer() {
    let mut world = World::new(LinkFaults::default(), 4);
    let a = world.ports[0].connect(&wanted(path(1, 2), 1));
    let (b, _) = world.event(1);
    world.ports[1].ask_for_time(b).unwrap();
    world.land();
    let deadline = world.ports[0].next_deadline().unwrap();
    assert!(deadline > world.now + 60 * SECOND);
    world.ports[1].accept(b, &ACCEPT).unwrap();
    assert_eq!(world.event(0).0, a);
    // The sender of a REP waits for a MRA, too.
    world.ports[0].ask_for_time(a).unwrap();
    world.land();
    assert!(world.ports[1].next_deadline().unwrap() > world.now + 60 * SECOND);
}

#[test]
fn refusals() {
    let mut world = World::new(LinkFaults::default(), 5);
    // The service has no listener.
    let stranger = Connect { service_id: SERVICE + 1, ..wanted(path(1, 2), 1) };
    let a = world.ports[0].connect(&stranger);
    let (id, event) = world.event(0);
    let data = Box::new(padded(&[]));
    assert_eq!((id, event), (a, Event::Rejected { reason: reason::INVALID_SERVICE_ID, data }));
    // The program refuses.
    let a2 = world.ports[0].connect(&wanted(path(1, 2), 1));
    let (b, _) = world.event(1);
    world.ports[1].reject(b, reason::CONSUMER_DEFINED, b"no").unwrap();
    let data = Box::new(padded(b"no"));
    let refused = Event::Rejected { reason: reason::CONSUMER_DEFINED, data };
    assert_eq!(world.event(0), (a2, refused));
    assert_eq!(world.ports[1].accept(b, &ACCEPT), Err(WrongState));
    // The program that was accepted refuses.
    let a3 = world.ports[0].connect(&wanted(path(1, 2), 1));
    let (c, _) = world.event(1);
    world.ports[1].accept(c, &ACCEPT).unwrap();
    assert_eq!(world.event(0).0, a3);
    world.ports[0].reject(a3, reason::CONSUMER_DEFINED, &[]).unwrap();
    assert!(matches!(world.event(1), (id, Event::Rejected { .. }) if id == c));
    [a, a2, a3].into_iter().for_each(|id| world.ports[0].destroy(id));
    [b, c].into_iter().for_each(|id| world.ports[1].destroy(id));
    world.assert_empty();
}

#[test]
fn destroying_tells_the_other_side_in_every_state() {
    for (port, steps, expected) in
        [(0, 1, "REJ"), (1, 1, "REJ"), (1, 2, "REJ"), (0, 2, "REJ"), (0, 3, "DREQ"), (1, 3, "DREQ")]
    {
        let mut world = World::new(LinkFaults::default(), 6);
        let a = world.ports[0].connect(&wanted(path(1, 2), 1));
        let (b, _) = world.event(1);
        if steps > 1 {
            world.ports[1].accept(b, &ACCEPT).unwrap();
            world.event(0);
        }
        if steps > 2 {
            world.ports[0].ready(a).unwrap();
            world.event(1);
        }
        world.ports[port].destroy([a, b][port]);
        world.send_all();
        assert_eq!(kinds(&world.sent).last(), Some(&expected), "{port} {steps}");
        let (id, event) = world.event(1 - port);
        let fits = match expected {
            "REJ" => matches!(event, Event::Rejected { .. }),
            _ => event == Event::DisconnectRequest,
        };
        assert!(id == [b, a][port] && fits, "{port} {steps} {event:?}");
        world.ports[1 - port].destroy(id);
        world.assert_empty();
    }
}

#[test]
fn a_peer_that_dies_in_every_state() {
    for steps in 0..5 {
        let mut world = World::new(LinkFaults::default(), 7);
        let a = world.ports[0].connect(&wanted(path(1, 2), 1));
        let mut expected = [Some(Event::Unreachable), None];
        if steps > 0 {
            let (b, _) = world.event(1);
            let data = Box::new([0; REJ_DATA]);
            let rejected = Event::Rejected { reason: reason::TIMEOUT, data };
            expected[1] = Some(rejected.clone());
            if steps > 1 {
                world.ports[1].accept(b, &ACCEPT).unwrap();
                world.event(0);
                expected = [Some(rejected), Some(Event::Unreachable)];
            }
            if steps > 2 {
                world.ports[0].ready(a).unwrap();
                world.event(1);
                expected = [Some(Event::DisconnectRequest), Some(Event::DisconnectRequest)];
            }
            if steps > 3 {
                world.ports[0].disconnect(a).unwrap();
                expected[0] = Some(Event::Disconnected { timed_out: true });
            }
        }
        assert_eq!(world.ports[0].remote_lids(), [2]);
        world.ports[0].peer_lost(3);
        assert_eq!(world.ports[0].next_event(), None);
        for (port, expected) in expected.into_iter().enumerate() {
            world.ports[port].peer_lost(2 - port as u16);
            let event = world.ports[port].next_event().map(|(_, event)| event);
            assert_eq!(event, expected, "port {port} after {steps}");
        }
    }
}

#[test]
fn a_peer_that_was_started_anew() {
    let mut world = World::new(LinkFaults::default(), 8);
    let [_, b] = world.connect();
    // A new process has the port and, in it, the same queue pair.
    world.ports[0] = Cm::new(1, 99);
    let a = world.ports[0].connect(&wanted(path(1, 2), 0x55));
    assert_eq!(world.event(1), (b, Event::Disconnected { timed_out: false }));
    let (c, request) = world.event(1);
    assert!(c != b && matches!(request, Event::Request(_)));
    world.ports[1].accept(c, &ACCEPT).unwrap();
    assert_eq!(world.event(0).0, a);
    [b, c].into_iter().for_each(|id| world.ports[1].destroy(id));
    world.ports[0].destroy(a);
    world.assert_empty();
}

#[test]
fn a_queue_pair_is_stale_until_its_old_connection_is_ended() {
    let mut world = World::new(LinkFaults::default(), 10);
    let [a, b] = world.connect();
    world.ports[0].disconnect(a).unwrap();
    assert_eq!(world.event(1), (b, Event::DisconnectRequest));
    world.ports[0].destroy(a);
    let refused = world.ports[0].connect(&wanted(path(1, 2), 0x55));
    let (id, rejected) = world.event(0);
    assert!(id == refused && matches!(rejected, Event::Rejected { reason: 10, .. }), "{rejected:?}");
    world.ports[1].disconnect(b).unwrap();
    let accepted = world.ports[0].connect(&wanted(path(1, 2), 0x55));
    let (c, request) = world.event(1);
    assert!(matches!(request, Event::Request(_)), "{request:?}");
    [refused, accepted].into_iter().for_each(|id| world.ports[0].destroy(id));
    [b, c].into_iter().for_each(|id| world.ports[1].destroy(id));
    world.assert_empty();
}

#[test]
fn lookups() {
    let mut world = World::new(LinkFaults { duplication: 10, ..LinkFaults::default() }, 9);
    let lookup = world.ports[0].look_up(&path(1, 2), SERVICE, 0xffff, b"where");
    let (inquiry, event) = world.event(1);
    assert!(matches!(event, Event::Inquiry(req) if &req.data[..5] == b"where"));
    world.land();
    world.faults = LinkFaults::default();
    assert_eq!(world.ports[1].next_event(), None, "one inquiry, although its request came twice");
    let answer = Answer { status: sidr_status::SUCCESS, qpn: 9, qkey: 7, data: b"here" };
    world.ports[1].answer(inquiry, &answer).unwrap();
    assert_eq!(world.ports[1].answer(inquiry, &answer), Err(WrongState));
    let (id, event) = world.event(0);
    let Event::Found(rep) = event else { panic!("{event:?}") };
    assert_eq!((id, rep.qpn, rep.qkey, &rep.data[..4]), (lookup, 9, 7, &b"here"[..]));

    let nobody = world.ports[0].look_up(&path(1, 2), SERVICE + 1, 0xffff, &[]);
    let (id, event) = world.event(0);
    assert!(matches!(event, Event::Found(rep) if rep.status == sidr_status::UNSUPPORTED));
    assert_eq!(id, nobody);

    let refused = world.ports[0].look_up(&path(1, 2), SERVICE, 0xffff, &[]);
    let (other, _) = world.event(1);
    world.ports[1].destroy(other);
    let (id, event) = world.event(0);
    assert!(matches!(event, Event::Found(rep) if rep.status == sidr_status::REJECT));
    assert_eq!(id, refused);
    [lookup, nobody, refused].into_iter().for_each(|id| world.ports[0].destroy(id));
    world.ports[1].destroy(inquiry);
    world.assert_empty();
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    let mut world = World::new(LinkFaults::default(), 10);
    for round in 0..10_000 {
        let [a, b] = world.connect();
        let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        world.ports[first].disconnect([a, b][first]).unwrap();
        assert_eq!(world.event(second).1, Event::DisconnectRequest);
        world.ports[second].destroy([a, b][second]);
        assert_eq!(world.event(first).1, Event::Disconnected { timed_out: false });
        world.ports[first].destroy([a, b][first]);
        world.sent.clear();
        for port in &world.ports {
            assert_eq!(port.sizes(), [0; 7]);
        }
    }
}

fn some_message(rng: &mut Rng) -> Message {
    let mut word = || rng.next_u64();
    let ids = Ids { local: word() as u32, remote: word() as u32 };
    let answered = [Answered::Req, Answered::Rep, Answered::Other][word() as usize % 3];
    let data = word().to_be_bytes();
    match word() % 9 {
        0 => Message::Req(Req {
            local_id: word() as u32,
            service_id: word(),
            ca_guid: word(),
            qkey: word() as u32,
            qpn: word() as u32 >> 8,
            responder_resources: word() as u8,
            initiator_depth: word() as u8,
            remote_response_timeout: word() as u8 & 31,
            transport: word() as u8 & 3,
            flow_control: word() % 2 == 0,
            psn: word() as u32 >> 8,
            local_response_timeout: word() as u8 & 31,
            retry_count: word() as u8 & 7,
            pkey: word() as u16,
            mtu: word() as u8 & 15,
            rnr_retry_count: word() as u8 & 7,
            max_cm_retries: word() as u8 & 15,
            srq: word() % 2 == 0,
            path: ReqPath {
                local_lid: word() as u16,
                remote_lid: word() as u16,
                local_gid: padded(&word().to_be_bytes()),
                remote_gid: padded(&word().to_be_bytes()),
                flow_label: word() as u32 >> 12,
                rate: word() as u8 & 63,
                traffic_class: word() as u8,
                hop_limit: word() as u8,
                sl: word() as u8 & 15,
                subnet_local: word() % 2 == 0,
                ack_timeout: word() as u8 & 31,
            },
            data: padded(&data),
        }),
        1 => Message::Mra(Mra { ids, answered, service_timeout: word() as u8 & 31 }),
        2 => Message::Rej(Rej { ids, answered, reason: word() as u16, guid: word(), data: padded(&data) }),
        3 => Message::Rep(Rep {
            ids,
            qkey: word() as u32,
            qpn: word() as u32 >> 8,
            psn: word() as u32 >> 8,
            responder_resources: word() as u8,
            initiator_depth: word() as u8,
            ack_delay: word() as u8 & 31,
            flow_control: word() % 2 == 0,
            rnr_retry_count: word() as u8 & 7,
            srq: word() % 2 == 0,
            ca_guid: word(),
            data: padded(&data),
        }),
        4 => Message::Rtu(ids),
        5 => Message::Dreq(Dreq { ids, qpn: word() as u32 >> 8 }),
        6 => Message::Drep(ids),
        7 => Message::SidrReq(SidrReq {
            id: word() as u32,
            pkey: word() as u16,
            service_id: word(),
            data: padded(&data),
        }),
        _ => Message::SidrRep(SidrRep {
            id: word() as u32,
            status: word() as u8,
            qpn: word() as u32 >> 8,
            service_id: word(),
            qkey: word() as u32,
            data: padded(&data),
        }),
    }
}

#[test]
fn what_is_emitted_is_parsed() {
    let mut rng = Rng::new(11);
    for _ in 0..10_000 {
        let (message, transaction) = (some_message(&mut rng), rng.next_u64());
        assert_eq!(Message::parse(&message.emit(transaction)), Some((transaction, message)));
    }
}

// Places of fields as the tables of the specification give them.
#[test]
fn literal_bytes_of_a_request() {
    let mut port = Cm::new(0x0102_0304_0506_0708, 1);
    let id = port.connect(&wanted(path(1, 2), 0x55));
    let (_, mad) = port.next_outgoing().unwrap();
    let body = &mad[24..];
    assert_eq!((&mad[..4], &mad[16..18]), (&[1, 7, 2, 3][..], &[0, 0x10][..]));
    assert_eq!(body[..4], id.to_be_bytes());
    assert_eq!(body[8..16], SERVICE.to_be_bytes());
    assert_eq!(body[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(body[32..36], [0, 0, 0x55, 3]);
    assert_eq!(body[36..40], [0, 0, 0, 4]);
    // Response timeout 20, RC, flow control.
    assert_eq!(body[40..44], [0, 0, 0, 20 << 3 | 1]);
    assert_eq!(body[44..48], [0x12, 0x34, 0x56, 20 << 3 | 7]);
    assert_eq!(body[48..52], [0xff, 0xff, 5 << 4 | 6, 15 << 4]);
    assert_eq!(body[52..56], [0, 1, 0, 2]);
    assert_eq!(body[56..72], address::gid(1));
    assert_eq!(body[72..88], address::gid(2));
    assert_eq!(body[88..96], [0, 0, 0, 16, 0, 0, 8, 17 << 3]);
    assert_eq!(&body[140..146], b"please");
}

/// Random calls and datagrams, true ones and damaged ones: nothing panics, and nothing is left at the end.
#[test]
fn random_calls_and_datagrams() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let faults = LinkFaults { loss: seed % 4, duplication: 2, delay: 1 };
        let mut world = World::new(faults, seed);
        world.ports[0].listen(SERVICE);
        let mut ids: [Vec<Id>; 2] = Default::default();
        for _ in 0..400 {
            let port = rng.below(2) as usize;
            let own = port as u16 + 1;
            let way = path(own, 3 - own);
            let known = ids[port].len() as u64;
            let id = match known {
                0 => rng.next_u64() as u32,
                _ => ids[port][rng.below(known) as usize],
            };
            let cm = &mut world.ports[port];
            match rng.below(14) {
                0 => ids[port].push(cm.connect(&wanted(way, rng.below(3) as u32))),
                1 => ids[port].push(cm.look_up(&way, SERVICE, 0xffff, &[])),
                2 => _ = cm.accept(id, &ACCEPT),
                3 => _ = cm.ready(id),
                4 => _ = cm.disconnect(id),
                5 => _ = cm.reject(id, reason::CONSUMER_DEFINED, &[]),
                6 => _ = cm.ask_for_time(id),
                7 => _ = cm.communication_established(id),
                8 => cm.destroy(id),
                9 => cm.peer_lost(rng.below(3) as u16),
                10 => {
                    let answer = Answer { status: 0, qpn: 1, qkey: 1, data: &[] };
                    _ = cm.answer(id, &answer);
                }
                11 => {
                    let mut mad = some_message(&mut rng).emit(1);
                    // Identifiers that exist.
                    mad[28..32].copy_from_slice(&id.to_be_bytes());
                    let at = rng.below(256) as usize;
                    mad[at] ^= 1 << rng.below(8);
                    cm.receive(&way, &mad);
                }
                _ => _ = world.step(),
            }
            for (port, ids) in ids.iter_mut().enumerate() {
                ids.extend(world.events(port).into_iter().map(|(id, _)| id));
            }
        }
        for _ in 0..3 {
            for (port, ids) in ids.iter_mut().enumerate() {
                world.ports[port].unlisten(SERVICE);
                let fresh: Vec<_> = world.events(port).into_iter().map(|(id, _)| id).collect();
                for id in ids.drain(..).chain(fresh) {
                    world.ports[port].destroy(id);
                }
            }
            while world.step() {}
        }
        for port in &world.ports {
            assert_eq!(port.sizes(), [0; 7], "seed {seed}");
        }
    }
}
