//! Checking the signature of each CQE before a batch takes it.

use std::collections::VecDeque;
use std::fmt;

use super::Receiver;
use crate::cq::Poller;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// Wrong CQEs that are kept for [`Receiver::wrong_cqe`].
const KEPT: usize = 16;

/// A CQE with a wrong signature, see [`Receiver::verify_cqes`].
///
/// An adapter signs each CQE with the XOR of its bytes and its index. The signature is wrong if the CQE was read
/// before it was complete or at another index: a missing load barrier, a wrong consumer index, memory with two
/// writers. One such CQE in 256 passes.
///
/// The rule was derived from published error CQEs of ConnectX-4 to ConnectX-6, and extrapolated to CQEs of messages.
/// If *every* CQE of a device is wrong, the device has another rule.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let receiver = &mut world.receiver;
/// receiver.verify_cqes()?;
/// let mut batch = receiver.poll();
/// while batch.next().is_some() {}
/// drop(batch);
/// while let Some(wrong) = receiver.wrong_cqe() {
///     eprintln!("{wrong}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrongCqe {
    /// Number of the CQ.
    pub cqn: u32,
    /// Index of the CQE; it does not wrap at the size of the CQ.
    pub index: u32,
    /// The bytes of the CQE.
    pub bytes: [u8; 64],
}

impl fmt::Display for WrongCqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cqn, index, bytes } = self;
        write!(f, "CQ {cqn:#x}: the CQE at index {index:#x} does not have the signature of that index:")?;
        for (at, byte) in bytes.iter().enumerate() {
            write!(f, "{}{byte:02x}", if at % 4 == 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for WrongCqe {}

impl<M: Memory> Receiver<M> {
    /// Returns the oldest CQE with a wrong signature that was not returned before. At most 16 are kept;
    /// [`Statistics::wrong_cqes`](crate::Statistics::wrong_cqes) counts all.
    pub fn wrong_cqe(&mut self) -> Option<WrongCqe> {
        self.maintenance.as_mut()?.wrong_cqes.as_mut()?.pop_front()
    }

    /// Checks the signature of every CQE before a batch takes it, see [`WrongCqe`]. doorbell then reads each CQE twice.
    /// It also enables [statistics](Self::statistics).
    ///
    /// A wrong CQE is counted ([`Statistics::wrong_cqes`](crate::Statistics::wrong_cqes)) and kept
    /// ([`wrong_cqe`](Self::wrong_cqe)), and its message is delivered as the CQE describes it. CQEs that arrive after
    /// the check wait for the next batch.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the verbs path, and with [compression](crate::CqConfig::compression).
    pub fn verify_cqes(&mut self) -> Result<()> {
        let when = match &self.cq.poller {
            Poller::Verbs(_) => "on the verbs path: libmlx5 reads the CQEs",
            Poller::Direct(_) if self.cq.object.is_compressed() => {
                "together with compression: compressed CQEs have no signature"
            }
            Poller::Direct(_) => {
                self.maintenance_mut().wrong_cqes = Some(VecDeque::new());
                return Ok(());
            }
        };
        Err(Error::Unsupported { operation: "verify_cqes", when })
    }

    /// Checks the CQEs that a batch of at most `budget` will take, if that was asked for; returns how many it may take.
    pub(super) fn verify(&mut self, budget: u32) -> u32 {
        let Some(work) = &mut self.maintenance else { return budget };
        let (Some(kept), Poller::Direct(direct)) = (&mut work.wrong_cqes, &self.cq.poller) else {
            return budget;
        };
        let (cqn, counted) = (direct.doorbell.cqn(), &mut work.counted);
        let checked = direct.cq.verify_ahead(budget, |index, bytes| {
            counted.wrong_cqes += 1;
            if kept.len() < KEPT {
                kept.push_back(WrongCqe { cqn, index, bytes });
            }
        });
        counted.verified_cqes += u64::from(checked);
        checked
    }
}
