//! Connections by IP address, where the system has a connection manager.
//!
//! `DOORBELL_ADDRESSES` has the addresses of the device under test, separated by commas.

mod endings;
mod requests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use std::{ptr, thread};

use doorbell::rdmacm::{ConnectRequest, Connection, Listener, Route};
use doorbell::{
    BufferPool, Cause, Error, PoolConfig, QpConfig, QueuePair, Receiver, Result, RqConfig, SrqConfig, SrqId, WcStatus,
};
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::{assert_matches, device, receiving, skip};
use rdma_core_sys as sys;

const PATIENCE: Duration = Duration::from_secs(120);

fn addresses() -> Vec<IpAddr> {
    let addresses = std::env::var("DOORBELL_ADDRESSES").unwrap_or_default();
    addresses.split(',').filter(|a| !a.is_empty()).map(|a| a.parse().unwrap()).collect()
}

macro_rules! first_address {
    () => {
        match $crate::connection_manager::addresses().first() {
            Some(&address) => address,
            None => skip!("there is no connection manager here"),
        }
    };
}

use first_address;

/// A receiver with an SRQ, and buffers for it.
struct Side {
    receiver: Receiver,
    srq: SrqId,
    pool: BufferPool,
}

impl Side {
    fn new() -> Self {
        let (pd, mut receiver) = device::start(64);
        let srq = receiver.create_srq(&SrqConfig::new(31)).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(64, 64)).unwrap();
        receiver.fill(srq, &pool).unwrap();
        Self { receiver, srq, pool }
    }

    fn qp(&mut self) -> SendingQp {
        SendingQp::create(&mut self.receiver, &QpConfig::rc().max_inline(32), self.srq).unwrap()
    }

    fn expect(&mut self, bytes: &[u8]) {
        receiving::messages(&mut self.receiver, 1, |message| assert_eq!(&*message, bytes));
    }
}

fn request(listener: &mut Listener) -> ConnectRequest {
    listener.accept(PATIENCE).unwrap().expect("a peer connects")
}

/// A listener, and where it listens.
fn listen(address: IpAddr) -> (Listener, SocketAddr) {
    let listener = Listener::bind((address, 0).into()).unwrap();
    let to = SocketAddr::new(address, listener.port());
    (listener, to)
}

/// Asks for a connection.
fn ask(to: SocketAddr, qp: &mut QueuePair, data: &[u8]) -> Result<Connection> {
    Route::resolve(to, PATIENCE)?.connect(qp, data, PATIENCE)
}

/// Both ends at work, the listening one in a thread of its own, as programs on two hosts would be.
fn meet(
    address: IpAddr,
    qp: &mut QueuePair,
    answer: impl FnOnce(ConnectRequest) -> Result<Connection> + Send,
) -> (Result<Connection>, Result<Connection>) {
    let (mut listener, to) = listen(address);
    thread::scope(|scope| {
        let answering = scope.spawn(move || answer(request(&mut listener)));
        let route = Route::resolve(to, PATIENCE).unwrap();
        assert_eq!(route.device_name(), device::open().name());
        let connected = route.connect(qp, b"from the client", PATIENCE);
        (connected, answering.join().unwrap())
    })
}

/// Connects two queue pairs.
fn join(address: IpAddr, near: &mut QueuePair, far: &mut QueuePair) -> [Connection; 2] {
    let (client, server) = meet(address, near, |request| request.accept(far, b"", PATIENCE));
    [client.unwrap(), server.unwrap()]
}

/// Connects the two, and sends in both directions.
fn connect(address: IpAddr, near: &mut Side, far: &mut Side) -> [(SendingQp, Connection); 2] {
    let (mut near_qp, mut far_qp) = (near.qp(), far.qp());
    let (client, server) = meet(address, &mut near_qp, |request| {
        assert!(request.private_data().starts_with(b"from the client\0"));
        request.accept(&mut far_qp, b"from the server", PATIENCE)
    });
    let (client, server) = (client.unwrap(), server.unwrap());
    assert!(client.private_data().starts_with(b"from the server\0"));
    assert!(server.private_data().starts_with(b"from the client\0"));

    near_qp.send_inline(b"to the server", None).unwrap();
    far.expect(b"to the server");
    far_qp.send_inline(b"to the client", None).unwrap();
    near.expect(b"to the client");
    [(near_qp, client), (far_qp, server)]
}

#[test]
fn two_sides_meet_over_ipv4_and_ipv6_and_part() {
    if addresses().is_empty() {
        skip!("there is no connection manager here");
    }
    for address in addresses() {
        let (mut near, mut far) = (Side::new(), Side::new());
        let [(near_qp, client), (_far_qp, mut server)] = connect(address, &mut near, &mut far);
        assert!(!server.wait_disconnected(Duration::from_millis(20)).unwrap());
        client.disconnect(&near_qp).unwrap();
        assert!(server.wait_disconnected(PATIENCE).unwrap());
    }
}

#[test]
fn a_connection_that_is_dropped_is_seen_by_the_peer() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let [(_near_qp, mut client), (_far_qp, server)] = connect(address, &mut near, &mut far);
    drop(server);
    assert!(client.wait_disconnected(PATIENCE).unwrap());
}

#[test]
fn a_queue_pair_connects_again_after_a_reset() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let [(mut near_qp, client), far_end] = connect(address, &mut near, &mut far);
    let again = ask((address, 1).into(), &mut near_qp, b"").unwrap_err();
    assert_matches!(again, Error::WrongState { .. });
    client.disconnect(&near_qp).unwrap();
    drop(far_end);
    near_qp.reset(&mut near.receiver).unwrap();

    let mut far_qp = far.qp();
    let _both = join(address, &mut near_qp, &mut far_qp);
    near_qp.send_inline(b"once more", None).unwrap();
    far.expect(b"once more");
}

#[test]
fn a_refusal_leaves_the_queue_pair_as_it_was() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let mut qp = near.qp();
    for dropped in [false, true] {
        let (refused, _) = meet(address, &mut qp, |request| {
            if !dropped {
                request.reject(b"full")?;
            }
            Err(Error::NoDevice)
        });
        let data: &[u8] = if dropped { &[0; 4] } else { b"full" };
        assert_matches!(refused, Err(Error::Rejected { private_data, .. }) if private_data.starts_with(data));
    }
    // A port without a listener: its listener was dropped.
    let port = Listener::bind((address, 0).into()).unwrap().port();
    let nobody = ask((address, port).into(), &mut qp, b"").unwrap_err();
    assert!(nobody.to_string().contains("no program listens"), "{nobody}");

    let mut far_qp = far.qp();
    let _both = join(address, &mut qp, &mut far_qp);
    qp.send_inline(b"in the end", None).unwrap();
    far.expect(b"in the end");
}

#[test]
fn one_listener_takes_many_connections_onto_one_srq() {
    const PEERS: usize = 8;
    let address = first_address!();
    let (mut listener, to) = listen(address);
    thread::scope(|scope| {
        for i in 0..PEERS {
            scope.spawn(move || {
                let mut side = Side::new();
                let mut qp = side.qp();
                let mut connection = ask(to, &mut qp, &[i as u8]).unwrap();
                qp.send_inline(&[i as u8], None).unwrap();
                assert!(connection.wait_disconnected(PATIENCE).unwrap());
            });
        }
        let mut server = Side::new();
        let ends: Vec<_> = (0..PEERS)
            .map(|_| {
                let mut qp = server.qp();
                let connection = request(&mut listener).accept(&mut qp, b"", PATIENCE).unwrap();
                (qp, connection)
            })
            .collect();
        let mut seen = [false; PEERS];
        receiving::messages(&mut server.receiver, PEERS, |message| {
            let end = ends.iter().find(|(qp, _)| qp.qp_num() == message.qp_num()).unwrap();
            assert_eq!(message[0], end.1.private_data()[0]);
            assert!(!std::mem::replace(&mut seen[usize::from(message[0])], true));
        });
        for (qp, connection) in ends {
            connection.disconnect(&qp).unwrap();
        }
    });
}

#[test]
fn receives_come_back_when_a_connection_ends() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut near.receiver, RqConfig::new(4)).build().unwrap();
    let posted = near.receiver.fill(qp.receive_queue().unwrap(), &near.pool).unwrap();
    let mut far_qp = far.qp();
    let [client, _server] = join(address, &mut qp, &mut far_qp);
    client.disconnect(&qp).unwrap();
    for failure in receiving::failures(&mut near.receiver, posted) {
        assert!(matches!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR)), "{failure}");
        assert_eq!(failure.buffers.len(), 1);
    }
}

#[test]
fn what_cannot_be_reached_listened_on_or_waited_for_is_an_error_in_time() {
    let address = first_address!();
    let far_away = "198.51.100.1:1".parse().unwrap();
    let error = Route::resolve(far_away, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("198.51.100.1"), "{error}");
    let refused = Listener::bind("198.51.100.1:0".parse().unwrap()).unwrap_err();
    assert_matches!(refused, Error::Verbs { operation: "rdma_bind_addr", .. });

    let mut listener = Listener::bind((address, 0).into()).unwrap();
    let refused = Listener::bind((address, listener.port()).into()).unwrap_err();
    assert_matches!(refused, Error::Verbs { .. });
    assert!(listener.accept(Duration::from_millis(20)).unwrap().is_none());

    // A request without an answer.
    let mut side = Side::new();
    let mut qp = side.qp();
    let to = (address, listener.port()).into();
    let too_long = ask(to, &mut qp, &[0; 57]).unwrap_err();
    assert_matches!(too_long, Error::OutOfRange { max: 56, .. });
    let route = Route::resolve(to, PATIENCE).unwrap();
    let refused = route.connect(&mut qp, b"", Duration::from_millis(50)).unwrap_err();
    assert_matches!(refused, Error::TimedOut { operation: "rdma_connect", .. });
}

/// The peer is told the retries, which its side of the connection uses.
#[test]
fn a_request_has_the_retries_of_its_queue_pair() {
    let address = first_address!();
    let (mut near, cm) = (Side::new(), sys::RdmaCm::get().unwrap());
    let (mut listener, mut event) = (ptr::null_mut(), ptr::null_mut());
    let IpAddr::V4(ip) = address else { skip!("the first address is of IPv6") };
    let mut to = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: librdmacm's calls in their order, with a live channel and identifier, and writable places.
    unsafe {
        let channel = (cm.create_event_channel)();
        assert_eq!((cm.create_id)(channel, &mut listener, ptr::null_mut(), sys::RDMA_PS_TCP), 0);
        assert_eq!((cm.bind_addr)(listener, (&raw mut to).cast()), 0);
        assert_eq!((cm.listen)(listener, 1), 0);
        let port = u16::from_be((cm.get_src_port)(listener));
        let config = QpConfig::rc().retry_cnt(3).rnr_retry(5);
        let mut qp = QueuePair::builder(&config).receive(&mut near.receiver, near.srq).build().unwrap();
        let route = Route::resolve((address, port).into(), PATIENCE).unwrap();
        // Nobody answers.
        route.connect(&mut qp, b"", Duration::from_millis(50)).unwrap_err();
        assert_eq!((cm.get_cm_event)(channel, &mut event), 0);
        let conn = (*event).param.conn;
        assert_eq!((conn.retry_count, conn.rnr_retry_count), (3, 5));
    }
}

#[test]
fn a_missing_connection_manager_is_an_error() {
    if !addresses().is_empty() || std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        skip!("there is a connection manager");
    }
    let any = "127.0.0.1:0".parse().unwrap();
    for error in [Listener::bind(any).unwrap_err(), Route::resolve(any, PATIENCE).unwrap_err()] {
        assert!(error.to_string().contains("rdma_ucm"), "{error}");
    }
}
