//! Dynamic connections, for examples.

use doorbell::{
    BufferPool, CqConfig, DcInitiator, DcPeer, DcTarget, MemoryRegion, PoolConfig, ProtectionDomain, QpConfig,
    Receiver, RemoteAccess, RemoteRegion, Sender, SrqConfig, SrqId,
};
use soft_mlx5::Device;

/// A target with a filled SRQ, and an initiator that sends to it.
pub struct Dynamic {
    /// The initiator of the example.
    pub initiator: DcInitiator,
    /// Its sender.
    pub sender: Sender,
    /// The target.
    pub target: DcTarget,
    /// The target as requests name it.
    pub peer: DcPeer,
    /// The receiver of the target.
    pub receiver: Receiver,
    /// Its SRQ.
    pub srq: SrqId,
    /// Buffers of 64 bytes.
    pub pool: BufferPool,
    /// 64 bytes that peers may read and write.
    pub memory: MemoryRegion,
    /// The configuration of both ends.
    pub config: QpConfig,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Device,
}

impl Dynamic {
    /// Both ends on a device of their own. Requests to a target that is gone fail soon.
    #[expect(clippy::new_without_default, reason = "it is no value like another")]
    pub fn new() -> Self {
        let device = super::device();
        let pd = doorbell::open("mlx5_0").unwrap().alloc_pd().unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(32, 64)).unwrap();
        let mut receiver = Receiver::new(&pd, &CqConfig::new(16)).unwrap();
        let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
        receiver.fill(srq, &pool).unwrap();
        let rights = QpConfig::dc().remote_read(true).remote_write(true).remote_atomic(true);
        let config = rights.max_send_wr(16).timeout(1).retry_cnt(1);
        let target = DcTarget::new(&mut receiver, srq, &config, 7).unwrap();
        let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1)).unwrap();
        let initiator = DcInitiator::new(&mut sender, &config).unwrap();
        let peer = initiator.peer(&target.address().unwrap()).unwrap();
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let memory = MemoryRegion::with_access(&pd, 64, access).unwrap();
        Self { initiator, sender, target, peer, receiver, srq, pool, memory, config, pd, device }
    }

    /// The memory of the target's process.
    pub fn remote(&self) -> RemoteRegion {
        self.memory.region()
    }
}
