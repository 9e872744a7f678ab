//! Mistakes of a first program are refused with the reason, on both paths alike.

use std::error::Error as StdError;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, Error, PoolConfig, PostFailure, QpConfig, QpState, QueuePair, RqConfig, SrqConfig, WcStatus,
};
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{Peers, assert_matches, device, receiving};

const QKEY: u32 = 0x1111;

/// Posts with `?` from an iterator that borrows: the error outlives it, and has the buffers that were not posted.
fn post_what_is_lent(w: &mut Shared, mut buffers: Vec<Buffer>) -> Result<usize, Box<dyn StdError>> {
    Ok(w.receiver.post(w.queue, buffers.drain(..))?)
}

#[test]
fn the_error_of_a_post_outlives_the_iterator_and_has_its_buffers() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.capacity();
    let buffers: Vec<_> = std::iter::from_fn(|| w.pool.take()).take(capacity + 5).collect();
    let rest: Vec<_> = buffers[capacity..].iter().map(|buffer| buffer.as_ptr()).collect();
    let error = post_what_is_lent(&mut w, buffers).unwrap_err();
    let error = error.downcast::<doorbell::PostError>().unwrap();
    assert_eq!((error.posted, error.reason), (capacity, PostFailure::Full));
    let back: Vec<_> = error.buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(back, rest, "in order, those that were not taken from the iterator included");
}

#[test]
fn the_low_water_mark_sees_what_has_completed_and_was_not_polled() {
    let mut w = Shared::new(15, 1, 64);
    let capacity = w.receiver.capacity(w.queue);
    w.fill();
    w.receiver.keep_filled(w.queue, &w.pool).unwrap();
    drop(w.receiver.poll());
    assert_eq!(w.receiver.statistics().unwrap().low_water, Some(capacity));
    // The device uses up all but two, and the program does not look.
    w.peers.arrive(capacity as usize - 2);
    // Batches that take fewer messages than wait: each buffer goes back to the queue at once.
    let mut seen = 0;
    while seen < capacity - 2 {
        let mut batch = w.receiver.poll_up_to(1);
        while let Some(message) = batch.next() {
            message.unwrap();
            seen += 1;
        }
    }
    assert_eq!(w.receiver.statistics().unwrap().low_water, Some(2));
}

#[test]
fn receives_for_datagrams_need_room_for_the_header() {
    let (pd, mut receiver) = device::start(64);
    let qp =
        QueuePair::builder(&QpConfig::ud(QKEY)).receive(&mut receiver, RqConfig::new(8).max_sge(2)).build().unwrap();
    let queue = qp.receive_queue().unwrap();
    let [small, large] = [39, 40].map(|size| BufferPool::new(&pd, &PoolConfig::new(8, size)).unwrap());
    let short = PostFailure::NoRoomForHeader { capacity: 39 };
    let refused = receiver.post(queue, [large.take().unwrap(), small.take().unwrap()]).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (1, short));
    assert!(refused.to_string().contains("40 bytes"), "{refused}");
    assert_eq!(refused.buffers.len(), 1);
    drop(refused);
    assert_eq!(receiver.fill(queue, &small).unwrap_err().reason, short);
    let both = vec![small.take().unwrap(), large.take().unwrap()];
    assert_eq!(receiver.post_scatter(queue, both).unwrap_err().reason, short);
    assert_matches!(receiver.keep_filled(queue, &small), Err(Error::NoRoomForHeader { capacity: 39 }));
    assert_eq!(small.available(), 8);
    receiver.post_scatter(queue, vec![large.take().unwrap(), small.take().unwrap()]).unwrap();
    receiver.fill(queue, &large).unwrap();
}

#[test]
fn an_srq_takes_datagrams_when_its_buffers_have_room_for_the_header() {
    let (pd, mut receiver) = device::start(64);
    let small = BufferPool::new(&pd, &PoolConfig::new(8, 39)).unwrap();
    let large = BufferPool::new(&pd, &PoolConfig::new(64, 512)).unwrap();
    let datagrams = QpConfig::ud(QKEY);

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    // For a connection they are fine.
    receiver.post(srq, small.take()).unwrap();
    drop(QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build().unwrap());
    let refused = QueuePair::builder(&datagrams).receive(&mut receiver, srq).build().unwrap_err();
    assert_matches!(refused, Error::NoRoomForHeader { capacity: 39 });
    assert!(refused.to_string().contains("GRH_SIZE"), "{refused}");
    // Nothing was changed.
    receiver.post(srq, small.take()).unwrap();
    receiver.destroy_srq(srq).unwrap();

    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let qp = QueuePair::builder(&datagrams).receive(&mut receiver, srq).build().unwrap();
    let refused = receiver.post(srq, small.take()).unwrap_err();
    assert_eq!(refused.reason, PostFailure::NoRoomForHeader { capacity: 39 });
    assert!(receiver.fill(srq, &large).unwrap() > 0);
    drop(qp);
}

/// A buffer that replaces a message is checked like a buffer that is posted.
#[test]
fn the_message_of_a_datagram_is_not_replaced_by_a_buffer_without_room_for_the_header() {
    let pd = device::pd();
    let small = BufferPool::new(&pd, &PoolConfig::new(1, 39)).unwrap();
    let large = BufferPool::new(&pd, &PoolConfig::new(64, 512)).unwrap();
    let mut receiver = device::receiver(&pd, 64);
    let config = QpConfig::ud(QKEY).max_inline(64);
    let mut qp = SendingQp::create(&mut receiver, &config, RqConfig::new(4)).unwrap();
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
        qp.ended();
        assert_eq!((small.available(), large.available()), (1, free));
    }
    // An SRQ takes the buffer, but a queue pair for datagrams may use it later.
    let srq = receiver.create_srq(&SrqConfig::new(3)).unwrap();
    let (near, mut peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc().min_rnr_timer(1), srq, 1, 64);
    receiver.post(srq, large.take()).unwrap();
    peers.send(0, 20);
    receiving::messages(&mut receiver, 1, |message| {
        drop(message.replace(small.take().unwrap()).unwrap());
    });
    assert_matches!(
        QueuePair::builder(&QpConfig::ud(QKEY)).receive(&mut receiver, srq).build(),
        Err(Error::NoRoomForHeader { capacity: 39 })
    );
    drop(near);
}

#[test]
fn an_activation_is_not_repeated_and_the_error_is_about_it() {
    let (_, mut receiver) = device::start(64);
    let mut qp = QueuePair::builder(&QpConfig::ud(QKEY)).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    qp.activate().unwrap();
    let error = qp.activate().unwrap_err();
    assert_matches!(error, Error::WrongState { operation: "activate", state: QpState::Rts, .. });
    let words = error.to_string();
    for part in ["activate", "RTS", "INIT", "reset_qp", &format!("{:#x}", qp.qp_num())] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_peer_that_is_silent_in_the_exchange_is_an_error_with_words() {
    let (_, mut receiver) = device::start(256);
    let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    here.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    there.write_all(b"door").unwrap();
    assert_matches!(qp.connect_over(&mut here), Err(Error::SilentPeer { received: 4, expected: 40 }));
    // The queue pair has not changed.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let mut peer = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    let side = thread::spawn(move || peer.connect_over(&mut there).map(|()| peer));
    qp.connect_over(&mut here).unwrap();
    let mut peer = side.join().unwrap().unwrap();
    // A queue pair that is connected writes nothing, and does not wait.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let refused = qp.connect_over(&mut here).unwrap_err();
    assert_matches!(refused, Error::WrongState { operation: "connect_over", .. });
    drop(here);
    receiver.reset_qp(&mut peer).unwrap();
    let left = peer.connect_over(&mut there).unwrap_err();
    assert_matches!(left, Error::Handshake(_));
}

#[test]
fn an_empty_entry_of_the_gid_table_is_no_address() {
    let (pd, mut receiver) = device::start(64);
    let gids = pd.context().gids();
    let Some(empty) = (0..8).find(|index| gids.iter().all(|gid| gid.index != *index)) else {
        return println!("skipped: the table has no empty entry");
    };
    let config = QpConfig::rc().gid_index(empty as u8);
    let refused =
        QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).build().unwrap().address().unwrap_err();
    assert_matches!(refused, Error::NoGid { port: 1, index, .. } if u32::from(index) == empty);
}

#[test]
fn keys_of_the_system_are_refused() {
    let (_, mut receiver) = device::start(8);
    let refused =
        QueuePair::builder(&QpConfig::ud(0x8000_0001)).receive(&mut receiver, RqConfig::new(4)).build().unwrap_err();
    assert_matches!(refused, Error::OutOfRange { value: 0x8000_0001, .. });
    assert!(refused.to_string().contains("upper bit reserved"), "{refused}");
    let mut qp = QueuePair::builder(&QpConfig::ud(QKEY)).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    qp.activate().unwrap();
    let itself = qp.address().unwrap();
    assert_matches!(qp.address_handle(&itself, 0x8000_0000).unwrap_err(), Error::OutOfRange { .. });
}

#[test]
fn datagrams_are_exchanged_after_the_exchange_of_addresses() {
    let (pd, mut receiver) = device::start(256);
    let pool = BufferPool::new(&pd, &PoolConfig::new(64, 256)).unwrap();
    // Each has a Q_Key of its own.
    let mut end = |qkey| {
        let config = QpConfig::ud(qkey).max_inline(64);
        let qp = SendingQp::create(&mut receiver, &config, RqConfig::new(8)).unwrap();
        receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
        qp
    };
    let (mut one, mut two, mut three) = (end(0x11), end(0x22), end(0x33));
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let side = thread::spawn(move || two.address_handle_over(&mut there).map(|to| (two, to)));
    let to_two = one.address_handle_over(&mut here).unwrap();
    let (mut two, to_one) = side.join().unwrap().unwrap();
    // The first queue pair exchanges addresses with another peer over a stream of its own.
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let side = thread::spawn(move || three.address_handle_over(&mut there).map(|to| (three, to)));
    let to_three = one.address_handle_over(&mut here).unwrap();
    let (three, _) = side.join().unwrap().unwrap();
    assert_eq!((to_one.qp_num(), to_two.qp_num()), (one.qp_num(), two.qp_num()));

    one.send_to(b"to two", &to_two, None).unwrap();
    one.send_to(b"to three", &to_three, None).unwrap();
    two.send_to(b"to one", &to_one, None).unwrap();
    for (qp, count) in [(&mut one, 2), (&mut two, 1)] {
        (0..count).for_each(|_| assert_eq!(qp.ended(), WcStatus::SUCCESS));
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
    let (_, mut receiver) = device::start(256);
    let mut datagrams =
        QueuePair::builder(&QpConfig::ud(QKEY)).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    let mut connection = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
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

    w.fill();
    let available = w.pool.available();
    w.peers.send(0, 60);
    let kept = bytes::Bytes::from_owner(w.take(1).remove(0));
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
