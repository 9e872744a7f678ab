//! Event files: completion channels and asynchronous event files.
//!
//! The program's descriptor is one end of a pair of datagram sockets whose other end is ours. One datagram is one
//! event, so poll and fcntl work on it without help, and read until the device is removed.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use mlx5_wire::firmware::eq::Eqe;

use super::abi::Abi;
use super::abi::uverbs::AsyncEvent;
use super::errno::EMFILE;
use crate::objects::Result;
use crate::uverbs::fd_table;

/// Number of an open file, unique in its device.
pub type FileId = u32;

// A device of this process was removed.
static ANY_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns `true` if [`EventFiles::report_end`] must be called after reads of event files.
pub fn is_any_closed() -> bool {
    ANY_CLOSED.load(Ordering::SeqCst)
}

/// Kind of events of an event file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Completion events: the handle that the program gave its CQ.
    Completions,
    /// Asynchronous events.
    Asynchronous,
    /// Answers of asynchronous queries, with the number that the program gave each.
    Answers,
    /// Events with the value of the subscription and the entry of the event queue.
    DeviceEvents,
    /// Values of subscriptions that had events.
    Cookies,
}

impl Carries {
    /// Bytes of the longest record.
    fn record(self) -> usize {
        match self {
            Self::Completions | Self::Cookies => 8,
            Self::Asynchronous => AsyncEvent::SIZE,
            Self::DeviceEvents => 8 + Eqe::SIZE,
            Self::Answers => 8 + usize::from(u16::MAX),
        }
    }
}

/// One event file.
#[derive(Debug)]
pub struct EventFile {
    /// Kind of its events.
    pub carries: Carries,
    /// Open uverbs file that it belongs to.
    pub owner: FileId,
    // Descriptors of the program that name it.
    descriptors: u32,
    send: OwnedFd,
    // The program's end once more, to take unread events back.
    receive: OwnedFd,
    // Events that did not fit into the socket.
    backlog: VecDeque<Vec<u8>>,
    // A completion channel of a device that was removed.
    closed: bool,
}

impl EventFile {
    fn send(&self, record: &[u8]) -> bool {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `record` is valid for reads of its length.
        let sent = unsafe { libc::send(self.send.as_raw_fd(), record.as_ptr().cast(), record.len(), flags) };
        sent == record.len() as isize
    }

    fn push(&mut self, record: Vec<u8>) {
        if !self.backlog.is_empty() || !self.send(&record) {
            self.backlog.push_back(record);
        }
    }

    fn flush(&mut self) {
        while let Some(record) = self.backlog.front() {
            if !self.send(record) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn take(&self) -> Option<Vec<u8>> {
        let mut record = vec![0; self.carries.record()];
        // SAFETY: `record` is valid for writes of its length.
        let got = unsafe {
            libc::recv(self.receive.as_raw_fd(), record.as_mut_ptr().cast(), record.len(), libc::MSG_DONTWAIT)
        };
        record.truncate(usize::try_from(got).ok().filter(|got| *got > 0)?);
        Some(record)
    }

    fn has_unread(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: a socket that is ours, and a writable integer.
        unsafe { libc::ioctl(self.receive.as_raw_fd(), libc::FIONREAD, &mut bytes) };
        bytes > 0 || !self.backlog.is_empty()
    }

    // Makes poll report POLLERR and nothing else, and the next read fail with ECONNRESET, if the file was closed and
    // the program has read all events. Linux reports this to the peer of a datagram socket that disconnects with
    // unread datagrams.
    fn report_end(&mut self) {
        self.flush();
        if !self.closed || self.has_unread() {
            return;
        }
        let (ours, programs) = (self.send.as_raw_fd(), self.receive.as_raw_fd());
        // SAFETY: plain calls on sockets that are ours; the address has room for a name of the kernel's choice.
        unsafe {
            let mut name: libc::sockaddr_un = mem::zeroed();
            let address = (&raw mut name).cast::<libc::sockaddr>();
            let mut len = mem::size_of_val(&name.sun_family) as libc::socklen_t;
            name.sun_family = libc::AF_UNIX as libc::sa_family_t;
            // A name, for the end that was reported once can only be reached by name.
            libc::bind(programs, address, len);
            len = mem::size_of_val(&name) as libc::socklen_t;
            libc::getsockname(programs, address, &mut len);
            libc::connect(ours, address, len);
            // An earlier report that the program did not read comes first.
            while libc::send(programs, [0u8].as_ptr().cast(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) < 0
                && *libc::__errno_location() == libc::ECONNRESET
            {}
            let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
            libc::connect(ours, &nobody, mem::size_of_val(&nobody) as libc::socklen_t);
        }
    }

    // Makes poll report POLLIN and POLLRDHUP, and reads end, as Linux does for a datagram socket that was shut down.
    // The events that the program has not read are gone.
    fn shut_down(&mut self) {
        self.take_all();
        // SAFETY: a plain call on a socket that is ours.
        unsafe { libc::shutdown(self.receive.as_raw_fd(), libc::SHUT_RD) };
    }

    // Returns the events that the program has not read. It may read some of them meanwhile.
    fn unread(&mut self) -> Vec<Vec<u8>> {
        let unread = self.take_all();
        self.backlog.clone_from(&unread);
        self.flush();
        unread.into()
    }

    fn holds(&mut self, record: &[u8]) -> bool {
        self.unread().iter().any(|unread| unread == record)
    }

    fn take_all(&mut self) -> VecDeque<Vec<u8>> {
        let mut unread: VecDeque<_> = std::iter::from_fn(|| self.take()).collect();
        unread.append(&mut self.backlog);
        unread
    }

    // Takes the unread events back that `unwanted` selects.
    fn retract(&mut self, unwanted: impl Fn(&[u8]) -> bool) -> u32 {
        let mut unread = self.take_all();
        let before = unread.len();
        unread.retain(|record| !unwanted(record));
        let retracted = before - unread.len();
        self.backlog = unread;
        self.flush();
        retracted as u32
    }
}

/// All event files of a device.
#[derive(Debug)]
pub struct EventFiles {
    slot: u8,
    files: BTreeMap<FileId, EventFile>,
    // A file has a backlog.
    pending: bool,
}

impl EventFiles {
    /// Starts without files; `slot` is the number of the device in its process.
    pub fn new(slot: u8) -> Self {
        Self { slot, files: BTreeMap::new(), pending: false }
    }

    /// Opens an event file; returns the program's descriptor.
    pub fn open(&mut self, id: FileId, carries: Carries, owner: FileId) -> Result<RawFd> {
        let (program, send) = socket_pair(libc::SOCK_DGRAM).ok_or(EMFILE)?;
        let send = out_of_the_way(send);
        let receive = out_of_the_way(program.try_clone().map_err(|_| EMFILE)?);
        let entry = fd_table::Entry { kind: fd_table::Kind::Events, slot: self.slot, id };
        if !fd_table::set(program.as_raw_fd(), entry) {
            return Err(EMFILE);
        }
        let backlog = VecDeque::new();
        self.files.insert(id, EventFile { carries, owner, descriptors: 1, send, receive, backlog, closed: false });
        Ok(program.into_raw_fd())
    }

    /// Returns the event file with this number.
    pub fn get(&self, id: FileId) -> Option<&EventFile> {
        self.files.get(&id)
    }

    /// Counts a copied descriptor.
    pub fn duplicate(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.descriptors += 1;
        }
    }

    /// Counts a closed descriptor; the last one ends the file.
    pub fn close(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.descriptors -= 1;
            if file.descriptors == 0 {
                self.files.remove(&id);
            }
        }
    }

    /// Delivers a completion event; returns `false` if no program can read it any more.
    pub fn push_completion(&mut self, id: FileId, cq_handle: u64) -> bool {
        self.push(id, cq_handle.to_bytes())
    }

    /// Delivers an asynchronous event; returns `false` if no program can read it any more.
    pub fn push_async(&mut self, id: FileId, element: u64, event_type: u32) -> bool {
        self.push(id, AsyncEvent { element, event_type, reserved: 0 }.to_bytes())
    }

    /// Delivers the answer of a query.
    pub fn push_answer(&mut self, id: FileId, query: u64, output: &[u8]) {
        self.push(id, [&query.to_ne_bytes(), output].concat());
    }

    /// Delivers an event to a subscriber. A file without entries reports a subscription once, until that was read.
    pub fn push_event(&mut self, id: FileId, cookie: u64, eqe: &[u8; Eqe::SIZE]) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.carries != Carries::Cookies {
            self.push(id, [&cookie.to_ne_bytes()[..], eqe].concat());
        } else if !file.holds(&cookie.to_bytes()) {
            self.push(id, cookie.to_bytes());
        }
    }

    /// Returns the bytes that the program has not read.
    pub fn unread_bytes(&mut self, id: FileId) -> usize {
        self.files.get_mut(&id).map_or(0, |file| file.unread().iter().map(Vec::len).sum())
    }

    fn push(&mut self, id: FileId, record: Vec<u8>) -> bool {
        let Some(file) = self.files.get_mut(&id) else { return false };
        file.push(record);
        self.pending |= !file.backlog.is_empty();
        true
    }

    /// Takes unread completion events of a CQ back; returns how many.
    pub fn retract_completions(&mut self, id: FileId, cq_handle: u64) -> u32 {
        let unwanted = |record: &[u8]| u64::get(record) == cq_handle;
        self.files.get_mut(&id).map_or(0, |file| file.retract(unwanted))
    }

    /// Takes unread asynchronous events of an object back; returns how many.
    pub fn retract_async(&mut self, id: FileId, element: u64, types: &[u32]) -> u32 {
        let unwanted = |record: &[u8]| {
            let event = AsyncEvent::get(record);
            event.element == element && types.contains(&event.event_type)
        };
        self.files.get_mut(&id).map_or(0, |file| file.retract(unwanted))
    }

    /// Moves waiting events into the sockets, as far as there is room.
    pub fn flush(&mut self) {
        if self.pending {
            self.files.values_mut().for_each(EventFile::flush);
            self.pending = self.files.values().any(|file| !file.backlog.is_empty());
        }
    }

    /// Ends the completion channels, for which poll reports POLLERR, and the files of DEVX. Reads of both fail.
    pub fn close_channels(&mut self) {
        // Before the look at what is unread: the program may read the last event now.
        ANY_CLOSED.store(true, Ordering::SeqCst);
        for file in self.files.values_mut() {
            match file.carries {
                Carries::Completions => {
                    file.closed = true;
                    file.report_end();
                }
                Carries::Answers | Carries::DeviceEvents | Carries::Cookies => file.shut_down(),
                Carries::Asynchronous => {}
            }
        }
    }

    /// Reports the end of a file after a read, which may have taken the last event, or the report.
    pub fn report_end(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.report_end();
        }
    }

    /// Returns the numbers of all asynchronous event files.
    pub fn asynchronous(&self) -> Vec<FileId> {
        let files = self.files.iter();
        files.filter(|(_, f)| f.carries == Carries::Asynchronous).map(|(&id, _)| id).collect()
    }
}

/// Returns both ends of a socket pair of a kind that keeps messages apart.
pub fn socket_pair(kind: libc::c_int) -> Option<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: both were just opened and have no other owner.
    Some(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Moves a descriptor of the device out of the low numbers, which programs expect for themselves.
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    const FIRST: RawFd = 600;
    // SAFETY: plain descriptor duplication.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) };
    if high < 0 {
        return fd;
    }
    // SAFETY: `high` was just opened and has no other owner.
    unsafe { OwnedFd::from_raw_fd(high) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn opened(carries: Carries) -> (EventFiles, std::fs::File) {
        let mut files = EventFiles::new(0);
        let fd = files.open(9, carries, 1).unwrap();
        // SAFETY: the descriptor was handed out to the program, which is this test.
        (files, unsafe { std::fs::File::from_raw_fd(fd) })
    }

    fn read(file: &mut std::fs::File) -> u64 {
        let mut bytes = [0; 64];
        assert_eq!(file.read(&mut bytes).unwrap(), 8, "one record per read");
        u64::get(&bytes)
    }

    #[test]
    fn events_keep_their_order_beyond_what_the_socket_holds() {
        let (mut files, mut program) = opened(Carries::Completions);
        for n in 0..5000 {
            assert!(files.push_completion(9, n));
        }
        for n in 0..5000 {
            assert_eq!(read(&mut program), n);
            // The socket has room now, but other events come first.
            files.push_completion(9, 5000 + n);
            files.flush();
        }
        assert_eq!(read(&mut program), 5000);
    }

    #[test]
    fn unread_events_of_a_destroyed_object_are_taken_back() {
        let (mut files, mut program) = opened(Carries::Completions);
        for n in [7, 8, 7, 9, 7] {
            files.push_completion(9, n);
        }
        assert_eq!(read(&mut program), 7);
        assert_eq!(files.retract_completions(9, 7), 2);
        assert_eq!((read(&mut program), read(&mut program)), (8, 9));
        assert_eq!(files.retract_completions(9, 8), 0);
    }

    #[test]
    fn async_events_are_selected_by_object_and_type() {
        let (mut files, _program) = opened(Carries::Asynchronous);
        files.push_async(9, 0x10, 1);
        files.push_async(9, 0x10, 5);
        files.push_async(9, 0x20, 1);
        assert_eq!(files.retract_async(9, 0x10, &[1, 2]), 1);
    }

    #[test]
    fn events_for_a_closed_file_are_dropped() {
        let (mut files, program) = opened(Carries::Completions);
        files.duplicate(9);
        files.close(9);
        assert!(files.push_completion(9, 1));
        files.close(9);
        assert!(!files.push_completion(9, 1));
        drop(program);
    }
}
