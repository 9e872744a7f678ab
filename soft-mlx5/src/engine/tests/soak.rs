//! A long run: many connections, one SRQ, one CQ, shuffled completions and a link on which everything goes
//! wrong. Each message must arrive once, in the order of its connection, with all its bytes.
//!
//! `make soak` runs it with 10^8 messages; soft-mlx5/tests/soak.log is its output.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::program::*;
use crate::base::faults::Faults;
use crate::base::rng::Rng;
use crate::engine::NicConfig;
use crate::fabric::{Fabric, Switch};
use crate::objects::*;

const SEED: u64 = 2026;
const SENDERS: usize = 2;
const CONNECTIONS: usize = 8;
const SLOTS: usize = 512;
const OUTSTANDING: u64 = 48;
// Up to three packets; most messages are short.
const LONGEST: usize = 640;
const MTU: u32 = 256;
// Messages of each connection in the prefix that the short test replays.
const PREFIX: u64 = 25_000;

const LOG: &str = include_str!("../../../tests/soak.log");

// Length of a message, and the words that it consists of.
fn length(connection: usize, number: u64) -> usize {
    let draw = mix(connection as u64 ^ number << 8);
    let words = if draw % 16 == 0 { 2 + draw as usize / 16 % 79 } else { 2 + draw as usize % 6 };
    words * 8
}

fn word(connection: usize, number: u64, index: usize) -> u64 {
    mix(mix(number << 8 | connection as u64).wrapping_add(index as u64))
}

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ value >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// One direction of a connection, with the digest of what arrived.
struct Connection {
    sender: usize,
    from: Qp,
    to: Qpn,
    sent: u64,
    acknowledged: u64,
    received: u64,
    digest: u64,
    prefix: u64,
}

struct Soak {
    devices: Vec<Device>,
    send_cqs: Vec<Cq>,
    recv: Cq,
    srq: Srq,
    source: Memory,
    source_keys: Vec<u32>,
    sink: Memory,
    sink_key: u32,
    connections: Vec<Connection>,
    now: u64,
    rng: Rng,
    received: u64,
    order: u64,
}

impl Soak {
    fn new(connections: usize) -> Self {
        let fabric = Fabric::Switch(Switch::new());
        let faults = Faults {
            loss: 0.0005,
            duplication: 0.0005,
            reordering: 0.001,
            rnr: 0.0005,
            shuffle_completions: true,
            ..Faults::default()
        };
        // The receiver is device 0.
        let mut devices: Vec<_> = (0..=SENDERS as u64)
            .map(|i| {
                let fabric = fabric.clone();
                let seed = SEED + i;
                Device::with(NicConfig { fabric, faults, seed, strict: true, ..NicConfig::default() })
            })
            .collect();
        let source = Memory::new(connections * OUTSTANDING as usize * LONGEST);
        let sink = Memory::new(SLOTS * LONGEST);
        let (recv, unused) = (devices[0].cq(1024), devices[0].cq(64));
        let srq = devices[0].srq(SLOTS as u32, 5);
        let sink_key = devices[0].register(&sink, ALL_ACCESS);
        let send_cqs: Vec<_> = (1..=SENDERS).map(|i| devices[i].cq(1024)).collect();
        let source_keys = (1..=SENDERS).map(|i| devices[i].register(&source, ALL_ACCESS)).collect();
        let path = Path { mtu: MTU, rnr_timer: 1, rnr_retry: 7, retry_cnt: 7, ..Path::default() };
        let lids: Vec<_> = devices.iter().map(|device| device.nic.port().lid).collect();
        let connections = (0..connections)
            .map(|i| {
                let sender = i % SENDERS;
                let device = &mut devices[1 + sender];
                let attr = device.qp_attr(Service::Rc, &send_cqs[sender], &send_cqs[sender]);
                let from = device.qp(attr);
                let attr = devices[0].qp_attr(Service::Rc, &unused, &recv);
                let to = devices[0].qp(QpAttr { srq: Some(srq.number), ..attr });
                devices[1 + sender].connect_with(&from, lids[0], to.number, path);
                devices[0].connect_with(&to, lids[1 + sender], from.number, path);
                let to_number = to.number;
                // The queues of the receiving end live as long as the devices.
                std::mem::forget(to);
                Connection { sender, from, to: to_number, sent: 0, acknowledged: 0, received: 0, digest: 0, prefix: 0 }
            })
            .collect();
        std::mem::forget(unused);
        let mut soak = Self {
            devices,
            send_cqs,
            recv,
            srq,
            source,
            source_keys,
            sink,
            sink_key,
            connections,
            now: 0,
            rng: Rng::new(SEED),
            received: 0,
            order: 0,
        };
        for _ in 1..SLOTS {
            soak.post_receive();
        }
        soak
    }

    fn post_receive(&mut self) {
        let at = self.sink.addr() + u64::from(self.srq.next_slot()) * LONGEST as u64;
        let posted = self.srq.post(&[DataSegment::new(at, LONGEST as u32, self.sink_key)]);
        assert!(posted.is_some());
    }

    /// Posts the next few messages of a connection, and rings once.
    fn send(&mut self, index: usize, until: u64) {
        let connection = &mut self.connections[index];
        let room = OUTSTANDING - (connection.sent - connection.acknowledged);
        let count = room.min(until - connection.sent).min(1 + self.rng.below(16));
        let mut last = None;
        for _ in 0..count {
            let number = connection.sent;
            let len = length(index, number);
            let slot = index * OUTSTANDING as usize + (number % OUTSTANDING) as usize;
            for i in 0..len / 8 {
                let bytes = word(index, number, i).to_le_bytes();
                self.source.span().write(slot * LONGEST + i * 8, &bytes).unwrap();
            }
            let at = self.source.addr() + (slot * LONGEST) as u64;
            let work = Work::send().data(at, len as u32, self.source_keys[connection.sender]);
            last = Some(connection.from.write(&work).1);
            connection.sent += 1;
        }
        if let Some(last) = last {
            self.devices[1 + connection.sender].ring(&mut connection.from, last);
        }
    }

    fn take_acknowledgements(&mut self) {
        for (sender, cq) in self.send_cqs.iter_mut().enumerate() {
            while let Some(cqe) = cq.poll() {
                assert_eq!(cqe.opcode(), CqeOpcode::Requester, "{:?}", error(&cqe));
                let mut all = self.connections.iter_mut();
                let connection = all.find(|c| c.sender == sender && c.from.number.0 == cqe.qpn()).unwrap();
                // Each WQE is one basic block.
                assert_eq!(cqe.wqe_counter.get(), connection.acknowledged as u16);
                connection.acknowledged += 1;
            }
        }
    }

    fn receive(&mut self) {
        while let Some(cqe) = self.recv.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::ResponderSend, "{:?}", error(&cqe));
            let slot = cqe.wqe_counter.get();
            let index = self.connections.iter().position(|c| c.to.0 == cqe.qpn()).unwrap();
            let connection = &mut self.connections[index];
            let number = connection.received;
            let len = length(index, number);
            assert_eq!(cqe.byte_cnt.get() as usize, len, "message {number} of {index}");
            let mut bytes = [0; LONGEST];
            self.sink.span().read(usize::from(slot) * LONGEST, &mut bytes[..len]).unwrap();
            for (i, got) in bytes[..len].chunks_exact(8).enumerate() {
                let got = u64::from_le_bytes(got.try_into().unwrap());
                assert_eq!(got, word(index, number, i), "message {number} of {index}, word {i}");
                connection.digest = mix(connection.digest ^ got);
            }
            connection.received += 1;
            if connection.received == PREFIX {
                connection.prefix = connection.digest;
            }
            self.received += 1;
            self.order = mix(self.order ^ (index as u64) << 16 ^ u64::from(slot));
            self.srq.give_back(slot);
            self.post_receive();
        }
    }

    /// Lets each connection send so many messages, and receives all of them.
    fn run(&mut self, each: u64, mut progress: impl FnMut(&Self)) {
        let total = each * self.connections.len() as u64;
        while self.received < total {
            for _ in 0..4 {
                let some = self.rng.below(self.connections.len() as u64) as usize;
                self.send(some, each);
            }
            self.now += 200;
            let mut busy = false;
            for device in &mut self.devices {
                busy |= device.nic.step(self.now);
            }
            self.take_acknowledgements();
            self.receive();
            progress(self);
            let stuck = self.connections.iter().all(|c| c.sent == each || c.sent - c.acknowledged == OUTSTANDING);
            if !busy && stuck && self.received < total {
                let deadlines = self.devices.iter().filter_map(|device| device.nic.next_deadline());
                self.now = self.now.max(deadlines.min().expect("a message is lost for good"));
            }
        }
        // No message comes twice, however long the test waits.
        for _ in 0..1000 {
            self.now += 1_000_000;
            for device in &mut self.devices {
                device.nic.step(self.now);
            }
            self.take_acknowledgements();
        }
        self.recv.expect_nothing();
        assert!(self.connections.iter().all(|c| c.acknowledged == each));
    }

    fn lost(&self) -> u64 {
        self.devices.iter().map(|device| device.nic.drops().injected).sum()
    }

    /// Returns a digest that does not depend on the order in which connections take turns.
    fn digest(&self, of: impl Fn(&Connection) -> u64) -> u64 {
        self.connections.iter().fold(0, |digest, connection| mix(digest ^ of(connection)))
    }

    fn prefix_line(&self) -> String {
        let count = PREFIX * CONNECTIONS as u64;
        format!("soak: prefix: {count} messages, digest {:016x}", self.digest(|c| c.prefix))
    }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn the_prefix_of_the_long_run_arrives_whole() {
    let mut soak = Soak::new(CONNECTIONS);
    soak.run(PREFIX, |_| {});
    assert!(soak.lost() > 50, "the link lost {} packets: the test shows little", soak.lost());
    let line = soak.prefix_line();
    assert!(LOG.lines().any(|logged| logged == line), "not in soft-mlx5/tests/soak.log: {line}");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn long() {
    let wanted = std::env::var("SOAK_MESSAGES").map_or(100_000_000, |n| n.parse().unwrap());
    let each = (wanted / CONNECTIONS as u64).max(PREFIX);
    let total = each * CONNECTIONS as u64;
    let mut soak = Soak::new(CONNECTIONS);
    let (mut next, mut memory) = (0, Vec::new());
    soak.run(each, |soak| {
        if soak.received >= next {
            next += total / 20;
            memory.push(resident_bytes());
            let kib = memory.last().unwrap() / 1024;
            println!("soak: {} messages, {kib} KiB resident", soak.received);
        }
    });
    // The bound shows any growth by a byte per thousand messages.
    let (early, end) = (memory[2], resident_bytes());
    assert!(end <= early + (1 << 18), "memory grew from {early} to {end} bytes");
    println!("{}", soak.prefix_line());
    println!("soak: order digest {:016x}", soak.order);
    println!(
        "soak: ok: {total} messages, seed {SEED}, digest {:016x}, {} packets lost on purpose, 0 \
         messages lost, doubled or damaged",
        soak.digest(|c| c.digest),
        soak.lost()
    );
}
