//! DC targets.

use std::fmt;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::DcAddress;
use crate::error::Result;
use crate::pd::ProtectionDomain;
use crate::qp::address::Local;
use crate::qp::object::Qp;
use crate::qp::{QpConfig, ReceiveSide, transition};

/// A DC target (DCT): it receives into an SRQ of a [`Receiver`](crate::Receiver), from any number of
/// [initiators](crate::DcInitiator) that know its [address](Self::address). The SRQ may have other targets and queue
/// pairs.
///
/// Its messages come out of the receiver with the number of the initiator as [source](crate::Message::source), and on
/// InfiniBand with the LID of its port. Peers read and write memory as the rights of the [`QpConfig`] and the keys of
/// memory regions say. No error of a peer stops a target.
///
/// Dropping it destroys it. The device drains it first: messages that have arrived can be polled, a receive that a
/// message had begun to fill comes back flushed, and requests of initiators fail with
/// [`WcStatus::RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR). The SRQ can be destroyed when it has no target.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{BufferPool, Completions, CqConfig, DcInitiator, DcTarget, PoolConfig, QpConfig};
/// use doorbell::{Receiver, Sender, SrqConfig};
///
/// let pool = BufferPool::new(&pd, &PoolConfig::new(256, 4096))?;
/// let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
/// let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
/// receiver.fill(srq, &pool)?;
/// let config = QpConfig::dc().remote_read(true);
/// let target = DcTarget::new(&mut receiver, srq, &config, 0x1ee7)?;
/// println!("tell the peers: {}", target.address()?);
///
/// # let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
/// # let initiator = DcInitiator::new(&mut sender, &config)?;
/// # sender.send_dc(&initiator, &initiator.peer(&target.address()?)?, b"hello")?;
/// receiver.wait(None)?;
/// let message = receiver.next().expect("a message has arrived")?;
/// let source = message.source().expect("nothing was put over it");
/// println!("{} bytes from initiator {:#x}", message.len(), source.qp_num);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DcTarget {
    target: Arc<Qp>,
    config: QpConfig,
    key: u64,
}

impl DcTarget {
    /// Makes a target, and takes it to RTR, in which it receives.
    pub(crate) fn create(pd: &ProtectionDomain, config: &QpConfig, receive: ReceiveSide, key: u64) -> Result<Self> {
        let local = Local::query(pd.context(), config)?;
        let target = Qp::create_target(pd, receive, key)?;
        let (mut attr, mask) = transition::target_init(config);
        target.modify(&mut attr, mask)?;
        let (mut attr, mask) = transition::target_rtr(config, local.as_source(), local.mtu);
        target.modify(&mut attr, mask)?;
        Ok(Self { target: Arc::new(target), config: config.clone(), key })
    }

    pub(crate) const fn object(&self) -> &Arc<Qp> {
        &self.target
    }

    /// Returns the number of the target.
    pub fn number(&self) -> u32 {
        self.target.qp_num()
    }

    /// Returns the access key.
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Returns the address that peers need to send to it.
    ///
    /// # Errors
    /// [`Error::NoGid`](crate::Error::NoGid); [`Error::Verbs`](crate::Error::Verbs) if the port cannot be queried.
    pub fn address(&self) -> Result<DcAddress> {
        let Local { lid, gid, mtu, .. } = Local::query(self.target.pd().context(), &self.config)?;
        Ok(DcAddress { lid, gid, number: self.number(), key: self.key, mtu })
    }

    /// Returns the handle of libibverbs.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.target.as_raw()
    }
}

impl fmt::Debug for DcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcTarget").field("number", &self.number()).finish_non_exhaustive()
    }
}
