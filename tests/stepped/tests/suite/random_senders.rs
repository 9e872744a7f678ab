//! A model of senders. Random calls post, poll in part, forget postings, batches and completions, and end queue pairs
//! and senders in every way; each request comes back once, in order, with its buffers, but for unsignaled requests that
//! succeed.

use std::collections::VecDeque;
use std::mem::forget;
use std::time::Duration;

use doorbell::opaque::{Opaque, OpaqueMemory};
use doorbell::{
    Buffer, BufferPool, Completions, CqConfig, DataPath, Error, NotSent, PoolConfig, ProtectionDomain, QpConfig,
    QueuePair, Receiver, RemoteAccess, RqConfig, SendCompletion, SendFailure, Sender, SqId,
};
use doorbell_stepped_tests::{join, on_each_path, open};
use fastrand::Rng;
use soft_mlx5::Device;

on_each_path! { random_senders }

const SEEDS: u64 = 1_000;
const STEPS: u32 = 120;
const CONNECTIONS: usize = 3;
const BUFFERS: u32 = 256;
/// Receives of each far end.
const RECEIVES: u32 = 4;

/// `SEED=17` repeats one run.
fn random_senders(path: DataPath) {
    let (device, _) = open(Device::builder().strict(true).stepped());
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
        println!("seed {seed}");
        let mut model = Model::new(&device, path, seed);
        for _ in 0..STEPS {
            model.step();
        }
        model.finish();
    }
}

/// Sends the token: a copy, a buffer, a part of one, two buffers, or opaque ones. Gives the result, and the numbers of
/// buffers and of opaque ones; `None` if no buffer is free.
macro_rules! send_any {
    ($model:ident, $request:ident, $token:ident) => {{
        match $model.rng.u32(..6) {
            0 => Some(($request.send($token.to_ne_bytes()), 0, 0)),
            1 => Self::buffer(&$model.pool, $token).map(|buffer| ($request.send(buffer).map_err(NotSent::from), 1, 0)),
            2 => Self::buffer(&$model.pool, $token)
                .map(|buffer| ($request.send(buffer.part(..8)).map_err(NotSent::from), 1, 0)),
            3 => Self::opaque(&$model.opaque, $model.memory, $token)
                .map(|buffer| ($request.send(buffer).map_err(NotSent::from), 0, 1)),
            4 => Self::opaque(&$model.opaque, $model.memory, $token)
                .zip($model.opaque.take())
                .map(|(first, second)| ($request.send([first, second]).map_err(NotSent::from), 0, 2)),
            _ => Self::buffer(&$model.pool, $token).zip($model.pool.take()).map(|(first, mut second)| {
                second.extend_from_slice(&$token.to_be_bytes());
                ($request.send([first, second]).map_err(NotSent::from), 2, 0)
            }),
        }
    }};
}

/// The state of a queue pair, as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Connected,
    /// Requests may fail, and no request succeeds after a failure.
    Failing,
    /// The queue pair was reset; its requests must come back before it connects again.
    Reset,
    /// The queue pair was destroyed or dropped.
    Gone,
}

/// A request that was accepted.
#[derive(Clone, Copy, Debug)]
struct Request {
    token: u64,
    /// Its buffers, without opaque ones.
    count: usize,
    opaque: usize,
    is_unsignaled: bool,
}

struct Connection {
    near: Option<QueuePair>,
    far: Option<QueuePair>,
    queue: SqId,
    capacity: usize,
    state: State,
    /// Requests that have not come back. Unsignaled ones that succeeded leave it with a later request.
    outstanding: VecDeque<Request>,
    has_failed: bool,
    /// Token of the message that the far end receives next.
    expected: u64,
}

impl Connection {
    /// Returns `true` if no request must come back any more.
    fn is_over(&self) -> bool {
        self.outstanding.iter().all(|request| request.is_unsignaled && !self.has_failed)
    }

    /// Takes note of a request that was accepted.
    fn accept(&mut self, request: Request) {
        self.outstanding.push_back(request);
        let signaled = self.outstanding.iter().filter(|request| !request.is_unsignaled);
        assert!(signaled.count() <= self.capacity);
    }
}

struct Model<'a> {
    rng: Rng,
    path: DataPath,
    sender: Sender,
    near_receiver: Receiver,
    far_receiver: Receiver,
    connections: Vec<Connection>,
    pool: BufferPool,
    opaque: BufferPool<Opaque>,
    /// The memory of the opaque buffers.
    memory: *mut u8,
    receives: BufferPool,
    /// Buffers of completions that were forgotten.
    lost: usize,
    /// Requests that came back since a batch last ended: they take room until the next one ends.
    unfreed: usize,
    next_token: u64,
    pd: ProtectionDomain,
    device: &'a Device,
}

impl<'a> Model<'a> {
    fn new(device: &'a Device, path: DataPath, seed: u64) -> Self {
        let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
        let receiver = || Receiver::new(&pd, &CqConfig::new(512).path(path)).unwrap();
        let (opaque, memory) = opaque_pool(&pd);
        let pool = |count| BufferPool::new(&pd, &PoolConfig::new(count, 64)).unwrap();
        Self {
            rng: Rng::with_seed(seed),
            path,
            sender: sender(&pd, path),
            near_receiver: receiver(),
            far_receiver: receiver(),
            connections: Vec::new(),
            pool: pool(BUFFERS),
            opaque,
            memory,
            receives: pool(256),
            lost: 0,
            unfreed: 0,
            next_token: 0,
            pd,
            device,
        }
    }

    fn step(&mut self) {
        let live = self.connections.iter().filter(|connection| connection.near.is_some()).count();
        if live < CONNECTIONS && (live == 0 || self.rng.u32(..4) == 0) {
            self.connect();
        }
        let at = self.rng.usize(..self.connections.len());
        match self.rng.u32(..100) {
            0..32 => self.post(at),
            32..40 => self.post_unsignaled(at),
            40..58 => self.poll(),
            58..64 => self.next(),
            64..74 => _ = self.device.settle(),
            74..76 => _ = self.device.step(),
            76..82 => {
                // Waits for receives, and time-outs of peers that died.
                let longest = if self.rng.u32(..3) == 0 { 200_000 } else { 2_000 };
                self.device.advance(Duration::from_micros(self.rng.u64(1..longest)));
                self.device.settle();
            }
            82..90 => self.receive(),
            90..92 => self.reset(at),
            92..95 => self.reconnect(at),
            95 => self.fail(at),
            96 => self.lose_far_end(at),
            97 => self.leave(at, true),
            98 => self.leave(at, false),
            _ => self.replace_sender(),
        }
    }

    /// Makes a connection, in the place of one that is over if there is one.
    fn connect(&mut self) {
        let Self { rng, sender, near_receiver, far_receiver, .. } = self;
        let config = QpConfig::rc().max_send_wr(1 << rng.u32(1..4)).max_send_sge(2).max_inline(28).min_rnr_timer(1);
        let config = if rng.bool() { config.max_unsignaled(rng.u32(..3)) } else { config };
        let near = QueuePair::builder(&config).receive(near_receiver, RqConfig::new(1)).send(sender).build().unwrap();
        let far = QueuePair::builder(&config).receive(far_receiver, RqConfig::new(RECEIVES)).build().unwrap();
        let queue = near.send_queue().unwrap();
        let mut connection = Connection {
            near: Some(near),
            far: Some(far),
            queue,
            capacity: self.sender.capacity(queue) as usize,
            state: State::Connected,
            outstanding: VecDeque::new(),
            has_failed: false,
            expected: 0,
        };
        self.join(&mut connection);
        self.connections.retain(|connection| connection.near.is_some() || !connection.outstanding.is_empty());
        self.connections.push(connection);
    }

    fn join(&mut self, connection: &mut Connection) {
        let Connection { near: Some(near), far: Some(far), .. } = connection else { return };
        join(near, far);
        self.far_receiver.fill(far.receive_queue().unwrap(), &self.receives).unwrap();
        connection.expected = self.next_token;
        (connection.state, connection.has_failed) = (State::Connected, false);
    }

    fn buffer(pool: &BufferPool, token: u64) -> Option<Buffer> {
        let mut buffer = pool.take()?;
        buffer.extend_from_slice(&token.to_ne_bytes());
        Some(buffer)
    }

    fn opaque(pool: &BufferPool<Opaque>, memory: *mut u8, token: u64) -> Option<Buffer<Opaque>> {
        let mut buffer = pool.take()?;
        buffer.set_len(8);
        // SAFETY: eight bytes of a free buffer in memory of this program.
        unsafe { memory.add(buffer.offset()).cast::<u64>().write_unaligned(token) };
        Some(buffer)
    }

    /// Posts some requests, and rings, or forgets the posting.
    fn post(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let mut posting = match self.sender.post_many(connection.queue) {
            Ok(posting) => posting,
            Err(NotSent::NoQueue) => return assert_eq!(connection.state, State::Gone),
            Err(NotSent::State(_)) => return assert_ne!(connection.state, State::Connected),
            Err(error) => panic!("{error}"),
        };
        for _ in 0..self.rng.usize(1..=connection.capacity) {
            let token = self.next_token;
            posting.token(token);
            if self.rng.u32(..4) == 0 {
                posting.own_cqe();
            }
            let Some((result, count, opaque)) = send_any!(self, posting, token) else { break };
            match result {
                Ok(()) => {
                    connection.accept(Request { token, count, opaque, is_unsignaled: false });
                    self.next_token += 1;
                }
                Err(NotSent::Full { .. }) => {
                    assert!(connection.outstanding.len() + self.unfreed >= connection.capacity);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        if self.rng.u32(..4) == 0 {
            forget(posting);
        }
    }

    /// Posts unsignaled requests, of which each has a doorbell.
    fn post_unsignaled(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        for _ in 0..self.rng.usize(1..=connection.capacity) {
            let token = self.next_token;
            let request = match self.sender.post(connection.queue) {
                Ok(request) => request.token(token).unsignaled(),
                Err(NotSent::NoQueue) => return assert_eq!(connection.state, State::Gone),
                Err(NotSent::State(_)) => return assert_ne!(connection.state, State::Connected),
                Err(error) => panic!("{error}"),
            };
            let Some((result, count, opaque)) = send_any!(self, request, token) else { break };
            match result {
                Ok(()) => {
                    connection.accept(Request { token, count, opaque, is_unsignaled: true });
                    self.next_token += 1;
                }
                Err(NotSent::Full { .. }) => {
                    assert!(connection.outstanding.len() + self.unfreed >= connection.capacity);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Polls some of what is over.
    fn poll(&mut self) {
        let budget = self.rng.u32(..12);
        let has_completions = self.sender.has_completions();
        let mut batch = self.sender.poll_up_to(budget);
        let (mut taken, mut over) = (0, 0);
        while let Some(done) = batch.next() {
            taken += 1;
            let done = Over::of(done, &mut self.rng, &mut self.lost);
            over += done.check(&mut self.connections);
            if self.rng.u32(..8) == 0 {
                break;
            }
        }
        assert!(taken <= budget && (has_completions || taken == 0), "{taken} of {budget}");
        if self.rng.u32(..4) == 0 {
            self.unfreed += over;
            forget(batch);
        } else {
            drop(batch);
            self.unfreed = 0;
            for Connection { queue, state, outstanding, .. } in &self.connections {
                let awaits = outstanding.iter().any(|request| !request.is_unsignaled);
                let is_busy = self.sender.is_busy(*queue);
                assert!(*state != State::Connected || awaits == is_busy, "{is_busy}: {outstanding:?}");
            }
        }
    }

    /// Takes one that is over.
    fn next(&mut self) {
        self.unfreed = 0;
        if let Some(done) = self.sender.next() {
            let done = Over::of(done, &mut self.rng, &mut self.lost);
            self.unfreed = done.check(&mut self.connections);
        }
    }

    /// The far ends take what has arrived, and have all their receives again.
    fn receive(&mut self) {
        let mut batch = self.far_receiver.poll();
        while let Some(next) = batch.next() {
            let Ok(message) = next else { continue };
            let is_of = |connection: &&mut Connection| {
                connection.far.as_ref().is_some_and(|far| far.qp_num() == message.qp_num())
            };
            let Some(connection) = self.connections.iter_mut().find(is_of) else { continue };
            let token = u64::from_ne_bytes(*message.first_chunk().unwrap());
            assert!(token >= connection.expected, "a message comes twice, or too late");
            assert!(message.len() == 8 || message[8..] == token.to_be_bytes());
            connection.expected = token + 1;
        }
    }

    fn fail(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if let Some(near) = &connection.near {
            near.to_error().unwrap();
            connection.state = State::Failing;
        }
    }

    /// The peer dies: requests fail when their retries are used up.
    fn lose_far_end(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if let Some(far) = connection.far.take() {
            self.far_receiver.destroy_qp(far).unwrap();
            if connection.state == State::Connected {
                connection.state = State::Failing;
            }
        }
    }

    fn reset(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if let Some(near) = &mut connection.near {
            self.near_receiver.reset_qp(near).unwrap();
            connection.state = State::Reset;
            assert!(self.sender.is_busy(connection.queue), "the sender has not polled since the reset");
        }
    }

    fn reconnect(&mut self, at: usize) {
        let mut connection = self.connections.swap_remove(at);
        let is_over = connection.is_over();
        if let (Some(near), Some(far), State::Reset) = (&mut connection.near, &mut connection.far, connection.state) {
            if self.sender.is_busy(connection.queue) {
                let refused = near.connect(&far.address().unwrap());
                assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
            } else {
                assert!(is_over, "{:?}", connection.outstanding);
                connection.outstanding.clear();
                self.far_receiver.reset_qp(far).unwrap();
                self.join(&mut connection);
            }
        }
        self.connections.push(connection);
    }

    /// Destroys a queue pair, or drops its handle.
    fn leave(&mut self, at: usize, destroys: bool) {
        let connection = &mut self.connections[at];
        let Some(near) = connection.near.take() else { return };
        connection.state = State::Gone;
        if destroys {
            self.near_receiver.destroy_qp(near).unwrap();
        } else {
            drop(near);
        }
        if let Some(far) = connection.far.take() {
            self.far_receiver.destroy_qp(far).unwrap();
        }
    }

    /// Drops the sender, whose requests stay with their queue pairs until these are destroyed.
    fn replace_sender(&mut self) {
        self.sender = sender(&self.pd, self.path);
        self.unfreed = 0;
        for connection in std::mem::take(&mut self.connections) {
            if let Some(near) = connection.near {
                // Unsignaled ones may have succeeded.
                let signaled = connection.outstanding.iter().filter(|request| !request.is_unsignaled);
                let buffers: usize = signaled.map(|request| request.count).sum();
                let before = self.pool.available();
                self.near_receiver.destroy_qp(near).unwrap();
                assert!(self.pool.available() >= before + buffers, "{buffers} buffers");
            }
            if let Some(far) = connection.far {
                self.far_receiver.destroy_qp(far).unwrap();
            }
        }
        // The receiver lets go of queue pairs that were dropped.
        self.connect();
        assert_eq!(self.pool.available() + self.lost, BUFFERS as usize);
        assert_eq!(self.opaque.available(), self.opaque.count() as usize);
    }

    /// Ends everything in random ways. All that is outstanding comes back.
    fn finish(mut self) {
        for at in 0..self.connections.len() {
            match self.rng.u32(..4) {
                0 => self.leave(at, true),
                1 => self.leave(at, false),
                2 => self.fail(at),
                _ => self.reset(at),
            }
        }
        for _ in 0..4 {
            self.device.settle();
            let mut batch = self.sender.poll_up_to(u32::MAX);
            while let Some(done) = batch.next() {
                _ = Over::of(done, &mut self.rng, &mut self.lost).check(&mut self.connections);
            }
        }
        for connection in &self.connections {
            let Connection { queue, outstanding, state, .. } = connection;
            assert!(connection.is_over(), "{state:?}: {outstanding:?}");
            assert!(!self.sender.is_busy(*queue), "{state:?}");
            if *state == State::Gone {
                assert_eq!(self.sender.capacity(*queue), 0, "the queue pair is destroyed");
            }
        }
        assert_eq!(self.pool.available() + self.lost, BUFFERS as usize);
        assert_eq!(self.opaque.available(), self.opaque.count() as usize);
    }
}

fn opaque_pool(pd: &ProtectionDomain) -> (BufferPool<Opaque>, *mut u8) {
    let mut bytes = vec![0u8; 8192].into_boxed_slice();
    let (memory, len) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the bytes live until the device has let go of them, and nothing else uses them.
    let region = unsafe { OpaqueMemory::unreadable(pd, memory, len, RemoteAccess::empty(), bytes) }.unwrap();
    // The pool has one buffer less than fit, wherever the bytes begin.
    (BufferPool::divide(region, 127, 64).unwrap(), memory)
}

fn sender(pd: &ProtectionDomain, path: DataPath) -> Sender {
    Sender::new(pd, &CqConfig::new(512).path(path)).unwrap()
}

/// A request that came back.
struct Over {
    queue: SqId,
    token: u64,
    has_succeeded: bool,
    /// `None` if its completion was forgotten, or its buffers were not all taken.
    buffers: Option<Vec<Buffer>>,
    /// Number of opaque buffers, which a failure returns to their pool; `None` as for `buffers`.
    opaque: Option<usize>,
}

impl Over {
    /// Takes a completion apart, or a part of it, or forgets it.
    fn of(done: Result<SendCompletion<'_>, SendFailure>, rng: &mut Rng, lost: &mut usize) -> Self {
        match done {
            Ok(mut done) => {
                let (queue, token) = (done.queue, done.token);
                let (buffers, opaque) = match rng.u32(..8) {
                    0 => {
                        *lost += usize::from(done.buffer.is_some());
                        forget(done);
                        (None, None)
                    }
                    1 => (None, None),
                    _ => {
                        let mut buffers = Vec::from_iter(done.buffer.take());
                        buffers.extend(std::iter::from_fn(|| done.next_buffer()));
                        (Some(buffers), Some(std::iter::from_fn(|| done.opaque_buffer()).count()))
                    }
                };
                Self { queue, token, has_succeeded: true, buffers, opaque }
            }
            Err(failure) => {
                let SendFailure { queue, token, buffers, .. } = failure;
                Self { queue, token, has_succeeded: false, buffers: Some(buffers), opaque: None }
            }
        }
    }

    /// Compares it with the oldest request of its connection that comes back; returns how many requests are over.
    fn check(self, connections: &mut [Connection]) -> usize {
        let Self { queue, token, has_succeeded, buffers, opaque } = self;
        let connection = connections.iter_mut().find(|connection| connection.queue == queue);
        let connection = connection.expect("a connection with requests");
        let mut next = || connection.outstanding.pop_front().expect("an outstanding request");
        let (mut request, mut over) = (next(), 1);
        while request.is_unsignaled && request.token != token {
            assert!(!connection.has_failed, "unsignaled request {} failed and does not come back", request.token);
            (request, over) = (next(), over + 1);
        }
        let Request { token: expected, count, opaque: expected_opaque, is_unsignaled } = request;
        assert_eq!(token, expected);
        assert!(opaque.is_none_or(|opaque| opaque == expected_opaque), "{opaque:?} of {expected_opaque}");
        assert!(!(is_unsignaled && has_succeeded), "unsignaled request {token} succeeded and comes back");
        if has_succeeded {
            assert!(!connection.has_failed, "request {token} succeeded after a failure");
        } else {
            assert_ne!(connection.state, State::Connected, "request {token} failed");
            connection.has_failed = true;
        }
        if let Some(buffers) = buffers {
            assert_eq!(buffers.len(), count);
            if let [first, rest @ ..] = &buffers[..] {
                assert_eq!(**first, token.to_ne_bytes());
                assert!(rest.iter().all(|buffer| **buffer == token.to_be_bytes()));
            }
        }
        over
    }
}
