//! Making the two ends of dynamic connections (DC) on senders and receivers.

mod initiators;

use std::io;

use crate::error::{Error, Result};
use crate::ids::SrqId;
use crate::memory::Memory;
use crate::path::DataPath;
use crate::qp::{DcInitiator, DcTarget, QpConfig};
use crate::receive_from::ReceiveFrom;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::trace::trace_event;

pub use initiators::{DcInitiators, DcPeerId};

impl DcInitiator {
    /// Makes an initiator that sends through `sender`, and takes it to RTS. The configuration is [`QpConfig::dc`].
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, DcInitiator, QpConfig, Sender};
    ///
    /// let config = QpConfig::dc().max_send_wr(16);
    /// let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 2))?;
    /// let initiators = [
    ///     DcInitiator::new(&mut sender, &config)?,
    ///     DcInitiator::new(&mut sender, &config)?,
    /// ];
    /// // Blocks of 64 bytes: a request takes two or more, for it contains the address of its target.
    /// assert_eq!(sender.capacity(&initiators[0]), 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another configuration, on the verbs path, and on a device without DC;
    /// [`Error::CqTooSmall`]; [`Error::OutOfRange`]; [`Error::NotDirect`]; [`Error::Verbs`].
    pub fn new(sender: &mut Sender, config: &QpConfig) -> Result<Self> {
        let operation = "DcInitiator::new";
        check(operation, config, sender.path())?;
        let pd = sender.pd().clone();
        config.check(pd.context().attr())?;
        let side = sender.send_side(&pd)?;
        let mut this = Self::create(&pd, config, side).map_err(|error| explain(operation, error))?;
        // SAFETY: a fresh queue that no other code knows, made with the side of this sender.
        unsafe { sender.enter(this.queue_pair(), config) }?;
        this.activate()?;
        trace_event!(device = pd.context().name(), qp_num = this.qp_num(), "DC initiator created");
        Ok(this)
    }
}

impl DcTarget {
    /// Makes a target that receives into an SRQ of `receiver`. It takes requests whose WQEs have this access key. The
    /// configuration is [`QpConfig::dc`]. Its send settings do not apply.
    ///
    /// A key tells incarnations of a target apart, for its number may name another target later. It is no secret.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another configuration, on the verbs path, and on a device without DC;
    /// [`Error::Foreign`] and [`Error::Gone`] for an SRQ that is not one of the receiver; [`Error::OutOfRange`];
    /// [`Error::NoGid`]; [`Error::Verbs`].
    pub fn new<M: Memory>(receiver: &mut Receiver<M>, srq: SrqId, config: &QpConfig, key: u64) -> Result<Self> {
        let operation = "DcTarget::new";
        check(operation, config, receiver.path())?;
        let pd = receiver.pd().clone();
        let config = config.clone().idle();
        config.check(pd.context().attr())?;
        let side = receiver.receive_side(ReceiveFrom::Srq(srq))?;
        let this = Self::create(&pd, &config, side, key).map_err(|error| explain(operation, error))?;
        receiver.enter_target(this.object(), srq);
        trace_event!(device = pd.context().name(), number = this.number(), "DC target created");
        Ok(this)
    }
}

fn check(operation: &'static str, config: &QpConfig, path: DataPath) -> Result<()> {
    if !config.is_dc() {
        return Err(Error::Unsupported {
            operation,
            when: "with the configuration of another transport: use QpConfig::dc",
        });
    }
    if path == DataPath::Verbs {
        return Err(Error::Unsupported {
            operation,
            when: "on the verbs path, because verbs has no dynamic connections: use DataPath::Direct on an mlx5 device, or RC (QpConfig::rc)",
        });
    }
    Ok(())
}

/// Says so if a device has no DC.
fn explain(operation: &'static str, error: Error) -> Error {
    let is_unsupported = |source: &io::Error| source.raw_os_error() == Some(libc::EOPNOTSUPP);
    match error {
        Error::Verbs { source, .. } if is_unsupported(&source) => Error::Unsupported {
            operation,
            when: "on this device, which has no dynamic connections: use RC (QpConfig::rc)",
        },
        error => error,
    }
}
