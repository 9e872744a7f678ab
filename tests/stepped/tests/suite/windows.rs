//! Memory windows: what a peer can reach, when that ends, and what is refused.

use std::rc::Rc;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, Error, MemoryRegion, MemoryWindow, NotSent, PoolConfig, ProtectionDomain,
    QpConfig, QueuePair, Receiver, Refused, RemoteAccess, RemoteRegion, RqConfig, Sender, SqId, WcStatus,
};
use doorbell_stepped_tests::sent::Sent;
use doorbell_stepped_tests::{join, on_each_path, open};
use soft_mlx5::Device;

on_each_path! {
    a_peer_has_access_once
    this_side_revokes
    a_window_gives_its_bytes_and_its_rights
    wrong_binds_are_refused_with_their_memory
    wrong_revocations_are_refused
    a_bind_in_a_full_queue_is_refused_and_posted_later
    a_revocation_takes_three_blocks
    a_read_that_is_under_way_ends_whole_or_fails
    a_message_comes_before_the_completion_of_the_bind
    the_region_stays_while_it_is_bound
    dropping_a_window_revokes_its_key
    everything_is_dropped_in_any_order
    a_peer_that_dies_leaves_windows_that_are_destroyed
    a_window_that_failed_is_lost
    requests_wait_for_the_bind_before_them
}

const WRITE: RemoteAccess = RemoteAccess::WRITE;
const READ: RemoteAccess = RemoteAccess::READ;
const SIZE: usize = 4096;

/// One side of a connection.
struct Side {
    qp: QueuePair,
    sender: Sender,
    receiver: Receiver,
}

impl Side {
    fn new(pd: &ProtectionDomain, path: DataPath, config: &QpConfig) -> Self {
        let mut sender = Sender::new(pd, &CqConfig::for_sends(config, 1).path(path)).unwrap();
        let mut receiver = Receiver::new(pd, &CqConfig::new(8).path(path)).unwrap();
        let own = RqConfig::new(8);
        let qp = QueuePair::builder(config).receive(&mut receiver, own).send(&mut sender).build().unwrap();
        let pool = BufferPool::new(pd, &PoolConfig::new(8, 64)).unwrap();
        receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        Self { qp, sender, receiver }
    }

    fn queue(&self) -> SqId {
        self.qp.send_queue().unwrap()
    }

    fn bind(&mut self, window: &mut MemoryWindow, buffer: Buffer, access: RemoteAccess) -> RemoteRegion {
        self.sender.post(self.queue()).unwrap().bind(window, buffer, .., access).unwrap()
    }

    fn revoke(&mut self, window: &mut MemoryWindow) -> Result<(), NotSent> {
        self.sender.post(self.queue()).unwrap().revoke(window)
    }
}

/// A program that gives access, and its peer.
struct World {
    near: Side,
    far: Side,
    /// Buffers that windows can be bound to.
    pool: BufferPool,
    pd: ProtectionDomain,
    device: Rc<Device>,
}

impl World {
    fn new(path: DataPath) -> Self {
        let (device, pd) = open(Device::builder().stepped().strict(true));
        Self::on(path, Rc::new(device), &pd)
    }

    fn on(path: DataPath, device: Rc<Device>, pd: &ProtectionDomain) -> Self {
        let pd = pd.clone();
        let config = QpConfig::rc().max_send_wr(4).max_inline(16).remote_write(true).remote_read(true);
        let [mut near, mut far] = [(); 2].map(|()| Side::new(&pd, path, &config.clone().memory_windows(true)));
        join(&mut near.qp, &mut far.qp);
        let pool = BufferPool::new(&pd, &PoolConfig::new(4, SIZE as u32).memory_windows(true)).unwrap();
        Self { near, far, pool, pd, device }
    }

    fn window(&self) -> MemoryWindow {
        MemoryWindow::new(&self.pd).unwrap()
    }

    fn region(&self, access: RemoteAccess) -> MemoryRegion {
        MemoryRegion::with_access(&self.pd, SIZE, access).unwrap()
    }

    fn buffer(&self) -> Buffer {
        self.pool.take().unwrap()
    }

    /// The only request of a side that is over.
    fn outcome(&mut self, near: bool) -> WcStatus {
        self.device.settle();
        let side = if near { &mut self.near } else { &mut self.far };
        let sent = Sent::from(side.sender.next().expect("a request"));
        assert!(side.sender.next().is_none());
        sent.status
    }

    fn writes(&mut self, bytes: &[u8], to: &RemoteRegion) -> WcStatus {
        self.far.sender.post(self.far.queue()).unwrap().write(bytes, to).unwrap();
        self.outcome(false)
    }

    fn reads(&mut self, from: &RemoteRegion) -> WcStatus {
        let buffer = self.buffer();
        self.far.sender.post(self.far.queue()).unwrap().read(buffer, from).unwrap();
        self.outcome(false)
    }

    /// Connects both sides again after a request of the far side was refused.
    fn connect_again(&mut self) {
        for Side { qp, sender, receiver } in [&mut self.near, &mut self.far] {
            receiver.reset_qp(qp).unwrap();
            while sender.next().is_some() {}
            let pool = BufferPool::new(&self.pd, &PoolConfig::new(8, 64)).unwrap();
            while receiver.next().is_some() {}
            receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        }
        join(&mut self.near.qp, &mut self.far.qp);
    }

    fn is_refused(&mut self, region: &RemoteRegion) {
        assert_eq!(self.writes(b"?", region), WcStatus::REM_ACCESS_ERR);
        self.connect_again();
    }
}

fn bytes_of(mut buffer: Buffer, len: usize) -> Vec<u8> {
    buffer.set_len(len);
    buffer.to_vec()
}

fn a_peer_has_access_once(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    assert!(!window.is_bound() && window.rkey().is_none());
    let mut used = Vec::new();
    for round in 0..3 {
        let region = w.near.bind(&mut window, w.buffer(), WRITE | READ);
        used.push(region);
        assert!(window.is_bound() && window.take_buffer().is_none());
        assert_eq!((window.rkey(), region.len()), (Some(region.rkey()), SIZE));
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        assert_eq!(w.writes(&[round, 1, 2], &region.slice(SIZE - 3, 3).unwrap()), WcStatus::SUCCESS);
        assert_eq!(w.reads(&region), WcStatus::SUCCESS);
        w.far.sender.post(w.far.queue()).unwrap().send_with_invalidate(b"done", region.rkey()).unwrap();
        assert_eq!(w.outcome(false), WcStatus::SUCCESS);
        assert!(window.is_bound(), "the message was not polled");
        {
            let message = w.near.receiver.next().unwrap().unwrap();
            assert_eq!((message.invalidated_rkey(), &message[..]), (Some(region.rkey()), &b"done"[..]));
        }
        assert!(!window.is_bound() && window.rkey().is_none());
        assert_eq!(bytes_of(window.take_buffer().unwrap(), SIZE)[SIZE - 3..], [round, 1, 2]);
        assert!(window.take_buffer().is_none());
        w.is_refused(&region);
    }
    let region = w.near.bind(&mut window, w.buffer(), WRITE);
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    // Each key is a variant of one; those from before are stale.
    for old in used {
        assert_eq!((old.rkey() ^ region.rkey()) >> 8, 0);
        assert_ne!(old.rkey(), region.rkey());
        w.is_refused(&RemoteRegion::new(region.addr(), 64, old.rkey()));
    }
    assert_eq!(w.writes(b"!", &region), WcStatus::SUCCESS);
}

fn this_side_revokes(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    for _ in 0..2 {
        let region = w.near.bind(&mut window, w.buffer(), WRITE);
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        assert_eq!(w.writes(b"in time", &region), WcStatus::SUCCESS);
        w.near.revoke(&mut window).unwrap();
        assert!(window.is_bound());
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        assert!(!window.is_bound());
        assert_eq!(bytes_of(window.take_buffer().unwrap(), 7), b"in time");
        w.is_refused(&region);
    }
    // In one posting, and bound again behind it: the peer never has access.
    let queue = w.near.queue();
    let buffer = w.buffer();
    let mut posting = w.near.sender.post_many(queue).unwrap();
    let region = posting.bind(&mut window, buffer, .., WRITE).unwrap();
    posting.revoke(&mut window).unwrap();
    posting.ring();
    w.device.settle();
    assert_eq!([(); 2].map(|()| Sent::from(w.near.sender.next().unwrap()).status), [WcStatus::SUCCESS; 2]);
    assert!(!window.is_bound());
    w.is_refused(&region);
}

fn a_window_gives_its_bytes_and_its_rights(path: DataPath) {
    let mut w = World::new(path);
    let memory = w.region(RemoteAccess::BIND);
    let mut window = w.window();
    // The region itself allows nothing.
    w.is_refused(&memory.region());
    for (access, read, write) in [(READ, true, false), (WRITE, false, true), (READ | WRITE, true, true)] {
        let region = w.near.sender.post(w.near.queue()).unwrap().bind(&mut window, &memory, 100..=163, access).unwrap();
        assert_eq!((region.addr(), region.len()), (memory.region().addr() + 100, 64));
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        let at = |offset, len| RemoteRegion::new(memory.region().addr() + offset, len, region.rkey());
        for (allowed, writes) in [(read, false), (write, true)] {
            for (offset, len, inside) in
                [(100, 64, true), (163, 1, true), (99, 1, false), (164, 1, false), (160, 5, false)]
            {
                let done =
                    if writes { w.writes(&vec![7; len.min(16)], &at(offset, len)) } else { w.reads(&at(offset, len)) };
                let ends_inside = inside || writes && offset + len.min(16) as u64 <= 164 && offset >= 100;
                let expected = if allowed && ends_inside { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
                assert_eq!(done, expected, "{access:?} {writes} {offset} {len}");
                if done != WcStatus::SUCCESS {
                    w.connect_again();
                }
            }
        }
        w.near.revoke(&mut window).unwrap();
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        assert!(window.take_buffer().is_none());
    }
}

fn wrong_binds_are_refused_with_their_memory(path: DataPath) {
    let mut w = World::new(path);
    let (queue, mut window, memory) = (w.near.queue(), w.window(), w.region(RemoteAccess::BIND));
    let mut refused = |window: &mut MemoryWindow, memory: &MemoryRegion, range, access| {
        w.near.sender.post(queue).unwrap().bind(window, memory, range, access).unwrap_err().reason
    };
    for range in [0..0, 7..7, SIZE..SIZE + 1, 0..SIZE + 1, usize::MAX - 1..usize::MAX] {
        let reason = refused(&mut window, &memory, range.clone(), READ);
        let NotSent::WindowOutside { start, end, len } = reason else { panic!("{reason}") };
        assert_eq!((start..end, len), (range, SIZE));
    }
    let whole = || 0..SIZE;
    assert!(matches!(refused(&mut window, &memory, whole(), RemoteAccess::BIND), NotSent::WindowAccess));
    let (other, plain) = (w.pd.context().alloc_pd().unwrap(), MemoryRegion::new(&w.pd, SIZE).unwrap());
    assert!(matches!(refused(&mut window, &plain, whole(), READ), NotSent::NoWindows { what: "memory", .. }));
    let foreign = MemoryRegion::with_access(&other, SIZE, RemoteAccess::BIND).unwrap();
    assert!(matches!(refused(&mut window, &foreign, whole(), READ), NotSent::WrongDomain));
    let mut elsewhere = MemoryWindow::new(&other).unwrap();
    assert!(matches!(refused(&mut elsewhere, &memory, whole(), READ), NotSent::WrongDomain));
    let region = w.near.bind(&mut window, w.buffer(), WRITE);
    let buffer = w.buffer();
    let Refused { payload, reason } =
        w.near.sender.post(queue).unwrap().bind(&mut window, buffer, .., WRITE).unwrap_err();
    assert!(matches!(reason, NotSent::WindowBound { rkey } if rkey == region.rkey()), "{reason}");
    assert_eq!(payload.capacity(), SIZE);
    drop(payload);
    assert_eq!(w.pool.available(), 3);
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    assert_eq!(w.writes(b"still", &region), WcStatus::SUCCESS);
    // A queue pair without windows, and windows of another transport.
    let mut plain = Side::new(&w.pd, path, &QpConfig::rc().max_send_wr(4));
    let mut peer = Side::new(&w.pd, path, &QpConfig::rc());
    join(&mut plain.qp, &mut peer.qp);
    let refused = plain.sender.post(plain.queue()).unwrap().bind(&mut w.window(), &memory, .., READ).unwrap_err();
    assert!(matches!(refused.reason, NotSent::NoWindows { what: "queue pair", .. }), "{refused}");
    let datagrams = QpConfig::ud(7).memory_windows(true);
    let error = QueuePair::builder(&datagrams).send(&mut plain.sender).build().err().unwrap();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

fn wrong_revocations_are_refused(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    assert!(matches!(w.near.revoke(&mut window), Err(NotSent::WindowNotBound)));
    w.near.bind(&mut window, w.buffer(), WRITE);
    assert!(matches!(w.far.revoke(&mut window), Err(NotSent::WindowNotBound)), "through another queue pair");
    w.near.revoke(&mut window).unwrap();
    assert!(matches!(w.near.revoke(&mut window), Err(NotSent::WindowNotBound)));
    w.device.settle();
    while w.near.sender.next().is_some() {}
    assert!(matches!(w.near.revoke(&mut window), Err(NotSent::WindowNotBound)));
    assert!(!window.is_bound());
}

fn a_bind_in_a_full_queue_is_refused_and_posted_later(path: DataPath) {
    let mut w = World::new(path);
    let (queue, mut windows) = (w.near.queue(), Vec::new());
    let memory = w.region(RemoteAccess::BIND);
    let refused = loop {
        let mut window = w.window();
        match w.near.sender.post(queue).unwrap().bind(&mut window, &memory, .., WRITE) {
            Ok(region) => windows.push((window, region)),
            Err(refused) => break (window, refused.reason),
        }
    };
    let (mut window, NotSent::Full { .. }) = refused else { panic!("{}", refused.1) };
    assert!(!window.is_bound() && windows.len() >= 4, "{}", windows.len());
    assert!(matches!(w.near.revoke(&mut windows[0].0), Err(NotSent::Full { .. })));
    w.device.settle();
    for _ in &windows {
        assert_eq!(Sent::from(w.near.sender.next().unwrap()).status, WcStatus::SUCCESS);
    }
    let region = w.near.sender.post(queue).unwrap().bind(&mut window, &memory, .., WRITE).unwrap();
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    for region in windows.iter().map(|(_, region)| *region).chain([region]) {
        assert_eq!(w.writes(b"all", &region), WcStatus::SUCCESS);
    }
}

/// Three of sixteen basic blocks are free: too few for a bind, and enough for a revocation.
fn a_revocation_takes_three_blocks(path: DataPath) {
    if path == DataPath::Verbs {
        return;
    }
    let mut w = World::new(path);
    let (queue, memory, mut windows) = (w.near.queue(), w.region(RemoteAccess::BIND), [(); 5].map(|()| w.window()));
    let [first, others @ .., last] = &mut windows;
    w.near.sender.post(queue).unwrap().bind(first, &memory, .., WRITE).unwrap();
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    for window in others {
        w.near.sender.post(queue).unwrap().bind(window, &memory, .., WRITE).unwrap();
    }
    w.near.sender.send(queue, b"a block").unwrap();
    let refused = w.near.sender.post(queue).unwrap().bind(last, &memory, .., WRITE).unwrap_err();
    assert!(matches!(refused.reason, NotSent::Full { .. }));
    w.near.revoke(first).unwrap();
    w.device.settle();
    while w.near.sender.next().is_some() {}
    assert!(!first.is_bound());
}

fn a_read_that_is_under_way_ends_whole_or_fails(path: DataPath) {
    let mut outcomes = [0, 0];
    let mut w = World::new(path);
    let mut window = w.window();
    for steps in 0..30 {
        let mut buffer = w.buffer();
        buffer.extend_from_slice(&[9; SIZE]);
        let region = w.near.bind(&mut window, buffer, READ);
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
        let buffer = w.buffer();
        w.far.sender.post(w.far.queue()).unwrap().read(buffer, &region).unwrap();
        for _ in 0..steps {
            w.device.step();
        }
        w.near.revoke(&mut window).unwrap();
        w.device.settle();
        let read = Sent::from(w.far.sender.next().unwrap());
        let whole = read.status == WcStatus::SUCCESS;
        assert!(whole || read.status == WcStatus::REM_ACCESS_ERR, "{read:?}");
        outcomes[usize::from(whole)] += 1;
        if whole {
            assert_eq!(*read.into_buffer(), [9; SIZE]);
        }
        assert_eq!(Sent::from(w.near.sender.next().unwrap()).status, WcStatus::SUCCESS);
        assert!(window.take_buffer().is_some());
        if !whole {
            w.connect_again();
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The receiver and the sender of a program may be polled by two threads.
fn a_message_comes_before_the_completion_of_the_bind(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    let region = w.near.bind(&mut window, w.buffer(), WRITE);
    w.device.settle();
    w.far.sender.post(w.far.queue()).unwrap().send_with_invalidate(b"", region.rkey()).unwrap();
    w.device.settle();
    assert!(w.near.receiver.next().unwrap().is_ok());
    assert_eq!(Sent::from(w.far.sender.next().unwrap()).status, WcStatus::SUCCESS);
    let next = w.near.bind(&mut window, w.buffer(), WRITE);
    // The completion of the first bind says nothing of the second.
    assert_eq!(Sent::from(w.near.sender.next().unwrap()).status, WcStatus::SUCCESS);
    assert!(window.is_bound() && window.take_buffer().is_none());
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    assert_eq!(w.writes(b"x", &next), WcStatus::SUCCESS);
    assert_eq!(w.pool.available(), 3, "the first buffer went back");
}

fn the_region_stays_while_it_is_bound(path: DataPath) {
    let mut w = World::new(path);
    let (mut window, memory) = (w.window(), w.region(RemoteAccess::BIND));
    let region = w.near.sender.post(w.near.queue()).unwrap().bind(&mut window, &memory, .., WRITE | READ).unwrap();
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    drop(memory);
    assert_eq!(w.writes(b"kept", &region), WcStatus::SUCCESS);
    assert_eq!(w.reads(&region), WcStatus::SUCCESS);
    assert!(matches!(window.destroy(), Ok(None)));
    w.is_refused(&region);
}

fn dropping_a_window_revokes_its_key(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    let region = w.near.bind(&mut window, w.buffer(), WRITE);
    // The bind was not polled: it keeps the window.
    let Refused { payload, reason } = window.destroy().unwrap_err();
    assert!(matches!(reason, Error::InUse { .. }), "{reason}");
    drop(payload);
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    assert_eq!(w.pool.available(), 4);
    w.is_refused(&region);
    let mut window = w.window();
    let region = w.near.bind(&mut window, w.buffer(), WRITE);
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    assert_eq!(bytes_of(window.destroy().unwrap().unwrap(), 3), [0; 3]);
    w.is_refused(&region);
}

/// A window that is bound, one whose bind was not polled, and one whose revocation was not, dropped with everything
/// else in any order.
fn everything_is_dropped_in_any_order(path: DataPath) {
    let (device, pd) = open(Device::builder().stepped().strict(true));
    let device = Rc::new(device);
    for order in 0..120 {
        let mut w = World::on(path, Rc::clone(&device), &pd);
        let (memory, mut windows) = (w.region(RemoteAccess::BIND), [(); 3].map(|()| w.window()));
        w.near.bind(&mut windows[0], w.buffer(), WRITE);
        w.near.bind(&mut windows[1], w.buffer(), WRITE);
        w.device.settle();
        while w.near.sender.next().is_some() {}
        w.near.revoke(&mut windows[0]).unwrap();
        w.near.sender.post(w.near.queue()).unwrap().bind(&mut windows[2], &memory, .., READ).unwrap();
        let World { near: Side { qp, sender, receiver }, far, pool, .. } = w;
        let mut all: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(qp), Box::new(sender), Box::new(receiver), Box::new(windows), Box::new(memory)];
        let mut left = order;
        for count in (1..=5).rev() {
            drop(all.swap_remove(left % count));
            left /= count;
            if order % 7 == 0 {
                device.settle();
            }
        }
        assert_eq!(pool.available(), 4, "order {order}");
        drop(far);
    }
}

fn a_peer_that_dies_leaves_windows_that_are_destroyed(path: DataPath) {
    let mut w = World::new(path);
    let [mut bound, mut posted] = [(); 2].map(|()| w.window());
    w.near.bind(&mut bound, w.buffer(), WRITE);
    assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    // A message that nobody acknowledges, and a bind and a revocation behind it.
    w.far.qp.to_error().unwrap();
    w.near.sender.post(w.near.queue()).unwrap().send(b"?").unwrap();
    w.near.bind(&mut posted, w.buffer(), WRITE);
    w.near.revoke(&mut bound).unwrap();
    let mut over = Vec::new();
    while over.len() < 3 {
        w.device.settle();
        w.device.advance(Duration::from_secs(1));
        over.extend(w.near.sender.next().map(|over| Sent::from(over).status));
    }
    assert_eq!(over, [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR]);
    // Whether the device had executed them is not known.
    for mut window in [bound, posted] {
        assert!(window.is_bound() && window.take_buffer().is_none());
        assert!(window.destroy().unwrap().is_some());
    }
    assert_eq!(w.pool.available(), 4);
}

fn a_window_that_failed_is_lost(path: DataPath) {
    let mut w = World::new(path);
    let mut window = w.window();
    w.near.bind(&mut window, w.buffer(), WRITE);
    // Requests that a reset ends may have been executed.
    w.near.receiver.reset_qp(&mut w.near.qp).unwrap();
    assert_eq!(w.outcome(true), WcStatus::WR_FLUSH_ERR);
    w.connect_again();
    let buffer = w.buffer();
    let refused = w.near.sender.post(w.near.queue()).unwrap().bind(&mut window, buffer, .., WRITE).unwrap_err();
    assert!(matches!(refused.reason, NotSent::WindowLost), "{refused}");
    drop(refused);
    assert!(matches!(w.near.revoke(&mut window), Err(NotSent::WindowLost)));
    drop(window);
    assert_eq!(w.pool.available(), 4);
}

/// A NOP with a small fence stands behind each bind and revocation; libmlx5 gives the fence to the next request.
fn requests_wait_for_the_bind_before_them(path: DataPath) {
    let file = std::env::temp_dir().join(format!("doorbell-fences-{}-{path}", std::process::id()));
    let (device, pd) = open(Device::builder().stepped().strict(true).trace(&file));
    let mut w = World::on(path, Rc::new(device), &pd);
    let (queue, mut window) = (w.near.queue(), w.window());
    for _ in 0..5 {
        w.near.bind(&mut window, w.buffer(), WRITE);
        w.near.sender.send(queue, b"behind").unwrap();
        w.device.settle();
        for _ in 0..2 {
            assert_eq!(Sent::from(w.near.sender.next().unwrap()).status, WcStatus::SUCCESS);
        }
        w.far.receiver.next().unwrap().unwrap();
        w.near.revoke(&mut window).unwrap();
        assert_eq!(w.outcome(true), WcStatus::SUCCESS);
    }
    let trace = std::fs::read_to_string(&file).unwrap();
    let wqes = Vec::from_iter(trace.lines().filter(|line| line.contains(" wqe sq ")));
    let behind = wqes.windows(2).filter(|pair| pair[0].contains("opcode=UMR")).map(|pair| pair[1]);
    let fenced = behind.filter(|wqe| wqe.contains("small fence")).count();
    // Nothing follows the last revocation of libmlx5.
    assert_eq!(fenced, if path == DataPath::Direct { 10 } else { 9 }, "{trace}");
    std::fs::remove_file(&file).unwrap();
}
