//! The environment of the examples in doorbell's documentation, in lines that readers do not see: a software device
//! in the same process, named like an adapter, and a peer that sends what they receive.

mod c_program;
mod dynamic;
mod exchange;

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

use doorbell::tags::{PeerId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer};
use doorbell::{
    AddressHandle, Buffer, BufferPool, Completions, CqConfig, MemoryRegion, Payload, PoolConfig, ProtectionDomain,
    QpConfig, QueuePair, Receiver, RemoteAccess, RemoteRegion, RqConfig, Sender, SqId, SrqConfig, SrqId,
};
use soft_mlx5::Device;

pub use c_program::CProgram;
pub use dynamic::Dynamic;
pub use exchange::Exchange;

/// The device of the process, `mlx5_0`, until it is dropped.
pub fn device() -> Device {
    Device::builder().name("mlx5_0").strict(true).build().expect("a software device")
}

/// A memfd of so many bytes, which the software device takes for a dma-buf.
pub fn dma_buf(len: usize) -> OwnedFd {
    // SAFETY: a name, and a descriptor that no other code owns.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), libc::MFD_CLOEXEC)) };
    let file = File::from(fd);
    file.set_len(len as u64).expect("memory");
    file.into()
}

/// A queue pair that receives from a filled SRQ and sends, and its peer, which does both, too.
pub struct World {
    /// The receiver of the example.
    pub receiver: Receiver,
    /// Its SRQ.
    pub srq: SrqId,
    /// Buffers of 256 bytes, from which the SRQ was filled; more than half of them are left.
    pub pool: BufferPool,
    /// The queue pair of the example.
    pub qp: QueuePair,
    /// The sender of the example.
    pub sender: Sender,
    /// The other end.
    pub peer: QueuePair,
    /// The receiver of the other end.
    pub peer_receiver: Receiver,
    /// The sender of the other end.
    pub peer_sender: Sender,
    /// Where the other end sends datagrams to.
    to: Option<AddressHandle>,
    /// Memory of the other end.
    pub memory: MemoryRegion,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Device,
}

impl World {
    /// A connection, with receives of 256 bytes, of up to two buffers.
    #[expect(clippy::new_without_default, reason = "it is no value like another")]
    pub fn new() -> Self {
        Self::with(&CqConfig::new(4096))
    }

    /// A connection with CQs like `config`, and receives of 256 bytes, of up to two buffers.
    pub fn with(config: &CqConfig) -> Self {
        let all = QpConfig::rc().remote_write(true).remote_read(true).remote_atomic(true);
        let mut world = Self::ends(config, &all);
        world.qp.connect(&world.peer.address().unwrap()).unwrap();
        world.peer.connect(&world.qp.address().unwrap()).unwrap();
        world
    }

    /// A connection whose queue pairs memory windows are bound through.
    pub fn windows() -> Self {
        let all = QpConfig::rc().remote_write(true).remote_read(true).memory_windows(true);
        let mut world = Self::ends(&CqConfig::new(4096), &all);
        world.qp.connect(&world.peer.address().unwrap()).unwrap();
        world.peer.connect(&world.qp.address().unwrap()).unwrap();
        world
    }

    /// Queue pairs for datagrams, with queue key 0x1234.
    pub fn datagrams() -> Self {
        let mut world = Self::ends(&CqConfig::new(4096), &QpConfig::ud(0x1234));
        world.qp.activate().unwrap();
        world.peer.activate().unwrap();
        let address = world.qp.address().unwrap();
        world.to = Some(world.peer.address_handle(&address, 0x1234).unwrap());
        world
    }

    fn ends(own: &CqConfig, config: &QpConfig) -> Self {
        let device = device();
        let pd = doorbell::open("mlx5_0").unwrap().alloc_pd().unwrap();
        let mut receiver = Receiver::new(&pd, own).unwrap();
        let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2)).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 256)).unwrap();
        receiver.fill(srq, &pool).unwrap();
        let mut peer_receiver = Receiver::new(&pd, &CqConfig::new(4096)).unwrap();
        let config = config.clone().max_inline(64).max_send_sge(4);
        let mut peer_sender = Sender::new(&pd, &CqConfig::new(4096)).unwrap();
        // Senders take no compression.
        let mut sender = Sender::new(&pd, own).or_else(|_| Sender::new(&pd, &CqConfig::new(4096))).unwrap();
        let qp = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build().unwrap();
        let peer = QueuePair::builder(&config)
            .receive(&mut peer_receiver, RqConfig::new(16))
            .send(&mut peer_sender)
            .build()
            .unwrap();
        let for_peer = BufferPool::new(&pd, &PoolConfig::new(16, 256)).unwrap();
        peer_receiver.fill(peer.receive_queue().unwrap(), &for_peer).unwrap();
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let memory = MemoryRegion::with_access(&pd, 4096, access).unwrap();
        Self { receiver, srq, pool, qp, sender, peer, peer_receiver, peer_sender, to: None, memory, pd, device }
    }

    /// Sends a message to the example; it has arrived when this returns.
    pub fn send(&mut self, bytes: &[u8]) {
        self.send_with(bytes, None);
    }

    /// Sends a message with immediate data to the example; it has arrived when this returns.
    pub fn send_with(&mut self, bytes: &[u8], imm: Option<u32>) {
        let Some(to) = &self.to else {
            return send(&mut self.peer_sender, &self.peer, bytes, imm);
        };
        let queue = self.peer.send_queue().unwrap();
        self.peer_sender.post(queue).unwrap().send_to(to, bytes, imm).unwrap();
        finish(&mut self.peer_sender, queue);
        // The end of the send of a datagram does not say that it has arrived.
        self.receiver.wait(None).unwrap();
    }

    /// The queue that the example posts to.
    pub fn queue(&self) -> SqId {
        self.qp.send_queue().unwrap()
    }

    /// The memory of the other end, as the example knows it.
    pub fn remote(&self) -> RemoteRegion {
        self.memory.region()
    }

    /// Waits for the next message at the other end.
    pub fn received(&mut self) -> Vec<u8> {
        self.peer_receiver.wait(None).unwrap();
        let mut batch = self.peer_receiver.poll();
        let message = batch.next().unwrap().unwrap();
        message.to_vec()
    }
}

/// The buffer of the next request that is over.
pub fn sent(sender: &mut Sender) -> Buffer {
    sender.wait(None).unwrap();
    sender.next().unwrap().unwrap().buffer.unwrap()
}

/// Two tag-matching SRQs that are connected to each other.
pub struct Tags {
    /// The SRQ of the example.
    pub tags: TagMatchingSrq,
    /// Its peer.
    pub peer: PeerId,
    /// The other.
    pub other: TagMatchingSrq,
    /// Its peer, which is the example.
    pub other_peer: PeerId,
    /// Buffers of 1,024 bytes that peers may read.
    pub pool: BufferPool,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Device,
}

impl Tags {
    /// Lists of 16 receives.
    #[expect(clippy::new_without_default, reason = "it is no value like another")]
    pub fn new() -> Self {
        Self::with(&TagMatchingConfig::new(16))
    }

    /// Lists of receives, with queues like `config`.
    pub fn with(config: &TagMatchingConfig) -> Self {
        let device = device();
        let pd = doorbell::open("mlx5_0").unwrap().alloc_pd().unwrap();
        let side = || {
            let mut tags = TagMatchingSrq::new(&pd, config).unwrap();
            tags.keep_filled(&BufferPool::new(&pd, &PoolConfig::new(128, 2048)).unwrap()).unwrap();
            let peer = tags.add_peer(&QpConfig::rc()).unwrap();
            (tags, peer)
        };
        let ((mut tags, peer), (mut other, other_peer)) = (side(), side());
        tags.connect(peer, &other.address(other_peer).unwrap()).unwrap();
        other.connect(other_peer, &tags.address(peer).unwrap()).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(32, 1024).readable(true)).unwrap();
        Self { tags, peer, other, other_peer, pool, pd, device }
    }

    /// Sends a message to the example.
    pub fn send(&mut self, tag: u64, bytes: &[u8]) {
        let mut message = TaggedBuffer::new(self.pool.take().unwrap()).unwrap();
        message.set_len(bytes.len());
        message.copy_from_slice(bytes);
        self.other.send(self.other_peer, tag, 0, message).unwrap();
    }

    /// The next event of the example.
    pub fn event(&mut self) -> TagEvent {
        event(&mut self.tags, &mut self.other)
    }
}

/// The next event of the first, while both do their work.
pub fn event(tags: &mut TagMatchingSrq, other: &mut TagMatchingSrq) -> TagEvent {
    loop {
        if let Some(event) = tags.next() {
            return event;
        }
        let _ = other.next();
    }
}

/// Sends a message; it has arrived when this returns.
pub fn send(sender: &mut Sender, qp: &QueuePair, payload: impl Payload, imm: Option<u32>) {
    let queue = qp.send_queue().unwrap();
    let request = sender.post(queue).unwrap();
    match imm {
        Some(imm) => request.send_with_imm(payload, imm).unwrap(),
        None => request.send(payload).unwrap(),
    }
    finish(sender, queue);
}

/// Waits for the end of all requests of a queue.
pub fn finish(sender: &mut Sender, queue: SqId) {
    while sender.is_busy(queue) {
        if let Some(done) = sender.poll().next() {
            done.unwrap();
        }
    }
}
