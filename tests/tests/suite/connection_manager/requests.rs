//! Requests to a listener.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use doorbell::rdmacm::{Listener, Route};
use doorbell::{Error, QpConfig, QueuePair, Result, RqConfig};
use doorbell_tests::descriptor::is_readable;
use doorbell_tests::{assert_matches, device, skip};

use super::{PATIENCE, Side, addresses, ask, first_address, join, listen, meet, request};

#[test]
fn requests_wait_and_are_answered_in_any_order() {
    const PEERS: u8 = 4;
    const UNWANTED: u8 = 2;
    let address = first_address!();
    let (mut listener, to) = listen(address);
    assert!(!is_readable(&listener, Duration::ZERO), "there is no request");
    thread::scope(|scope| {
        for number in 0..PEERS {
            scope.spawn(move || {
                let mut side = Side::new();
                let mut qp = side.qp();
                let connected = ask(to, &mut qp, &[number]);
                if number == UNWANTED {
                    let refused = connected.unwrap_err();
                    assert_matches!(&refused, Error::Rejected { private_data, .. } if private_data[..] == [number; 148]);
                    assert!(refused.to_string().contains("its program refused"), "{refused}");
                    return;
                }
                let mut connection = connected.unwrap();
                assert_eq!(connection.private_data()[0], number);
                side.expect(&[number]);
                assert!(connection.wait_disconnected(None).unwrap());
            });
        }
        assert!(is_readable(&listener, PATIENCE));
        let mut requests: Vec<_> = (0..PEERS).map(|_| listener.accept(None).unwrap().expect("no time-out")).collect();
        assert!(listener.accept(Duration::ZERO).unwrap().is_none(), "each asks once");
        let mut ports: Vec<_> = requests.iter().map(|r| r.peer_addr().unwrap().port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), usize::from(PEERS), "each has a port of its own");

        let mut server = Side::new();
        requests.sort_by_key(|request| request.private_data()[0]);
        let mut ends = Vec::new();
        for (number, request) in (0..PEERS).zip(requests).rev() {
            assert_eq!(request.private_data()[0], number);
            assert_eq!(request.device_name(), device::open().name());
            let peer = request.peer_addr().unwrap();
            assert_eq!(peer.ip(), address);
            assert!(format!("{request:?}").contains(&peer.to_string()), "{request:?}");
            if number == UNWANTED {
                request.reject(&[number; 148]).unwrap();
                continue;
            }
            let mut qp = server.qp();
            let connection = request.accept(&mut qp, &[number], PATIENCE).unwrap();
            qp.send_inline(&[number], None).unwrap();
            ends.push((qp, connection));
        }
        for (mut qp, connection) in ends {
            while qp.sends_outstanding() > 0 {
                let _ = qp.poll_send();
            }
            connection.disconnect(&qp).unwrap();
        }
    });
}

/// Asks for a connection, which the listener accepts with this queue pair and private data. Both fail.
fn asked(address: IpAddr, near: &mut QueuePair, far: &mut QueuePair, printed: &[u8]) -> [Error; 2] {
    let (asking, answering) = meet(address, near, |request| request.accept(far, printed, PATIENCE));
    [asking.unwrap_err(), answering.unwrap_err()]
}

#[test]
fn a_rejected_request_returns_the_reason() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let (mut near_qp, mut far_qp) = (near.qp(), far.qp());
    let [asking, answering] = asked(address, &mut near_qp, &mut far_qp, &[1; 197]);
    assert_matches!(asking, Error::Rejected { .. });
    assert_matches!(answering, Error::OutOfRange { max: 196, .. });

    let (asking, answering) = meet(address, &mut near_qp, |request| Err(request.reject(&[1; 149]).unwrap_err()));
    assert_matches!(asking.unwrap_err(), Error::Rejected { .. });
    assert_matches!(answering.unwrap_err(), Error::OutOfRange { max: 148, .. });

    let mut used = far.qp();
    used.to_error().unwrap();
    let [asking, answering] = asked(address, &mut near_qp, &mut used, b"");
    assert_matches!(asking, Error::Rejected { .. });
    assert_matches!(answering, Error::WrongState { .. });
    assert!(answering.to_string().contains("Receiver::reset_qp"), "{answering}");

    // Neither has cost the asking queue pair anything, nor the one with too much private data.
    let (client, server) = meet(address, &mut near_qp, |request| request.accept(&mut far_qp, &[7; 196], PATIENCE));
    assert_eq!(client.unwrap().private_data(), [7; 196]);
    drop(server);
}

#[test]
fn as_much_as_fits_into_a_request_arrives() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let (mut near_qp, mut far_qp) = (near.qp(), far.qp());
    let (mut listener, to) = listen(address);
    let printed: [u8; 56] = std::array::from_fn(|i| i as u8 + 1);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let route = Route::resolve(to, PATIENCE).unwrap();
            assert!(format!("{route:?}").contains(&to.to_string()), "{route:?}");
            route.connect(&mut near_qp, &printed, PATIENCE).unwrap()
        });
        let request = request(&mut listener);
        assert_eq!(request.private_data(), printed);
        let server = request.accept(&mut far_qp, b"", PATIENCE).unwrap();
        assert_eq!(server.private_data(), printed);
        let client = asking.join().unwrap();
        assert!(format!("{client:?}").contains(&to.to_string()), "{client:?}");
    });
}

#[test]
fn a_peer_that_has_left_is_not_connected() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let (mut listener, to) = listen(address);
    let mut qp = near.qp();
    let route = Route::resolve(to, PATIENCE).unwrap();
    let impatient = route.connect(&mut qp, b"", Duration::from_millis(20)).unwrap_err();
    assert_matches!(impatient, Error::TimedOut { .. });

    let gone = request(&mut listener).accept(&mut far.qp(), b"", PATIENCE).unwrap_err();
    // The refusal of the peer arrives before the connection manager answers, or after it.
    assert!(
        gone.to_string().contains("peer closed the connection")
            || gone.to_string().contains("no longer waits for an answer"),
        "{gone}"
    );
    // The next one is served.
    let mut far_qp = far.qp();
    let served: Result<_> = thread::scope(|scope| {
        let asking = scope.spawn(|| ask(to, &mut qp, b""));
        request(&mut listener).accept(&mut far_qp, b"", PATIENCE)?;
        asking.join().unwrap()
    });
    served.unwrap();
}

#[test]
fn a_listener_on_all_addresses_hears_of_both_families() {
    let all = addresses();
    if all.is_empty() {
        skip!("there is no connection manager here");
    }
    let mut listener = Listener::bind((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
    assert!(format!("{listener:?}").contains("[::]:0"), "{listener:?}");
    let port = listener.port();
    for address in all {
        let (mut near, mut far) = (Side::new(), Side::new());
        let (mut near_qp, mut far_qp) = (near.qp(), far.qp());
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask((address, port).into(), &mut near_qp, b""));
            let request = request(&mut listener);
            assert_eq!(request.peer_addr().unwrap().ip(), address);
            let _server = request.accept(&mut far_qp, b"", PATIENCE).unwrap();
            let _client = asking.join().unwrap().unwrap();
        });
    }
}

/// Needs a second device.
#[test]
fn a_queue_pair_of_another_device_is_refused() {
    let address = first_address!();
    let here = device::open().name().to_owned();
    let devices = doorbell::devices().unwrap();
    let Some(other) = devices.iter().find(|device| device.name() != here) else {
        skip!("there is one device only");
    };
    let pd = other.open().unwrap().alloc_pd().unwrap();
    let mut elsewhere = device::receiver(&pd, 64);
    let mut stranger = QueuePair::builder(&QpConfig::rc()).receive(&mut elsewhere, RqConfig::new(4)).build().unwrap();
    let mut side = Side::new();
    let mut qp = side.qp();
    let (asking, answering) = meet(address, &mut qp, |request| request.accept(&mut stranger, b"", PATIENCE));
    assert_matches!(asking, Err(Error::Rejected { .. }));
    assert_matches!(answering, Err(Error::Foreign { .. }));

    let (_listener, to) = listen(address);
    let refused = ask(to, &mut stranger, b"").unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
}

/// The peer may answer on any thread, and be waited for on any other.
#[test]
fn a_request_and_a_connection_can_be_handed_to_another_thread() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let (mut near_qp, mut far_qp) = (near.qp(), far.qp());
    let (hand, work) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut connection: doorbell::rdmacm::Connection = work.recv().unwrap();
            assert!(connection.wait_disconnected(PATIENCE).unwrap());
        });
        let [client, server] = join(address, &mut near_qp, &mut far_qp);
        hand.send(server).unwrap();
        client.disconnect(&near_qp).unwrap();
    });
}

#[test]
fn what_the_connection_manager_chooses_is_refused_in_a_configuration() {
    let address = first_address!();
    let (mut listener, to) = listen(address);
    let mut side = Side::new();
    let rc = QpConfig::rc;
    for config in [rc().gid_index(0), rc().service_level(1), rc().traffic_class(8)] {
        let mut qp = QueuePair::builder(&config).receive(&mut side.receiver, side.srq).build().unwrap();
        let refused = ask(to, &mut qp, b"").unwrap_err();
        assert!(refused.to_string().contains("with rdmacm"), "{refused}");
        assert!(listener.accept(Duration::ZERO).unwrap().is_none(), "it has asked the peer");
    }
}
