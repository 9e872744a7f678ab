//! Destroyed connections and pools cost nothing: no memory, and no time when nothing has arrived.
//!
//! The device gives no QP number twice, so a table by number would grow. `SOAK_CONNECTIONS` is the number of
//! connections.
//!
//! Needs: soak
#![cfg(target_arch = "x86_64")]

mod allocations;
mod instructions;
mod tags;

use doorbell::{
    BufferPool, PoolConfig, ProtectionDomain, QpConfig, QueuePair, ReceiveFrom, Receiver, RqConfig, Sender, SrqConfig,
    SrqId, WcStatus,
};
use doorbell_tests::peers::join;
use doorbell_tests::sending::completions;
use doorbell_tests::{device, message, receiving};

/// Bytes by which the heap may grow: enough for a vector that doubles, but not for an entry of each connection.
const BYTES: isize = 512;
/// Bytes of the whole process, the device and libmlx5 included.
const DATA: i64 = 16 << 20;

/// State of the process while there is no connection.
#[derive(Debug)]
struct State {
    blocks: isize,
    bytes: isize,
    /// Instructions of a poll that finds nothing.
    poll: u64,
    /// Bytes of memory that is writable and private.
    data: i64,
}

impl State {
    fn take(poll: impl Fn() -> u64) -> Self {
        // Twice: the first time, the dynamic linker may need to find a function.
        poll();
        let poll = poll();
        let (blocks, bytes) = allocations::live();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: i64 = statm.split(' ').nth(5).unwrap().parse().unwrap();
        Self { blocks, bytes, poll, data: pages * 4096 }
    }
}

/// Something that connections come to and go from.
trait World {
    /// Has the connection number `round` come, be used and go.
    fn round(&mut self, round: u32);
    /// Polls, and finds nothing.
    fn poll(&mut self);
}

/// Makes and destroys connections, and compares the state after a tenth of them with the state after all.
fn soak(mut world: impl World) {
    let rounds = match std::env::var("SOAK_CONNECTIONS") {
        Ok(rounds) => rounds.parse().expect("SOAK_CONNECTIONS is a number"),
        Err(_) => 2000,
    };
    let world = std::cell::RefCell::new(&mut world);
    // One more connection releases the rest of the connection before.
    let state = || {
        world.borrow_mut().round(0);
        State::take(|| instructions::count(|| world.borrow_mut().poll()))
    };
    (0..rounds / 10).for_each(|round| world.borrow_mut().round(round));
    let before = state();
    (rounds / 10..rounds).for_each(|round| world.borrow_mut().round(round));
    let after = state();
    println!("note: {rounds} connections, {before:?}, {after:?}");
    assert!(after.blocks <= before.blocks, "blocks stay allocated");
    assert!(after.bytes <= before.bytes + BYTES, "bytes stay allocated");
    assert!(after.poll <= before.poll + before.poll / 4, "an empty poll takes longer");
    assert!(after.data <= before.data + DATA, "the process grows");
}

/// The receives that a queue has, and the sends.
const RECEIVES: u32 = 7;
const SENDS: u32 = 16;

/// A receiver with a CQ that is no larger than it must be, and clients that send through one sender.
struct Clients {
    receiver: Receiver,
    far_receiver: Receiver,
    sender: Sender,
    srq: Option<SrqId>,
    pool: BufferPool,
    pd: ProtectionDomain,
}

impl Clients {
    fn new(shared: bool) -> Self {
        let (pd, mut receiver) = device::start(RECEIVES);
        let config = SrqConfig::new(RECEIVES).max_sge(2);
        let srq = shared.then(|| receiver.create_srq(&config).unwrap());
        let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 2, 64)).unwrap();
        let far_receiver = device::receiver(&pd, 4);
        Self { receiver, far_receiver, sender: device::sender(&pd, SENDS), srq, pool, pd }
    }

    fn connect(&mut self) -> (QueuePair, QueuePair) {
        let config = QpConfig::rc().min_rnr_timer(1);
        let from = self.srq.map_or(RqConfig::new(RECEIVES).into(), ReceiveFrom::from);
        let mut near = QueuePair::builder(&config).receive(&mut self.receiver, from).build().unwrap();
        let far = QpConfig::rc().max_send_wr(SENDS);
        let mut far = QueuePair::builder(&far)
            .receive(&mut self.far_receiver, RqConfig::new(1))
            .send(&mut self.sender)
            .build()
            .unwrap();
        join(&mut near, &mut far);
        (near, far)
    }

    /// Sends a message with this number, and waits for its end.
    fn send(&mut self, far: &QueuePair, number: u32) {
        let mut buffer = self.pool.take().expect("a buffer");
        buffer.set_len(16);
        message::write(&mut buffer, 0, number.into());
        let queue = far.send_queue().unwrap();
        self.sender.post(queue).unwrap().send(buffer).unwrap();
        let statuses = completions(&mut self.sender, 1, |done| done.status);
        assert_eq!(statuses, [WcStatus::SUCCESS]);
    }

    fn receive(&mut self, number: u32) {
        receiving::messages(&mut self.receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, number.into()));
        });
    }

    /// Ends a connection in one of the ways there are.
    fn end(&mut self, mut near: QueuePair, far: QueuePair, round: u32) {
        self.far_receiver.destroy_qp(far).unwrap();
        match round % 3 {
            0 => {
                self.receiver.destroy_qp(near).unwrap();
            }
            1 => {
                self.receiver.reset_qp(&mut near).unwrap();
                self.receiver.destroy_qp(near).unwrap();
            }
            // The receives of the queue pair come back flushed. Making the next queue pair destroys it.
            _ => {
                let receiver = &mut self.receiver;
                let posted = |rq| receiver.capacity(rq) - receiver.free_slots(rq);
                let posted = near.receive_queue().map_or(0, posted);
                drop(near);
                receiving::failures(receiver, posted as usize);
            }
        }
    }
}

impl World for Clients {
    fn round(&mut self, round: u32) {
        let (near, far) = self.connect();
        match near.receive_queue() {
            Some(rq) if round % 2 == 0 => drop(self.receiver.keep_filled(rq, &self.pool).unwrap()),
            Some(rq) => drop(self.receiver.fill(rq, &self.pool).unwrap()),
            None => drop(self.receiver.fill(self.srq.unwrap(), &self.pool).unwrap()),
        }
        self.receiver.refill();
        self.send(&far, round);
        self.receive(round);
        self.end(near, far, round);
    }

    fn poll(&mut self) {
        assert!(self.receiver.poll().next().is_none());
        assert!(self.sender.poll().next().is_none());
    }
}

#[test]
fn clients_on_an_srq_and_with_a_receive_queue_each() {
    [true, false].into_iter().for_each(|shared| soak(Clients::new(shared)));
}

/// A connection that receives into another pool in each round.
struct Pools {
    clients: Clients,
    /// Both ends.
    _near: QueuePair,
    far: QueuePair,
}

impl World for Pools {
    fn round(&mut self, round: u32) {
        let Self { clients, far, .. } = self;
        let srq = clients.srq.unwrap();
        let pool = BufferPool::new(&clients.pd, &PoolConfig::new(RECEIVES + 1, 1 << 14)).unwrap();
        let one = clients.receiver.post(srq, pool.take()).unwrap();
        let several = (0..2).map(|_| pool.take().unwrap()).collect();
        clients.receiver.post_scatter(srq, several).unwrap();
        assert_eq!(one, 1);
        for _ in 0..2 {
            clients.send(far, round);
        }
        receiving::messages(&mut clients.receiver, 2, |message| drop(message.into_buffers()));
        assert_eq!(pool.available(), pool.count() as usize);
    }

    fn poll(&mut self) {
        self.clients.poll();
    }
}

#[test]
fn pools() {
    let mut clients = Clients::new(true);
    let (near, far) = clients.connect();
    soak(Pools { clients, _near: near, far });
}

/// A queue that is the only one again costs the same as before there was another.
#[test]
fn a_queue_beside_one_that_was_closed() {
    let mut clients = Clients::new(true);
    // Room for the receive queue of another client.
    clients.receiver = device::receiver(&clients.pd, 2 * RECEIVES + 1);
    clients.srq = Some(clients.receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap());
    let (_near, far) = clients.connect();
    clients.receiver.fill(clients.srq.unwrap(), &clients.pool).unwrap();
    let cost = |clients: &mut Clients| {
        clients.send(&far, 0);
        let receiver = &mut clients.receiver;
        instructions::count(|| assert!(receiver.poll().next().is_some_and(|next| next.is_ok())))
    };
    cost(&mut clients);
    let before = cost(&mut clients);
    let other =
        QueuePair::builder(&QpConfig::rc()).receive(&mut clients.receiver, RqConfig::new(RECEIVES)).build().unwrap();
    cost(&mut clients);
    let beside = cost(&mut clients);
    clients.receiver.destroy_qp(other).unwrap();
    let after = cost(&mut clients);
    println!("note: {before} instructions, beside another queue {beside}, behind it {after}");
    assert!(after <= before, "{before}, {beside}, {after}");
}
