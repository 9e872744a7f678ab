//! Shared parts of the tests on a stepped device. The device works only when it is stepped, so a test decides
//! what happens first.

#[path = "../../src/sending_qp.rs"]
pub mod sending_qp;
#[path = "../../src/sent.rs"]
pub mod sent;

pub mod frames;

use std::os::fd::AsRawFd;

use doorbell::{
    BufferPool, CompletionChannel, CqConfig, Path, PoolConfig, ProtectionDomain, QpConfig, QueuePair, ReceiveFrom,
    Receiver, RqConfig, RqId, WcStatus,
};
use soft_mlx5::{Builder, Device};

use sending_qp::SendingQp;

/// Makes two tests of each function: `direct::name` and `verbs::name`.
#[macro_export]
macro_rules! on_each_path {
    ($($test:ident)*) => {
        $crate::on_each_path!(direct, Direct, $($test)*);
        $crate::on_each_path!(verbs, Verbs, $($test)*);
    };
    ($module:ident, $path:ident, $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test(doorbell::Path::$path);
            })*
        }
    };
}

/// A CQ as large as its queue needs, for frames and tags.
pub const fn cq(path: Path) -> CqConfig {
    CqConfig::new(1).path(path)
}

/// Whether a program that sleeps on the channel wakes up.
pub fn is_readable(channel: &CompletionChannel) -> bool {
    let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Powers a device up, and opens it.
pub fn open(builder: Builder) -> (Device, ProtectionDomain) {
    let device = builder.build().expect("a device");
    let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
    (device, pd)
}

/// Connects a queue pair of a receiver with a queue pair that sends to it and has a single receive.
pub fn connect(
    receiver: &mut Receiver,
    config: &QpConfig,
    from: impl Into<ReceiveFrom>,
    far_receiver: &mut Receiver,
    far: &QpConfig,
) -> (QueuePair, SendingQp) {
    let mut near = QueuePair::builder(config).receive(receiver, from).build().unwrap();
    let mut far = SendingQp::create(far_receiver, far, RqConfig::new(1)).unwrap();
    near.connect(&far.address().unwrap()).unwrap();
    far.connect(&near.address().unwrap()).unwrap();
    (near, far)
}

/// A stepped device, and a connection from a queue pair to a receiver of the same program.
pub struct Stepped {
    /// The receiver under test.
    pub receiver: Receiver,
    /// Its only queue.
    pub rq: RqId,
    /// Buffers for the queue.
    pub pool: BufferPool,
    /// Its queue pair.
    pub near: QueuePair,
    /// The queue pair that sends to it.
    pub far: SendingQp,
    _far_receiver: Receiver,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Device,
}

impl Stepped {
    /// A connection with a full queue of `receives` receives, polled as `path` says.
    pub fn new(path: Path, receives: u32) -> Self {
        Self::with(CqConfig::new(2 * receives).path(path), receives)
    }

    /// The same, with receivers like `config`.
    pub fn with(config: CqConfig, receives: u32) -> Self {
        Self::on(Device::builder(), config, receives)
    }

    /// The same, on a device of its own kind.
    pub fn on(builder: Builder, config: CqConfig, receives: u32) -> Self {
        let (device, pd) = open(builder.stepped());
        let mut receiver = Receiver::new(&pd, &config).unwrap();
        let far = CqConfig::new(4).path(receiver.path());
        let mut far_receiver = Receiver::new(&pd, &far).unwrap();
        let (near, own) = (QpConfig::rc(), RqConfig::new(receives));
        let far = QpConfig::rc().max_inline(64);
        let (near, far) = connect(&mut receiver, &near, own, &mut far_receiver, &far);
        let rq = near.receive_queue().unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(receiver.capacity(rq), 64)).unwrap();
        receiver.fill(rq, &pool).unwrap();
        Self { receiver, rq, pool, near, far, _far_receiver: far_receiver, pd, device }
    }

    /// Posts a send of nothing; the device has not seen it yet.
    pub fn send(&mut self) {
        self.send_bytes(&[]);
    }

    /// Posts a send of up to 64 bytes; the device has not seen it yet.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        while let Some(done) = self.far.poll_send() {
            assert_eq!(done.status, WcStatus::SUCCESS);
        }
        self.far.send_inline(bytes, None).unwrap();
    }

    /// Takes all messages that have arrived; returns how many.
    pub fn take(&mut self) -> u64 {
        let mut batch = self.receiver.poll();
        let mut taken = 0;
        while let Some(message) = batch.next() {
            message.unwrap();
            taken += 1;
        }
        taken
    }
}
