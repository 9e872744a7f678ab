//! Several DC initiators of one sender, for peers side by side.

use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::not_sent::NotSent;
use crate::qp::{DcAddress, DcInitiator, DcPeer, QpConfig};
use crate::refused::Refused;
use crate::sender::{DcRequest, Sender, Unsent};

/// Most initiators of a set.
const MOST: usize = 64;

/// 1 to 64 initiators of one [`Sender`], among which the requests to many peers are divided.
///
/// A peer keeps the initiator on which it has requests, so that these stay in order. Without any it gets the initiator
/// with the fewest outstanding basic blocks, of several the first; an initiator that has failed only if all have.
///
/// ```
/// # let world = doorbell_doc::Dynamic::new();
/// # let (address, pd) = (world.target.address()?, world.pd.clone());
/// use doorbell::{Completions, CqConfig, DcInitiators, QpConfig, Sender};
///
/// let config = QpConfig::dc().max_send_wr(32);
/// let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 8))?;
/// let mut initiators = DcInitiators::new(&mut sender, &config, 8)?;
/// // The address of a target, which the program has exchanged.
/// let peer = initiators.add(&address)?;
/// initiators.post(&mut sender, peer)?.send(b"hello")?;
///
/// while initiators.is_busy(&sender) {
///     sender.wait(None)?;
///     while let Some(done) = sender.next() {
///         if let Err(failure) = done {
///             println!("{failure}");
///         }
///     }
/// }
/// // The requests behind those that failed, if any did, for the program to post again.
/// for request in initiators.recover(&mut sender)? {
///     initiators.post_again(&mut sender, request)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DcInitiators {
    initiators: Vec<DcInitiator>,
    peers: Vec<Known>,
}

/// A peer of a set of initiators, from [`DcInitiators::add`].
///
/// ```
/// # let world = doorbell_doc::Dynamic::new();
/// # let doorbell_doc::Dynamic { config, target, pd, .. } = &world;
/// use doorbell::{CqConfig, DcInitiators, DcPeerId, Sender};
///
/// let mut sender = Sender::new(pd, &CqConfig::for_sends(config, 2))?;
/// let mut initiators = DcInitiators::new(&mut sender, config, 2)?;
/// let peer: DcPeerId = initiators.add(&target.address()?)?;
/// initiators.post(&mut sender, peer)?.send(b"hello")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DcPeerId(u32);

#[derive(Debug)]
struct Known {
    peer: DcPeer,
    /// The initiator of its last request, and a running count of blocks inside of that request.
    last: Option<(usize, u32)>,
}

impl DcInitiators {
    /// Makes `count` initiators that send through `sender`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a count other than 1 to 64; the errors of [`DcInitiator::new`].
    pub fn new(sender: &mut Sender, config: &QpConfig, count: usize) -> Result<Self> {
        Error::check_range("count of DC initiators", count as u64, 1, MOST as u64)?;
        let initiators = (0..count).map(|_| DcInitiator::new(sender, config)).collect::<Result<_>>()?;
        Ok(Self { initiators, peers: Vec::new() })
    }

    /// Adds the target at `address` to the peers.
    ///
    /// # Errors
    /// The errors of [`DcInitiator::peer`].
    pub fn add(&mut self, address: &DcAddress) -> Result<DcPeerId> {
        let peer = self.initiators[0].peer(address)?;
        let id = DcPeerId(self.peers.len() as u32);
        self.peers.push(Known { peer, last: None });
        Ok(id)
    }

    /// Returns the initiators.
    pub fn initiators(&self) -> &[DcInitiator] {
        &self.initiators
    }

    /// Returns `true` while requests of any initiator are outstanding or were not polled, see
    /// [`Sender::is_busy`](crate::Sender::is_busy).
    pub fn is_busy(&self, sender: &Sender) -> bool {
        self.initiators.iter().any(|initiator| sender.is_busy(initiator))
    }

    /// Starts posting one request to a peer, on the initiator that the rule of the set says.
    ///
    /// # Errors
    /// The errors of [`Sender::post`], of the initiator; [`NotSent::NoQueue`] for another sender, and for a peer of
    /// another set.
    pub fn post<'a>(&'a mut self, sender: &'a mut Sender, peer: DcPeerId) -> Result<DcRequest<'a>, NotSent> {
        let queue = self.choose(sender, peer.0 as usize).ok_or(NotSent::NoQueue)?;
        let known = self.peers.get(peer.0 as usize).ok_or(NotSent::NoQueue)?;
        Ok(sender.post(queue)?.to(&known.peer))
    }

    /// Returns the queue for the next request to a peer, and takes note of it.
    fn choose(&mut self, sender: &Sender, peer: usize) -> Option<SqId> {
        let known = self.peers.get_mut(peer)?;
        let progress = |index: usize| sender.progress(SqId::from(&self.initiators[index]));
        let kept = known.last.filter(|&(index, end)| {
            progress(index).is_some_and(|of| of.outstanding() > 0 && end.wrapping_sub(of.retired) as i32 > 0)
        });
        let index = match kept {
            Some((index, _)) => index,
            None => {
                let order = |&index: &usize| progress(index).map(|of| (!of.is_ready, of.outstanding()));
                (0..self.initiators.len()).min_by_key(order)?
            }
        };
        let of = progress(index)?;
        // The request will have this block and at least another one.
        known.last = Some((index, of.posted.wrapping_add(1)));
        Some(SqId::from(&self.initiators[index]))
    }

    /// Restarts each initiator that has failed and whose requests have all come back, and returns those that came back
    /// [unsent](Sender::take_unsent): of each initiator in the order of posting.
    ///
    /// # Errors
    /// The errors of [`Sender::restart`]: requests that came back unsent stay with the sender.
    pub fn recover(&mut self, sender: &mut Sender) -> Result<Vec<Unsent>> {
        let mut unsent = Vec::new();
        for (index, initiator) in self.initiators.iter_mut().enumerate() {
            let progress = sender.progress(SqId::from(&*initiator));
            if progress.is_none_or(|of| of.is_ready || of.outstanding() > 0) {
                continue;
            }
            sender.restart(initiator)?;
            // The counts of the queue start again.
            for known in &mut self.peers {
                known.last = known.last.filter(|last| last.0 != index);
            }
            unsent.append(&mut sender.take_unsent(&*initiator));
        }
        Ok(unsent)
    }

    /// Posts a request again that came back unsent, on the initiator that the rule of the set says.
    ///
    /// # Errors
    /// [`Refused`] with the request: [`NotSent::NoQueue`] if its target is no peer of this set, and the errors of
    /// [`post`](Self::post).
    pub fn post_again(&mut self, sender: &mut Sender, request: Unsent) -> Result<(), Refused<Unsent>> {
        let peer = self.peers.iter().position(|known| known.peer == *request.peer());
        let Some(queue) = peer.and_then(|peer| self.choose(sender, peer)) else {
            return Err(Refused { payload: request, reason: NotSent::NoQueue });
        };
        match sender.post_many(queue) {
            Ok(mut posting) => posting.post_again(request),
            Err(reason) => Err(Refused { payload: request, reason }),
        }
    }
}
