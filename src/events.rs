//! The program's reader of asynchronous events.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::context::{Context, wait};
use crate::device_event::DeviceEvent;
use crate::error::{Error, Result};

/// The asynchronous events of a device. A device has one reader at a time.
///
/// As an iterator it waits for the next event, and ends after the device was removed. Its descriptor is readable for
/// `epoll(7)` when [`try_next`](Self::try_next) has an event.
///
/// ```
/// # let device = doorbell_doc::device();
/// use doorbell::DeviceEvent;
///
/// let events = doorbell::open("mlx5_0")?.events()?;
/// # device.set_link(false);
/// # device.remove();
/// for event in events {
///     match event? {
///         DeviceEvent::PortError { port } => println!("port {port} is down"),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceEvents {
    context: Context,
    /// Readable while there is an event, read already or not.
    ready: OwnedFd,
}

impl Context {
    /// Returns the reader of the device's asynchronous events.
    ///
    /// # Errors
    /// [`Error::InUse`] while another reader exists; [`Error::Verbs`] if the process has no descriptors left.
    pub fn events(&self) -> Result<DeviceEvents> {
        match self.event_file().enter_reader(self)? {
            Some(ready) => Ok(DeviceEvents { context: self.clone(), ready }),
            None => {
                Err(Error::InUse { what: "event file", users: "another DeviceEvents", action: "drop the other reader" })
            }
        }
    }
}

impl DeviceEvents {
    /// Returns the next event, or `None` if there is none. Does not wait. After the last event of a device that was
    /// removed
    /// [`has_ended`](Self::has_ended) returns `true`.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn try_next(&mut self) -> Result<Option<DeviceEvent>> {
        self.next_until(Some(Instant::now()))
    }

    /// Waits for the next event, at most for `timeout`; without a time-out, forever. Returns `None` if the time is
    /// over or the device was removed ([`has_ended`](Self::has_ended)).
    ///
    /// ```
    /// # let device = doorbell_doc::device();
    /// use std::time::Duration;
    ///
    /// use doorbell::DeviceEvent;
    ///
    /// let mut events = doorbell::open("mlx5_0")?.events()?;
    /// assert_eq!(events.try_next()?, None);
    /// # device.set_link(false);
    /// let event = events.next_within(Duration::from_secs(5))?;
    /// assert_eq!(event, Some(DeviceEvent::PortError { port: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn next_within(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Option<DeviceEvent>> {
        self.next_until(timeout.into().and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns `true` if the device was removed and no event follows: [`Receiver::reclaim`](crate::Receiver::reclaim)
    /// returns the posted buffers from now on.
    pub fn has_ended(&self) -> bool {
        self.context.event_file().has_ended()
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<DeviceEvent>> {
        let file = self.context.event_file();
        loop {
            if let Some(event) = file.next(&self.context)? {
                return Ok(Some(event));
            }
            if file.has_ended() || !wait(&self.context, self.as_fd(), deadline)? {
                return Ok(None);
            }
        }
    }
}

impl Iterator for DeviceEvents {
    type Item = Result<DeviceEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_within(None).transpose()
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsRawFd for DeviceEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }
}

impl Drop for DeviceEvents {
    fn drop(&mut self) {
        self.context.event_file().leave_reader();
    }
}
