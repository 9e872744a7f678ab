//! A device that is pulled out while programs use it.
//!
//! The order is that of the kernel when a driver leaves (`uverbs_destroy_ufile_hw`): the end of all objects on the
//! device, the newest first, whether the program agrees or not, then that of the completion channels, and at last
//! `IBV_EVENT_DEVICE_FATAL`. Later commands fail with `EIO`, and so do reads of completion channels. A command that
//! destroys an object succeeds, because the kernel has kept the answer. Files of asynchronous events do not end: the
//! program knows that no event follows the last one. The files of DEVX end and lose what the program has not read:
//! a read that waits fails with `EIO`, and one that does not wait with `EAGAIN`, though poll reports `POLLIN`
//! (`devx_async_event_read`).

use super::async_event::Reported;
use super::errno::{EINVAL, EIO, ENOENT};
use super::events::FileId;
use super::{Call, Core};
use crate::objects::{Event, Result};

/// Removal of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removal {
    /// The device is there.
    #[default]
    Present,
    /// The device was removed, but is still in the device list.
    Gone,
    /// The device was removed, also from the device list.
    Unlisted,
}

impl Core {
    /// Returns `true` if the device was removed.
    pub fn is_removed(&self) -> bool {
        self.removal != Removal::Present
    }

    /// Returns `true` if the device was removed since the last call.
    pub fn take_removal(&mut self) -> bool {
        let gone = self.removal == Removal::Gone;
        if gone {
            self.removal = Removal::Unlisted;
        }
        gone
    }

    /// Returns when the device will be removed.
    pub fn removal_time(&self) -> Option<u64> {
        let after = self.faults.remove_after.filter(|_| !self.is_removed());
        after.map(|after| after.as_nanos() as u64)
    }

    /// Removes the device: its memory accesses end before this returns.
    pub fn remove(&mut self) {
        if self.is_removed() {
            return;
        }
        // Events that the device has reported come first.
        self.deliver_events();
        self.remove_rdma_cm();
        // Destroying a queue pair lets the device work, and `work` must not remove the device again.
        self.removal = Removal::Gone;
        let files: Vec<_> = self.files.keys().copied().collect();
        for file in files {
            Call { core: self, file }.destroy_all();
        }
        self.subscriptions.clear();
        self.events.close_channels();
        self.nic.report(Event::DeviceFatal);
        self.deliver_events();
        self.umad.shut_down();
    }

    /// Reports the end of an event file after a read.
    pub fn report_end_of_events(&mut self, id: FileId) {
        self.events.report_end(id);
    }
}

impl Call<'_> {
    /// Fails if the device was removed, unless the command destroys an object.
    pub(super) fn check_present(&self, destroys: bool) -> Result<()> {
        if self.core.is_removed() && !destroys { Err(EIO) } else { Ok(()) }
    }

    /// Takes the answer to the destruction of an object that ended with the device.
    pub(super) fn take_destroyed(&mut self, handle: u32, type_id: u16) -> Result<Reported> {
        let destroyed = &mut self.file().destroyed;
        if destroyed.get(&handle).ok_or(ENOENT)?.0 != type_id {
            return Err(EINVAL);
        }
        Ok(destroyed.remove(&handle).expect("looked at just now").1)
    }
}
