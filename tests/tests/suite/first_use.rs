//! What a program gets wrong at first: it is refused with the reason, on both paths alike.

use std::error::Error as StdError;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, Error, MulticastGroup, NotSent, PostFailure, QpAddress, QpConfig, QpState,
    SrqConfig, WcStatus,
};
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{Peers, device, receiving};

const QKEY: u32 = 0x1111;

#[test]
fn a_fill_that_cannot_be_is_refused_with_the_reason() {
    let mut w = Shared::new(15, 1, 64);
    let foreign = BufferPool::new(&device::pd(), 4, 64).unwrap();
    let refused = w.receiver.fill(w.srq, &foreign).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (0, PostFailure::WrongDomain));
    // A pool that has no buffer left is one of another domain still.
    let taken: Vec<_> = std::iter::from_fn(|| foreign.take()).collect();
    let refused = w.receiver.fill(w.srq, &foreign).unwrap_err();
    assert_eq!(refused.reason, PostFailure::WrongDomain);
    drop(taken);

    let mut other = device::receiver(&w.pd, 64);
    let refused = other.fill(w.srq, &w.pool).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (0, PostFailure::NoQueue));
    assert_eq!(w.pool.available(), w.pool.count() as usize);

    // A full queue and an empty pool are what `fill` is for.
    let two = BufferPool::new(&w.pd, 2, 64).unwrap();
    assert_eq!(w.receiver.fill(w.srq, &two).unwrap(), 2);
    assert_eq!(w.receiver.fill(w.srq, &two).unwrap(), 0);
    assert_eq!(w.receiver.fill(w.srq, &w.pool).unwrap() as u32, w.receiver.capacity(w.srq) - 2);
    assert_eq!(w.receiver.fill(w.srq, &w.pool).unwrap(), 0);
}

/// Posts with `?` from an iterator that borrows: the error outlives it, and has what was not posted.
fn post_what_is_lent(w: &mut Shared, buffers: Vec<Buffer>) -> Result<usize, Box<dyn StdError>> {
    let mut buffers = buffers;
    Ok(w.receiver.post(w.srq, buffers.drain(..))?)
}

#[test]
fn the_error_of_a_post_outlives_the_iterator_and_has_its_buffers() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.srq) as usize;
    let buffers: Vec<_> = std::iter::from_fn(|| w.pool.take()).take(capacity + 5).collect();
    let rest: Vec<_> = buffers[capacity..].iter().map(|buffer| buffer.as_ptr()).collect();
    let error = post_what_is_lent(&mut w, buffers).unwrap_err();
    let error = error.downcast::<doorbell::PostError>().unwrap();
    assert_eq!((error.posted, error.reason), (capacity, PostFailure::Full));
    let back: Vec<_> = error.buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(back, rest, "in order, those that were not taken from the iterator included");
}

#[test]
fn there_is_room_for_at_most_the_capacity_of_a_queue() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.srq);
    // A queue that was filled keeps a spare buffer on the direct path.
    w.receiver.fill(w.srq, &w.pool).unwrap();
    let mut held = Vec::new();
    for _ in 0..w.pool.count() as usize - w.pool.available() {
        w.peers.send(0, 40);
        receiving::messages(&mut w.receiver, 1, |message| held.push(message.take()));
        assert!(w.receiver.free_slots(w.srq) <= capacity);
    }
    assert_eq!(w.receiver.free_slots(w.srq), capacity);
    // And so many can be posted.
    let again = held.drain(..).take(capacity as usize);
    assert_eq!(w.receiver.post(w.srq, again).unwrap(), capacity as usize);
}

#[test]
fn receives_for_datagrams_need_room_for_the_header() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let qp = receiver.create_qp(&QpConfig::ud(QKEY).receives(8, 2)).unwrap();
    let queue = qp.receive_queue().unwrap();
    let (small, large) =
        (BufferPool::new(&pd, 8, 39).unwrap(), BufferPool::new(&pd, 8, 40).unwrap());
    let short = PostFailure::NoRoomForHeader { capacity: 39 };
    let refused = receiver.post(queue, [large.take().unwrap(), small.take().unwrap()]).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (1, short));
    assert!(refused.to_string().contains("40 bytes"), "{refused}");
    assert_eq!(refused.buffers.len(), 1);
    drop(refused);
    assert_eq!(receiver.fill(queue, &small).unwrap_err().reason, short);
    let both = vec![small.take().unwrap(), large.take().unwrap()];
    assert_eq!(receiver.post_scatter(queue, both).unwrap_err().reason, short);
    match receiver.keep_filled(queue, &small, 4) {
        Err(Error::NoRoomForHeader { capacity: 39 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(small.available(), 8);
    receiver.post_scatter(queue, vec![large.take().unwrap(), small.take().unwrap()]).unwrap();
    receiver.fill(queue, &large).unwrap();
}

#[test]
fn an_srq_takes_datagrams_when_its_buffers_have_room_for_the_header() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let small = BufferPool::new(&pd, 8, 39).unwrap();
    let large = BufferPool::new(&pd, 64, 512).unwrap();
    let datagrams = |srq| QpConfig::ud(QKEY).srq(srq);

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    // For a connection they are fine.
    receiver.post(srq, small.take()).unwrap();
    drop(receiver.create_qp(&QpConfig::rc().srq(srq)).unwrap());
    match receiver.create_qp(&datagrams(srq)) {
        Err(error @ Error::NoRoomForHeader { capacity: 39 }) => {
            assert!(error.to_string().contains("GRH_SIZE"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Nothing was changed.
    receiver.post(srq, small.take()).unwrap();
    receiver.destroy_srq(srq).unwrap();

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let qp = receiver.create_qp(&datagrams(srq)).unwrap();
    let refused = receiver.post(srq, small.take()).unwrap_err();
    assert_eq!(refused.reason, PostFailure::NoRoomForHeader { capacity: 39 });
    assert!(receiver.fill(srq, &large).unwrap() > 0);
    drop(qp);
}

/// A buffer that is put in the place of a message is looked at like one that is posted.
#[test]
fn the_message_of_a_datagram_is_not_replaced_by_a_buffer_without_room_for_the_header() {
    let pd = device::pd();
    let small = BufferPool::new(&pd, 1, 39).unwrap();
    let large = BufferPool::new(&pd, 64, 512).unwrap();
    let mut receiver = device::receiver(&pd, 64);
    let config = QpConfig::ud(QKEY).receives(4, 1).max_inline(64);
    let mut qp = SendingQp::create(&mut receiver, &config).unwrap();
    receiver.fill(qp.receive_queue().unwrap(), &large).unwrap();
    qp.activate().unwrap();
    let itself = qp.address_handle(&qp.address().unwrap(), QKEY).unwrap();
    let free = large.available();
    for round in 0..20u8 {
        qp.send_to(&[round; 8], &itself, None).unwrap();
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(message.datagram().unwrap().payload(), [round; 8]);
            let refused = message.replace(small.take().unwrap()).unwrap_err();
            assert_eq!(refused.reason, PostFailure::NoRoomForHeader { capacity: 39 });
            assert_eq!(small.available(), 0, "the buffer is in the error");
        });
        receiving::wait("the end of a send", || qp.poll_send().is_some());
        assert_eq!((small.available(), large.available()), (1, free));
    }
    // Where it is fit for the queue, it is one that a queue pair for datagrams may find there later.
    let srq = receiver.create_srq(&SrqConfig::new(3)).unwrap();
    let (near, mut peers) =
        Peers::connect(&pd, &mut receiver, &QpConfig::rc().srq(srq).min_rnr_timer(1), 1, 64);
    receiver.post(srq, large.take()).unwrap();
    peers.send(0, 20);
    receiving::messages(&mut receiver, 1, |message| {
        drop(message.replace(small.take().unwrap()).unwrap());
    });
    match receiver.create_qp(&QpConfig::ud(QKEY).srq(srq)) {
        Err(Error::NoRoomForHeader { capacity: 39 }) => {}
        other => panic!("{other:?}"),
    }
    drop(near);
}

#[test]
fn an_activation_is_not_repeated_and_the_error_is_about_it() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let mut qp = receiver.create_qp(&QpConfig::ud(QKEY).receives(4, 1)).unwrap();
    qp.activate().unwrap();
    match qp.activate() {
        Err(error @ Error::WrongState { operation: "activate", state: QpState::Rts, .. }) => {
            let words = error.to_string();
            for part in ["activate", "RTS", "INIT", "reset_qp", &format!("{:#x}", qp.qp_num())] {
                assert!(words.contains(part), "{words}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_groups_and_missing_memberships_are_named() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let mut qp = receiver.create_qp(&QpConfig::ud(QKEY).receives(4, 1)).unwrap();
    qp.activate().unwrap();
    let infiniband = qp.address().unwrap().lid != 0;
    let lid = if infiniband { 0xc123 } else { 0 };
    let group =
        |address: &str| MulticastGroup { lid, ..MulticastGroup::ip(address.parse().unwrap()) };

    let error = qp.join(&group("192.0.2.1")).unwrap_err();
    assert!(matches!(error, Error::NotMulticast { operation: "join", .. }), "{error}");
    assert!(error.to_string().contains("192.0.2.1 is not a multicast address"), "{error}");
    let error = qp.leave(&group("ff0e::1:2")).unwrap_err();
    assert!(matches!(error, Error::NotMember { .. }), "{error}");
    assert!(error.to_string().contains("not a member of ff0e::1:2"), "{error}");
    if infiniband {
        // Without the LID nothing would go out.
        let error = qp.join(&MulticastGroup { lid: 0, ..group("ff0e::1:2") }).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { value: 0, min: 0xc000, .. }), "{error}");
        assert!(error.to_string().contains("subnet manager"), "{error}");
        let to = qp.multicast_handle(&MulticastGroup { lid: 7, ..group("ff0e::1:2") }, QKEY);
        assert!(matches!(to, Err(Error::OutOfRange { value: 7, .. })), "{to:?}");
    }
}

#[test]
fn a_peer_that_is_silent_in_the_exchange_is_an_error_with_words() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 256);
    let mut qp = receiver.create_qp(&QpConfig::rc().receives(4, 1)).unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    here.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    there.write_all(b"door").unwrap();
    match qp.connect_over(&mut here) {
        Err(Error::SilentPeer { received: 4, expected: 40 }) => {}
        other => panic!("{other:?}"),
    }
    // The queue pair is as it was.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let mut peer = receiver.create_qp(&QpConfig::rc().receives(4, 1)).unwrap();
    let side = thread::spawn(move || peer.connect_over(&mut there).map(|()| peer));
    qp.connect_over(&mut here).unwrap();
    let mut peer = side.join().unwrap().unwrap();
    // One that is connected writes nothing, and does not wait.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let refused = qp.connect_over(&mut here).unwrap_err();
    assert!(matches!(refused, Error::WrongState { operation: "connect_over", .. }), "{refused}");
    drop(here);
    receiver.reset_qp(&mut peer).unwrap();
    let left = peer.connect_over(&mut there).unwrap_err();
    assert!(matches!(left, Error::Handshake(_)), "{left:?}");
}

#[test]
fn an_empty_entry_of_the_gid_table_is_no_address() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 64);
    let gids = pd.context().gids();
    let Some(empty) = (0..8).find(|index| gids.iter().all(|gid| gid.index != *index)) else {
        return println!("skipped: the table has no empty entry");
    };
    let config = QpConfig::rc().receives(4, 1).gid_index(empty as u8);
    let refused = receiver.create_qp(&config).unwrap().address().unwrap_err();
    assert!(
        matches!(refused, Error::NoGid { port: 1, index, .. } if u32::from(index) == empty),
        "{refused}"
    );
}

#[test]
fn numbers_that_no_peer_has_and_keys_of_the_system_are_refused() {
    let mut w = Single::beside(8, 64, 8);
    w.receiver.reset_qp(&mut w.near).unwrap();
    let there = w.peers.qps[0].address().unwrap();
    for qpn in [0, 1] {
        match w.near.connect(&QpAddress { qpn, ..there }) {
            Err(Error::OutOfRange { what: "qpn of the peer", value, min: 2, .. }) => {
                assert_eq!(value, u64::from(qpn));
            }
            other => panic!("{other:?}"),
        }
    }
    let refused = w.receiver.create_qp(&QpConfig::ud(0x8000_0001).receives(4, 1)).unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { value: 0x8000_0001, .. }), "{refused}");
    assert!(refused.to_string().contains("upper bit reserved"), "{refused}");
    let mut qp = w.receiver.create_qp(&QpConfig::ud(QKEY).receives(4, 1)).unwrap();
    qp.activate().unwrap();
    let refused = qp.address_handle(&there, 0x8000_0000).unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
}

#[test]
fn receives_of_its_own_and_shared_ones_are_not_asked_for_together() {
    let mut w = Shared::new(15, 1, 64);
    for both in [
        QpConfig::rc().srq(w.srq).receives(4, 1),
        QpConfig::rc().receives(4, 1).srq(w.srq),
        QpConfig::ud(QKEY).receives(4, 1).srq(w.srq),
    ] {
        match w.receiver.create_qp(&both) {
            Err(Error::Unsupported { operation: "QpConfig::receives", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_message_longer_than_its_buffer_is_a_clear_error() {
    let mut w = Single::new(4, 64);
    let short = BufferPool::new(&w.pd, 4, 16).unwrap();
    w.receiver.fill(w.rq, &short).unwrap();
    w.peers.send(0, 60);
    let failures = receiving::failures(&mut w.receiver, 1);
    let words = failures[0].to_string();
    assert!(words.contains("the message was longer than the buffers of the receive"), "{words}");
}

#[test]
fn datagrams_are_exchanged_after_the_exchange_of_addresses() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 256);
    let pool = BufferPool::new(&pd, 64, 256).unwrap();
    // Each takes datagrams with a key of its own.
    let mut end = |qkey| {
        let config = QpConfig::ud(qkey).receives(8, 1).max_inline(64);
        let qp = SendingQp::create(&mut receiver, &config).unwrap();
        receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        qp
    };
    let (mut one, mut two, mut three) = (end(0x11), end(0x22), end(0x33));
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let side = thread::spawn(move || two.address_handle_over(&mut there).map(|to| (two, to)));
    let to_two = one.address_handle_over(&mut here).unwrap();
    let (mut two, to_one) = side.join().unwrap().unwrap();
    // The same queue pair, and another peer over the same stream.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let side = thread::spawn(move || three.address_handle_over(&mut there).map(|to| (three, to)));
    let to_three = one.address_handle_over(&mut here).unwrap();
    let (three, _) = side.join().unwrap().unwrap();
    assert_eq!((to_one.qp_num(), to_two.qp_num()), (one.qp_num(), two.qp_num()));

    one.send_to(b"to two", &to_two, None).unwrap();
    one.send_to(b"to three", &to_three, None).unwrap();
    two.send_to(b"to one", &to_one, None).unwrap();
    for (qp, count) in [(&mut one, 2), (&mut two, 1)] {
        for _ in 0..count {
            receiving::wait("the end of a send", || {
                qp.poll_send().is_some_and(|sent| sent.status == WcStatus::SUCCESS)
            });
        }
    }
    let mut arrived = Vec::new();
    receiving::messages(&mut receiver, 3, |message| {
        let payload = message.datagram().unwrap().payload().to_vec();
        arrived.push((message.qp_num(), payload));
    });
    arrived.sort();
    let mut expected = [
        (one.qp_num(), b"to one".to_vec()),
        (two.qp_num(), b"to two".to_vec()),
        (three.qp_num(), b"to three".to_vec()),
    ];
    expected.sort();
    assert_eq!(arrived, expected);
}

#[test]
fn both_ends_of_an_exchange_have_the_same_transport() {
    let pd = device::pd();
    let mut receiver = device::receiver(&pd, 256);
    let mut datagrams = receiver.create_qp(&QpConfig::ud(QKEY).receives(4, 1)).unwrap();
    let mut connection = receiver.create_qp(&QpConfig::rc().receives(4, 1)).unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let refused = datagrams.connect_over(&mut here).unwrap_err();
    assert!(refused.to_string().contains("use address_handle_over"), "{refused}");
    let refused = connection.address_handle_over(&mut here).unwrap_err();
    assert!(refused.to_string().contains("use connect_over"), "{refused}");
    let side = thread::spawn(move || connection.connect_over(&mut there).unwrap_err());
    let refused = datagrams.address_handle_over(&mut here).unwrap_err();
    assert!(refused.to_string().contains("same transport"), "{refused}");
    drop(here);
    let refused = side.join().unwrap();
    assert!(refused.to_string().contains("same transport"), "{refused}");
}

#[test]
fn a_buffer_is_filled_like_a_vector_and_kept_like_bytes() {
    let mut w = Single::new(4, 64);
    let mut buffer = w.pool.take().unwrap();
    buffer.extend_from_slice(b"hello");
    buffer.extend_from_slice(b"");
    write!(buffer, ", {}", 1234).unwrap();
    assert_eq!(*buffer, *b"hello, 1234");
    // As far as there is room, and not a byte further.
    assert_eq!(buffer.write(&[7; 100]).unwrap(), 64 - 11);
    assert_eq!(buffer.write(&[7]).unwrap(), 0);
    assert_eq!(buffer.write_all(&[7]).unwrap_err().kind(), std::io::ErrorKind::WriteZero);
    assert_eq!(buffer.len(), 64);
    buffer.clear();
    buffer.extend_from_slice(b"again");
    buffer.as_mut()[0] = b'A';
    assert_eq!(buffer.as_ref(), b"Again");
    drop(buffer);

    w.receiver.fill(w.rq, &w.pool).unwrap();
    let available = w.pool.available();
    w.peers.send(0, 60);
    let mut kept = bytes::Bytes::new();
    receiving::messages(&mut w.receiver, 1, |message| {
        kept = bytes::Bytes::from_owner(message.take());
    });
    let part = kept.slice(10..20);
    assert_eq!((kept.len(), part.len()), (60, 10));
    drop(kept);
    assert_eq!(w.pool.available(), available, "a part of it is still there");
    drop(part);
    assert_eq!(w.pool.available(), available + 1);
}

#[test]
#[should_panic(expected = "length 65 of a buffer of 64 bytes")]
fn more_than_a_buffer_holds_is_not_appended() {
    let w = Single::new(4, 64);
    let mut buffer = w.pool.take().unwrap();
    buffer.extend_from_slice(&[0; 60]);
    buffer.extend_from_slice(&[0; 5]);
}

#[test]
fn a_send_to_nowhere_says_which_call_is_right() {
    let mut w = Single::beside(4, 64, 4);
    let config = QpConfig::ud(QKEY).receives(4, 1);
    let mut qp = SendingQp::create(&mut w.receiver, &config).unwrap();
    qp.activate().unwrap();
    let refused = qp.send_inline(b"", None).unwrap_err();
    assert!(matches!(refused, NotSent::Transport) && refused.to_string().contains("send_to"));
}
