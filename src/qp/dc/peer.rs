//! A DC target as requests name it.

use std::fmt;

use mlx5_wire::datagram::DatagramSegment;

use crate::pd::{DomainId, ProtectionDomain};

/// A DC target that requests of an initiator go to, from [`DcInitiator::peer`](crate::DcInitiator::peer).
///
/// It holds the address vector, the number and the access key as a WQE has them: naming the target of a request copies
/// 48 bytes. All initiators of the protection domain that use the same port can send to it.
///
/// ```
/// # let mut world = doorbell_doc::Dynamic::new();
/// # let doorbell_doc::Dynamic { sender, initiator, target, .. } = &mut world;
/// let peer = initiator.peer(&target.address()?)?;
/// assert_eq!((peer.number(), peer.key()), (target.number(), target.key()));
/// sender.send_dc(&*initiator, &peer, b"hello")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DcPeer {
    segment: DatagramSegment,
    pd: ProtectionDomain,
}

impl DcPeer {
    pub(crate) const fn new(segment: DatagramSegment, pd: ProtectionDomain) -> Self {
        Self { segment, pd }
    }

    /// Returns the number of the target.
    pub const fn number(&self) -> u32 {
        self.segment.destination()
    }

    /// Returns the access key of the target.
    pub const fn key(&self) -> u64 {
        self.segment.dc_key()
    }

    /// Returns `true` if initiators of this domain can send to it.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: DomainId) -> bool {
        self.pd.id() == domain
    }

    /// Returns the segment for the WQE of a request.
    #[inline(always)]
    pub(crate) const fn segment(&self) -> &DatagramSegment {
        &self.segment
    }
}

/// Peers are equal if requests to them go to the same target, over the same path and with the same key.
impl PartialEq for DcPeer {
    fn eq(&self, other: &Self) -> bool {
        self.segment.to_bytes() == other.segment.to_bytes() && self.pd.is_same(&other.pd)
    }
}

impl Eq for DcPeer {}

impl fmt::Debug for DcPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcPeer").field("number", &self.number()).finish_non_exhaustive()
    }
}
