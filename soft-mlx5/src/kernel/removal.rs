//! A device that is pulled out while programs use it.
//!
//! As the kernel does when a driver leaves: the event first, then the end of everything that was made on
//! the device, whether the program agrees or not. What is called afterwards fails with `EIO`, also
//! the commands to destroy; event files come to their end.

use super::{Call, Core};
use crate::nic::objects::Event;

/// Whether a device was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removal {
    /// It is there.
    #[default]
    Present,
    /// It is gone, which the device list does not show yet.
    Gone,
    /// It is gone.
    Unlisted,
}

impl Core {
    /// Whether the device was removed.
    pub fn is_removed(&self) -> bool {
        self.removal != Removal::Present
    }

    /// Whether the device was removed since this was last asked.
    pub fn take_removal(&mut self) -> bool {
        let gone = self.removal == Removal::Gone;
        if gone {
            self.removal = Removal::Unlisted;
        }
        gone
    }

    /// When the device will be removed.
    pub fn removal_time(&self) -> Option<u64> {
        let after = self.faults.remove_after.filter(|_| !self.is_removed());
        after.map(|after| after.as_nanos() as u64)
    }

    /// Removes the device: its memory accesses end before this returns.
    pub fn remove(&mut self) {
        if self.is_removed() {
            return;
        }
        // What the device reported last comes first.
        self.deliver_events();
        self.nic.report(Event::DeviceFatal);
        self.deliver_events();
        // Destroying a queue pair lets the device work, which looks whether it is time to remove it.
        self.removal = Removal::Gone;
        let files: Vec<_> = self.files.keys().copied().collect();
        for file in files {
            Call { core: self, file }.destroy_all();
        }
        self.events.shut_down();
    }
}
