//! A ring, its CQ and the device, and the steps a test can take with them.

use std::mem::forget;

use mlx5_ring::completion::Cqe;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, Cursor, Message, Outcome, Receiving};
use mlx5_ring::rq::PostError;
use mlx5_ring::slots;
use mlx5_wire::cqe::CqeFormat;

use super::buffers::{Buffers, Owner};
use super::cq::{Entry, Producer, Told, op};
use super::random::Random;
use super::subject::{Books, Data, Subject, books};
use super::wq::{Kind, WorkQueue};

/// What the test has not given back.
#[derive(Debug)]
pub enum Held {
    /// From [`Receiving`].
    Message(Message<Data>),
    /// From [`receive::complete`]: slot and buffer.
    Slot(u32, u32),
}

impl Held {
    pub fn slot(&self) -> u32 {
        match self {
            Self::Message(message) => message.slot(),
            Self::Slot(slot, _) => *slot,
        }
    }

    pub fn id(&self) -> u32 {
        match self {
            Self::Message(message) => message.data.0,
            Self::Slot(_, id) => *id,
        }
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Recycle,
    Take,
    Hold,
}

impl Fate {
    pub fn random(random: &mut Random, weights: [u32; 3]) -> Self {
        let pick = random.below(weights.iter().sum());
        if pick < weights[0] {
            Self::Recycle
        } else if pick < weights[0] + weights[1] {
            Self::Take
        } else {
            Self::Hold
        }
    }
}

/// The device's side and the books of the test.
pub struct Model {
    pub device: WorkQueue,
    pub producer: Producer,
    pub buffers: Buffers,
    /// Of the completion that was told last.
    immediate: Option<u32>,
}

pub struct World<Q> {
    pub queue: Q,
    pub cq: CompletionQueue,
    pub model: Model,
    pub held: Vec<Held>,
    _books: Books,
}

impl Model {
    /// A completion of the WQE in `slot`, with buffer `id`, as it was expected.
    fn received(&mut self, told: &Told, slot: u32, id: u32, bytes: Option<u32>) {
        match told {
            Told::Message { slot: expected, bytes: length, payload } => {
                assert_eq!((slot, bytes), (*expected, Some(*length)));
                if let Some(payload) = payload {
                    self.buffers.check_payload(id, payload);
                }
            }
            Told::Failed { slot: expected, .. } => assert_eq!((slot, bytes), (*expected, None)),
            other => panic!("a receive in slot {slot} came out where {other:?} was expected"),
        }
        let segments = self.buffers.segments(id, self.device.max_sge());
        assert_eq!(self.device.segments(slot)[..segments.len()], segments, "data of slot {slot}");
        self.buffers.set_owner(id, &[Owner::Ring, Owner::Device(slot)], Owner::Held);
    }

    /// As [`received`](Self::received), of a receive that failed.
    fn failed<Q: Subject>(
        &mut self,
        batch: &Receiving<'_, Q>,
        told: &Told,
        message: &Message<Data>,
    ) {
        let slot = message.slot();
        self.received(told, slot, message.data.0, None);
        // SAFETY: of this batch.
        let syndrome = unsafe { batch.cqe(message.position()) }.syndrome().get();
        assert_eq!(*told, Told::Failed { slot, syndrome });
    }

    fn next_told(&mut self) -> Told {
        self.immediate = self.producer.state.immediates.pop_front();
        self.producer.state.told.pop_front().expect("a completion that the device did not write")
    }

    fn give_back(&mut self, id: u32, fate: Fate) {
        let to = if fate == Fate::Take { Owner::Test } else { Owner::Ring };
        self.buffers.set_owner(id, &[Owner::Held], to);
    }

    /// [`World::complete`]; whether there was something to complete.
    fn complete<Q: Subject>(&mut self, queue: &Q, index: u32, random: &mut Random) -> bool {
        let outstanding = self.device.state.outstanding.len() as u32;
        if outstanding == 0 || self.producer.room() == 0 {
            return false;
        }
        let slot = self.device.finish((index % outstanding) as usize);
        let (entry, told) = self.completion(slot, random);
        self.fill_buffer(queue, slot);
        self.producer.push(&entry, told);
        true
    }

    fn fill_buffer<Q: Subject>(&mut self, queue: &Q, slot: u32) {
        if let Some(id) = self.buffers.identify(self.device.segments(slot)) {
            self.buffers.clear(id);
        } else {
            self.buffers.clear(queue.data_of(slot));
        }
    }

    /// Fills the CQE of the WQE in `slot`, which completes now.
    fn completion(&self, slot: u32, random: &mut Random) -> (Entry, Told) {
        let counter = self.device.counter(slot);
        let ops = [op::SEND, op::SEND, op::SEND, op::SEND_IMM, op::SEND_INV, op::WRITE_IMM];
        let mut entry = Entry::new(ops[random.below(6) as usize], counter, random.next());
        if random.once_in(8) {
            entry.op |= op::SOLICITED;
        }
        if random.once_in(16) {
            entry.op = op::RESPONDER_ERROR;
            entry.syndrome = 1 + random.below(5) as u8;
            let told = Told::Failed { slot, syndrome: entry.syndrome };
            return (entry, told);
        }
        let mut payload = None;
        if random.once_in(6) {
            let wide = self.producer.size == 128 && random.once_in(2);
            let room = if wide { 64 } else { 32 };
            entry.op |= if wide { op::INLINE64 } else { op::INLINE32 };
            entry.bytes = random.below(room + 1);
            entry.payload = (0..room).map(|_| random.next() as u8).collect();
            payload = Some(entry.payload[..entry.bytes as usize].to_vec());
        }
        let told = Told::Message { slot, bytes: entry.bytes, payload };
        (entry, told)
    }
}

impl<Q: Subject> World<Q> {
    pub fn new(slots: u32, stride: usize, cqes: u32, cqe_size: usize) -> Self {
        let device = WorkQueue::new(Q::KIND, slots, stride);
        let producer = Producer::new(cqes, cqe_size);
        let books = books(slots);
        let queue = Q::over(&device, &books);
        assert_eq!(queue.room() as usize, device.max_sge());
        let cq = producer.queue();
        let buffers = Buffers::new(slots + slots / 2 + 3);
        let model = Model { device, producer, buffers, immediate: None };
        Self { queue, cq, model, held: Vec::new(), _books: books }
    }

    /// Posts up to `count` buffers with one doorbell.
    pub fn post(&mut self, count: u32, random: &mut Random) {
        let Model { device, buffers, .. } = &mut self.model;
        let mut batch = Vec::new();
        let mut hint = random.below(buffers.count());
        for _ in 0..count {
            let Some(id) = buffers.free(hint) else { break };
            hint = id + 1;
            buffers.set_owner(id, &[Owner::Test], Owner::Ring);
            let sges = random.below(device.max_sge() as u32 + 2) as usize;
            batch.push((id, buffers.shape(id, sges, random.next())));
        }
        self.post_batch(&batch);
    }

    /// Posts buffers that are marked as the ring's already.
    pub fn post_batch(&mut self, batch: &[(u32, Vec<mlx5_ring::sge::Sge>)]) {
        let Model { device, buffers, .. } = &mut self.model;
        let room = self.queue.vacant();
        let before = device.record.be32(0);
        let (mut posted, mut at, mut counters) = (0, 0, Vec::new());
        self.queue.post(batch, |result, so_far| {
            let (id, sges) = &batch[at];
            at += 1;
            match result {
                Ok(index) => {
                    posted += 1;
                    counters.push(index as u16);
                }
                Err(error) => {
                    let expected = if sges.len() > device.max_sge() {
                        PostError::TooManySges
                    } else {
                        assert_eq!(posted, room, "full too early");
                        PostError::Full
                    };
                    assert_eq!(error, expected);
                    buffers.set_owner(*id, &[Owner::Ring], Owner::Test);
                }
            }
            assert_eq!(so_far, posted);
            assert_eq!(device.record.be32(0), before, "the doorbell rang in the middle");
        });
        assert!(posted <= room, "more was posted than there was room for");
        assert_eq!(device.take(buffers), posted);
        let new = device.state.outstanding.iter().rev().take(posted as usize).rev();
        assert!(
            new.map(|&slot| device.counter(slot)).eq(counters),
            "told other slots than those posted"
        );
        self.check();
    }

    /// Leaves a buffer in the spare slot, or posts it.
    pub fn load(&mut self, random: &mut Random) {
        let Model { device, buffers, .. } = &mut self.model;
        let Some(id) = buffers.free(random.below(buffers.count())) else { return };
        let sges = random.below(device.max_sge() as u32 + 2) as usize;
        let list = buffers.shape(id, sges, random.next());
        match self.queue.load(id, &list) {
            None => return,
            Some(Ok(_)) => buffers.set_owner(id, &[Owner::Test], Owner::Ring),
            Some(Err(PostError::TooManySges)) => assert!(sges > device.max_sge()),
            Some(Err(PostError::Full)) => assert_eq!(self.queue.vacant(), 0),
        }
        device.take(buffers);
        self.check();
    }

    /// The device completes outstanding WQE `index`, if the CQ has room.
    pub fn complete(&mut self, index: u32, random: &mut Random) {
        self.model.complete(&self.queue, index, random);
    }

    /// The device completes up to `count` WQEs whose counters follow each other, from outstanding WQE `index`
    /// on, as a compressed block. Returns whether there were two at least.
    pub fn compress(&mut self, index: u32, count: u32, random: &mut Random) -> bool {
        let Model { device, producer, .. } = &mut self.model;
        let outstanding = device.state.outstanding.len() as u32;
        if outstanding == 0 || producer.compression.is_none() {
            return false;
        }
        let index = (index % outstanding) as usize;
        let run: Vec<u32> = device.state.outstanding.iter().skip(index).copied().collect();
        let first = device.counter(run[0]);
        let follows = |i: usize| device.counter(run[i]) == first.wrapping_add(i as u16);
        let most = count.min(producer.room()) as usize;
        let len = (0..run.len().min(most)).take_while(|&i| follows(i)).count();
        if len < 2 {
            return false;
        }
        let block = run[..len].iter().map(|&slot| {
            self.model.device.finish(index);
            self.model.fill_buffer(&self.queue, slot);
            let bytes = random.next();
            (bytes, random.next(), Told::Message { slot, bytes, payload: None })
        });
        let block = block.collect();
        self.model.producer.push_block(first, block);
        true
    }

    /// The device writes a CQE that is not about a receive, or that cannot be true.
    pub fn intrude(&mut self, random: &mut Random) {
        let Model { device, producer, .. } = &mut self.model;
        if producer.room() == 0 {
            return;
        }
        let counter = random.next() as u16;
        let far = match device.kind {
            Kind::Srq if device.slots == 1 << 16 => None,
            Kind::Srq => Some(device.slots as u16 | counter),
            // Nothing is polled so late that the ring has come there.
            Kind::Rq => Some((device.state.taken as u16).wrapping_add(30_000)),
        };
        let (op, counter, told) = match (random.below(8), far) {
            (0, _) => (op::REQUESTER, counter, Told::Other),
            (1, _) => (op::REQUESTER_ERROR, counter, Told::Other),
            (2, _) => (op::NO_PACKET, counter, Told::Other),
            (3, _) => (0x70 + 0x10 * random.below(5) as u8, counter, Told::Stray),
            (4, _) => (op::RESIZE, counter, Told::Stray),
            (5, _) => (op::SIGNATURE_ERROR, counter, Told::Other),
            (6, _) => (op::SEND | op::COMPRESSED, counter, Told::Stray),
            (_, Some(far)) => (op::SEND, far, Told::Stray),
            (_, None) if producer.size == 64 => (op::SEND | op::INLINE64, counter, Told::Stray),
            _ => return,
        };
        producer.push(&Entry::new(op, counter, random.next()), told);
    }

    /// Polls at most `budget` completions; what becomes of each is chosen with `weights`.
    pub fn poll(&mut self, budget: u32, weights: [u32; 3], random: &mut Random) -> u32 {
        let Self { queue, cq, model, held, .. } = self;
        let before = (model.producer.record.be32(0), model.device.record.be32(0));
        let arrived = model.producer.state.told.len() as u32;
        let start = cq.consumer_index();
        let mut taken = 0;
        // SAFETY: one queue on this CQ; messages are given back once.
        let mut batch = unsafe { Receiving::new(cq, queue, budget) };
        loop {
            // Something older may be given back first, while nothing is lent or while something is.
            if !held.is_empty() && random.once_in(6) {
                let older = held.swap_remove(random.below(held.len() as u32) as usize);
                give_back(&mut batch, model, held, older, random);
            }
            let Some(completion) = batch.next() else { break };
            taken += 1;
            let told = model.next_told();
            match completion {
                Completion::Message(message) => {
                    let (slot, Data(id)) = (message.slot(), message.data);
                    model.received(&told, slot, id, Some(message.byte_count));
                    // SAFETY: of this batch.
                    let cqe = unsafe { batch.cqe(message.position()) };
                    assert_eq!(Some(cqe.imm_inval_pkey()), model.immediate);
                    held.push(Held::Message(message));
                    match Fate::random(random, weights) {
                        Fate::Hold => {}
                        _ if random.once_in(10) && held.len() > 1 => {
                            let older = held.swap_remove(random.below(held.len() as u32) as usize);
                            give_back(&mut batch, model, held, older, random);
                        }
                        fate => {
                            let Some(Held::Message(message)) = held.pop() else { unreachable!() };
                            return_message(&mut batch, model, message, fate);
                        }
                    }
                }
                Completion::Failed(message) => {
                    model.failed(&batch, &told, &message);
                    match Fate::random(random, weights) {
                        Fate::Hold => held.push(Held::Message(message)),
                        fate => return_message(&mut batch, model, message, fate),
                    }
                }
                Completion::Other(_) => assert_eq!(told, Told::Other),
                Completion::Stray(_) => assert_eq!(told, Told::Stray),
            }
            let now = (model.producer.record.be32(0), model.device.record.be32(0));
            assert_eq!(now, before, "published in the middle of a batch");
        }
        assert_eq!(taken, arrived.min(budget));
        drop(batch);
        self.settle(start.wrapping_add(taken));
        taken
    }

    /// As [`poll`](Self::poll), the way a loop over lent messages does: on a cursor, and out of line where that has
    /// no message. Nothing is held.
    pub fn poll_cursor(&mut self, budget: u32, weights: [u32; 2], random: &mut Random) {
        let Self { queue, cq, model, .. } = self;
        let before = (model.producer.record.be32(0), model.device.record.be32(0));
        let start = cq.consumer_index();
        let mut arrived = model.producer.state.told.len() as u32;
        let fate = |random: &mut Random| Fate::random(random, [weights[0], weights[1], 0]);
        let mut taken = 0;
        // SAFETY: one queue on this CQ.
        let receiving = unsafe { Receiving::new(cq, queue, budget) };
        assert_eq!(receiving.has_arrived(), arrived > 0);
        if arrived == 0 && random.once_in(2) {
            forget(receiving);
            assert!(!receive::is_under_way(cq), "a batch that has taken nothing leaves something");
            return self.settle(start);
        }
        // SAFETY: the batch goes on.
        let mut cursor = unsafe { Cursor::pick_up(receiving.into_cursor().put_down()) };
        assert!(!cursor.is_idle());
        'batch: loop {
            let lent = 'lent: {
                // SAFETY: the cursor is of this batch; nobody reads a buffer that was given back.
                unsafe {
                    if let Some(found) = cursor.peek() {
                        cursor.lend();
                        Some(found)
                    } else if cursor.is_done() {
                        break 'batch;
                    } else {
                        let (place, position, expected) = cursor.aim();
                        receive::put_aim(place, position, expected);
                        let wants = !random.once_in(4);
                        let lend = |id, bytes| wants.then_some((id, bytes));
                        if let Some(found) = receive::retarget(queue, place, lend) {
                            cursor.reload();
                            assert_eq!(cursor.lent_data(), found.0);
                            break 'lent Some(found);
                        }
                        if receive::has_nothing(queue, place) {
                            cursor.reload();
                            if random.once_in(2) && model.complete(queue, 0, random) {
                                // The batch finds it.
                                arrived += 1;
                                continue 'batch;
                            }
                            break 'batch;
                        }
                        let mut receiving = Receiving::pick_up(place, queue);
                        let Some(next) = receiving.next() else {
                            receiving.into_cursor().put_down();
                            cursor.reload();
                            break 'batch;
                        };
                        let mut lent = None;
                        match next {
                            Completion::Message(message) => {
                                lent = Some((message.data, message.byte_count));
                                receiving.recycle(message);
                            }
                            Completion::Failed(message) => {
                                let told = model.next_told();
                                model.failed(&receiving, &told, &message);
                                return_message(&mut receiving, model, message, fate(random));
                            }
                            Completion::Other(_) => assert_eq!(model.next_told(), Told::Other),
                            Completion::Stray(_) => assert_eq!(model.next_told(), Told::Stray),
                        }
                        receiving.into_cursor().put_down();
                        cursor.reload();
                        lent
                    }
                }
            };
            taken += 1;
            let Some((Data(id), bytes)) = lent else { continue };
            let told = model.next_told();
            // SAFETY: a message of this batch was lent just now.
            let slot = unsafe {
                assert_eq!(Some(cursor.lent().imm_inval_pkey()), model.immediate);
                cursor.lent_slot()
            };
            model.received(&told, slot, id, Some(bytes));
            let fate = fate(random);
            if fate == Fate::Take {
                // SAFETY: as above, and the buffer is not the queue's any more.
                unsafe { cursor.take() };
            }
            model.give_back(id, fate);
            let now = (model.producer.record.be32(0), model.device.record.be32(0));
            assert_eq!(now, before, "published in the middle of a batch");
        }
        assert_eq!(taken, arrived.min(budget));
        // SAFETY: the batch on this CQ with this queue; nobody uses the buffers that were recycled.
        unsafe { receive::finish(cq, queue, cursor.end()) };
        self.settle(start.wrapping_add(taken));
    }

    /// As [`poll`](Self::poll), the way a CQ of many queues is polled.
    pub fn poll_each(&mut self, budget: u32, weights: [u32; 3], random: &mut Random) {
        let Self { queue, cq, model, held, .. } = self;
        let size = cq.stride();
        let start = cq.consumer_index();
        let before = model.producer.record.be32(0);
        let mut taken = 0;
        let mut completions = cq.completions();
        while taken < budget {
            let Some(cqe) = completions.next() else { break };
            let position = cqe.position();
            if cqe.format() == CqeFormat::Compressed && completions.expand() {
                continue;
            }
            // SAFETY: of this borrow.
            let cqe = unsafe { completions.cqe(position) };
            taken += 1;
            let told = model.next_told();
            let received = dispatch(queue, cqe, size, &told, model);
            if let Some((slot, id)) = received {
                match Fate::random(random, weights) {
                    Fate::Hold => held.push(Held::Slot(slot, id)),
                    fate => return_slot(queue, model, slot, id, fate),
                }
            }
            assert_eq!(model.producer.record.be32(0), before, "published in the middle");
        }
        drop(completions);
        while let Some(at) = held.iter().position(|held| matches!(held, Held::Slot(..))) {
            if random.once_in(3) {
                break;
            }
            let Held::Slot(slot, id) = held.swap_remove(at) else { unreachable!() };
            return_slot(queue, model, slot, id, Fate::random(random, [1, 1, 0]));
        }
        Subject::ring(&mut self.queue);
        self.settle(start.wrapping_add(taken));
    }

    /// After a batch: the indices are published, and the device goes on.
    pub fn settle(&mut self, consumer_index: u32) {
        let Model { device, producer, buffers, .. } = &mut self.model;
        assert_eq!(self.cq.consumer_index(), consumer_index);
        assert_eq!(producer.record.be32(0), consumer_index & 0xff_ffff);
        device.take(buffers);
        self.check();
    }

    /// What must hold whenever no batch is open.
    pub fn check(&self) {
        let Model { device, producer, buffers, .. } = &self.model;
        assert_eq!(
            self.queue.counter(),
            device.state.taken,
            "the doorbell record is not the count"
        );
        if device.slots > 64 {
            return;
        }
        device.check_all();
        let in_cq = producer.state.told.iter();
        let completed =
            in_cq.filter(|t| matches!(t, Told::Message { .. } | Told::Failed { .. })).count();
        let posted = (device.state.outstanding.len() + completed) as u32;
        let held = self.held.len() as u32;
        let with_ring = buffers.with(|owner| matches!(owner, Owner::Ring | Owner::Device(_)));
        assert!(with_ring >= posted, "the device has a buffer twice");
        let waiting = with_ring - posted;
        match device.kind {
            Kind::Srq => {
                assert_eq!(self.queue.vacant(), device.usable() - posted - held);
                assert!(waiting <= 1 && (waiting == 0 || self.queue.vacant() == 0));
            }
            Kind::Rq => {
                assert!(self.queue.vacant() <= device.slots - with_ring - held);
                let next = device.state.taken % device.slots;
                let state = self.queue.state(next);
                assert!(
                    waiting == 0 || matches!(state, slots::POSTED | slots::HELD),
                    "{waiting} buffers wait for slot {next}, whose state is {state}"
                );
            }
        }
        for held in &self.held {
            assert_eq!(self.queue.state(held.slot()), slots::HELD);
            assert_eq!(Subject::posted(&self.queue, held.slot()), None);
        }
        for &slot in &device.state.outstanding {
            let id = Subject::posted(&self.queue, slot).expect("the device has this slot");
            // One without bytes does not say in its WQE which it is.
            let owner = buffers.owner(id);
            assert!([Owner::Ring, Owner::Device(slot)].contains(&owner), "{id} is at {owner:?}");
        }
    }

    /// Completes, polls and takes everything: each buffer is there once.
    pub fn finish(mut self, random: &mut Random) {
        let early = random.once_in(3);
        if !early {
            let mut rounds = 0;
            while self.model.buffers.with(|owner| owner != Owner::Test) > 0 {
                while !self.model.device.state.outstanding.is_empty()
                    && self.model.producer.room() > 0
                {
                    self.complete(0, random);
                }
                self.poll(u32::MAX >> 1, [0, 1, 0], random);
                self.give_all_back(random);
                rounds += 1;
                assert!(rounds < 1000 + self.model.device.slots, "buffers do not come back");
            }
            assert_eq!(self.queue.vacant(), self.model.device.usable());
        }
        let Model { buffers, .. } = &mut self.model;
        self.queue.drain(|id| {
            let from = match buffers.owner(id) {
                owner @ (Owner::Ring | Owner::Device(_)) => owner,
                owner => panic!("the ring drains buffer {id}, which is at {owner:?}"),
            };
            buffers.set_owner(id, &[from], Owner::Test);
        });
        for held in &self.held {
            buffers.set_owner(held.id(), &[Owner::Held], Owner::Test);
        }
        assert_eq!(buffers.with(|owner| owner != Owner::Test), 0, "buffers are lost");
    }

    pub fn give_all_back(&mut self, random: &mut Random) {
        let Self { queue, cq, model, held, .. } = self;
        for held in std::mem::take(held) {
            match held {
                Held::Slot(slot, id) => return_slot(queue, model, slot, id, Fate::Take),
                Held::Message(message) => {
                    // SAFETY: as in `poll`.
                    let mut batch = unsafe { Receiving::new(cq, queue, random.below(2)) };
                    return_message(&mut batch, model, message, Fate::Take);
                }
            }
        }
        Subject::ring(&mut self.queue);
        self.settle(self.cq.consumer_index());
    }
}

fn return_message<Q: Subject>(
    batch: &mut Receiving<'_, Q>,
    model: &mut Model,
    message: Message<Data>,
    fate: Fate,
) {
    let id = message.data.0;
    model.give_back(id, fate);
    // SAFETY: a message of this ring that was not given back.
    unsafe {
        if fate == Fate::Take {
            assert_eq!(batch.take(message), Data(id));
        } else {
            batch.recycle(message);
        }
    }
}

fn give_back<Q: Subject>(
    batch: &mut Receiving<'_, Q>,
    model: &mut Model,
    held: &mut Vec<Held>,
    older: Held,
    random: &mut Random,
) {
    match older {
        Held::Message(message) => {
            return_message(batch, model, message, Fate::random(random, [1, 1, 0]));
        }
        slot => held.push(slot),
    }
}

fn return_slot<Q: Subject>(queue: &mut Q, model: &mut Model, slot: u32, id: u32, fate: Fate) {
    model.give_back(id, fate);
    if fate == Fate::Take { Subject::release(queue, slot) } else { Subject::recycle(queue, slot) }
}

/// Hands a CQE to the queue. Returns the slot that completed, with its buffer.
fn dispatch<Q: Subject>(
    queue: &mut Q,
    cqe: Cqe<'_>,
    size: usize,
    told: &Told,
    model: &mut Model,
) -> Option<(u32, u32)> {
    let bytes = cqe.byte_count();
    // SAFETY: from a CQ of this size, of which this is the only queue.
    let (slot, bytes) = match unsafe { receive::complete(queue, cqe, size) } {
        Outcome::Message(slot) => (slot, Some(bytes)),
        Outcome::Failed(slot) => (slot, None),
        Outcome::Other => {
            assert_eq!(*told, Told::Other);
            return None;
        }
        Outcome::Stray => {
            assert_eq!(*told, Told::Stray);
            return None;
        }
    };
    let id = queue.data_of(slot);
    model.received(told, slot, id, bytes);
    Some((slot, id))
}
