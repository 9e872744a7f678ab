//! Asynchronous events of a device: what nobody asked for and everybody should know.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::poll;
use crate::trace::told;

/// What happened to a device or to something made on it (`ibv_get_async_event(3)`).
///
/// ```
/// # let world = doorbell_doc::World::new();
/// use doorbell::AsyncEvent;
///
/// let mut events = world.pd.context().events()?;
/// # world.device.set_link(false);
/// match events.next_within(std::time::Duration::from_secs(5))? {
///     Some(AsyncEvent::PortError { port }) => println!("port {port} is down: what is sent now fails"),
///     Some(AsyncEvent::DeviceFatal) => println!("the device is being removed"),
///     Some(other) => println!("{other:?}"),
///     None => println!("nothing in five seconds"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair failed, and no completion says why. What is posted to it comes back flushed.
    QpFatal {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A queue pair got a request that makes no sense, and failed.
    QpRequestError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A peer touched what it may not, and the queue pair failed.
    QpAccessError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A message came before the queue pair was told that the connection is complete.
    Established {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The send queue of a queue pair in SQD is drained.
    SendQueueDrained {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A queue pair in the error state takes nothing more from its SRQ: when the CQ has been polled empty
    /// after this, all that it took has come back.
    LastWqeReached {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A CQ overran or failed: its completions are lost, and with them its receiver.
    CqError {
        /// Which one, see [`Receiver::handle_event`](crate::Receiver::handle_event).
        cq: ObjectName,
    },
    /// An SRQ failed.
    SrqError {
        /// Which one.
        srq: ObjectName,
    },
    /// An SRQ has fewer receives than the limit that was armed with
    /// [`Receiver::arm_srq_limit`](crate::Receiver::arm_srq_limit).
    SrqLimitReached {
        /// Which one, see [`Receiver::handle_event`](crate::Receiver::handle_event).
        srq: ObjectName,
    },
    /// A port came up.
    PortActive {
        /// Number of the port, from 1.
        port: u8,
    },
    /// A port went down.
    PortError {
        /// Number of the port, from 1.
        port: u8,
    },
    /// An address, a table or the manager of a port changed (`LID_CHANGE`, `PKEY_CHANGE`, `GID_CHANGE`,
    /// `SM_CHANGE`, `CLIENT_REREGISTER`).
    PortChanged {
        /// Number of the port, from 1.
        port: u8,
        /// Which of these, as `enum ibv_event_type` numbers it.
        event_type: u32,
    },
    /// The device failed or is being removed: nothing completes any more, and commands fail. When the events
    /// have come to their end it is gone: [`Receiver::reclaim`](crate::Receiver::reclaim) then gives back what
    /// is posted.
    DeviceFatal,
    /// Anything else, as `enum ibv_event_type` numbers it.
    Other {
        /// The number.
        event_type: u32,
    },
}

/// Names a CQ or an SRQ while it exists.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// use doorbell::AsyncEvent;
///
/// // Which of several receivers an event is about, each of them knows.
/// let mut events = world.pd.context().events()?;
/// world.receiver.arm_srq_limit(world.srq, 15)?;
/// # world.send(b"one receive less");
/// if let Some(event) = events.next_within(std::time::Duration::from_secs(5))? {
///     assert!(matches!(event, AsyncEvent::SrqLimitReached { .. }));
///     assert!(!world.peer_receiver.handle_event(&event)?);
///     assert!(world.receiver.handle_event(&event)?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectName(usize);

impl ObjectName {
    pub(crate) fn of<T>(object: *mut T) -> Self {
        Self(object.addr())
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl AsyncEvent {
    /// # Safety
    /// The event was taken and not acknowledged, so that its object exists.
    unsafe fn new(event: &sys::ibv_async_event) -> Self {
        let element = &event.element;
        // SAFETY: an event of a queue pair, which cannot be destroyed before the acknowledgement.
        let qp_num = || unsafe { (*element.qp).qp_num };
        // SAFETY: the type of the event says which member was written.
        let port = || unsafe { element.port_num } as u8;
        match event.event_type {
            sys::IBV_EVENT_QP_FATAL => Self::QpFatal { qp_num: qp_num() },
            sys::IBV_EVENT_QP_REQ_ERR => Self::QpRequestError { qp_num: qp_num() },
            sys::IBV_EVENT_QP_ACCESS_ERR => Self::QpAccessError { qp_num: qp_num() },
            sys::IBV_EVENT_COMM_EST => Self::Established { qp_num: qp_num() },
            sys::IBV_EVENT_SQ_DRAINED => Self::SendQueueDrained { qp_num: qp_num() },
            sys::IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastWqeReached { qp_num: qp_num() },
            // SAFETY: as above.
            sys::IBV_EVENT_CQ_ERR => Self::CqError { cq: ObjectName::of(unsafe { element.cq }) },
            sys::IBV_EVENT_SRQ_ERR => {
                // SAFETY: as above.
                Self::SrqError { srq: ObjectName::of(unsafe { element.srq }) }
            }
            sys::IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: as above.
                Self::SrqLimitReached { srq: ObjectName::of(unsafe { element.srq }) }
            }
            sys::IBV_EVENT_PORT_ACTIVE => Self::PortActive { port: port() },
            sys::IBV_EVENT_PORT_ERR => Self::PortError { port: port() },
            sys::IBV_EVENT_LID_CHANGE
            | sys::IBV_EVENT_PKEY_CHANGE
            | sys::IBV_EVENT_SM_CHANGE
            | sys::IBV_EVENT_CLIENT_REREGISTER
            | sys::IBV_EVENT_GID_CHANGE => {
                Self::PortChanged { port: port(), event_type: event.event_type }
            }
            sys::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            event_type => Self::Other { event_type },
        }
    }
}

/// The asynchronous events of a device, of which there is one reader at a time.
///
/// As an iterator it waits for the next event, and ends when the device is gone. For `epoll(7)` and the
/// like it has a descriptor, which is readable when [`try_next`](Self::try_next) has something.
///
/// ```
/// # let device = doorbell_doc::device();
/// use doorbell::AsyncEvent;
///
/// let events = doorbell::open("mlx5_0")?.events()?;
/// # device.set_link(false);
/// # device.remove();
/// for event in events {
///     match event? {
///         AsyncEvent::PortError { port } => println!("port {port} is down"),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncEvents {
    context: Context,
    /// Taken while something else was waited for.
    skipped: VecDeque<AsyncEvent>,
    /// The device has failed: then the file may end.
    fatal: bool,
    ended: bool,
}

impl Context {
    /// The asynchronous events of the device.
    ///
    /// # Errors
    /// [`Error::InUse`] while another reader exists.
    pub fn events(&self) -> Result<AsyncEvents> {
        if self.events_taken().swap(true, std::sync::atomic::Ordering::Acquire) {
            return Err(Error::InUse { what: "event file", users: "another AsyncEvents" });
        }
        Ok(AsyncEvents {
            context: self.clone(),
            skipped: VecDeque::new(),
            fatal: false,
            ended: false,
        })
    }
}

impl AsyncEvents {
    /// The next event if there is one; does not wait.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn try_next(&mut self) -> Result<Option<AsyncEvent>> {
        self.next_until(Some(Instant::now()))
    }

    /// The next event, for which it waits at most for `timeout`; for ever without one. `None` when the time
    /// is over or the device is gone.
    ///
    /// ```
    /// # let device = doorbell_doc::device();
    /// use std::time::Duration;
    ///
    /// use doorbell::AsyncEvent;
    ///
    /// let mut events = doorbell::open("mlx5_0")?.events()?;
    /// assert_eq!(events.try_next()?, None);
    /// # device.set_link(false);
    /// let event = events.next_within(Duration::from_secs(5))?;
    /// assert_eq!(event, Some(AsyncEvent::PortError { port: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn next_within(
        &mut self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<AsyncEvent>> {
        self.next_until(timeout.into().and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Whether the device is gone, with its file.
    #[cfg(feature = "tokio")]
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<AsyncEvent>> {
        match self.skipped.pop_front() {
            Some(event) => Ok(Some(event)),
            None => self.read(deadline),
        }
    }

    /// Takes all that has happened by now, to be read later.
    pub(crate) fn take_all(&mut self) -> Result<()> {
        while let Some(event) = self.read(Some(Instant::now()))? {
            self.skipped.push_back(event);
        }
        Ok(())
    }

    /// Drops an event, as often as it was taken and not read. Whether it was.
    pub(crate) fn forget(&mut self, unwanted: AsyncEvent) -> bool {
        let before = self.skipped.len();
        self.skipped.retain(|&event| event != unwanted);
        self.skipped.len() < before
    }

    /// Waits for an event that has not happened before; others can be read later. `false` when the time is over
    /// or the device is gone.
    pub(crate) fn wait_for(
        &mut self,
        deadline: Option<Instant>,
        wanted: AsyncEvent,
    ) -> Result<bool> {
        while let Some(event) = self.read(deadline)? {
            if event == wanted {
                return Ok(true);
            }
            self.skipped.push_back(event);
        }
        Ok(false)
    }

    fn read(&mut self, deadline: Option<Instant>) -> Result<Option<AsyncEvent>> {
        let device = self.context.name();
        let readable = !self.ended
            && poll::is_readable(self.as_fd(), deadline)
                .map_err(|source| Error::verbs("poll", device, source))?;
        if !readable {
            return Ok(None);
        }
        let mut event = sys::ibv_async_event {
            element: sys::ibv_async_event__bindgen_ty_1 { port_num: 0 },
            event_type: 0,
        };
        // A file that has ended sets no `errno`.
        // SAFETY: the variable of this thread.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: an open context and a writable structure; it does not block, for the descriptor is readable
        // and this is its only reader.
        if unsafe { sys::ibv_get_async_event(self.context.as_raw(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            // The file of a device that is gone comes to its end; the kernel also says why.
            if self.fatal && matches!(error.raw_os_error(), Some(0 | libc::EIO)) {
                self.ended = true;
                self.context.mark_removed();
                told!(device, "device removed");
                return Ok(None);
            }
            return Err(Error::verbs("ibv_get_async_event", device, error));
        }
        // SAFETY: taken just now.
        let found = unsafe { AsyncEvent::new(&event) };
        // SAFETY: acknowledged once; the object may be destroyed from now on.
        unsafe { sys::ibv_ack_async_event(&mut event) };
        self.fatal |= found == AsyncEvent::DeviceFatal;
        told!(device, event = ?found, "event");
        Ok(Some(found))
    }
}

impl Iterator for AsyncEvents {
    type Item = Result<AsyncEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_within(None).transpose()
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_raw()).async_fd) }
    }
}

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.events_taken().store(false, std::sync::atomic::Ordering::Release);
    }
}
