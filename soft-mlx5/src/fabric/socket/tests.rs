//! Ports of several processes, in one.

use super::*;
use crate::fabric::address::{self, GidType};
use crate::fabric::headers::Bth;
use crate::fabric::packet::Route;

fn fabric(test: &str) -> String {
    format!("unit-{}-{test}", std::process::id())
}

fn frame(dlid: u16, psn: u32, payload: usize) -> Frame {
    let mut frame = Frame::default();
    let route = Route {
        slid: 1,
        dlid,
        sl: 0,
        global: false,
        sgid: (GidType::InfiniBand, address::gid(1)),
        dgid: address::gid(dlid),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 1,
    };
    frame.begin(&route, &Bth { opcode: 4, psn, ..Bth::default() });
    frame.payload_mut(payload).fill(psn as u8);
    frame.finish();
    frame
}

fn drain(port: &mut SocketPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while port.receive(|bytes| frames.push(bytes.to_vec())) {}
    frames
}

#[test]
fn lids_are_free_after_the_socket_is_closed() {
    let name = fabric("lids");
    let mut first = SocketPort::join(&name, false).unwrap();
    let second = SocketPort::join(&name, false).unwrap();
    let third = SocketPort::join(&name, false).unwrap();
    assert_eq!((first.lid(), second.lid(), third.lid()), (1, 2, 3));
    assert_eq!(first.peers(0), [2, 3]);
    drop(second);
    assert_eq!(first.peers(PEERS_KNOWN_NS - 1), [2, 3]);
    assert_eq!(first.peers(PEERS_KNOWN_NS), [3]);
    assert_eq!(SocketPort::join(&name, false).unwrap().lid(), 2);
}

#[test]
fn frames_arrive_in_order_though_the_queue_is_short() {
    let name = fabric("order");
    let mut from = SocketPort::join(&name, false).unwrap();
    let mut to = SocketPort::join(&name, false).unwrap();
    let mut spent = Vec::new();
    let mut received = Vec::new();
    // Far more datagrams than the kernel queues.
    for psn in 0..QUEUE_LIMIT as u32 {
        from.send(2, frame(2, psn, 4096)).unwrap();
    }
    assert!(from.send(2, frame(2, 0, 0)).is_err());
    assert!(!from.has_room(2));
    while received.len() < QUEUE_LIMIT {
        from.flush(&mut spent);
        let batch = drain(&mut to);
        assert!(!batch.is_empty());
        received.extend(batch);
    }
    assert_eq!(spent.len(), QUEUE_LIMIT);
    for (psn, bytes) in received.iter().enumerate() {
        assert_eq!(bytes[..], *frame(2, psn as u32, 4096).bytes());
    }
}

#[test]
fn a_peer_that_does_not_read_blocks_no_other_peer() {
    let name = fabric("deaf");
    let mut from = SocketPort::join(&name, false).unwrap();
    let _deaf = SocketPort::join(&name, false).unwrap();
    let mut to = SocketPort::join(&name, false).unwrap();
    let mut spent = Vec::new();
    for psn in 0..QUEUE_LIMIT as u32 {
        from.send(2, frame(2, psn, 4096)).unwrap();
    }
    from.flush(&mut spent);
    assert!(spent.len() < QUEUE_LIMIT);
    from.send(3, frame(3, 7, 100)).unwrap();
    from.flush(&mut spent);
    assert_eq!(drain(&mut to), [frame(3, 7, 100).bytes()]);
}

#[test]
fn a_dead_peer_drops_and_its_successor_is_found() {
    let name = fabric("dead");
    let mut from = SocketPort::join(&name, false).unwrap();
    let mut spent = Vec::new();
    from.send(2, frame(2, 1, 0)).unwrap();
    assert!(from.flush(&mut spent));
    assert_eq!((spent.len(), from.drops()), (1, (1, 0)));

    let mut to = SocketPort::join(&name, false).unwrap();
    from.send(2, frame(2, 2, 0)).unwrap();
    from.flush(&mut spent);
    assert_eq!(drain(&mut to).len(), 1);
    drop(to);
    let mut successor = SocketPort::join(&name, false).unwrap();
    from.send(2, frame(2, 3, 0)).unwrap();
    from.flush(&mut spent);
    assert_eq!(drain(&mut successor), [frame(2, 3, 0).bytes()]);
}

#[test]
fn garbage_is_counted_and_dropped() {
    let name = fabric("garbage");
    let mut port = SocketPort::join(&name, false).unwrap();
    let socket = datagram_socket().unwrap();
    let target = Name::new(&crate::fabric::scope(false), &name, 1).unwrap();
    let garbage: Vec<u8> = (0..40_000u32).map(|i| (i * 31) as u8).collect();
    for len in [0, 1, 7, 100, MAX_DATAGRAM, MAX_DATAGRAM + 1, 40_000] {
        // SAFETY: buffer and address are valid for the lengths given.
        let sent =
            unsafe { libc::sendto(socket.as_raw_fd(), garbage.as_ptr().cast(), len, 0, target.as_ptr(), target.len) };
        assert_eq!(sent, len as isize);
    }
    assert!(drain(&mut port).is_empty());
    assert!(port.drops().1 > 0);
}

#[test]
fn a_long_name_is_refused() {
    let error = SocketPort::join(&"x".repeat(200), false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// Sends a good frame to port 1 of a fabric as another user; returns `false` if this process may not do that.
fn send_as_another(scope: String, fabric: String) -> bool {
    let sender = std::thread::spawn(move || {
        // The bare system call changes the user of this thread only.
        // SAFETY: no memory is involved.
        if unsafe { libc::syscall(libc::SYS_setresuid, 12_345, 12_345, 12_345) } != 0 {
            return false;
        }
        let socket = datagram_socket().unwrap();
        let target = Name::new(&scope, &fabric, 1).unwrap();
        let frame = frame(1, 7, 64);
        let bytes = frame.bytes();
        // SAFETY: buffer and address are valid for the lengths given.
        let sent = unsafe {
            libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, target.as_ptr(), target.len)
        };
        assert_eq!(sent, bytes.len() as isize);
        true
    });
    sender.join().unwrap()
}

#[test]
fn only_a_fabric_of_all_users_takes_frames_of_another_user() {
    let name = fabric("users");
    let mut own = SocketPort::join(&name, false).unwrap();
    let mut all = SocketPort::join(&name, true).unwrap();
    assert_eq!((own.lid(), all.lid()), (1, 1), "two fabrics");
    let scope = crate::fabric::scope;
    if send_as_another(scope(false), name.clone()) && send_as_another(scope(true), name) {
        assert_eq!((drain(&mut own).len(), own.drops().1), (0, 1));
        assert_eq!(drain(&mut all).len(), 1);
    }
}
