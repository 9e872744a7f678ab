//! Verbs objects that a program made by hand with libibverbs.

use std::ptr;

use doorbell::{BufferPool, ProtectionDomain, QpConfig, Receiver, Sender, SenderConfig, SrqConfig};
use doorbell_tests::{Peers, device, message, receiving, sending};
use rdma_core_sys as sys;

/// A CQ, an SRQ and a QP on them, as a C program would make them.
struct Made {
    recv_cq: *mut sys::ibv_cq,
    send_cq: *mut sys::ibv_cq,
    srq: *mut sys::ibv_srq,
    qp: *mut sys::ibv_qp,
}

const RECEIVES: u32 = 32;

impl Made {
    fn new(pd: &ProtectionDomain, shared: bool) -> Self {
        let context = pd.context().as_raw();
        // SAFETY: an open context, a domain of it, initialised structures; destroyed below.
        unsafe {
            let cq = |entries| {
                let cq = sys::ibv_create_cq(context, entries, ptr::null_mut(), ptr::null_mut(), 0);
                assert!(!cq.is_null());
                cq
            };
            let (recv_cq, send_cq) = (cq(256), cq(256));
            let mut srq = ptr::null_mut();
            if shared {
                let mut attr = sys::ibv_srq_init_attr::default();
                attr.attr.max_wr = RECEIVES;
                attr.attr.max_sge = 1;
                srq = sys::ibv_create_srq(pd.as_raw(), &mut attr);
                assert!(!srq.is_null());
            }
            let mut init = sys::ibv_qp_init_attr {
                send_cq,
                recv_cq,
                srq,
                qp_type: sys::IBV_QPT_RC,
                ..Default::default()
            };
            init.cap.max_send_wr = 16;
            init.cap.max_send_sge = 1;
            if !shared {
                init.cap.max_recv_wr = RECEIVES;
                init.cap.max_recv_sge = 1;
            }
            let qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
            assert!(!qp.is_null());
            Self { recv_cq, send_cq, srq, qp }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once, after everything that wraps it.
        unsafe {
            assert_eq!(sys::ibv_destroy_qp(self.qp), 0);
            if !self.srq.is_null() {
                assert_eq!(sys::ibv_destroy_srq(self.srq), 0);
            }
            assert_eq!(sys::ibv_destroy_cq(self.recv_cq), 0);
            assert_eq!(sys::ibv_destroy_cq(self.send_cq), 0);
        }
    }
}

/// Wraps what was made by hand, connects it and receives through it.
fn receive_through(shared: bool) {
    let pd = device::pd();
    let made = Made::new(&pd, shared);
    // SAFETY: nobody else uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, made.recv_cq, device::path()) }.unwrap();
    let srq = shared.then(|| {
        // SAFETY: as above; the sizes are those it was made with.
        unsafe { receiver.attach_raw_srq(made.srq, RECEIVES, 1) }.unwrap()
    });
    let config = match srq {
        Some(srq) => QpConfig::rc().srq(srq),
        None => QpConfig::rc().receives(RECEIVES, 1),
    };
    // SAFETY: as above.
    let mut near = unsafe { receiver.attach_raw_qp(made.qp, &config) }.unwrap();
    let pool = BufferPool::new(&pd, 2 * RECEIVES + 2, 128).unwrap();
    let capacity = match srq {
        Some(srq) => receiver.fill(srq, &pool).unwrap(),
        None => receiver.fill(near.receive_queue().unwrap(), &pool).unwrap(),
    };
    assert!(capacity >= RECEIVES as usize, "{capacity}");

    // The far end of some other connection becomes this one's.
    let mut dummy = device::receiver(&pd, 64);
    let (_, mut peers) = Peers::connect(&pd, &mut dummy, &QpConfig::rc().receives(1, 1), 1, 128);
    peers.reset(0);
    doorbell_tests::peers::join(&mut near, &mut peers.qps[0]);
    for number in 0..1000 {
        peers.send(0, 12 + number as usize % 100);
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, number));
        });
    }
    drop(near);
    drop(receiver);
    drop(made);
}

/// Sends through what was made by hand, more often than its send queue has blocks.
#[test]
fn a_sender_on_a_cq_made_by_hand() {
    let pd = device::pd();
    let made = Made::new(&pd, false);
    let with = SenderConfig::new().path(device::path());
    // SAFETY: nobody else uses the objects, and they are destroyed last.
    let (mut receiver, mut sender) = unsafe {
        let receiver = Receiver::from_raw_cq(&pd, made.recv_cq, device::path()).unwrap();
        (receiver, Sender::from_raw_cq(&pd, made.send_cq, &with).unwrap())
    };
    let config = QpConfig::rc().receives(RECEIVES, 1);
    // SAFETY: as above.
    let mut near =
        unsafe { receiver.attach_raw_qp_with_sender(made.qp, &config, &mut sender) }.unwrap();
    let queue = near.send_queue().unwrap();
    assert_eq!(sender.path(), receiver.path());
    let mut far_receiver = device::receiver(&pd, 64);
    let mut far = far_receiver.create_qp(&QpConfig::rc().receives(16, 1)).unwrap();
    doorbell_tests::peers::join(&mut near, &mut far);
    let (pool, arriving) =
        (BufferPool::new(&pd, 4, 128).unwrap(), BufferPool::new(&pd, 32, 128).unwrap());
    let rq = far.receive_queue().unwrap();
    for number in 0..sender.capacity(queue) + 16 {
        far_receiver.fill(rq, &arriving).unwrap();
        let mut buffer = pool.take().expect("the one before is back");
        buffer.extend_from_slice(&number.to_be_bytes());
        sender.post(queue).unwrap().send(buffer).unwrap();
        receiving::messages(&mut far_receiver, 1, |message| {
            assert_eq!(message[..], number.to_be_bytes());
        });
        let done = sending::completions(&mut sender, 1, |done| done.status.is_success());
        assert_eq!(done, [true]);
    }
    // A reset of a queue pair that was made elsewhere ends what it has posted, too.
    sender.post(queue).unwrap().send(pool.take().unwrap()).unwrap();
    receiver.reset_qp(&mut near).unwrap();
    receiving::wait("the send that was ended", || {
        let _ = sender.poll().next();
        !sender.is_busy(queue)
    });
    assert_eq!(pool.available(), 4);
    drop((near, receiver, sender));
    drop(made);
}

#[test]
fn a_queue_pair_a_cq_and_an_srq_made_by_hand() {
    receive_through(true);
}

#[test]
fn a_queue_pair_and_a_cq_made_by_hand() {
    receive_through(false);
}

#[test]
fn a_hand_made_srq_beside_one_of_the_library() {
    let pd = device::pd();
    let made = Made::new(&pd, true);
    let mut receiver = device::receiver(&pd, 256);
    // SAFETY: nobody else uses the SRQ, and it is destroyed last.
    let theirs = unsafe { receiver.attach_raw_srq(made.srq, RECEIVES, 1) }.unwrap();
    let ours = receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap();
    let pool = BufferPool::new(&pd, 1024, 64).unwrap();
    let (near, mut peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc().srq(theirs), 1, 64);
    let (near_ours, mut peers_ours) =
        Peers::connect(&pd, &mut receiver, &QpConfig::rc().srq(ours), 1, 64);
    receiver.fill(theirs, &pool).unwrap();
    receiver.fill(ours, &pool).unwrap();
    for number in 0..200 {
        peers.send(0, 64);
        peers_ours.send(0, 64);
        receiving::messages(&mut receiver, 2, |message| {
            assert_eq!(message::read(&message), (0, number));
        });
    }
    drop((near, near_ours, peers, peers_ours));
    drop(receiver);
    drop(made);
}

#[test]
fn a_hand_made_queue_pair_is_kept_filled_as_long_as_its_handle_lives() {
    let pd = device::pd();
    let made = Made::new(&pd, false);
    // SAFETY: nobody else uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, made.recv_cq, device::path()) }.unwrap();
    let config = QpConfig::rc().receives(RECEIVES, 1);
    // SAFETY: as above; the sizes are those it was made with.
    let near = unsafe { receiver.attach_raw_qp(made.qp, &config) }.unwrap();
    let rq = near.receive_queue().unwrap();
    let pool = BufferPool::new(&pd, 2 * RECEIVES, 64).unwrap();
    receiver.keep_filled(rq, &pool, 1).unwrap();
    receiver.post(rq, pool.take()).unwrap();
    drop(near);
    receiver.refill();
    assert_eq!(receiver.capacity(rq) - receiver.free_slots(rq), 1);
    drop(receiver);
    drop(made);
}

#[test]
fn a_queue_pair_for_raw_packets_is_not_attached() {
    let pd = device::pd();
    let made = Made::new(&pd, false);
    // SAFETY: nobody else uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, made.recv_cq, device::path()) }.unwrap();
    for qp_type in [sys::IBV_QPT_RAW_PACKET, sys::IBV_QPT_XRC_RECV, sys::IBV_QPT_DRIVER] {
        // SAFETY: a copy of a live object: the type alone is looked at.
        let mut other = unsafe { ptr::read(made.qp) };
        other.qp_type = qp_type;
        // SAFETY: as above.
        let refused = unsafe { receiver.attach_raw_qp(&mut other, &QpConfig::rc()) }.unwrap_err();
        assert!(refused.to_string().contains("raw packets"), "{refused}");
    }
    // SAFETY: as above.
    drop(
        unsafe { receiver.attach_raw_qp(made.qp, &QpConfig::rc().receives(RECEIVES, 1)) }.unwrap(),
    );
    drop((receiver, made));
}
