//! A fabric between processes: datagram sockets in the abstract namespace, named by fabric and LID.
//!
//! The kernel removes such a name with the last descriptor of its socket, so a killed process leaves no
//! name. The names of two users differ, and a port takes datagrams of its own user only: anybody can send to an
//! abstract name. A datagram carries as many frames as are waiting for the peer: the kernel bounds a
//! socket's queue by datagrams (`net.unix.max_dgram_qlen`), not by bytes.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem};

use super::address::{FIRST_LID, LAST_LID};
use super::packet::{Frame, MAX_FRAME, frame_len};

// Small enough that a dozen unread datagrams fit the default send buffer of a socket.
const MAX_DATAGRAM: usize = 16 * 1024;
const MAX_FRAMES: usize = 64;
// Datagrams taken per system call.
const RECEIVE_BATCH: usize = 8;
// Frames that may wait for one peer: beyond the first bound requesters pause, beyond the second
// (answers only) frames are lost.
const PAUSE_LIMIT: usize = 256;
const QUEUE_LIMIT: usize = 1024;
// The list of peers is a file that the kernel makes for each reader.
const PEERS_KNOWN_NS: u64 = 1_000_000;

const _: () = assert!(MAX_FRAME <= MAX_DATAGRAM);

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn datagram_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets the kernel say with each datagram which user sent it.
fn ask_for_credentials(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (level, option, size) = (libc::SOL_SOCKET, libc::SO_PASSCRED, size_of_val(&on));
    // SAFETY: the value has the size given and outlives the call.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), size as libc::socklen_t) };
    check(set).map(drop)
}

/// Room for the credentials of a datagram, aligned as control messages are.
struct Credentials([u64; 4]);

impl Credentials {
    const fn new() -> Self {
        Self([0; 4])
    }
}

mod credentials {
    use std::mem;

    // SAFETY: arithmetic on a length.
    const NEEDED: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
    const _: () = assert!(NEEDED <= size_of::<super::Credentials>());

    /// Returns the user that sent the datagram of this header, if the kernel has said it.
    pub fn user(header: &libc::msghdr) -> Option<u32> {
        // SAFETY: the header names room for control messages, of which the kernel has filled `msg_controllen` bytes.
        let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
        if (message.cmsg_level, message.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
            return None;
        }
        let complete = message.cmsg_len as usize >= NEEDED - mem::align_of::<usize>();
        // SAFETY: a message of this type holds credentials, and is complete; they may be at any address.
        complete.then(|| unsafe { libc::CMSG_DATA(message).cast::<libc::ucred>().read_unaligned() }.uid)
    }
}

/// Abstract socket address.
struct Name {
    address: libc::sockaddr_un,
    len: libc::socklen_t,
}

impl Name {
    fn new(scope: &str, fabric: &str, lid: u16) -> io::Result<Self> {
        let name = format!("soft-mlx5/{scope}/{fabric}/{lid}");
        // SAFETY: all bytes zero is a valid address.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // Byte 0 stays zero, which makes the name abstract.
        let Some(room) = address.sun_path.get_mut(1..=name.len()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the fabric's name is too long"));
        };
        for (to, from) in room.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        Ok(Self { address, len: len as libc::socklen_t })
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.address).cast()
    }
}

#[derive(Debug, Default)]
struct Peer {
    // Connected at the first frame; `None` while the peer is not known to exist. Each peer has a socket of
    // its own, so that a peer that does not read exhausts only the send buffer of that socket.
    socket: Option<OwnedFd>,
    queue: VecDeque<Frame>,
}

/// A device's end of a named fabric.
#[derive(Debug)]
pub(super) struct SocketPort {
    scope: String,
    fabric: String,
    // User whose datagrams count; `None` for all users.
    user: Option<u32>,
    lid: u16,
    socket: OwnedFd,
    // Indexed by LID.
    peers: Vec<Peer>,
    // LIDs whose queue is not empty.
    waiting: Vec<u16>,
    buffers: Box<[[u8; MAX_DATAGRAM]; RECEIVE_BATCH]>,
    sent_to_nobody: u64,
    malformed: u64,
    // LIDs of the other devices, and when they were looked up.
    known: Vec<u16>,
    known_at: Option<u64>,
}

impl SocketPort {
    /// Joins a fabric of this user, or of all users, at the first free LID.
    pub(super) fn join(fabric: &str, of_all_users: bool) -> io::Result<Self> {
        let socket = datagram_socket()?;
        let scope = super::scope(of_all_users);
        let user = (!of_all_users).then(super::user);
        if user.is_some() {
            ask_for_credentials(&socket)?;
        }
        for lid in FIRST_LID..=LAST_LID {
            let name = Name::new(&scope, fabric, lid)?;
            // SAFETY: the address is valid for `len` bytes.
            match check(unsafe { libc::bind(socket.as_raw_fd(), name.as_ptr(), name.len) }) {
                Ok(_) => {
                    return Ok(Self {
                        scope,
                        fabric: fabric.to_owned(),
                        user,
                        lid,
                        socket,
                        peers: Vec::new(),
                        waiting: Vec::new(),
                        buffers: vec![[0; MAX_DATAGRAM]; RECEIVE_BATCH]
                            .into_boxed_slice()
                            .try_into()
                            .expect("the vector was made with this length"),
                        sent_to_nobody: 0,
                        malformed: 0,
                        known: Vec::new(),
                        known_at: None,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "all LIDs of the fabric are taken"))
    }

    pub(super) fn lid(&self) -> u16 {
        self.lid
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns the number of frames that found no peer, and of datagrams that held no frames or came from another
    /// user.
    pub(super) fn drops(&self) -> (u64, u64) {
        (self.sent_to_nobody, self.malformed)
    }

    pub(super) fn has_room(&self, dlid: u16) -> bool {
        self.peers.get(usize::from(dlid)).is_none_or(|peer| peer.queue.len() < PAUSE_LIMIT)
    }

    /// Returns the name of the fabric.
    pub(super) fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Returns `true` if a device has this address now.
    pub(super) fn has_device(&self, lid: u16) -> bool {
        Peer::default().connect(&self.scope, &self.fabric, lid).is_ok()
    }

    /// Queues a frame; returns the frame if the peer's queue is full.
    pub(super) fn send(&mut self, dlid: u16, frame: Frame) -> Result<(), Frame> {
        let index = usize::from(dlid);
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, Peer::default);
        }
        let queue = &mut self.peers[index].queue;
        if queue.len() >= QUEUE_LIMIT {
            return Err(frame);
        }
        if queue.is_empty() {
            self.waiting.push(dlid);
        }
        queue.push_back(frame);
        Ok(())
    }

    /// Sends the waiting frames, as far as the peers take them; `spent` gets the frames back. Returns `true` if
    /// any frame moved.
    pub(super) fn flush(&mut self, spent: &mut Vec<Frame>) -> bool {
        let mut moved = false;
        let mut waiting = mem::take(&mut self.waiting);
        waiting.retain(|&lid| {
            let peer = &mut self.peers[usize::from(lid)];
            while !peer.queue.is_empty() {
                match peer.transmit(&self.scope, &self.fabric, lid) {
                    Ok(frames) => spent.extend(peer.queue.drain(..frames)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(_) => {
                        // The address has no device: on a real link the packets would be lost as well.
                        self.sent_to_nobody += peer.queue.len() as u64;
                        spent.extend(peer.queue.drain(..));
                    }
                }
                moved = true;
            }
            false
        });
        // The vector goes back with its capacity.
        self.waiting = waiting;
        moved
    }

    /// Takes one bounded batch of arrived datagrams; `deliver` gets each frame's bytes. Returns `true` if any
    /// datagram arrived.
    pub(super) fn receive(&mut self, mut deliver: impl FnMut(&[u8])) -> bool {
        let mut iovecs = self
            .buffers
            .each_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        let mut credentials = [const { Credentials::new() }; RECEIVE_BATCH];
        let mut rooms = credentials.each_mut().into_iter();
        let mut messages = iovecs.each_mut().map(|iovec| {
            // SAFETY: all bytes zero is a valid message header: no name, no control data.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = iovec;
            message.msg_hdr.msg_iovlen = 1;
            if let Some(room) = rooms.next() {
                message.msg_hdr.msg_control = room.0.as_mut_ptr().cast();
                message.msg_hdr.msg_controllen = size_of_val(&room.0) as _;
            }
            message
        });
        // SAFETY: each message points to one iovec, and that to one whole buffer, and to room for control data with its
        // size; all outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                RECEIVE_BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else { return false };
        // A process that gives up its rights sends as its new user.
        let users = self.user.map(|user| [user, super::user()]);
        let lengths = messages.map(|message| {
            let sender = credentials::user(&message.msg_hdr);
            let ours = users.is_none_or(|users| sender.is_some_and(|sender| users.contains(&sender)));
            if ours { message.msg_len as usize } else { usize::MAX }
        });
        for (buffer, &len) in self.buffers.iter().zip(&lengths[..count]) {
            if len == usize::MAX {
                self.malformed += 1;
                continue;
            }
            let mut rest = &buffer[..len.min(buffer.len())];
            while !rest.is_empty() {
                let Ok(len) = frame_len(rest) else {
                    self.malformed += 1;
                    break;
                };
                deliver(&rest[..len]);
                rest = &rest[len..];
            }
        }
        count > 0
    }

    /// Returns the LIDs of the other devices, as they were not long before `now`.
    pub(super) fn peers(&mut self, now: u64) -> &[u16] {
        if self.known_at.is_none_or(|at| now >= at + PEERS_KNOWN_NS) {
            self.known_at = Some(now);
            self.known = self.look_up_peers();
        }
        &self.known
    }

    fn look_up_peers(&self) -> Vec<u16> {
        let prefix = format!("@soft-mlx5/{}/{}/", self.scope, self.fabric);
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let mut lids: Vec<u16> = sockets
            .lines()
            .filter_map(|line| line.split_once(&prefix)?.1.parse().ok())
            .filter(|lid| *lid != self.lid)
            .collect();
        lids.sort_unstable();
        lids.dedup();
        lids
    }
}

impl Peer {
    /// Sends one datagram with as many frames from the front of the queue as fit; returns how many.
    fn transmit(&mut self, scope: &str, fabric: &str, lid: u16) -> io::Result<usize> {
        let fresh = self.socket.is_none();
        let fd = match &self.socket {
            Some(socket) => socket.as_raw_fd(),
            None => self.connect(scope, fabric, lid)?,
        };
        let mut iovecs = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; MAX_FRAMES];
        let mut bytes = 0;
        let mut frames = 0;
        for (iovec, frame) in iovecs.iter_mut().zip(&self.queue) {
            bytes += frame.bytes().len();
            if bytes > MAX_DATAGRAM {
                break;
            }
            iovec.iov_base = frame.bytes().as_ptr().cast_mut().cast();
            iovec.iov_len = frame.bytes().len();
            frames += 1;
        }
        // SAFETY: all bytes zero is a valid message header: no name, no control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = iovecs.as_mut_ptr();
        message.msg_iovlen = frames as _;
        // SAFETY: the iovecs name the bytes of frames that the queue holds during the call, and a send
        // only reads them.
        let sent = unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(frames);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            // The connected peer has left; another device may have taken its LID.
            _ if !fresh => {
                self.socket = None;
                self.transmit(scope, fabric, lid)
            }
            _ => Err(error),
        }
    }

    fn connect(&mut self, scope: &str, fabric: &str, lid: u16) -> io::Result<RawFd> {
        let socket = datagram_socket()?;
        let name = Name::new(scope, fabric, lid)?;
        // SAFETY: the address is valid for `len` bytes.
        check(unsafe { libc::connect(socket.as_raw_fd(), name.as_ptr(), name.len) })?;
        Ok(self.socket.insert(socket).as_raw_fd())
    }
}

#[cfg(test)]
mod tests;
