//! Events of the device that programs subscribe to, for objects of commands and for the device as a whole.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use mlx5_wire::firmware::eq::{Eqe, event};

use super::super::attrs::{Attrs, Carries, FLAGS, Spec, exactly};
use super::super::errno::{EBADF, EINVAL};
use super::super::events::{Carries as EventKind, FileId};
use super::super::{Call, Core};
use super::object::DevxObject;
use crate::commands::objects::Id;
use crate::objects::{Event, Result};

/// A wish for events of a type.
#[derive(Debug)]
pub struct Subscription {
    file: FileId,
    // The object; none for events of the device as a whole.
    source: Option<Id>,
    event: u8,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A record with this value, in the event file.
    Record(u64),
    /// An eventfd counts the events.
    EventFd(OwnedFd),
}

const FD: u16 = 0x1000;
const OBJECT: u16 = 0x1001;
const TYPES: u16 = 0x1002;
const EVENT_FD: u16 = 0x1003;
const COOKIE: u16 = 0x1004;

/// Attributes of the subscription.
pub const SUBSCRIBE: &[Spec] = &[
    Spec::needs(FD, Carries::Descriptor),
    Spec::takes(OBJECT, Carries::Handle),
    Spec::needs(TYPES, Carries::In(2, u16::MAX)),
    Spec::takes(EVENT_FD, exactly(4)),
    Spec::takes(COOKIE, exactly(8)),
];

const NEW: u16 = 0x1000;
const FILE_FLAGS: u16 = 0x1001;

/// Attributes of a file for answers.
pub const ANSWER_FILE: &[Spec] = &[Spec::needs(NEW, Carries::New)];
/// Attributes of a file for events.
pub const EVENT_FILE: &[Spec] = &[Spec::needs(NEW, Carries::New), Spec::needs(FILE_FLAGS, FLAGS)];

const MOST_TYPES: usize = 16;

/// Events of objects that programs may ask for.
const OF_OBJECTS: &[u8] = &[
    event::COMPLETION,
    PATH_MIGRATED,
    event::COMMUNICATION_ESTABLISHED,
    event::SQ_DRAINED,
    event::CQ_ERROR,
    event::WQ_CATASTROPHIC,
    PATH_MIGRATION_FAILED,
    event::WQ_INVALID_REQUEST,
    event::WQ_ACCESS_ERROR,
    event::SRQ_CATASTROPHIC,
    event::SRQ_LAST_WQE,
    event::SRQ_LIMIT,
    XRQ_ERROR,
    DCT_DRAINED,
    DCT_KEY_VIOLATION,
];
// Events that this device never has.
const PATH_MIGRATED: u8 = 0x01;
const PATH_MIGRATION_FAILED: u8 = 0x07;
const XRQ_ERROR: u8 = 0x18;
const DCT_DRAINED: u8 = 0x1c;
const DCT_KEY_VIOLATION: u8 = 0x1d;
/// Events of the device as a whole.
const OF_DEVICE: &[u8] = &[event::PORT_CHANGE];

/// Opens a file for the answers of asynchronous queries.
pub fn answer_file(call: &mut Call, attrs: &Attrs) -> Result<()> {
    open(call, attrs, EventKind::Answers)
}

/// Opens a file for events.
pub fn event_file(call: &mut Call, attrs: &Attrs) -> Result<()> {
    const OMIT_DATA: u32 = 1;
    let omit_data = attrs.flags(FILE_FLAGS, OMIT_DATA)? != 0;
    open(call, attrs, if omit_data { EventKind::Cookies } else { EventKind::DeviceEvents })
}

fn open(call: &mut Call, attrs: &Attrs, kind: EventKind) -> Result<()> {
    let fd = call.open_events(kind)?;
    let answered = attrs.put_new(NEW, fd as u32);
    if answered.is_err() {
        call.close_events(fd);
    }
    answered
}

/// Returns a descriptor of our own for an eventfd of the program.
fn event_fd(fd: RawFd) -> Result<OwnedFd> {
    let name = fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| EBADF)?;
    if !name.to_string_lossy().contains("[eventfd]") {
        return Err(EINVAL);
    }
    // SAFETY: plain descriptor duplication.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return Err(EBADF);
    }
    // SAFETY: `own` was just opened and has no other owner.
    Ok(super::super::events::out_of_the_way(unsafe { OwnedFd::from_raw_fd(own) }))
}

/// Subscribes to events of an object, or of the device as a whole.
pub fn subscribe(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.user()?;
    let fd = attrs.descriptor(FD)?.ok_or(EINVAL)?;
    let file = call.event_file(fd, EventKind::Cookies).or_else(|_| call.event_file(fd, EventKind::DeviceEvents))?;
    let object = attrs.has(OBJECT).then(|| attrs.handle(OBJECT)).transpose()?;
    let source = object.map(|handle| call.get::<DevxObject>(handle).map(|object| object.id)).transpose()?;
    if attrs.has(EVENT_FD) && attrs.has(COOKIE) {
        return Err(EINVAL);
    }
    let types = attrs.input(TYPES).bytes(0, usize::MAX)?;
    let known = if source.is_some() { OF_OBJECTS } else { OF_DEVICE };
    if types.len() % 2 != 0 || types.len() / 2 > MOST_TYPES {
        return Err(EINVAL);
    }
    let mut wanted = Vec::new();
    for bytes in types.chunks_exact(2) {
        let event = u8::try_from(u16::from_ne_bytes([bytes[0], bytes[1]])).ok().filter(|event| known.contains(event));
        let event = event.ok_or(EINVAL)?;
        let target = if attrs.has(EVENT_FD) {
            let fd: u32 = attrs.get(EVENT_FD)?;
            Target::EventFd(event_fd(fd as RawFd)?)
        } else {
            Target::Record(if attrs.has(COOKIE) { attrs.get(COOKIE)? } else { 0 })
        };
        wanted.push(Subscription { file, source, event, target });
    }
    call.core.subscriptions.extend(wanted);
    Ok(())
}

impl Core {
    /// Hands an event to its subscribers.
    pub(in super::super) fn deliver_to_subscribers(&mut self, event: &Event) {
        let Self { subscriptions, commands, events, .. } = self;
        if subscriptions.is_empty() {
            return;
        }
        let (source, eqe) = commands.entry_of(event);
        for subscription in subscriptions.iter().filter(|s| s.event == eqe.event && s.source == source) {
            match &subscription.target {
                Target::Record(cookie) => events.push_event(subscription.file, *cookie, &eqe.to_bytes()),
                Target::EventFd(fd) => count(fd),
            }
        }
    }

    /// Ends the subscriptions of closed event files.
    pub(in super::super) fn end_subscriptions_of_closed_files(&mut self) {
        let Self { subscriptions, events, .. } = self;
        subscriptions.retain(|subscription| events.get(subscription.file).is_some());
    }

    /// Ends the subscriptions to events of an object.
    pub(super) fn end_subscriptions(&mut self, source: Id) {
        self.subscriptions.retain(|subscription| subscription.source != Some(source));
    }
}

fn count(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is valid for reads of its length. A counter that is full has been signaled.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

const _: () = assert!(Eqe::SIZE == 64);
