//! The event file of a context. A reader reads for all: events that it does not want wait for the others.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdma_core_sys as sys;

use super::Context;
use crate::device_event::DeviceEvent;
use crate::error::{Error, Result};
use crate::poll;
use crate::trace::trace_event;

/// How often a wait looks whether another thread has read the event.
const LOOK: Duration = Duration::from_millis(5);
/// Looks without any event of the device after which a wait gives up: 5 s of a thread that runs, more of a thread that
/// must wait for a processor.
const LOOKS: u32 = 1000;

/// How long to wait for an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// As long as the device reports anything.
    Progress,
    /// Until then; for ever without a time.
    Until(Option<Instant>),
}

/// The event file of a context, and what was read from it.
pub(crate) struct EventFile {
    /// The program has a reader, of which there is one at a time.
    has_reader: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Events that were read, for the program's reader.
    waiting: VecDeque<DeviceEvent>,
    /// Queue pairs on SRQs, by number; whether each has reported its last WQE since it was in ERROR.
    last_wqe: BTreeMap<u32, bool>,
    /// Readable while events wait: another thread may have read what made the file readable.
    wake: Option<OwnedFd>,
    awake: bool,
    /// The device has reported the last WQE of a queue pair.
    reports: bool,
    /// The device owed a report and has never given any: no report is waited for again.
    silent: bool,
    /// The device has failed.
    fatal: bool,
    /// It was removed, and no event follows.
    ended: bool,
}

impl EventFile {
    pub(crate) const fn new() -> Self {
        Self {
            has_reader: AtomicBool::new(false),
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                last_wqe: BTreeMap::new(),
                wake: None,
                awake: false,
                reports: false,
                silent: false,
                fatal: false,
                ended: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while holding it")
    }

    /// Enters the program's reader; `false` while there is one. Returns what becomes readable with the next event.
    pub(crate) fn enter_reader(&self, context: &Context) -> Result<Option<OwnedFd>> {
        if self.has_reader.swap(true, Ordering::Acquire) {
            return Ok(None);
        }
        let made = eventfd().and_then(|wake| {
            let file = file(context);
            Ok((poll::epoll(&[file, wake.as_fd()])?, wake))
        });
        match made {
            Ok((ready, wake)) => {
                let mut state = self.lock();
                (state.wake, state.awake) = (Some(wake), false);
                state.notify();
                Ok(Some(ready))
            }
            Err(error) => {
                self.has_reader.store(false, Ordering::Release);
                Err(Error::verbs("epoll_create1", context.name(), error))
            }
        }
    }

    pub(crate) fn leave_reader(&self) {
        self.lock().wake = None;
        self.has_reader.store(false, Ordering::Release);
    }

    /// The next event for the program, if there is one.
    pub(crate) fn next(&self, context: &Context) -> Result<Option<DeviceEvent>> {
        let mut state = self.lock();
        let next = match state.waiting.pop_front() {
            Some(event) => Some(event),
            None => state.read(context)?,
        };
        state.notify();
        Ok(next)
    }

    /// Returns `true` if the device was removed and its last event was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Takes note of a queue pair on an SRQ.
    pub(crate) fn enter_srq_qp(&self, qp_num: u32) {
        self.lock().last_wqe.insert(qp_num, false);
    }

    /// Forgets a queue pair that is about to be destroyed, with its events.
    pub(crate) fn leave_qp(&self, qp_num: u32) {
        let mut state = self.lock();
        state.last_wqe.remove(&qp_num);
        state.waiting.retain(|event| event.qp_num() != Some(qp_num));
        state.notify();
    }

    /// Forgets that a queue pair has reported its last WQE: a reset has ended the error.
    pub(crate) fn forget_last_wqe(&self, context: &Context, qp_num: u32) -> Result<()> {
        let mut state = self.lock();
        state.read_all(context)?;
        state.forget_last_wqe(qp_num, false);
        Ok(())
    }

    /// Waits until a queue pair on an SRQ has reported its last WQE. Returns `false` when the time is over or the
    /// device was removed. Other events wait for the program.
    pub(crate) fn wait_last_wqe(&self, context: &Context, qp_num: u32, patience: Patience) -> Result<bool> {
        let mut looks = 0;
        loop {
            let mut state = self.lock();
            if state.read_all(context)? > 0 {
                looks = 0;
            }
            if state.last_wqe.get(&qp_num) == Some(&true) {
                state.forget_last_wqe(qp_num, true);
                return Ok(true);
            }
            let now = Instant::now();
            let over = match patience {
                Patience::Progress => looks == LOOKS || state.silent || context.hides_last_wqe() && !state.reports,
                Patience::Until(deadline) => deadline.is_some_and(|deadline| now >= deadline),
            };
            if over || state.ended {
                state.silent |= looks == LOOKS && !state.reports;
                return Ok(false);
            }
            drop(state);
            looks += 1;
            let look = match patience {
                Patience::Until(Some(deadline)) => deadline.min(now + LOOK),
                _ => now + LOOK,
            };
            wait(context, file(context), Some(look))?;
        }
    }
}

impl State {
    /// Reads all events there are, for the program. Returns how many.
    fn read_all(&mut self, context: &Context) -> Result<usize> {
        let mut count = 0;
        while let Some(event) = self.read(context)? {
            self.waiting.push_back(event);
            count += 1;
        }
        self.notify();
        Ok(count)
    }

    fn forget_last_wqe(&mut self, qp_num: u32, reported: bool) {
        if let Some(known) = self.last_wqe.get_mut(&qp_num) {
            *known = reported;
        }
        self.waiting.retain(|event| *event != DeviceEvent::LastWqeReached { qp_num });
        self.notify();
    }

    /// Reads one event, if there is one.
    fn read(&mut self, context: &Context) -> Result<Option<DeviceEvent>> {
        let device = context.name();
        if self.ended {
            return Ok(None);
        }
        if !wait(context, file(context), Some(Instant::now()))? {
            // The file itself does not end (`uverbs_async_event_release`).
            self.ended = self.fatal && context.first_channel_has_ended()?;
            if self.ended {
                context.mark_removed();
                trace_event!(device, "device removed");
            }
            return Ok(None);
        }
        let mut event =
            sys::ibv_async_event { element: sys::ibv_async_event__bindgen_ty_1 { port_num: 0 }, event_type: 0 };
        // SAFETY: an open context and a writable structure; it does not block, for the file is readable and the
        // lock makes this its only reader.
        if unsafe { sys::ibv_get_async_event(context.as_raw(), &mut event) } != 0 {
            return Err(Error::last_os("ibv_get_async_event", device));
        }
        // SAFETY: taken just now.
        let found = unsafe { DeviceEvent::new(&event) };
        // SAFETY: acknowledged once; the object may be destroyed from now on.
        unsafe { sys::ibv_ack_async_event(&mut event) };
        self.fatal |= found == DeviceEvent::DeviceFatal;
        if let DeviceEvent::LastWqeReached { qp_num } = found {
            (self.reports, self.silent) = (true, false);
            if let Some(reported) = self.last_wqe.get_mut(&qp_num) {
                *reported = true;
            }
        }
        trace_event!(device, event = ?found, "event");
        Ok(Some(found))
    }

    /// Makes the reader's descriptor readable if events wait, and only then.
    fn notify(&mut self) {
        let wanted = !self.waiting.is_empty();
        let Some(wake) = self.wake.as_ref().filter(|_| wanted != self.awake) else { return };
        let (fd, mut count) = (wake.as_raw_fd(), 1u64.to_ne_bytes());
        // SAFETY: eight bytes of ours. Neither blocks: the counter is 0 before it is written, and 1 before it is read.
        unsafe {
            match wanted {
                true => libc::write(fd, count.as_ptr().cast(), count.len()),
                false => libc::read(fd, count.as_mut_ptr().cast(), count.len()),
            }
        };
        self.awake = wanted;
    }
}

/// The event file itself.
fn file(context: &Context) -> BorrowedFd<'_> {
    // SAFETY: the context is open, and its file with it.
    unsafe { BorrowedFd::borrow_raw((*context.as_raw()).async_fd) }
}

/// Waits until there is something to read. Returns `true` if there is.
pub(crate) fn wait(context: &Context, fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool> {
    poll::is_readable(fd, deadline).map_err(|source| Error::verbs("poll", context.name(), source))
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain call, and what it returned.
    unsafe { poll::opened(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}
