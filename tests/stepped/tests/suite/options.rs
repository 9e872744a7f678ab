//! Each option of each configuration acts, or is refused where it cannot act: none is dropped in silence.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::tags::{NotSentTagged, Offload, TagMatchingConfig, TagMatchingSrq};
use doorbell::{
    BufferPool, Completions, Compression, CqConfig, DataPath, Error, HugePages, MemoryWindow, Mtu, NotSent, PoolConfig,
    PostFailure, ProtectionDomain, QpConfig, QueuePair, Receiver, RemoteAccess, RqConfig, Sender, SrqConfig,
    Timestamps,
};
use doorbell_stepped_tests::frames::{ethernet, feed};
use doorbell_stepped_tests::{cq, join, on_each_path, open};
use rdma_core_sys as sys;
use soft_mlx5::Device;

on_each_path! { every_option_acts_or_is_refused }

/// The objects of a test of an option.
struct Objects {
    path: DataPath,
    /// On InfiniBand.
    pd: ProtectionDomain,
    receiver: Receiver,
    sender: Sender,
    device: Device,
}

type Check = fn(&mut Objects);
type CheckOfFrames = fn(&ProtectionDomain, DataPath);

/// Options by name.
const OPTIONS: &[(&str, Check)] = &[
    ("CqConfig: path", |w| assert_eq!((w.receiver.path(), w.sender.path()), (w.path, w.path))),
    ("CqConfig: and", |w| {
        let config = cq(w.path).and(&CqConfig::new(1 << 14));
        assert!(Receiver::new(&w.pd, &config).unwrap().cq_capacity() > 1 << 14);
    }),
    ("CqConfig: comp_vector", |w| {
        let many = w.pd.context().num_comp_vectors();
        refused(Receiver::new(&w.pd, &cq(w.path).comp_vector(many)), "comp_vector");
        // `vectors.rs` reads the vector from the device.
    }),
    ("CqConfig: timestamps", |w| {
        let ticks = CqConfig::new(4096).path(w.path).timestamps(Timestamps::Ticks);
        refused(TagMatchingSrq::new(&w.pd, &TagMatchingConfig::new(4).cq(ticks.clone())), "timestamps");
        let mut receiver = Receiver::new(&w.pd, &ticks).unwrap();
        let mut sender = Sender::new(&w.pd, &ticks).unwrap();
        let config = QpConfig::rc().max_inline(8);
        let (near, far) = connect(&mut receiver, &mut sender, &config);
        let pool = pool(&w.pd, PoolConfig::new(1, 64));
        receiver.fill(near.receive_queue().unwrap(), &pool).unwrap();
        sender.send(&far, b"a").unwrap();
        w.device.settle();
        assert!(receiver.next().unwrap().unwrap().timestamp().is_some());
        assert!(sender.next().unwrap().unwrap().timestamp().is_some());
    }),
    ("CqConfig: compression", |w| {
        let compressed = cq(w.path).compression(Compression::Hash);
        refused(Sender::new(&w.pd, &compressed), "CQE compression");
        refused(TagMatchingSrq::new(&w.pd, &TagMatchingConfig::new(4).cq(compressed.clone())), "ompression");
        match w.path {
            DataPath::Verbs => refused(Receiver::new(&w.pd, &compressed), "CQE compression"),
            _ => _ = Receiver::new(&w.pd, &compressed).unwrap(),
        }
        // `compression.rs` looks at the CQEs.
    }),
    ("PoolConfig: headroom", |w| {
        let buffer = pool(&w.pd, PoolConfig::new(1, 64).headroom(16)).take().unwrap();
        assert_eq!(buffer.headroom().len(), 16);
    }),
    ("PoolConfig: pages", |w| {
        let config = PoolConfig::new(1, 64).pages(HugePages::Transparent);
        assert_eq!(pool(&w.pd, config.clone()).count(), 1);
        let refused = BufferPool::from_memory(&w.pd, vec![0u8; 4096], &config).unwrap_err();
        assert!(matches!(refused.reason, Error::Unsupported { .. }), "{refused}");
    }),
    // The device takes it, and orders all writes nevertheless.
    ("PoolConfig: relaxed_ordering", |w| {
        assert_eq!(pool(&w.pd, PoolConfig::new(1, 64).relaxed_ordering(true)).count(), 1);
    }),
    ("PoolConfig: readable", |w| {
        let mut tags = TagMatchingSrq::new(&w.pd, &TagMatchingConfig::new(4).cq(cq(w.path))).unwrap();
        let peer = tags.add_peer(&QpConfig::rc().max_send_wr(4)).unwrap();
        let mut offer = |readable| {
            let buffer = pool(&w.pd, PoolConfig::new(1, 64).readable(readable)).take().unwrap();
            tags.send_rendezvous(peer, 1, 0, buffer).unwrap_err().reason
        };
        assert!(matches!(offer(false), NotSentTagged::NotReadable));
        // The peer is not connected.
        assert!(matches!(offer(true), NotSentTagged::Queue(NotSent::State(_))));
    }),
    ("PoolConfig: memory_windows", |w| {
        assert!(matches!(bind(w, false, true), Err(NotSent::NoWindows { what: "memory", .. })));
        bind(w, true, true).unwrap();
    }),
    ("QpConfig: memory_windows", |w| {
        assert!(matches!(bind(w, true, false), Err(NotSent::NoWindows { what: "queue pair", .. })));
        bind(w, true, true).unwrap();
    }),
    ("QpConfig: gid_index", |w| {
        let of = |w: &mut Objects, config: QpConfig| receiving(&mut w.receiver, &config).address();
        assert_eq!(of(w, QpConfig::rc()).unwrap().gid, [0; 16]);
        assert_ne!(of(w, QpConfig::rc().gid_index(0)).unwrap().gid, [0; 16]);
        refused(of(w, QpConfig::rc().gid_index(255)), "gid_index");
    }),
    ("QpConfig: max_inline", |w| {
        assert!(sending(&mut w.sender, &QpConfig::rc().max_send_wr(4).max_inline(200)).max_inline() >= 200);
        assert!(sending(&mut w.sender, &QpConfig::rc().max_send_wr(4)).max_inline() < 200);
    }),
    ("QpConfig: max_unsignaled", |w| {
        // One of three requests finds a receive. It is returned if it has a CQE of its own.
        for (config, returned) in [(QpConfig::rc(), 0), (QpConfig::rc().max_unsignaled(0), 1)] {
            let (path, mut on) = (w.path, Objects::of(w.path, &w.pd));
            let (near, far) = connect(&mut on.0, &mut on.1, &config.max_send_wr(16).max_inline(8));
            let (receiver, sender) = &mut on;
            let pool = pool(&w.pd, PoolConfig::new(1, 64));
            receiver.fill(near.receive_queue().unwrap(), &pool).unwrap();
            let mut posting = sender.post_many(&far).unwrap();
            (0..3).for_each(|_| posting.send(b"a").unwrap());
            posting.ring();
            w.device.settle();
            let mut batch = sender.poll();
            let count = std::iter::from_fn(|| batch.next().map(|done| assert!(done.is_ok()))).count();
            // Each request of the verbs path has a CQE.
            assert_eq!(count, if path == DataPath::Verbs { 1 } else { returned });
        }
    }),
    ("QpConfig: min_rnr_timer", |w| assert_eq!(w.attributes(QpConfig::rc().min_rnr_timer(17)).min_rnr_timer, 17)),
    ("QpConfig: mtu", |w| {
        assert_eq!(receiving(&mut w.receiver, &QpConfig::rc().mtu(Mtu::Mtu256)).address().unwrap().mtu, Mtu::Mtu256);
        w.refused_for_datagrams(QpConfig::ud(1).mtu(Mtu::Mtu256), "QpConfig::mtu");
    }),
    ("QpConfig: pkey_index", |w| assert_eq!(w.attributes(QpConfig::rc().pkey_index(1)).pkey_index, 1)),
    ("QpConfig: port", |w| {
        let config = QpConfig::rc().port(2);
        let built = QueuePair::builder(&config).receive(&mut w.receiver, RqConfig::new(4)).build();
        refused(built, "port is 2");
    }),
    ("QpConfig: remote_atomic", |w| {
        w.grants(QpConfig::rc().remote_atomic(true), sys::IBV_ACCESS_REMOTE_ATOMIC);
        w.refused_for_datagrams(QpConfig::ud(1).remote_atomic(true), "QpConfig::remote_atomic");
    }),
    ("QpConfig: remote_read", |w| {
        w.grants(QpConfig::rc().remote_read(true), sys::IBV_ACCESS_REMOTE_READ);
        w.refused_for_datagrams(QpConfig::ud(1).remote_read(true), "QpConfig::remote_read");
    }),
    ("QpConfig: remote_write", |w| {
        w.grants(QpConfig::rc().remote_write(true), sys::IBV_ACCESS_REMOTE_WRITE);
        w.refused_for_datagrams(QpConfig::ud(1).remote_write(true), "QpConfig::remote_write");
    }),
    ("QpConfig: retry_cnt", |w| assert_eq!(w.attributes(QpConfig::rc().retry_cnt(3)).retry_cnt, 3)),
    ("QpConfig: rnr_retry", |w| assert_eq!(w.attributes(QpConfig::rc().rnr_retry(2)).rnr_retry, 2)),
    ("QpConfig: max_send_sge", |w| {
        for (count, is_taken) in [(1, false), (2, true)] {
            let (mut receiver, mut sender) = Objects::of(w.path, &w.pd);
            let config = QpConfig::rc().max_send_wr(4).max_send_sge(count);
            let (_near, far) = connect(&mut receiver, &mut sender, &config);
            let pool = pool(&w.pd, PoolConfig::new(2, 64));
            let sent = sender.send(&far, [pool.take().unwrap(), pool.take().unwrap()]);
            let has_too_many =
                |refused: &doorbell::Refused<_>| matches!(refused.reason, NotSent::TooManyBuffers { max: 1 });
            assert_eq!(sent.is_ok(), is_taken);
            assert!(is_taken || sent.is_err_and(|refused| has_too_many(&refused)));
        }
    }),
    ("QpConfig: max_send_wr", |w| {
        let capacity = |sends| {
            let qp = sending(&mut w.sender, &QpConfig::rc().max_send_wr(sends));
            w.sender.capacity(&qp)
        };
        let [few, many] = [4, 64].map(capacity);
        assert!((4..64).contains(&few) && many >= 64, "{few} and {many}");
    }),
    ("QpConfig: service_level", |w| assert_eq!(w.attributes(QpConfig::rc().service_level(3)).ah_attr.sl, 3)),
    ("QpConfig: timeout", |w| assert_eq!(w.attributes(QpConfig::rc().timeout(9)).timeout, 9)),
    ("QpConfig: traffic_class", |w| {
        let attr = w.attributes(QpConfig::rc().gid_index(0).traffic_class(8));
        assert_eq!(attr.ah_attr.grh.traffic_class, 8);
    }),
    ("QueuePairBuilder: receive", |w| {
        assert!(receiving(&mut w.receiver, &QpConfig::rc()).receive_queue().is_some());
        refused(QueuePair::builder(&QpConfig::rc()).build(), "without receiver and sender");
        let mut receiver = Receiver::opaque(&w.pd, &CqConfig::new(4).path(w.path)).unwrap();
        let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
        assert_eq!(receiver.capacity(qp.receive_queue().unwrap()), 4);
    }),
    ("QueuePairBuilder: send", |w| {
        assert!(sending(&mut w.sender, &QpConfig::rc().max_send_wr(4)).send_queue().is_some())
    }),
    ("RqConfig: max_sge", |w| {
        let own = RqConfig::new(4).max_sge(5);
        let qp = QueuePair::builder(&QpConfig::rc()).receive(&mut w.receiver, own).build().unwrap();
        takes_buffers(&mut w.receiver, qp.receive_queue().unwrap().into(), &w.pd, 5);
    }),
    ("SrqConfig: max_sge", |w| {
        let srq = w.receiver.create_srq(&SrqConfig::new(4).max_sge(5)).unwrap();
        takes_buffers(&mut w.receiver, srq.into(), &w.pd, 5);
    }),
    ("SrqConfig: patience", |w| {
        // `waiting.rs` shows what it does.
        assert!(w.receiver.create_srq(&SrqConfig::new(4).patience(0)).is_ok());
    }),
    ("tags::TagMatchingConfig: cq", |w| {
        assert_eq!(TagMatchingSrq::new(&w.pd, &TagMatchingConfig::new(4).cq(cq(w.path))).unwrap().path(), w.path);
    }),
    ("tags::TagMatchingConfig: manual_synchronization", |w| {
        // `tags/manual.rs` shows what it does; a list that nothing has happened to needs nothing.
        let config = TagMatchingConfig::new(4).cq(cq(w.path)).manual_synchronization();
        assert!(!TagMatchingSrq::new(&w.pd, &config).unwrap().needs_synchronization());
    }),
    ("tags::TagMatchingConfig: offload", |w| {
        let of = |offload| TagMatchingConfig::new(4).cq(cq(w.path)).offload(offload);
        assert!(TagMatchingSrq::new(&w.pd, &of(Offload::Required)).unwrap().offload());
        assert!(!TagMatchingSrq::new(&w.pd, &of(Offload::Never)).unwrap().offload());
    }),
    ("tags::TagMatchingConfig: send_cqe", |w| {
        let of = |sends| TagMatchingConfig::new(4).cq(cq(w.path)).send_cqe(sends);
        refused(TagMatchingSrq::new(&w.pd, &of(0)), "send_cqe");
        let mut tags = TagMatchingSrq::new(&w.pd, &of(16)).unwrap();
        refused(tags.add_peer(&QpConfig::rc().max_send_wr(64)), "entries");
    }),
    ("tags::TagMatchingConfig: max_wr", |w| {
        let of = |slots| TagMatchingConfig::new(4).cq(cq(w.path)).max_wr(slots);
        for slots in [0, 32, u32::MAX] {
            refused(TagMatchingSrq::new(&w.pd, &of(slots)), "max_wr");
        }
        let pool = pool(&w.pd, PoolConfig::new(512, 128));
        let [few, many] = [33, 200].map(|slots| {
            let mut tags = TagMatchingSrq::new(&w.pd, &of(slots)).unwrap();
            tags.keep_filled(&pool).unwrap()
        });
        assert!((33..200).contains(&few) && many >= 200, "{few} and {many}");
    }),
];

/// Options of frames by name.
const OPTIONS_OF_FRAMES: &[(&str, CheckOfFrames)] = &[
    ("frames::Flow: join_on", |pd, path| {
        let flow = feed().join_on(Ipv4Addr::LOCALHOST);
        // The receiver joins the group, or says that it cannot.
        if let Err(error) = frames(pd, path).attach(&flow) {
            assert!(error.to_string().contains("IP_ADD_MEMBERSHIP"), "{error}");
        }
        each_other(pd, path, |flow| flow.join_on(Ipv4Addr::LOCALHOST), "Flow::join_on");
    }),
    ("frames::Flow: priority", |pd, path| {
        let receiver = frames(pd, path);
        drop(receiver.attach(&Flow::mac([2; 6]).priority(3)).unwrap());
        refused(receiver.attach(&Flow::mac([2; 6]).priority(16)), "priority");
        assert!(receiver.attach(&Flow::tcp(Ipv4Addr::LOCALHOST, 1).priority(3)).is_ok());
        for flow in [feed(), Flow::unclaimed(), Flow::mac([1; 6])] {
            refused(receiver.attach(&flow.priority(1)), "Flow::priority");
        }
    }),
    ("frames::Flow: source", |pd, path| {
        drop(frames(pd, path).attach(&feed().source(Ipv4Addr::LOCALHOST)).unwrap());
        each_other(pd, path, |flow| flow.source(Ipv4Addr::LOCALHOST), "Flow::source");
    }),
    ("frames::Flow: tag", |pd, path| {
        let receiver = frames(pd, path);
        match path {
            DataPath::Verbs => refused(receiver.attach(&feed().tag(1)), "Flow::tag"),
            _ => drop(receiver.attach(&feed().tag(1)).unwrap()),
        }
        refused(receiver.attach(&Flow::unclaimed().tag(1)), "Flow::tag");
    }),
    ("frames::Flow: vlan", |pd, path| {
        let receiver = frames(pd, path);
        for flow in [feed(), Flow::mac([2; 6])] {
            drop(receiver.attach(&flow.clone().vlan(5)).unwrap());
            refused(receiver.attach(&flow.vlan(4096)), "VLAN");
        }
        refused(receiver.attach(&Flow::unclaimed().vlan(5)), "Flow::vlan");
    }),
    ("frames::FrameConfig: cq", |pd, path| assert_eq!(frames(pd, path).path(), path)),
    ("frames::FrameConfig: max_inline", |pd, path| sends_only(pd, path, |config| config.max_inline(64))),
    ("frames::FrameConfig: multi_packet", |pd, path| {
        sends_only(pd, path, |config| config.multi_packet(true));
        // A queue of four basic blocks. Five frames need two of them together, and five otherwise.
        let left = |wanted| {
            let config = plain(path).max_send_wr(4).multi_packet(wanted);
            let mut sender = Sender::new(pd, &CqConfig::for_frame_sends(&config, 1).path(path)).unwrap();
            let receiver = FrameReceiver::with_sender(pd, &config, &mut sender).unwrap();
            let pool = BufferPool::new(pd, &PoolConfig::new(5, 64)).unwrap();
            let mut frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            frames.iter_mut().for_each(|frame| frame.extend_from_slice(&[0xff; 60]));
            let queue = receiver.send_queue().unwrap();
            let _ = sender.post_many(queue).unwrap().send_frames(&mut frames, false);
            frames.len()
        };
        assert_eq!([left(true), left(false)], [usize::from(path == DataPath::Verbs), 1]);
    }),
    ("frames::FrameConfig: pages", |pd, path| {
        // A process rarely has so many reserved pages.
        let config = plain(path).plain(4, 1 << 20).pages(HugePages::Reserved);
        if let Err(error) = FrameReceiver::new(pd, &config) {
            assert!(error.to_string().contains("MAP_HUGETLB"), "{error}");
        }
    }),
    ("frames::FrameConfig: plain", |pd, path| {
        refused(FrameReceiver::new(pd, &plain(path).plain(5, 64)), "power of two");
        refused(FrameReceiver::new(pd, &plain(path).plain(4, 59)), "bytes of a frame");
    }),
    ("frames::FrameConfig: port", |pd, path| refused(FrameReceiver::new(pd, &plain(path).port(2)), "port is 2")),
    ("frames::FrameConfig: max_send_wr", |pd, path| sends_only(pd, path, |config| config.max_send_wr(4))),
    ("frames::FrameConfig: spare", |pd, path| {
        // Memory for more buffers than there can be.
        refused(FrameReceiver::new(pd, &plain(path).plain(4, 1 << 20).spare(u32::MAX)), "");
        FrameReceiver::new(pd, &plain(path).spare(0)).unwrap();
    }),
    ("frames::FrameConfig: striding", |pd, path| match path {
        DataPath::Verbs => refused(FrameReceiver::new(pd, &plain(path).striding(4, 512, 64)), "FrameConfig::striding"),
        _ => refused(FrameReceiver::new(pd, &plain(path).striding(4, 512, 32)), "bytes of a stride"),
    }),
    ("frames::FrameConfig: vlan_stripping", |pd, path| {
        let made = FrameReceiver::new(pd, &plain(path).vlan_stripping(true));
        match path {
            DataPath::Verbs => refused(made, "FrameConfig::vlan_stripping"),
            _ => drop(made.unwrap()),
        }
    }),
];

fn plain(path: DataPath) -> FrameConfig {
    FrameConfig::new().plain(4, 2048).cq(cq(path))
}

fn frames(pd: &ProtectionDomain, path: DataPath) -> FrameReceiver {
    FrameReceiver::new(pd, &plain(path)).unwrap()
}

/// Rules without a group do not have the option.
fn each_other(pd: &ProtectionDomain, path: DataPath, with: fn(Flow) -> Flow, word: &str) {
    for flow in [Flow::mac([2; 6]), Flow::unclaimed()] {
        refused(frames(pd, path).attach(&with(flow)), word);
    }
}

/// The option is one of receivers with a sender.
fn sends_only(pd: &ProtectionDomain, path: DataPath, with: fn(FrameConfig) -> FrameConfig) {
    let config = with(plain(path));
    let mut sender = Sender::new(pd, &CqConfig::for_frame_sends(&config, 1).path(path)).unwrap();
    let made = FrameReceiver::with_sender(pd, &config, &mut sender).unwrap();
    let capacity = sender.capacity(made.send_queue().unwrap());
    match path {
        DataPath::Direct => assert_eq!(capacity, sender.cq_capacity()),
        _ => assert!(capacity > 0),
    }
    refused(FrameReceiver::new(pd, &with(plain(path))), "without a sender");
    if path == DataPath::Direct {
        refused(FrameReceiver::spread(pd, &with(plain(path)), 2), "without a sender");
    }
}

#[track_caller]
fn refused<T>(made: doorbell::Result<T>, word: &str) {
    let Err(error) = made else { panic!("{word} is not refused") };
    assert!(error.to_string().contains(word), "{error}");
}

fn pool(pd: &ProtectionDomain, config: PoolConfig) -> BufferPool {
    BufferPool::new(pd, &config).unwrap()
}

fn receiving(receiver: &mut Receiver, config: &QpConfig) -> QueuePair {
    QueuePair::builder(config).receive(receiver, RqConfig::new(4)).build().unwrap()
}

fn sending(sender: &mut Sender, config: &QpConfig) -> QueuePair {
    QueuePair::builder(config).send(sender).build().unwrap()
}

/// A queue pair that receives, and one that sends to it.
fn connect(receiver: &mut Receiver, sender: &mut Sender, config: &QpConfig) -> (QueuePair, QueuePair) {
    let (mut near, mut far) = (receiving(receiver, config), sending(sender, config));
    join(&mut near, &mut far);
    (near, far)
}

/// Binds a memory window to a buffer of a pool, through a queue pair, that were made for windows or not.
fn bind(w: &mut Objects, pool_has: bool, qp_has: bool) -> Result<(), NotSent> {
    let config = QpConfig::rc().max_send_wr(4).memory_windows(qp_has);
    let (_near, far) = connect(&mut w.receiver, &mut w.sender, &config);
    let buffer = pool(&w.pd, PoolConfig::new(1, 64).memory_windows(pool_has)).take().unwrap();
    let mut window = MemoryWindow::new(&w.pd).unwrap();
    let bound = w.sender.post(&far).unwrap().bind(&mut window, buffer, .., RemoteAccess::READ);
    bound.map(drop).map_err(|refused| refused.reason)
}

/// A receive of the queue takes `count` buffers, and not many more.
fn takes_buffers(receiver: &mut Receiver, queue: doorbell::QueueId, pd: &ProtectionDomain, count: usize) {
    let pool = pool(pd, PoolConfig::new(64, 64));
    let buffers = |count| (0..count).map(|_| pool.take().unwrap()).collect::<Vec<_>>();
    receiver.post_scatter(queue, buffers(count)).unwrap();
    let refused = receiver.post_scatter(queue, buffers(40)).unwrap_err();
    assert!(matches!(refused.reason, PostFailure::TooManyBuffers { given: 40, .. }), "{refused}");
}

impl Objects {
    fn new(path: DataPath) -> Self {
        let (device, pd) = open(Device::builder().stepped());
        let (receiver, sender) = Self::of(path, &pd);
        Self { path, pd, receiver, sender, device }
    }

    fn of(path: DataPath, pd: &ProtectionDomain) -> (Receiver, Sender) {
        let config = CqConfig::new(1024).path(path);
        (Receiver::new(pd, &config).unwrap(), Sender::new(pd, &config).unwrap())
    }

    /// Connects a queue pair like this, and returns its attributes as the driver has them.
    fn attributes(&mut self, config: QpConfig) -> sys::ibv_qp_attr {
        let config = config.max_send_wr(4);
        let (_near, far) = connect(&mut self.receiver, &mut self.sender, &config);
        let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_ACCESS_FLAGS
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_MIN_RNR_TIMER;
        // SAFETY: a live queue pair and writable structures.
        assert_eq!(unsafe { sys::ibv_query_qp(far.as_raw(), &mut attr, mask as i32, &mut init) }, 0);
        attr
    }

    fn grants(&mut self, config: QpConfig, access: sys::ibv_access_flags) {
        assert_eq!(self.attributes(config).qp_access_flags & access, access);
        assert_eq!(self.attributes(QpConfig::rc()).qp_access_flags & access, 0);
    }

    fn refused_for_datagrams(&mut self, config: QpConfig, word: &str) {
        refused(QueuePair::builder(&config).receive(&mut self.receiver, RqConfig::new(4)).build(), word);
    }
}

fn every_option_acts_or_is_refused(path: DataPath) {
    for (name, check) in OPTIONS {
        println!("{name}");
        let mut world = Objects::new(path);
        check(&mut world);
        // Nothing is left to do.
        let _ = world.sender.wait(Duration::ZERO).unwrap();
    }
    let (_device, pd) = ethernet();
    for (name, check) in OPTIONS_OF_FRAMES {
        println!("{name}");
        check(&pd, path);
    }
}

/// An option that is new has an entry in the tables.
#[test]
fn every_option_has_a_check() {
    let api = include_str!("../../../../src/api.txt");
    // Requests have tests of their own, and bitflags writes the methods of flags.
    let others = ["Request<", "RemoteAccess::", "WcFlags::"];
    let is_option = |line: &&str| line.ends_with("-> Self") && !others.iter().any(|other| line.contains(other));
    let name = |line: &str| {
        let (head, _) = line.split_once("(self")?;
        let (mut path, mut depth) = (head.split_once("fn ")?.1.to_owned(), 0);
        path.retain(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0 && c != '>'
        });
        let (of, name) = path.rsplit_once("::")?;
        Some(format!("{of}: {name}"))
    };
    let listed: BTreeSet<String> = api.lines().filter(is_option).filter_map(name).collect();
    let names = OPTIONS.iter().map(|(name, _)| *name).chain(OPTIONS_OF_FRAMES.iter().map(|(name, _)| *name));
    let checked: BTreeSet<String> = names.map(String::from).collect();
    assert_eq!(listed, checked);
}
