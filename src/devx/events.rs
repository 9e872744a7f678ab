//! Events of the objects of commands, which do not come to the event file of verbs.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdma_core_sys::{self as sys, Mlx5dv};

use super::Object;
use crate::context::{Context, Patience};
use crate::error::{Error, Result};
use crate::poll;
use crate::trace::trace_event;

/// How long one look waits for an event.
const LOOK: Duration = Duration::from_millis(5);
/// Looks without any event after which a wait gives up: 5 s of a thread that runs.
const LOOKS: u32 = 1000;

/// A file of events, and the queue pairs that have reported their last WQE.
pub(crate) struct Events {
    channel: *mut sys::mlx5dv_devx_event_channel,
    context: Context,
    mlx5dv: &'static Mlx5dv,
    reported: Mutex<BTreeSet<u32>>,
}

impl Events {
    pub(super) fn open(context: &Context, mlx5dv: &'static Mlx5dv) -> Result<Self> {
        let flags = sys::MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA;
        // SAFETY: an open context.
        let channel = unsafe { (mlx5dv.devx_create_event_channel)(context.as_raw(), flags) };
        if channel.is_null() {
            return Err(Error::last_os("mlx5dv_devx_create_event_channel", context.name()));
        }
        Ok(Self { channel, context: context.clone(), mlx5dv, reported: Mutex::default() })
    }

    /// Has the last WQE of a queue pair reported.
    pub(crate) fn subscribe(&self, qp: &Object) -> Result<()> {
        /// `MLX5_EVENT_TYPE_SRQ_LAST_WQE`.
        const LAST_WQE: u16 = 0x13;
        let (mut kinds, cookie) = ([LAST_WQE], qp.number().into());
        let len = size_of_val(&kinds) as u16;
        let subscribe = self.mlx5dv.devx_subscribe_devx_event;
        // SAFETY: a live channel and object, and an array with its length in bytes.
        let errno = unsafe { subscribe(self.channel, qp.object, len, kinds.as_mut_ptr(), cookie) };
        if errno != 0 {
            return Err(Error::returned("mlx5dv_devx_subscribe_devx_event", self.context.name(), errno));
        }
        Ok(())
    }

    /// Forgets that a queue pair has reported its last WQE: a reset has ended the error, or the number is free again.
    pub(crate) fn forget(&self, qp_num: u32) -> Result<()> {
        while self.read(Instant::now())? == Read::Event {}
        self.reported.lock().expect("nothing panics while holding it").remove(&qp_num);
        Ok(())
    }

    /// Waits until a queue pair has reported its last WQE. Returns `false` when the time is over or the device was
    /// removed.
    pub(crate) fn wait_last_wqe(&self, qp_num: u32, patience: Patience) -> Result<bool> {
        let mut looks = 0;
        loop {
            if self.reported.lock().expect("nothing panics while holding it").remove(&qp_num) {
                return Ok(true);
            }
            let now = Instant::now();
            let (over, look) = match patience {
                Patience::Progress => (looks == LOOKS, now + LOOK),
                Patience::Until(None) => (false, now + LOOK),
                Patience::Until(Some(deadline)) => (now >= deadline, deadline.min(now + LOOK)),
            };
            if over || self.context.is_removed() {
                return Ok(false);
            }
            match self.read(look)? {
                Read::Event => looks = 0,
                Read::Nothing => looks += 1,
                Read::End => return Ok(false),
            }
        }
    }

    /// Reads one event, and waits for it until then.
    fn read(&self, deadline: Instant) -> Result<Read> {
        let device = self.context.name();
        // SAFETY: the file is open as long as the channel.
        let file = unsafe { BorrowedFd::borrow_raw((*self.channel).fd) };
        // The lock makes this the only reader, so that the read below does not block.
        let mut reported = self.reported.lock().expect("nothing panics while holding it");
        if !poll::is_readable(file, Some(deadline)).map_err(|error| Error::verbs("poll", device, error))? {
            return Ok(Read::Nothing);
        }
        let mut head = sys::mlx5_ib_uapi_devx_async_event_hdr::default();
        // SAFETY: a live channel, and a structure with its length.
        let len = unsafe { (self.mlx5dv.devx_get_event)(self.channel, &mut head, size_of_val(&head)) };
        if len < 0 {
            let error = std::io::Error::last_os_error();
            // The kernel has ended the objects of a device that was removed.
            return match error.raw_os_error() {
                Some(libc::EIO) => Ok(Read::End),
                _ => Err(Error::verbs("mlx5dv_devx_get_event", device, error)),
            };
        }
        trace_event!(device, qp_num = head.cookie, "last WQE reached");
        reported.insert(head.cookie as u32);
        Ok(Read::Event)
    }
}

/// Result of a look at the file.
#[derive(PartialEq, Eq)]
enum Read {
    Event,
    Nothing,
    End,
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.context.owner().is_this_process() {
            // SAFETY: opened by us, closed once; the objects whose events it has held the value.
            unsafe { (self.mlx5dv.devx_destroy_event_channel)(self.channel) }
        }
    }
}
