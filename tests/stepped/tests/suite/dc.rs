//! Dynamic connections: requests of initiators to targets, errors of one target, and the ends of both.

use std::rc::Rc;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, DcAddress, DcInitiator, DcInitiators, DcPeer, DcTarget, Error,
    MemoryRegion, Mtu, NotSent, PoolConfig, ProtectionDomain, QpConfig, QpState, QueuePair, Receiver, RemoteAccess,
    RemoteRegion, RqConfig, SendFailure, Sender, SqId, SrqConfig, SrqId, Unsent, WcStatus,
};
use doorbell_stepped_tests::open;
use doorbell_stepped_tests::sent::Sent;
use soft_mlx5::{Device, LinkLayer};

/// Makes a test of each function on each link.
macro_rules! on_each_link {
    ($($test:ident)*) => {
        on_each_link!(infiniband, InfiniBand, $($test)*);
        on_each_link!(roce, Ethernet, $($test)*);
    };
    ($module:ident, $link:ident, $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test(soft_mlx5::LinkLayer::$link);
            })*
        }
    };
}

on_each_link! {
    all_operations_reach_their_target
    requests_go_around_an_exactly_sized_ring_to_targets_in_turn
    a_full_queue_refuses_and_takes_more_later
    wrong_requests_are_refused_with_their_payload
    an_error_of_one_target_loses_nothing_of_the_others
    all_kinds_of_requests_come_back_unsent_and_are_posted_again
    each_error_of_a_target_has_its_status
    unsignaled_requests_fail_and_come_back_too
    an_initiator_restarts_only_when_everything_has_come_back
    everything_is_dropped_in_any_order
    a_target_ends_and_another_takes_its_place
    other_paths_and_transports_are_refused
    a_peer_keeps_its_initiator_while_it_has_requests
}

const KEY: u64 = 0x1122_3344_5566_7788;
const ALL: RemoteAccess = RemoteAccess::READ.union(RemoteAccess::WRITE).union(RemoteAccess::ATOMIC);

/// A target, and the receiver of its SRQ.
struct Side {
    target: DcTarget,
    srq: SrqId,
    receiver: Receiver,
    pool: BufferPool,
}

impl Side {
    fn new(pd: &ProtectionDomain, key: u64) -> Self {
        let pool = BufferPool::new(pd, &PoolConfig::new(8, 64)).unwrap();
        let mut receiver = Receiver::new(pd, &CqConfig::for_pool(&pool).path(DataPath::Direct)).unwrap();
        let srq = receiver.create_srq(&SrqConfig::for_pool(&pool)).unwrap();
        receiver.fill(srq, &pool).unwrap();
        let target = DcTarget::new(&mut receiver, srq, &config(), key).unwrap();
        Self { target, srq, receiver, pool }
    }

    /// The messages that have arrived, with their immediate data.
    fn messages(&mut self, from: u32) -> Vec<(Vec<u8>, Option<u32>)> {
        let number = self.target.number();
        let mut messages = Vec::new();
        while let Some(message) = self.receiver.next() {
            let message = message.unwrap();
            assert_eq!((message.qp_num(), message.source().unwrap().qp_num), (number, from));
            messages.push((message.to_vec(), message.imm()));
        }
        messages
    }
}

/// An initiator, targets, and memory that peers can reach.
struct World {
    initiator: DcInitiator,
    sender: Sender,
    peers: Vec<DcPeer>,
    sides: Vec<Side>,
    pool: BufferPool,
    memory: MemoryRegion,
    pd: ProtectionDomain,
    device: Rc<Device>,
}

/// Gives up soon.
fn config() -> QpConfig {
    let all = QpConfig::dc().remote_read(true).remote_write(true).remote_atomic(true);
    all.max_send_wr(2).timeout(1).retry_cnt(1).rnr_retry(0)
}

impl World {
    /// So many targets, and an initiator of 4 basic blocks.
    fn new(link: LinkLayer, targets: usize) -> Self {
        Self::with(link, targets, &config())
    }

    fn with(link: LinkLayer, targets: usize, config: &QpConfig) -> Self {
        let (device, pd) = open(Device::builder().link_layer(link).stepped().strict(true));
        let cq = CqConfig::for_sends(config, 1).path(DataPath::Direct);
        let mut sender = Sender::new(&pd, &cq).unwrap();
        let initiator = DcInitiator::new(&mut sender, config).unwrap();
        let sides: Vec<_> = (0..targets as u64).map(|number| Side::new(&pd, KEY + number)).collect();
        let peers = sides.iter().map(|side| initiator.peer(&side.target.address().unwrap()).unwrap()).collect();
        let pool = BufferPool::new(&pd, &PoolConfig::new(16, 64)).unwrap();
        let memory = MemoryRegion::with_access(&pd, 4096, ALL).unwrap();
        Self { initiator, sender, peers, sides, pool, memory, pd, device: Rc::new(device) }
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().unwrap();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn remote(&self, offset: usize, len: usize) -> RemoteRegion {
        self.memory.region().slice(offset, len).unwrap()
    }

    /// The peer whose key is another one than its target has.
    fn wrong(&self, side: usize) -> DcPeer {
        let address = self.sides[side].target.address().unwrap();
        self.initiator.peer(&DcAddress { key: !address.key, ..address }).unwrap()
    }

    /// Lets the device work until every request is over.
    fn work(&mut self) {
        for _ in 0..200 {
            self.device.settle();
            self.device.advance(Duration::from_millis(1));
        }
    }

    /// Everything that is over.
    fn over(&mut self) -> Vec<Result<Sent, SendFailure>> {
        self.work();
        let mut over = Vec::new();
        while let Some(done) = self.sender.next() {
            over.push(done.map(Sent::from));
        }
        assert!(!self.sender.is_busy(&self.initiator));
        over
    }

    /// Everything that is over, which has succeeded.
    fn sent(&mut self) -> Vec<Sent> {
        self.over().into_iter().map(Result::unwrap).collect()
    }

    fn messages(&mut self, side: usize) -> Vec<(Vec<u8>, Option<u32>)> {
        self.sides[side].messages(self.initiator.qp_num())
    }
}

fn all_operations_reach_their_target(link: LinkLayer) {
    let mut w = World::with(link, 1, &config().max_send_wr(16).max_send_sge(2));
    let (lid, peer) = (w.sides[0].target.address().unwrap().lid, w.peers[0].clone());
    let buffers = [w.buffer(b"two "), w.buffer(b"buffers")];
    let part = w.buffer(b"a whole, of which this is a part").part(25..);
    let [written, read, added, swapped] = [w.remote(0, 64), w.remote(0, 8), w.remote(64, 8), w.remote(72, 8)];
    w.memory.write(64, &5_u64.to_ne_bytes());
    w.memory.write(72, &7_u64.to_ne_bytes());
    let answers = [(); 3].map(|()| w.pool.take().unwrap());
    let [first, second, third] = answers;

    w.sender.send_dc(&w.initiator, &peer, b"one call").unwrap();
    w.sender.post(&w.initiator).unwrap().token(1).to(&peer).send_with_imm(buffers, 0xcafe).unwrap();
    let mut posting = w.sender.post_many(&w.initiator).unwrap();
    let mut to = posting.token(2).to(&peer);
    to.write(b"written!", &written).unwrap();
    to.token(3).write_with_imm(part, &written.slice(8, 8).unwrap(), 3).unwrap();
    to.token(4).fence().read(first, &read).unwrap();
    posting.token(5).to(&peer).fetch_add(second, &added, 10).unwrap();
    posting.token(6).solicited().to(&peer).compare_swap(third, &swapped, 7, 9).unwrap();
    posting.ring();

    let sent = w.sent();
    assert_eq!(sent.iter().map(|sent| sent.token).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(sent[1].buffers.len(), 2);
    assert_eq!(*sent[4].buffers[0], *b"written!");
    assert_eq!(*sent[5].buffers[0], 5_u64.to_ne_bytes());
    assert_eq!(*sent[6].buffers[0], 7_u64.to_ne_bytes());
    let mut bytes = [0; 16];
    w.memory.read(64, &mut bytes);
    assert_eq!(bytes, *[15_u64.to_ne_bytes(), 9_u64.to_ne_bytes()].as_flattened());
    let mut bytes = [0; 15];
    w.memory.read(0, &mut bytes);
    assert_eq!(bytes, *b"written! a part");
    let number = w.initiator.qp_num();
    let mut batch = w.sides[0].receiver.poll_up_to(1);
    let message = batch.next().unwrap().unwrap();
    let source = message.source().unwrap();
    assert_eq!((&message[..], source.qp_num), (&b"one call"[..], number));
    assert!(link == LinkLayer::Ethernet || source.lid == lid);
    drop(batch);
    assert_eq!(w.messages(0), [(b"two buffers".to_vec(), Some(0xcafe)), (Vec::new(), Some(3))]);
}

/// Four blocks, and requests of two and three of them: an address segment, inline bytes and remote addresses stand at
/// each place of the ring.
fn requests_go_around_an_exactly_sized_ring_to_targets_in_turn(link: LinkLayer) {
    let mut w = World::new(link, 3);
    assert_eq!(w.sender.capacity(&w.initiator), 4);
    let mut expected: [Vec<(Vec<u8>, Option<u32>)>; 3] = Default::default();
    let whole = w.remote(0, 64);
    for number in 0..300_u32 {
        let (side, len) = (number as usize * 7 % 3, number as usize * 5 % 61);
        let bytes: Vec<u8> = (0..len).map(|at| (number as usize + at) as u8).collect();
        let peer = w.peers[side].clone();
        match number % 3 {
            0 => w.sender.post(&w.initiator).unwrap().to(&peer).send_with_imm(&bytes[..], number).unwrap(),
            1 => {
                let buffer = w.buffer(&bytes);
                w.sender.send_dc(&w.initiator, &peer, buffer).unwrap();
            }
            // Three blocks with more than 44 bytes.
            _ => w.sender.post(&w.initiator).unwrap().to(&peer).write_with_imm(&bytes[..], &whole, number).unwrap(),
        }
        expected[side].push(match number % 3 {
            0 => (bytes.clone(), Some(number)),
            1 => (bytes.clone(), None),
            _ => (Vec::new(), Some(number)),
        });
        assert_eq!(w.sent().len(), 1);
        if number % 3 == 2 {
            let mut written = vec![0; len];
            w.memory.read(0, &mut written);
            assert_eq!(written, bytes, "write {number}");
        }
        let arrived = w.messages(side);
        assert_eq!(arrived, [expected[side].pop().unwrap()], "request {number}");
    }
}

fn a_full_queue_refuses_and_takes_more_later(link: LinkLayer) {
    let mut w = World::new(link, 2);
    let peers = w.peers.clone();
    let [one, two, three] = [(); 3].map(|()| w.buffer(b"from a buffer"));
    let mut posting = w.sender.post_many(&w.initiator).unwrap();
    posting.to(&peers[0]).send(one).unwrap();
    posting.to(&peers[1]).send(two).unwrap();
    let refused = posting.to(&peers[0]).send(three).unwrap_err();
    assert!(matches!(refused.reason, NotSent::Full { .. }));
    assert_eq!(*refused.payload, *b"from a buffer");
    posting.ring();
    assert_eq!(w.sent().len(), 2);
    w.sender.send_dc(&w.initiator, &peers[0], refused.payload).unwrap();
    assert_eq!(w.sent().len(), 1);
    assert_eq!(w.messages(0).len(), 2);
    assert_eq!(w.messages(1).len(), 1);
    assert_eq!(w.pool.available(), 16);
}

fn wrong_requests_are_refused_with_their_payload(link: LinkLayer) {
    let mut w = World::new(link, 1);
    let peer = w.peers[0].clone();
    let connected = QpConfig::rc().max_send_wr(4);
    let mut sender = Sender::new(&w.pd, &CqConfig::for_sends(&connected, 2).path(DataPath::Direct)).unwrap();
    let [mut one, mut two] = [(); 2].map(|()| QueuePair::builder(&connected).send(&mut sender).build().unwrap());
    doorbell_stepped_tests::join(&mut one, &mut two);
    // A connection has no targets, and an initiator nothing but targets.
    assert!(matches!(sender.post(&one).unwrap().to(&peer).send(b"x"), Err(NotSent::Transport)));
    let buffer = w.buffer(b"kept");
    let refused = sender.post(&one).unwrap().to(&peer).send(buffer).unwrap_err();
    assert!(matches!(refused.reason, NotSent::Transport));
    assert!(matches!(w.sender.send(&w.initiator, b"x"), Err(NotSent::Transport)));
    let refused = w.sender.send(&w.initiator, refused.payload).unwrap_err();
    assert!(matches!(refused.reason, NotSent::Transport));
    assert_eq!(*refused.payload, *b"kept");
    assert!(matches!(w.sender.send_dc(&one, &peer, b"x"), Err(NotSent::NoQueue)));

    let other = doorbell::open(w.device.name()).unwrap().alloc_pd().unwrap();
    let foreign = BufferPool::new(&other, &PoolConfig::new(1, 64)).unwrap();
    let refused = w.sender.send_dc(&w.initiator, &peer, foreign.take().unwrap()).unwrap_err();
    assert!(matches!(refused.reason, NotSent::WrongDomain));
    let mut theirs = Sender::new(&other, &CqConfig::for_sends(&config(), 1).path(DataPath::Direct)).unwrap();
    let their_initiator = DcInitiator::new(&mut theirs, &config()).unwrap();
    assert!(matches!(theirs.send_dc(&their_initiator, &peer, b"x"), Err(NotSent::WrongDomain)));

    let max = w.initiator.max_inline();
    let long = w.sender.send_dc(&w.initiator, &peer, &vec![0; max + 1][..]);
    assert!(matches!(long, Err(NotSent::InlineTooLong { len, max: limit }) if (len, limit) == (max + 1, max)));
    let region = w.remote(0, 8);
    assert!(matches!(
        w.sender.post(&w.initiator).unwrap().to(&peer).write(&[0; 9], &region),
        Err(NotSent::OutOfBounds { len: 9, max: 8 })
    ));
    let whole = w.memory.region();
    let refused = w.sender.post(&w.initiator).unwrap().to(&peer).read(refused_buffer(&w.pool), &whole).unwrap_err();
    assert!(matches!(refused.reason, NotSent::BufferTooSmall { len: 4096, capacity: 64 }));
    let odd = whole.slice(4, 8).unwrap();
    let refused = w.sender.post(&w.initiator).unwrap().to(&peer).fetch_add(refused.payload, &odd, 1).unwrap_err();
    assert!(matches!(refused.reason, NotSent::NotANumber));
    let two = [refused.payload, refused_buffer(&w.pool)];
    let refused = w.sender.post(&w.initiator).unwrap().to(&peer).send(two).unwrap_err();
    assert!(matches!(refused.reason, NotSent::TooManyBuffers { max: 1 }));
    assert!(!w.sender.is_busy(&w.initiator));
}

fn refused_buffer(pool: &BufferPool) -> Buffer {
    pool.take().unwrap()
}

fn an_error_of_one_target_loses_nothing_of_the_others(link: LinkLayer) {
    let mut w = World::with(link, 2, &config().max_send_wr(16));
    let (peers, wrong) = (w.peers.clone(), w.wrong(0));
    // Twice: the second time from the middle of the ring, and after a restart.
    for round in 0..2 {
        let buffers: Vec<_> = (0..2).map(|number| w.buffer(&[number; 10])).collect();
        let mut posting = w.sender.post_many(&w.initiator).unwrap();
        posting.token(0).to(&peers[0]).send(b"arrives").unwrap();
        posting.token(1).to(&wrong).send(b"fails").unwrap();
        let mut buffers = buffers.into_iter();
        for token in 2..7 {
            let mut to = posting.token(token).to(&peers[token as usize % 2]);
            match token {
                2 | 3 => to.send(buffers.next().unwrap()).unwrap(),
                _ => to.send_with_imm(&[token as u8; 12], token as u32).unwrap(),
            }
        }
        posting.ring();
        let mut over = w.over().into_iter();
        assert_eq!(over.next().unwrap().unwrap().token, 0);
        let failure = over.next().unwrap().unwrap_err();
        assert_eq!((failure.token, failure.status), (1, WcStatus::REM_ACCESS_ERR));
        let flushed: Vec<_> = over
            .map(|failure| {
                let failure = failure.unwrap_err();
                assert_eq!(failure.status, WcStatus::WR_FLUSH_ERR);
                assert_eq!(failure.first, Some(WcStatus::REM_ACCESS_ERR));
                assert!(failure.buffers.is_empty(), "the request has them");
                failure.token
            })
            .collect();
        let unsent = w.sender.take_unsent(&w.initiator);
        assert_eq!(flushed, unsent.iter().map(Unsent::token).collect::<Vec<_>>());
        assert!(w.sender.take_unsent(&w.initiator).is_empty());
        let described: Vec<_> = unsent.iter().map(|unsent| (unsent.token(), unsent.peer() == &peers[0])).collect();
        assert_eq!(described, [(2, true), (3, false), (4, true), (5, false), (6, true)]);
        assert_eq!(unsent[0].copied(), None);
        assert_eq!(unsent[2].copied(), Some(&[4; 12][..]));
        assert!(matches!(w.sender.send_dc(&w.initiator, &peers[0], b"x"), Err(NotSent::State(QpState::Error))));

        w.sender.restart(&mut w.initiator).unwrap();
        let mut posting = w.sender.post_many(&w.initiator).unwrap();
        for request in unsent {
            posting.post_again(request).unwrap();
        }
        posting.ring();
        let sent = w.sent();
        assert_eq!(sent.iter().map(|sent| sent.token).collect::<Vec<_>>(), [2, 3, 4, 5, 6], "round {round}");
        assert_eq!(*sent[1].buffers[0], [1; 10]);
        let copied = |token: u8| (vec![token; 12], Some(token.into()));
        assert_eq!(w.messages(0), [(b"arrives".to_vec(), None), (vec![0; 10], None), copied(4), copied(6)]);
        assert_eq!(w.messages(1), [(vec![1; 10], None), copied(5)]);
    }
}

fn all_kinds_of_requests_come_back_unsent_and_are_posted_again(link: LinkLayer) {
    // Eleven requests fill 32 blocks from each place.
    let mut w = World::with(link, 1, &config().max_send_wr(16).max_send_sge(3));
    let (peer, wrong) = (w.peers[0].clone(), w.wrong(0));
    for round in 0..5_u64 {
        // Moves the place in the ring where the requests stand.
        for _ in 0..3 * round {
            w.sender.send_dc(&w.initiator, &peer, b"").unwrap();
            assert_eq!(w.sent().len(), 1);
            assert_eq!(w.messages(0).len(), 1);
        }
        w.memory.write(64, &5_u64.to_ne_bytes());
        w.memory.write(72, &7_u64.to_ne_bytes());
        let three = [b"to" as &[u8], b"get", b"her"].map(|bytes| w.buffer(bytes));
        let part = w.buffer(b"all of it").part(4..6);
        let answers = [(); 3].map(|()| w.pool.take().unwrap());
        let [first, second, third] = answers;
        let [written, added, swapped] = [w.remote(0, 60), w.remote(64, 8), w.remote(72, 8)];
        let mut posting = w.sender.post_many(&w.initiator).unwrap();
        posting.to(&wrong).send(b"fails").unwrap();
        let mut to = posting.token(1).to(&peer);
        to.send(three).unwrap();
        to.token(2).send_with_imm(part, 2).unwrap();
        to.token(3).send(b"").unwrap();
        to.token(4).solicited().write(&[9; 60], &written).unwrap();
        to.token(5).write_with_imm(b"5", &written, 5).unwrap();
        to.token(6).fence().read(first, &written.slice(0, 4).unwrap()).unwrap();
        to.token(7).fetch_add(second, &added, 10).unwrap();
        to.token(8).compare_swap(third, &swapped, 7, 9).unwrap();
        posting.ring();
        let mut over = w.over().into_iter().map(Result::unwrap_err);
        assert_eq!(over.next().unwrap().status, WcStatus::REM_ACCESS_ERR);
        assert_eq!(over.map(|failure| failure.token).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let unsent = w.sender.take_unsent(&w.initiator);
        assert_eq!(unsent.iter().map(Unsent::token).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(w.messages(0), []);
        let mut bytes = [0; 16];
        w.memory.read(64, &mut bytes);
        assert_eq!(bytes, *[5_u64.to_ne_bytes(), 7_u64.to_ne_bytes()].as_flattened(), "nothing was executed");

        w.sender.restart(&mut w.initiator).unwrap();
        let mut posting = w.sender.post_many(&w.initiator).unwrap();
        for request in unsent {
            posting.post_again(request).unwrap();
        }
        posting.ring();
        let sent = w.sent();
        assert_eq!(sent.iter().map(|sent| sent.token).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(sent[0].buffers.iter().map(|buffer| buffer.to_vec()).collect::<Vec<_>>().concat(), b"together");
        assert_eq!(*sent[1].buffers[0], *b"all of it");
        assert_eq!(*sent[5].buffers[0], *b"5\x09\x09\x09");
        assert_eq!(*sent[6].buffers[0], 5_u64.to_ne_bytes());
        assert_eq!(*sent[7].buffers[0], 7_u64.to_ne_bytes());
        w.memory.read(64, &mut bytes);
        assert_eq!(bytes, *[15_u64.to_ne_bytes(), 9_u64.to_ne_bytes()].as_flattened());
        let of = |bytes: &[u8], imm| (bytes.to_vec(), imm);
        assert_eq!(w.messages(0), [of(b"together", None), of(b"of", Some(2)), of(b"", None), of(b"", Some(5))]);
        drop(sent);
        assert_eq!(w.pool.available(), 16, "round {round}");
    }
}

fn each_error_of_a_target_has_its_status(link: LinkLayer) {
    let mut w = World::with(link, 2, &config().max_send_wr(16));
    let expect = |w: &mut World, status: WcStatus| {
        let mut over = w.over();
        assert_eq!((over.len(), over.remove(0).unwrap_err().status), (1, status));
        w.sender.restart(&mut w.initiator).unwrap();
    };
    // Another key.
    let wrong = w.wrong(0);
    w.sender.send_dc(&w.initiator, &wrong, b"x").unwrap();
    expect(&mut w, WcStatus::REM_ACCESS_ERR);
    // Memory that is not registered for it.
    let private = MemoryRegion::with_access(&w.pd, 64, RemoteAccess::READ).unwrap();
    let peer = w.peers[0].clone();
    w.sender.post(&w.initiator).unwrap().to(&peer).write(b"x", &private.region()).unwrap();
    expect(&mut w, WcStatus::REM_ACCESS_ERR);
    // A target that gives no rights.
    let Side { receiver, srq, .. } = &mut w.sides[0];
    let closed = DcTarget::new(receiver, *srq, &QpConfig::dc(), 1).unwrap();
    let to_closed = w.initiator.peer(&closed.address().unwrap()).unwrap();
    let whole = w.remote(0, 8);
    let buffer = w.buffer(b"");
    w.sender.post(&w.initiator).unwrap().to(&to_closed).read(buffer, &whole).unwrap();
    // The standard has one error for a request that the responder does not take.
    let status = w.over().remove(0).unwrap_err().status;
    assert!([WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR].contains(&status), "{status}");
    w.sender.restart(&mut w.initiator).unwrap();
    // A message that is longer than its receive.
    let large = BufferPool::new(&w.pd, &PoolConfig::new(1, 128)).unwrap();
    let mut long = large.take().unwrap();
    long.extend_from_slice(&[0; 65]);
    w.sender.send_dc(&w.initiator, &peer, long).unwrap();
    let status = w.over().remove(0).unwrap_err().status;
    assert_eq!(status, WcStatus::REM_INV_REQ_ERR);
    w.sender.restart(&mut w.initiator).unwrap();
    let failed = w.sides[0].receiver.next().unwrap();
    assert!(failed.is_err());
    drop(failed);
    // No receive is posted.
    let mut other = Receiver::new(&w.pd, &CqConfig::new(4).path(DataPath::Direct)).unwrap();
    let srq = other.create_srq(&SrqConfig::new(3)).unwrap();
    let hungry = DcTarget::new(&mut other, srq, &config(), 2).unwrap();
    let to_hungry = w.initiator.peer(&hungry.address().unwrap()).unwrap();
    w.sender.send_dc(&w.initiator, &to_hungry, b"x").unwrap();
    expect(&mut w, WcStatus::RNR_RETRY_EXC_ERR);
    // A target that is gone.
    drop(hungry);
    w.sender.send_dc(&w.initiator, &to_hungry, b"x").unwrap();
    expect(&mut w, WcStatus::RETRY_EXC_ERR);
    // The others still answer.
    w.sender.send_dc(&w.initiator, &peer, b"still there").unwrap();
    assert_eq!(w.sent().len(), 1);
    assert_eq!(w.messages(0), [(b"still there".to_vec(), None)]);
}

fn unsignaled_requests_fail_and_come_back_too(link: LinkLayer) {
    let mut w = World::with(link, 1, &config().max_send_wr(16));
    let (peer, wrong) = (w.peers[0].clone(), w.wrong(0));
    let post = |w: &mut World, token, peer: &DcPeer| {
        w.sender.post(&w.initiator).unwrap().token(token).unsignaled().to(peer).send(b"silent").unwrap();
    };
    for round in 0..3 {
        post(&mut w, 0, &peer);
        post(&mut w, 1, &wrong);
        post(&mut w, 2, &peer);
        let over = w.over();
        let over: Vec<_> = over.into_iter().map(|over| over.map(|sent| sent.token)).collect();
        let mut over = over.into_iter();
        let failed = over.next().unwrap().unwrap_err();
        assert_eq!((failed.token, failed.status), (1, WcStatus::REM_ACCESS_ERR), "round {round}");
        assert_eq!(over.next().unwrap().unwrap_err().token, 2);
        assert!(over.next().is_none());
        let again = w.sender.take_unsent(&w.initiator).pop().unwrap();
        w.sender.restart(&mut w.initiator).unwrap();
        let mut posting = w.sender.post_many(&w.initiator).unwrap();
        posting.post_again(again).unwrap();
        posting.ring();
        assert_eq!(w.sent()[0].token, 2);
        assert_eq!(w.messages(0).len(), 2);
    }
    // A request that has succeeded without a CQE does not come back, and does not keep the initiator.
    post(&mut w, 3, &peer);
    w.work();
    assert_eq!(w.messages(0).len(), 1);
    w.initiator.to_error().unwrap();
    let mut looks = 0;
    while let Err(error) = w.sender.restart(&mut w.initiator) {
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert!(looks < 4);
        looks += 1;
        assert!(w.over().is_empty());
    }
    w.sender.send_dc(&w.initiator, &peer, b"again").unwrap();
    assert_eq!(w.sent().len(), 1);
}

fn an_initiator_restarts_only_when_everything_has_come_back(link: LinkLayer) {
    let mut w = World::new(link, 1);
    let (peer, wrong) = (w.peers[0].clone(), w.wrong(0));
    w.sender.send_dc(&w.initiator, &wrong, b"fails").unwrap();
    w.sender.send_dc(&w.initiator, &peer, b"waits").unwrap();
    assert!(matches!(w.sender.restart(&mut w.initiator), Err(Error::InUse { .. })));
    w.work();
    assert!(w.sender.next().unwrap().is_err());
    assert!(matches!(w.sender.restart(&mut w.initiator), Err(Error::InUse { .. })));
    assert_eq!(w.sender.next().unwrap().unwrap_err().status, WcStatus::WR_FLUSH_ERR);
    let unsent = w.sender.take_unsent(&w.initiator).pop().unwrap();
    let mut other = Sender::new(&w.pd, &CqConfig::new(8).path(DataPath::Direct)).unwrap();
    assert!(matches!(other.restart(&mut w.initiator), Err(Error::Foreign { .. })));
    // An initiator that has not failed may restart, too.
    w.sender.restart(&mut w.initiator).unwrap();
    w.sender.restart(&mut w.initiator).unwrap();
    let mut posting = w.sender.post_many(&w.initiator).unwrap();
    posting.to(&peer).send(b"1").unwrap();
    posting.to(&peer).send(b"2").unwrap();
    // A full queue gives the request back.
    let refused = posting.post_again(unsent).unwrap_err();
    assert!(matches!(refused.reason, NotSent::Full { .. }));
    posting.ring();
    assert_eq!(w.sent().len(), 2);
    let mut posting = w.sender.post_many(&w.initiator).unwrap();
    posting.post_again(refused.payload).unwrap();
    posting.ring();
    assert_eq!(w.sent().len(), 1);
    assert_eq!(w.messages(0).last().unwrap().0, b"waits");
}

fn everything_is_dropped_in_any_order(link: LinkLayer) {
    const PARTS: usize = 4;
    for order in 0..24 {
        let mut w = World::with(link, 1, &config().max_send_wr(8));
        let peer = w.peers[0].clone();
        let read = w.remote(0, 8);
        let buffers = [w.buffer(b"sent"), w.buffer(b"")];
        let [sent, answer] = buffers;
        w.sender.send_dc(&w.initiator, &peer, sent).unwrap();
        w.sender.post(&w.initiator).unwrap().to(&peer).read(answer, &read).unwrap();
        let World { initiator, sender, mut sides, pool, memory, pd, device, .. } = w;
        let Side { target, receiver, pool: receives, .. } = sides.remove(0);
        let (mut initiator, mut sender) = (Some(initiator), Some(sender));
        let (mut target, mut receiver) = (Some(target), Some(receiver));
        let (mut left, mut number) = ((0..PARTS).collect::<Vec<_>>(), order);
        while !left.is_empty() {
            let next = left.remove(number % left.len());
            number /= left.len().max(1) + 1;
            match next {
                0 => drop(initiator.take()),
                1 => drop(sender.take()),
                2 => drop(target.take()),
                _ => drop(receiver.take()),
            }
            device.settle();
        }
        assert_eq!((pool.available(), receives.available()), (16, 8), "order {order}");
        drop((memory, pool, receives, pd));
        assert_eq!(device.queues().qps.len(), 0, "order {order}");
    }
}

fn a_target_ends_and_another_takes_its_place(link: LinkLayer) {
    let mut w = World::new(link, 1);
    let peer = w.peers[0].clone();
    for round in 0..5 {
        w.sender.send_dc(&w.initiator, if round == 0 { &peer } else { &w.peers[0] }, b"before").unwrap();
        assert_eq!(w.sent().len(), 1);
        let Side { target, receiver, srq, pool } = w.sides.remove(0);
        let mut receiver = receiver;
        assert!(matches!(receiver.destroy_srq(srq), Err(Error::InUse { .. })));
        let number = target.number();
        drop(target);
        let next = DcTarget::new(&mut receiver, srq, &config(), KEY + 1 + round).unwrap();
        // A message that has arrived is not lost with the target.
        let message = receiver.next().unwrap().unwrap();
        assert_eq!((message.qp_num(), &message[..]), (number, &b"before"[..]));
        w.peers[0] = w.initiator.peer(&next.address().unwrap()).unwrap();
        w.sides.push(Side { target: next, receiver, srq, pool });
    }
    let Side { target, mut receiver, srq, pool } = w.sides.remove(0);
    drop(target);
    receiver.destroy_srq(srq).unwrap();
    assert_eq!(pool.available(), 8);
}

fn other_paths_and_transports_are_refused(link: LinkLayer) {
    let w = World::new(link, 1);
    let cq = CqConfig::new(64);
    let mut sender = Sender::new(&w.pd, &cq.clone().path(DataPath::Verbs)).unwrap();
    let refused = DcInitiator::new(&mut sender, &config()).unwrap_err();
    assert!(refused.to_string().contains("verbs has no dynamic connections"), "{refused}");
    let mut receiver = Receiver::new(&w.pd, &cq.clone().path(DataPath::Verbs)).unwrap();
    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let refused = DcTarget::new(&mut receiver, srq, &config(), 1).unwrap_err();
    assert!(refused.to_string().contains("verbs has no dynamic connections"), "{refused}");

    let direct = cq.path(DataPath::Direct);
    let mut sender = Sender::new(&w.pd, &direct).unwrap();
    assert!(matches!(DcInitiator::new(&mut sender, &QpConfig::rc()), Err(Error::Unsupported { .. })));
    assert!(matches!(QueuePair::builder(&config()).send(&mut sender).build(), Err(Error::Unsupported { .. })));
    let too_large = config().max_send_wr(64);
    assert!(matches!(DcInitiator::new(&mut sender, &too_large), Err(Error::CqTooSmall { .. })));
    let mut receiver = Receiver::new(&w.pd, &direct).unwrap();
    let own = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    assert!(matches!(DcTarget::new(&mut receiver, own, &QpConfig::rc(), 1), Err(Error::Unsupported { .. })));
    assert!(matches!(DcTarget::new(&mut receiver, w.sides[0].srq, &config(), 1), Err(Error::Foreign { .. })));
    receiver.destroy_srq(own).unwrap();
    assert!(matches!(DcTarget::new(&mut receiver, own, &config(), 1), Err(Error::Gone { .. })));

    let address = w.sides[0].target.address().unwrap();
    let of = |address: DcAddress| w.initiator.peer(&address);
    assert!(matches!(of(DcAddress { number: 1, ..address }), Err(Error::OutOfRange { .. })));
    assert!(matches!(of(DcAddress { mtu: Mtu::Mtu256, ..address }), Err(Error::OutOfRange { .. })));
    assert!(matches!(of(DcAddress { lid: 0, gid: [0; 16], ..address }), Err(Error::Handshake(_))));
    // The name of a queue pair that is none of the sender's.
    let own = RqConfig::new(1);
    let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own).build().unwrap();
    assert!(matches!(sender.post(SqId::from(&qp)), Err(NotSent::NoQueue)));
}

fn a_peer_keeps_its_initiator_while_it_has_requests(link: LinkLayer) {
    let mut w = World::new(link, 5);
    let config = config().max_send_wr(8);
    let mut sender = Sender::new(&w.pd, &CqConfig::for_sends(&config, 3).path(DataPath::Direct)).unwrap();
    for count in [0, 65] {
        assert!(matches!(DcInitiators::new(&mut sender, &config, count), Err(Error::OutOfRange { .. })));
    }
    let mut set = DcInitiators::new(&mut sender, &config, 3).unwrap();
    let peers: Vec<_> = w.sides.iter().map(|side| set.add(&side.target.address().unwrap()).unwrap()).collect();
    let address = w.sides[0].target.address().unwrap();
    let wrong = set.add(&DcAddress { key: !address.key, ..address }).unwrap();
    let queues: Vec<SqId> = set.initiators().iter().map(SqId::from).collect();
    // Posts to peers, and returns the places of their initiators.
    let post = |w: &mut World, sender: &mut Sender, set: &mut DcInitiators, to: &[usize]| {
        for (token, &peer) in (0..).zip(to) {
            set.post(sender, peers[peer]).unwrap().token(token).send(b"to a peer").unwrap();
        }
        assert!(set.is_busy(sender));
        w.work();
        let mut places = vec![usize::MAX; to.len()];
        while let Some(done) = sender.next() {
            let sent = Sent::from(done.unwrap());
            places[sent.token as usize] = queues.iter().position(|queue| *queue == sent.queue).unwrap();
        }
        assert!(!set.is_busy(sender));
        places
    };
    // Twice, from another place of the rings: when nothing is outstanding a peer has no initiator.
    for _ in 0..9 {
        assert_eq!(post(&mut w, &mut sender, &mut set, &[0, 1, 2, 0, 3, 4, 2, 0]), [0, 1, 2, 0, 1, 2, 2, 0]);
        assert_eq!(post(&mut w, &mut sender, &mut set, &[4, 4, 3, 4]), [0, 0, 1, 0]);
        w.sides.iter_mut().for_each(|side| while side.receiver.next().is_some() {});
    }
    // The peer that fails has the first initiator, and another peer comes to the same one behind it.
    set.post(&mut sender, wrong).unwrap().token(1).send(b"fails").unwrap();
    for peer in [1, 2] {
        set.post(&mut sender, peers[peer]).unwrap().token(2).send(b"beside").unwrap();
    }
    set.post(&mut sender, peers[3]).unwrap().token(3).send(b"behind").unwrap();
    assert!(set.recover(&mut sender).unwrap().is_empty(), "none has failed");
    w.work();
    let mut failed = Vec::new();
    while let Some(done) = sender.next() {
        failed.extend(done.err().map(|failure| failure.token));
    }
    assert_eq!(failed, [1, 3]);
    // While the first initiator is in ERROR, a peer gets another one.
    set.post(&mut sender, peers[4]).unwrap().send(b"elsewhere").unwrap();
    let unsent = set.recover(&mut sender).unwrap();
    assert_eq!(unsent.iter().map(Unsent::token).collect::<Vec<_>>(), [3]);
    for request in unsent {
        set.post_again(&mut sender, request).unwrap();
    }
    w.work();
    let mut sent = 0;
    while let Some(done) = sender.next() {
        sent += u32::from(done.is_ok());
    }
    assert_eq!(sent, 2);
    let message = w.sides[3].receiver.next().unwrap().unwrap();
    assert_eq!(message[..], *b"behind");
}
