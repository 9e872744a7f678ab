//! Asynchronous events of a device (`ibv_get_async_event(3)`).

use std::fmt;

use rdma_core_sys as sys;

/// An asynchronous event of a device (`ibv_get_async_event(3)`).
///
/// ```
/// # let world = doorbell_doc::World::new();
/// # let context = world.pd.context();
/// use doorbell::DeviceEvent;
///
/// let mut events = context.events()?;
/// # world.device.set_link(false);
/// match events.next_within(std::time::Duration::from_secs(5))? {
///     Some(DeviceEvent::PortError { port }) => println!("port {port} is down: what is sent now fails"),
///     Some(DeviceEvent::DeviceFatal) => println!("the device is being removed"),
///     Some(other) => println!("{other:?}"),
///     None => println!("nothing in five seconds"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// A queue pair failed without a completion. Its requests are flushed.
    QpFatal {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A queue pair received an invalid request and failed.
    QpRequestError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A peer violated the access rights of the memory, and the queue pair failed. A queue pair that only serves RDMA
    /// WRITE, READ and atomics has no completion that shows it.
    QpAccessError {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A message arrived before the queue pair was moved to RTS.
    Established {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// The send queue of a queue pair in SQD is drained.
    SendQueueDrained {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A queue pair in the error state takes no more receives from its SRQ: once the CQ is polled empty, all receives
    /// it took have completed.
    LastWqeReached {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// A CQ overran or failed. Its completions are lost, and its receiver is unusable.
    CqError {
        /// Which one, see [`Receiver::handle_event`](crate::Receiver::handle_event).
        cq: ObjectName,
    },
    /// An SRQ failed.
    SrqError {
        /// Which one.
        srq: ObjectName,
    },
    /// An SRQ has fewer receives than the limit set with [`Receiver::arm_srq_limit`](crate::Receiver::arm_srq_limit).
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
    /// The device failed or was removed. Nothing completes any more, and commands fail, but for those that destroy an
    /// object. Read the events until [`DeviceEvents::has_ended`](crate::DeviceEvents::has_ended), then call
    /// [`Receiver::reclaim`](crate::Receiver::reclaim).
    DeviceFatal,
    /// Another event, with its number in `enum ibv_event_type`.
    Other {
        /// The number.
        event_type: u32,
    },
}

/// Identifies a CQ or an SRQ while it exists.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let doorbell_doc::World { pd, receiver, srq, .. } = &mut world;
/// # let srq = *srq;
/// use doorbell::DeviceEvent;
///
/// // Which of several receivers an event is about, each of them knows.
/// let mut events = pd.context().events()?;
/// receiver.arm_srq_limit(srq, 15)?;
/// # world.send(b"one receive less");
/// # let doorbell_doc::World { peer_receiver, receiver, .. } = &mut world;
/// if let Some(event) = events.next_within(std::time::Duration::from_secs(5))? {
///     assert!(matches!(event, DeviceEvent::SrqLimitReached { .. }));
///     assert!(!peer_receiver.handle_event(&event)?);
///     assert!(receiver.handle_event(&event)?);
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

impl DeviceEvent {
    /// The queue pair that it is about.
    pub(crate) fn qp_num(&self) -> Option<u32> {
        match *self {
            Self::QpFatal { qp_num }
            | Self::QpRequestError { qp_num }
            | Self::QpAccessError { qp_num }
            | Self::Established { qp_num }
            | Self::SendQueueDrained { qp_num }
            | Self::LastWqeReached { qp_num } => Some(qp_num),
            _ => None,
        }
    }

    /// # Safety
    /// The event was taken and not acknowledged, so that its object exists.
    pub(crate) unsafe fn new(event: &sys::ibv_async_event) -> Self {
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
            | sys::IBV_EVENT_GID_CHANGE => Self::PortChanged { port: port(), event_type: event.event_type },
            sys::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            event_type => Self::Other { event_type },
        }
    }
}
