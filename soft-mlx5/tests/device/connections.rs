//! The file of the connection manager: commands as librdmacm writes them, within one process and stepped.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::world::World;

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const BIND_IP: u32 = 2;
const RESOLVE_IP: u32 = 3;
const RESOLVE_ROUTE: u32 = 4;
const QUERY_ROUTE: u32 = 5;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const REJECT: u32 = 9;
const DISCONNECT: u32 = 10;
const INIT_QP_ATTR: u32 = 11;
const GET_EVENT: u32 = 12;
const SET_OPTION: u32 = 14;
const MIGRATE_ID: u32 = 18;

const TCP: u16 = 0x106;
const RC: u8 = 2;

/// The open file of a program.
pub struct Channel {
    fd: RawFd,
}

/// An event as the program reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    uid: u64,
    id: u32,
    event: u32,
    status: i32,
    data: Vec<u8>,
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

impl Channel {
    pub fn open() -> Self {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a C string.
        let fd = unsafe { libc::open(c"/dev/infiniband/rdma_cm".as_ptr(), flags) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        Self { fd }
    }

    pub fn write(&self, command: u32, body: &[u8], out: u16) -> Result<(), i32> {
        let mut bytes = command.to_ne_bytes().to_vec();
        bytes.extend((body.len() as u16).to_ne_bytes());
        bytes.extend(out.to_ne_bytes());
        bytes.extend(body);
        // SAFETY: the bytes are valid; places for answers in them are valid as well.
        let taken = unsafe { libc::write(self.fd, bytes.as_ptr().cast(), bytes.len()) };
        if taken < 0 {
            return Err(errno());
        }
        assert_eq!(taken as usize, bytes.len());
        Ok(())
    }

    pub fn create(&self, uid: u64) -> u32 {
        self.create_in(TCP, RC, uid)
    }

    pub fn create_in(&self, port_space: u16, qp_type: u8, uid: u64) -> u32 {
        let mut id = 0u32;
        let mut body = uid.to_ne_bytes().to_vec();
        body.extend((&raw mut id as u64).to_ne_bytes());
        body.extend(port_space.to_ne_bytes());
        body.extend([qp_type, 0, 0, 0, 0, 0]);
        self.write(CREATE_ID, &body, 4).unwrap();
        id
    }

    /// Destroys an identifier; returns the number of its events that were read.
    pub fn destroy(&self, id: u32) -> Result<u32, i32> {
        let mut reported = u32::MAX;
        let mut body = (&raw mut reported as u64).to_ne_bytes().to_vec();
        body.extend(id.to_ne_bytes());
        body.extend([0; 4]);
        self.write(DESTROY_ID, &body, 4).map(|()| reported)
    }

    pub fn bind(&self, id: u32, ip: [u8; 4], port: u16) -> Result<(), i32> {
        let mut body = vec![0; 8];
        body.extend(sockaddr(ip, port));
        body.extend(id.to_ne_bytes());
        self.write(BIND_IP, &body, 0)
    }

    fn listen(&self, id: u32, backlog: u32) -> Result<(), i32> {
        self.write(LISTEN, &[id.to_ne_bytes(), backlog.to_ne_bytes()].concat(), 0)
    }

    fn resolve(&self, id: u32, ip: [u8; 4], port: u16) -> Result<(), i32> {
        let mut body = vec![0; 28];
        body.extend(sockaddr(ip, port));
        body.extend(id.to_ne_bytes());
        body.extend(1000u32.to_ne_bytes());
        self.write(RESOLVE_IP, &body, 0)
    }

    fn resolve_route(&self, id: u32) -> Result<(), i32> {
        self.write(RESOLVE_ROUTE, &[id.to_ne_bytes(), 1000u32.to_ne_bytes()].concat(), 0)
    }

    fn connect(&self, id: u32, data: &[u8]) -> Result<(), i32> {
        self.connect_qp(id, QPN, data)
    }

    fn connect_qp(&self, id: u32, qpn: u32, data: &[u8]) -> Result<(), i32> {
        let mut body = param(data);
        body[..4].copy_from_slice(&qpn.to_ne_bytes());
        body.extend(id.to_ne_bytes());
        body.extend([0; 12]);
        self.write(CONNECT, &body, 0)
    }

    fn accept(&self, id: u32, uid: u64, data: &[u8]) -> Result<(), i32> {
        let mut body = uid.to_ne_bytes().to_vec();
        body.extend(param(data));
        body.extend(id.to_ne_bytes());
        body.extend([0; 12]);
        self.write(ACCEPT, &body, 0)
    }

    fn reject(&self, id: u32, data: &[u8]) -> Result<(), i32> {
        let mut body = id.to_ne_bytes().to_vec();
        body.extend([data.len() as u8, 0, 0, 0]);
        body.extend(data);
        body.resize(264, 0);
        self.write(REJECT, &body, 0)
    }

    fn disconnect(&self, id: u32) -> Result<(), i32> {
        self.write(DISCONNECT, &id.to_ne_bytes(), 0)
    }

    /// Returns `struct ib_uverbs_qp_attr` in words.
    fn qp_attr(&self, id: u32, state: u32) -> Result<[u32; 36], i32> {
        let mut attr = [0u32; 36];
        let mut body = (&raw mut attr as u64).to_ne_bytes().to_vec();
        body.extend(id.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        self.write(INIT_QP_ATTR, &body, 144).map(|()| attr)
    }

    fn next(&self) -> Result<Event, i32> {
        let mut bytes = [0u8; 336];
        self.write(GET_EVENT, &(&raw mut bytes as u64).to_ne_bytes(), 336)?;
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let len = usize::from(bytes[20 + 264]);
        Ok(Event {
            uid: u64::from_ne_bytes(bytes[..8].try_into().unwrap()),
            id: word(8),
            event: word(12),
            status: word(16) as i32,
            data: bytes[28..28 + len].to_vec(),
        })
    }

    pub fn expect(&self, world: &World, event: u32) -> Event {
        world.device().settle();
        let next = self.next().unwrap();
        assert_eq!(next.event, event, "{next:?}");
        next
    }

    fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// Brings an identifier to where it can connect.
    fn route(&self, world: &World, uid: u64, ip: [u8; 4], port: u16) -> u32 {
        let id = self.create(uid);
        self.resolve(id, ip, port).unwrap();
        assert_eq!(self.expect(world, 0).status, 0);
        self.resolve_route(id).unwrap();
        self.expect(world, 2);
        id
    }

    fn listener(&self, uid: u64, port: u16, backlog: u32) -> u32 {
        let id = self.create(uid);
        self.bind(id, [0; 4], port).unwrap();
        self.listen(id, backlog).unwrap();
        id
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this channel's.
        unsafe { libc::close(self.fd) };
    }
}

pub fn sockaddr(ip: [u8; 4], port: u16) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

fn param(data: &[u8]) -> Vec<u8> {
    let mut bytes = QPN.to_ne_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(data);
    bytes.resize(264, 0);
    // Length, SRQ, responder resources, initiator depth, flow control, retries, RNR retries, valid.
    bytes.extend([data.len() as u8, 0, 2, 3, 1, 7, 6, 1]);
    bytes
}

const QPN: u32 = 0x55;
const LOCALHOST: [u8; 4] = [127, 0, 0, 1];
const ADDR_ERROR: u32 = 1;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const UNREACHABLE: u32 = 7;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;
const TIMEWAIT_EXIT: u32 = 15;

/// Connects; returns the identifiers of both sides.
fn connected(world: &World, channel: &Channel, port: u16) -> [u32; 2] {
    let client = channel.route(world, 2, LOCALHOST, port);
    channel.connect(client, b"please").unwrap();
    let request = channel.expect(world, CONNECT_REQUEST);
    channel.accept(request.id, 3, b"welcome").unwrap();
    let response = channel.expect(world, CONNECT_RESPONSE);
    assert_eq!((response.id, response.uid), (client, 2));
    channel.accept(client, 2, &[]).unwrap();
    let established = channel.expect(world, ESTABLISHED);
    assert_eq!((established.id, established.uid), (request.id, 3));
    [client, request.id]
}

#[test]
fn a_connection_of_a_process_with_itself() {
    for address in [LOCALHOST, [10, 219, 0, 1]] {
        let world = World::stepped();
        let channel = Channel::open();
        let listener = channel.listener(1, 7000, 0);
        assert!(!channel.is_readable());
        assert_eq!(channel.next(), Err(libc::EAGAIN));
        let client = channel.route(&world, 2, address, 7000);
        channel.connect(client, b"please").unwrap();
        let request = channel.expect(&world, CONNECT_REQUEST);
        assert_eq!((request.uid, &request.data[..6], request.data.len()), (1, &b"please"[..], 56));
        let server = request.id;
        let init = channel.qp_attr(server, 1).unwrap();
        assert_eq!(init[9], 2 | 4 | 8, "writes, reads and atomics");
        channel.accept(server, 3, b"welcome").unwrap();
        let response = channel.expect(&world, CONNECT_RESPONSE);
        assert_eq!((&response.data[..7], response.data.len()), (&b"welcome"[..], 196));
        let [rtr, rts] = [2, 3].map(|state| channel.qp_attr(client, state).unwrap());
        let [of_server, sending] = [2, 3].map(|state| channel.qp_attr(server, state).unwrap());
        assert_eq!((rtr[8], of_server[8]), (QPN, QPN), "the queue pairs");
        assert_eq!((rtr[6], of_server[6]), (sending[7], rts[7]), "what one sends, the other expects");
        channel.accept(client, 2, &[]).unwrap();
        assert_eq!(channel.expect(&world, ESTABLISHED).id, server);

        channel.disconnect(client).unwrap();
        assert_eq!(channel.expect(&world, DISCONNECTED).uid, 3);
        channel.disconnect(server).unwrap();
        assert_eq!(channel.expect(&world, DISCONNECTED).uid, 2);
        world.device().advance(world.device().next_timer().unwrap() - world.device().now());
        let exits = [TIMEWAIT_EXIT; 2].map(|event| channel.expect(&world, event).uid);
        assert!(exits == [2, 3] || exits == [3, 2], "{exits:?}");
        assert!(!channel.is_readable());
        // The listener's events are its requests.
        assert_eq!([listener, client, server].map(|id| channel.destroy(id)), [Ok(1), Ok(5), Ok(3)]);
        assert_eq!(channel.destroy(client), Err(libc::ENOENT));
    }
}

#[test]
fn refusals_and_addresses_without_a_listener() {
    let world = World::stepped();
    let channel = Channel::open();
    let client = channel.route(&world, 2, LOCALHOST, 7001);
    channel.connect(client, &[]).unwrap();
    assert_eq!(channel.expect(&world, REJECTED).status, 8);
    // No port has this address, but one might come.
    let patient = channel.create(9);
    channel.resolve(patient, [10, 219, 7, 7], 7001).unwrap();
    world.device().settle();
    assert!(!channel.is_readable());
    world.device().advance(Duration::from_secs(2));
    assert_eq!(channel.expect(&world, ADDR_ERROR).status, -libc::ETIMEDOUT);
    let stranger = channel.create(9);
    channel.resolve(stranger, [198, 51, 100, 1], 7001).unwrap();
    assert_eq!(channel.expect(&world, ADDR_ERROR).status, -libc::ENODEV);

    channel.listener(1, 7001, 1);
    let refused = channel.route(&world, 4, LOCALHOST, 7001);
    channel.connect(refused, &[]).unwrap();
    world.device().settle();
    // The backlog is full until the program reads the request.
    let late = channel.route_beside(&world, 5, 7001);
    channel.connect_qp(late, QPN + 1, &[]).unwrap();
    world.device().settle();
    let request = channel.next().unwrap();
    assert_eq!(request.event, CONNECT_REQUEST);
    let event = channel.expect(&world, REJECTED);
    assert_eq!((event.uid, event.status), (5, 28));
    channel.reject(request.id, b"no").unwrap();
    let event = channel.expect(&world, REJECTED);
    assert_eq!((event.uid, event.status, &event.data[..2]), (4, 28, &b"no"[..]));
    assert_eq!(channel.accept(request.id, 1, &[]), Err(libc::EINVAL));
}

impl Channel {
    /// Does the same as [`Self::route`] on a channel of its own, so that events of this one stay unread.
    fn route_beside(&self, world: &World, uid: u64, port: u16) -> u32 {
        let other = Channel::open();
        let id = other.route(world, uid, LOCALHOST, port);
        assert_eq!(self.migrate(id, other.fd), Ok(2), "events that the program has read");
        assert_eq!(other.destroy(id), Err(libc::EINVAL), "it belongs to this file now");
        id
    }

    fn migrate(&self, id: u32, from: RawFd) -> Result<u32, i32> {
        let mut reported = u32::MAX;
        let mut body = (&raw mut reported as u64).to_ne_bytes().to_vec();
        body.extend(id.to_ne_bytes());
        body.extend(from.to_ne_bytes());
        self.write(MIGRATE_ID, &body, 4).map(|()| reported)
    }

    fn set(&self, id: u32, name: u32, value: &[u8]) -> Result<(), i32> {
        let mut body = (value.as_ptr() as u64).to_ne_bytes().to_vec();
        for word in [id, 0, name, value.len() as u32] {
            body.extend(word.to_ne_bytes());
        }
        self.write(SET_OPTION, &body, 0)
    }
}

#[test]
fn a_request_without_an_answer_ends_after_a_minute() {
    let world = World::new(
        soft_mlx5::Device::builder().stepped().faults(soft_mlx5::Faults { loss: 1.0, ..Default::default() }),
    );
    let channel = Channel::open();
    channel.listener(1, 7002, 0);
    let client = channel.route(&world, 2, LOCALHOST, 7002);
    channel.connect(client, &[]).unwrap();
    let begin = world.device().now();
    while !channel.is_readable() {
        let next = world.device().next_timer().expect("a timer runs");
        world.device().advance(next.saturating_sub(world.device().now()));
        world.device().settle();
    }
    let event = channel.expect(&world, UNREACHABLE);
    assert_eq!((event.uid, event.status), (2, -libc::ETIMEDOUT));
    assert!(world.device().now() - begin > Duration::from_secs(60));
}

#[test]
fn ports_are_taken_once_and_given_back() {
    let _world = World::stepped();
    let channel = Channel::open();
    let first = channel.listener(1, 7003, 0);
    let second = channel.create(2);
    assert_eq!(channel.bind(second, [0; 4], 7003), Err(libc::EADDRINUSE));
    assert_eq!(channel.bind(second, LOCALHOST, 7003), Err(libc::EADDRINUSE));
    assert_eq!(channel.bind(second, [198, 51, 100, 1], 7003), Err(libc::EADDRNOTAVAIL));
    channel.destroy(first).unwrap();
    channel.bind(second, [0; 4], 7003).unwrap();
    assert_eq!(channel.bind(second, [0; 4], 7004), Err(libc::EINVAL), "bound already");
    // Both identifiers must agree to share.
    let [third, fourth] = [3, 4].map(|uid| channel.create(uid));
    for id in [third, fourth] {
        channel.set(id, 1, &1u32.to_ne_bytes()).unwrap();
        channel.bind(id, [0; 4], 7005).unwrap();
    }
    channel.listen(third, 1).unwrap();
    assert_eq!(channel.listen(fourth, 1), Err(libc::EADDRINUSE));
    assert_eq!(channel.set(third, 3, &[32]), Err(libc::EINVAL));
    assert_eq!(channel.set(third, 99, &[1]), Err(libc::ENOSYS));
}

#[test]
fn commands_that_are_wrong() {
    let world = World::stepped();
    let channel = Channel::open();
    let id = channel.create(1);
    assert_eq!(channel.write(13, &[0; 24], 0), Err(libc::ENOSYS));
    assert_eq!(channel.write(23, &[0; 24], 0), Err(libc::EINVAL));
    assert_eq!(channel.write(CREATE_ID, &[0; 24], 3), Err(libc::ENOSPC));
    assert_eq!(channel.write(GET_EVENT, &[0; 8], 8), Err(libc::ENOSPC));
    assert_eq!(channel.qp_attr(id, 1), Err(libc::EINVAL), "it belongs to no device yet");
    assert_eq!(channel.resolve_route(id), Err(libc::EINVAL));
    assert_eq!(channel.connect(id, &[]), Err(libc::EINVAL));
    assert_eq!(channel.disconnect(id), Err(libc::EINVAL));
    assert_eq!(channel.accept(id, 1, &[]), Err(libc::EINVAL));
    assert_eq!(channel.migrate(id, 0), Err(libc::EBADF));
    assert_eq!(channel.disconnect(id + 1000), Err(libc::ENOENT));
    // An event that cannot be handed out stays.
    channel.resolve(id, LOCALHOST, 1).unwrap();
    assert_eq!(channel.write(GET_EVENT, &8u64.to_ne_bytes(), 336), Err(libc::EFAULT));
    assert!(channel.is_readable());
    assert_eq!(channel.expect(&world, 0).uid, 1);
    assert_eq!(channel.connect(id, &[0; 57]), Err(libc::EINVAL), "no route");
    channel.resolve_route(id).unwrap();
    channel.expect(&world, 2);
    assert_eq!(channel.connect(id, &[0; 57]), Err(libc::EINVAL), "no room beside the header");
    assert_eq!(channel.write(QUERY_ROUTE, &[0; 16], 199), Err(libc::ENOENT));
}

#[test]
fn a_program_writes_events_to_itself() {
    const WRITE_EVENT: u32 = 24;
    const USER: u32 = 18;
    const INTERNAL: u32 = 19;
    let world = World::stepped();
    let channel = Channel::open();
    let id = channel.create(5);
    let write = |id: u32, event: u32, argument: u64| {
        let mut body = [id, 0, event, 77].map(u32::to_ne_bytes).concat();
        body.extend(argument.to_ne_bytes());
        channel.write(WRITE_EVENT, &body, 0)
    };
    assert_eq!(write(id, CONNECT_REQUEST, 0), Err(libc::EINVAL));
    assert_eq!(write(id + 1, USER, 0), Err(libc::ENOENT));
    assert!(!channel.is_readable());
    write(id, USER, 0x1122_3344_5566_7788).unwrap();
    write(id, INTERNAL, 16).unwrap();
    let mut bytes = [0u8; 336];
    channel.write(GET_EVENT, &(&raw mut bytes as u64).to_ne_bytes(), 336).unwrap();
    assert_eq!(bytes[..20], [5u64.to_ne_bytes().to_vec(), [id, USER, 77].map(u32::to_ne_bytes).concat()].concat());
    assert_eq!(bytes[20..28], 0x1122_3344_5566_7788u64.to_ne_bytes());
    assert!(channel.is_readable());
    assert_eq!(channel.destroy(id), Ok(1), "the other event is gone with its identifier");
    assert!(!channel.is_readable());
    assert_eq!(world.device().next_timer(), None);
}

#[test]
fn the_file_looks_like_a_device_and_wakes_its_readers() {
    let world = World::stepped();
    let channel = Channel::open();
    // SAFETY: all bytes zero is a valid value to be filled.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { libc::fstat(channel.fd, &mut stat) }, 0);
    assert_eq!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR);
    // SAFETY: plain calls on descriptors of this test.
    let copy = unsafe {
        libc::fcntl(channel.fd, libc::F_SETFL, 0);
        libc::dup(channel.fd)
    };
    let id = channel.create(1);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| channel.next());
        while !reader.is_finished() {
            let other = Channel { fd: copy };
            if other.resolve(id, LOCALHOST, 1).is_err() {
                world.device().settle();
            }
            std::mem::forget(other);
        }
        assert_eq!(reader.join().unwrap().unwrap().uid, 1);
    });
    // SAFETY: the descriptor is this test's.
    unsafe { libc::close(copy) };
    assert_eq!(channel.destroy(id), Ok(1), "the file is open until its last descriptor is closed");
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_connections_take_no_memory_and_no_descriptor() {
    let world = World::stepped();
    let channel = Channel::open();
    let listener = channel.listener(1, 7006, 0);
    let mut before = (0, 0);
    for round in 0..10_000 {
        if round == 1000 {
            before = (resident(), descriptors());
        }
        let [client, server] = connected(&world, &channel, 7006);
        let [first, second] = if round % 2 == 0 { [client, server] } else { [server, client] };
        channel.disconnect(first).unwrap();
        channel.expect(&world, DISCONNECTED);
        channel.destroy(second).unwrap();
        channel.expect(&world, DISCONNECTED);
        channel.destroy(first).unwrap();
    }
    let (resident_before, descriptors_before) = before;
    assert_eq!(descriptors(), descriptors_before);
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 1 << 20, "{grown} bytes more after 9,000 connections");
    assert_eq!(channel.destroy(listener), Ok(10_000));
    assert!(!channel.is_readable());
}
