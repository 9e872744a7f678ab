//! The peers of a queue: a place is used again when its peer was removed.

use super::ids::PeerId;
use super::peer::Peer;

pub(super) struct Peers {
    owner: u32,
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    peer: Option<Peer>,
}

impl Peers {
    pub(super) const fn new(owner: u32) -> Self {
        Self { owner, places: Vec::new(), free: Vec::new() }
    }

    /// The peer with this index.
    pub(super) fn id(&self, index: u32) -> Option<PeerId> {
        self.places.get(index as usize)?.peer.is_some().then(|| self.name(index))
    }

    fn name(&self, index: u32) -> PeerId {
        let generation = self.places[index as usize].generation;
        PeerId { owner: self.owner, index, generation }
    }

    pub(super) fn add(&mut self, peer: Peer) -> PeerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        self.places[index as usize].peer = Some(peer);
        self.name(index)
    }

    fn place_mut(&mut self, id: PeerId) -> Option<&mut Place> {
        let place = self.places.get_mut(id.index as usize)?;
        (id.owner == self.owner && id.generation == place.generation).then_some(place)
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.place_mut(id)?.peer.as_mut()
    }

    pub(super) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let place = self.place_mut(id)?;
        let peer = place.peer.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(peer)
    }
}
