//! A fabric inside one process: devices exchange frames through queues in memory.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::address::{FIRST_LID, LAST_LID};
use super::groups::Shared;
use super::packet::Frame;

// Packets that may wait for one port; the port of a device that is not stepped loses further packets.
const QUEUE_LIMIT: usize = 4096;

#[derive(Debug, Default)]
struct Ports {
    // Index 0 is `FIRST_LID`; `None` after a device left.
    queues: Vec<Option<VecDeque<Frame>>>,
}

impl Ports {
    fn queue(&mut self, lid: u16) -> Option<&mut VecDeque<Frame>> {
        self.queues.get_mut(usize::from(lid.checked_sub(FIRST_LID)?))?.as_mut()
    }
}

/// A switch that devices of one process are plugged into. Clones are the same switch. Packets cross it in
/// the order in which the devices are stepped.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<Ports>>, Shared);

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").finish_non_exhaustive()
    }
}

impl PartialEq for Switch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Switch {}

impl Switch {
    /// Makes a switch without devices.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn members(&self) -> Shared {
        self.1.clone()
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        // A frame is moved in or out whole: a panic elsewhere leaves the queues intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plugs a device in, at the first free LID.
    pub(crate) fn join(&self) -> Option<SwitchPort> {
        let mut ports = self.ports();
        let index = match ports.queues.iter().position(Option::is_none) {
            Some(index) => index,
            None if ports.queues.len() <= usize::from(LAST_LID - FIRST_LID) => {
                ports.queues.push(None);
                ports.queues.len() - 1
            }
            None => return None,
        };
        ports.queues[index] = Some(VecDeque::new());
        drop(ports);
        Some(SwitchPort { switch: self.clone(), lid: FIRST_LID + index as u16 })
    }
}

/// A device's end of a [`Switch`].
#[derive(Debug)]
pub(crate) struct SwitchPort {
    switch: Switch,
    lid: u16,
}

impl SwitchPort {
    pub(crate) fn lid(&self) -> u16 {
        self.lid
    }

    /// Returns `true` if a device has this address now.
    pub(crate) fn has_device(&self, lid: u16) -> bool {
        self.switch.ports().queue(lid).is_some()
    }

    /// Hands a frame over; returns the frame if the port does not take it.
    pub(crate) fn send(&self, dlid: u16, frame: Frame) -> Result<(), Frame> {
        match self.switch.ports().queue(dlid) {
            Some(queue) if queue.len() < QUEUE_LIMIT => {
                queue.push_back(frame);
                Ok(())
            }
            _ => Err(frame),
        }
    }

    pub(crate) fn has_room(&self, dlid: u16) -> bool {
        // Half of the queue is for answers, which cannot be held back.
        self.switch.ports().queue(dlid).is_none_or(|queue| queue.len() < QUEUE_LIMIT / 2)
    }

    pub(crate) fn receive(&self) -> Option<Frame> {
        self.switch.ports().queue(self.lid)?.pop_front()
    }

    /// Returns the LIDs of the other devices.
    pub(crate) fn peers(&self) -> Vec<u16> {
        let ports = self.switch.ports();
        let all = (FIRST_LID..).zip(&ports.queues);
        all.filter(|(lid, queue)| queue.is_some() && *lid != self.lid).map(|(lid, _)| lid).collect()
    }
}

impl Drop for SwitchPort {
    fn drop(&mut self) {
        let index = usize::from(self.lid - FIRST_LID);
        if let Some(queue) = self.switch.ports().queues.get_mut(index) {
            *queue = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_lid_is_given() {
        let switch = Switch::new();
        let first = switch.join().unwrap();
        let second = switch.join().unwrap();
        assert_eq!((first.lid(), second.lid()), (1, 2));
        assert!(first.send(2, Frame::default()).is_ok());
        drop(second);
        assert!(first.send(2, Frame::default()).is_err());
        let again = switch.join().unwrap();
        assert_eq!(again.lid(), 2);
        assert!(again.receive().is_none(), "what was meant for the device before is gone");
    }
}
