//! Requests of every kind over a link that loses, doubles and reorders packets: every byte is right, and every buffer
//! comes back.
//!
//! `SOAK_OPERATIONS` is the number of requests. `cargo xtask soak` runs the test on a device with such a link.
//!
//! Needs: lossy

use std::collections::VecDeque;

use doorbell::{Buffer, CqConfig, NotSent, Posting, QpConfig, RemoteRegion};
use doorbell_tests::sending::Sending;
use doorbell_tests::{message, receiving};
use fastrand::Rng;

const QPS: usize = 3;
/// Basic blocks of each send queue.
const BLOCKS: u32 = 16;
/// Bytes of the remote memory that one connection uses.
const PART: usize = 4096;
/// Three packets, the last of them not full.
const LONGEST: usize = 3000;
const INLINE: usize = 64;

/// One connection, and the expected effects of its requests.
struct Connection {
    /// The memory of the far end as it is when all requests are over.
    memory: Vec<u8>,
    /// Results of the requests that are not over, oldest first.
    expected: VecDeque<Expected>,
    /// Messages and WRITEs with immediate data that were posted, and those that arrived.
    sent: u64,
    arrived: u64,
    /// A READ was posted since the last fence: a later WRITE or atomic may overtake it.
    needs_fence: bool,
}

/// The result of a request.
struct Expected {
    token: u64,
    has_buffer: bool,
    /// Bytes that it fetched.
    bytes: Option<Vec<u8>>,
}

impl Connection {
    fn new() -> Self {
        let memory = vec![0; PART];
        Self { memory, expected: VecDeque::new(), sent: 0, arrived: 0, needs_fence: false }
    }

    /// Posts one request of any kind; returns `false` when there is no room for it.
    fn post(
        &mut self,
        qp: usize,
        posting: &mut Posting<'_>,
        mut buffer: Buffer,
        region: &RemoteRegion,
        token: u64,
        random: &mut Rng,
    ) -> bool {
        let longest = LONGEST >> random.u32(..7);
        let len = random.usize(message::HEADER..=longest);
        let at = random.usize(..=PART - len);
        let number = random.usize(..PART / 8) * 8;
        let part = |at, len| region.slice(qp * PART + at, len).unwrap();
        let old = u64::from_ne_bytes(self.memory[number..number + 8].try_into().unwrap());
        let fences = self.needs_fence;
        posting.token(token);
        let (posted, has_buffer, bytes) = match random.u32(..7) {
            0 => {
                buffer.set_len(len);
                message::write(&mut buffer, qp as u32, self.sent);
                (self.message(posting.send(buffer)), true, None)
            }
            1 => {
                let mut bytes = [0; INLINE];
                let bytes = &mut bytes[..len.min(INLINE)];
                message::write(bytes, qp as u32, self.sent);
                (self.message(posting.send(&*bytes)), false, None)
            }
            kind @ (2 | 3) => {
                buffer.set_len(len);
                random.fill(&mut buffer);
                let written = buffer.to_vec();
                if fences {
                    posting.fence();
                }
                let posted = if kind == 2 {
                    is_posted(posting.write(buffer, &part(at, len)))
                } else {
                    let imm = self.sent as u32;
                    self.message(posting.write_with_imm(buffer, &part(at, len), imm))
                };
                if posted {
                    self.needs_fence = false;
                    self.memory[at..at + len].copy_from_slice(&written);
                }
                (posted, true, None)
            }
            4 => {
                let posted = is_posted(posting.read(buffer, &part(at, len)));
                self.needs_fence |= posted;
                (posted, true, Some(self.memory[at..at + len].to_vec()))
            }
            kind => {
                if fences {
                    posting.fence();
                }
                let (operand, compare) = (random.u64(..), if random.bool() { old } else { !old });
                let (posted, new) = if kind == 5 {
                    let posted = posting.fetch_add(buffer, &part(number, 8), operand);
                    (posted, old.wrapping_add(operand))
                } else {
                    let posted = posting.compare_swap(buffer, &part(number, 8), compare, operand);
                    (posted, if compare == old { operand } else { old })
                };
                let posted = is_posted(posted);
                if posted {
                    self.needs_fence = false;
                    self.memory[number..number + 8].copy_from_slice(&new.to_ne_bytes());
                }
                (posted, true, Some(old.to_ne_bytes().to_vec()))
            }
        };
        if posted {
            self.expected.push_back(Expected { token, has_buffer, bytes });
        }
        posted
    }

    /// Counts a request that needs a receive.
    fn message(&mut self, posted: Result<(), impl Into<NotSent>>) -> bool {
        let posted = is_posted(posted);
        self.sent += u64::from(posted);
        posted
    }
}

fn is_posted(posted: Result<(), impl Into<NotSent>>) -> bool {
    match posted.map_err(Into::into) {
        Ok(()) => true,
        Err(NotSent::Full { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Takes the requests that are over, and checks the result of each; returns `true` if there are any.
fn complete(world: &mut Sending, connections: &mut [Connection]) -> bool {
    let mut any = false;
    let queues: Vec<_> = (0..QPS).map(|qp| world.queue(qp)).collect();
    let mut batch = world.sender.poll();
    while let Some(done) = batch.next() {
        any = true;
        let done = done.unwrap();
        let qp = queues.iter().position(|queue| *queue == done.queue).unwrap();
        let expected = connections[qp].expected.pop_front().expect("a request is over twice");
        assert_eq!(done.token, expected.token);
        assert_eq!(done.buffer.is_some(), expected.has_buffer, "request {}", done.token);
        if let Some(bytes) = expected.bytes {
            assert_eq!(done.buffer.as_deref(), Some(&bytes[..]), "request {}", done.token);
        }
    }
    any
}

/// Takes the messages that have arrived at the far ends, and gives the receives back; returns `true` if there are any.
fn receive(world: &mut Sending, connections: &mut [Connection]) -> bool {
    let mut any = false;
    let mut batch = world.far_receiver.poll();
    while let Some(message) = batch.next() {
        any = true;
        let message = message.unwrap();
        let qp = world.far.iter().position(|far| far.qp_num() == message.qp_num()).unwrap();
        let arrived = &mut connections[qp].arrived;
        match message.imm() {
            Some(imm) => assert_eq!(imm, *arrived as u32),
            None => assert_eq!(message::read(&message), (qp as u32, *arrived)),
        }
        *arrived += 1;
    }
    any
}

#[test]
fn every_request_does_what_it_says_once() {
    let operations = std::env::var("SOAK_OPERATIONS").map_or(20_000, |n| n.parse().unwrap());
    let random = &mut Rng::with_seed(20);
    let config = QpConfig::rc().max_send_wr(BLOCKS).max_inline(INLINE as u32).timeout(10);
    let config = config.max_unsignaled(5);
    let mut world = Sending::with(QPS as u32, LONGEST as u32, &config, &CqConfig::new(4096));
    let mut connections: Vec<_> = (0..QPS).map(|_| Connection::new()).collect();
    let (region, free) = (world.remote(), world.pool.available());

    let is_over = |c: &Connection| c.expected.is_empty() && c.arrived == c.sent;
    let mut posted = 0;
    while posted < operations || !connections.iter().all(is_over) {
        receiving::wait("a request", || {
            let qp = random.usize(..QPS);
            let queue = world.queue(qp);
            let mut posting = world.sender.post_many(queue).unwrap();
            let before = posted;
            for _ in 0..random.u64(..8).min(operations - posted) {
                let buffer = world.pool.take().expect("there are more than requests");
                if !connections[qp].post(qp, &mut posting, buffer, &region, posted, random) {
                    break;
                }
                posted += 1;
            }
            drop(posting);
            let completed = complete(&mut world, &mut connections);
            receive(&mut world, &mut connections) || completed || posted > before
        });
    }

    assert_eq!(world.pool.available(), free, "a buffer did not come back");
    for (qp, connection) in connections.iter().enumerate() {
        let mut memory = [0; PART];
        world.memory.read(qp * PART, &mut memory);
        assert!(connection.memory[..] == memory, "memory of connection {qp}");
    }
    println!("note: {operations} requests");
}
