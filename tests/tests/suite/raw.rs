//! Verbs objects that a program made by hand with libibverbs.

use std::ptr;

use doorbell::{
    BufferPool, Compression, CqConfig, Error, PoolConfig, ProtectionDomain, QpConfig, QueuePair, ReceiveFrom, Receiver,
    RqConfig, Sender, SrqConfig, Timestamps, WcStatus,
};
use doorbell_tests::by_hand::{Made, plain_cq, query};
use doorbell_tests::{Peers, device, message, receiving, sending};
use rdma_core_sys as sys;

const RECEIVES: u32 = 32;
const OWN: RqConfig = RqConfig::new(RECEIVES);

fn config() -> CqConfig {
    CqConfig::new(4096).path(device::path())
}

/// Attributes with which `ibv_create_cq_ex` and `mlx5dv_create_cq` make a CQ with timestamps, or a compressed one.
fn extended(wc_flags: u32) -> sys::ibv_cq_init_attr_ex {
    let wc_flags = u64::from(sys::IBV_WC_STANDARD_FLAGS | wc_flags);
    sys::ibv_cq_init_attr_ex { cqe: 255, wc_flags, ..Default::default() }
}

/// Takes over a queue pair that only receives.
///
/// # Safety
/// As for [`attach`](doorbell::QueuePairBuilder::attach).
unsafe fn attach(
    receiver: &mut Receiver,
    from: impl Into<ReceiveFrom>,
    qp: *mut sys::ibv_qp,
) -> doorbell::Result<QueuePair> {
    // SAFETY: as the caller says.
    unsafe { QueuePair::builder(&QpConfig::rc()).receive(receiver, from).attach(qp) }
}

fn made(pd: &ProtectionDomain, shared: bool) -> Made {
    made_on(pd, plain_cq(pd), shared)
}

fn made_on(pd: &ProtectionDomain, recv_cq: *mut sys::ibv_cq, shared: bool) -> Made {
    Made::on(pd, recv_cq, sys::IBV_QPT_RC, (RECEIVES, 1), shared)
}

/// Wraps objects that were made by hand, connects them and receives through them.
fn receive_through(pd: &ProtectionDomain, made: Made, config: &CqConfig, timed: bool) {
    // SAFETY: no other code uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(pd, made.recv_cq, config) }.unwrap();
    let srq = (!made.srq.is_null()).then(|| {
        // SAFETY: as above; it was made with these sizes.
        unsafe { receiver.attach_srq(made.srq, &SrqConfig::new(RECEIVES)) }.unwrap()
    });
    let from = srq.map_or(OWN.into(), ReceiveFrom::from);
    // SAFETY: as above.
    let mut near = unsafe { attach(&mut receiver, from, made.qp) }.unwrap();
    let pool = BufferPool::new(pd, &PoolConfig::new(2 * RECEIVES + 2, 128)).unwrap();
    let capacity = match srq {
        Some(srq) => receiver.fill(srq, &pool).unwrap(),
        None => receiver.fill(near.receive_queue().unwrap(), &pool).unwrap(),
    };
    assert!(capacity >= RECEIVES as usize, "{capacity}");

    // The far end of some other connection becomes this one's.
    let mut dummy = device::receiver(pd, 64);
    let (_, mut peers) = Peers::connect(pd, &mut dummy, &QpConfig::rc(), RqConfig::new(1), 1, 128);
    peers.reset(0);
    doorbell_tests::peers::join(&mut near, &mut peers.qps[0]);
    let mut number = 0;
    for burst in (0..RECEIVES as usize).cycle().take(100) {
        (0..burst).for_each(|i| _ = peers.send(0, 12 + i));
        peers.settle();
        receiving::messages(&mut receiver, burst, |message| {
            assert_eq!(message::read(&message), (0, number));
            assert_eq!(message.timestamp().is_some(), timed);
            number += 1;
        });
    }
    drop(near);
    // SAFETY: a live queue pair.
    let state = unsafe { query(made.qp, sys::IBV_QP_STATE) }.qp_state;
    assert_eq!(state, sys::IBV_QPS_ERR, "dropping the handle disconnects");
    drop(receiver);
    drop(made);
}

/// Sends through objects that were made by hand, more often than the send queue has blocks.
#[test]
fn a_sender_on_a_cq_made_by_hand() {
    let pd = device::pd();
    let made = made(&pd, false);
    let with = CqConfig::new(4096).path(device::path());
    // SAFETY: no other code uses the objects, and they are destroyed last.
    let (mut receiver, mut sender) = unsafe {
        let receiver = Receiver::from_raw_cq(&pd, made.recv_cq, &config()).unwrap();
        (receiver, Sender::from_raw_cq(&pd, made.send_cq, &with).unwrap())
    };
    let config = QpConfig::rc();
    let builder = QueuePair::builder(&config);
    // SAFETY: as above.
    let mut near = unsafe { builder.receive(&mut receiver, OWN).send(&mut sender).attach(made.qp) }.unwrap();
    let queue = near.send_queue().unwrap();
    assert_eq!(sender.path(), receiver.path());
    // SAFETY: live CQs.
    let made_with = unsafe { [(*made.recv_cq).cqe, (*made.send_cq).cqe] };
    let extra = u32::from(receiver.path() == doorbell::DataPath::Direct);
    assert_eq!([receiver.cq_capacity(), sender.cq_capacity()], made_with.map(|cqe| cqe as u32 + extra));
    let mut far_receiver = device::receiver(&pd, 64);
    let mut far = QueuePair::builder(&QpConfig::rc()).receive(&mut far_receiver, RqConfig::new(16)).build().unwrap();
    doorbell_tests::peers::join(&mut near, &mut far);
    let (pool, arriving) = (
        BufferPool::new(&pd, &PoolConfig::new(4, 128)).unwrap(),
        BufferPool::new(&pd, &PoolConfig::new(32, 128)).unwrap(),
    );
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
    // A reset of a queue pair that was made elsewhere ends its requests, too.
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

/// The receives of the queue pair, of which none is posted, would complete on a CQ that doorbell does not know.
#[test]
fn a_queue_pair_made_by_hand_that_only_sends() {
    let pd = device::pd();
    let made = made(&pd, false);
    // SAFETY: no other code uses the objects, and they are destroyed last.
    let mut sender = unsafe { Sender::from_raw_cq(&pd, made.send_cq, &config()) }.unwrap();
    let builder = QueuePair::builder(&QpConfig::rc()).send(&mut sender);
    // SAFETY: as above.
    let mut near = unsafe { builder.attach(made.qp) }.unwrap();
    assert!(near.receive_queue().is_none());
    let mut receiver = device::receiver(&pd, 16);
    let own = RqConfig::new(16);
    let mut far = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own).build().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(32, 64)).unwrap();
    receiver.fill(far.receive_queue().unwrap(), &pool).unwrap();
    doorbell_tests::peers::join(&mut near, &mut far);
    for number in 0..40u64 {
        let mut buffer = pool.take().unwrap();
        buffer.extend_from_slice(&number.to_ne_bytes());
        sender.post(&near).unwrap().token(number).send(buffer).unwrap();
        receiving::messages(&mut receiver, 1, |message| {
            assert_eq!(*message, number.to_ne_bytes());
        });
        let done = sending::completions(&mut sender, 1, |sent| (sent.token, sent.status));
        assert_eq!(done, [(number, WcStatus::SUCCESS)]);
    }
    let refused = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, own);
    // SAFETY: as above; a refused queue pair is not used.
    let refused = unsafe { refused.attach(made.qp) }.unwrap_err();
    assert!(refused.to_string().contains("another CQ than this receiver"), "{refused}");
    drop((near, far, receiver, sender));
    drop(made);
}

#[test]
fn a_queue_pair_and_a_cq_made_by_hand_with_an_srq_and_without() {
    let pd = device::pd();
    for shared in [true, false] {
        println!("with an SRQ: {shared}");
        receive_through(&pd, made(&pd, shared), &config(), false);
    }
}

#[test]
fn a_cq_made_by_hand_with_timestamps() {
    let pd = device::pd();
    if matches!(pd.context().clock(), Err(Error::Unsupported { .. })) {
        return println!("skipped: the device has no clock");
    }
    let mut init = extended(sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    // SAFETY: an open context and an initialised structure; `Made` destroys the CQ.
    let cq = unsafe { sys::ibv_create_cq_ex(pd.context().as_raw(), &mut init) };
    let made = made_on(&pd, sys::ibv_cq_ex_to_cq(cq), false);
    receive_through(&pd, made, &config().timestamps(Timestamps::Ticks), true);
}

#[test]
fn a_cq_made_by_hand_that_is_compressed() {
    let pd = device::pd();
    if !device::drives_directly(pd.context()) {
        return println!("skipped: the direct path reads mini CQEs");
    }
    let mut mlx5 = sys::mlx5dv_cq_init_attr {
        comp_mask: (sys::MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE).into(),
        cqe_comp_res_format: sys::MLX5DV_CQE_RES_FORMAT_HASH as u8,
        flags: 0,
        cqe_size: 64,
    };
    let create_cq = sys::Mlx5dv::get().unwrap().create_cq;
    // SAFETY: an open context of an mlx5 device and initialised structures; `Made` destroys the CQ.
    let cq = unsafe { create_cq(pd.context().as_raw(), &mut extended(0), &mut mlx5) };
    let made = made_on(&pd, sys::ibv_cq_ex_to_cq(cq), true);
    receive_through(&pd, made, &config().compression(Compression::Hash), false);
}

#[test]
fn a_queue_pair_of_other_objects_is_refused() {
    let pd = device::pd();
    let mut made = made(&pd, true);
    let refusal = |cq, from: ReceiveFrom| {
        // SAFETY: no other code uses the objects, they are destroyed last, and a refused one is not used.
        unsafe {
            let mut receiver = Receiver::from_raw_cq(&pd, cq, &config()).unwrap();
            attach(&mut receiver, from, made.qp).unwrap_err().to_string()
        }
    };
    assert!(refusal(made.send_cq, OWN.into()).contains("another CQ than this receiver"));
    assert!(refusal(made.recv_cq, OWN.into()).contains("names the SRQ"));
    // SAFETY: as above; a QP that is used no more, and one like it.
    unsafe {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: made.recv_cq,
            recv_cq: made.recv_cq,
            qp_type: sys::IBV_QPT_RC,
            ..Default::default()
        };
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (RECEIVES, 1);
        assert_eq!(sys::ibv_destroy_qp(made.qp), 0);
        made.qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
        assert!(!made.qp.is_null());
        let mut receiver = Receiver::from_raw_cq(&pd, made.recv_cq, &config()).unwrap();
        let refused = attach(&mut receiver, OWN, made.qp).unwrap_err().to_string();
        assert!(refused.contains("on one CQ") && refused.contains("doorbell_attach_qp"), "{refused}");
    }
}

#[test]
fn a_hand_made_srq_beside_one_of_the_library() {
    let pd = device::pd();
    let made = made(&pd, true);
    let mut receiver = device::receiver(&pd, 256);
    // SAFETY: no other code uses the SRQ, and it is destroyed last.
    let theirs = unsafe { receiver.attach_srq(made.srq, &SrqConfig::new(RECEIVES)) }.unwrap();
    let ours = receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(1024, 64)).unwrap();
    let (near, mut peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc(), theirs, 1, 64);
    let (near_ours, mut peers_ours) = Peers::connect(&pd, &mut receiver, &QpConfig::rc(), ours, 1, 64);
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
    let made = made(&pd, false);
    // SAFETY: no other code uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, made.recv_cq, &config()) }.unwrap();
    // SAFETY: as above; it was made with these sizes.
    let near = unsafe { attach(&mut receiver, OWN, made.qp) }.unwrap();
    let rq = near.receive_queue().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(2 * RECEIVES, 64)).unwrap();
    let away: Vec<_> = (1..pool.count()).map(|_| pool.take()).collect();
    assert_eq!(receiver.keep_filled(rq, &pool).unwrap(), 1);
    drop((near, away));
    receiver.refill();
    assert_eq!(receiver.capacity(rq) - receiver.free_slots(rq), 1);
    drop(receiver);
    drop(made);
}

#[test]
fn a_queue_pair_for_raw_packets_is_not_attached() {
    let pd = device::pd();
    let made = made(&pd, false);
    // SAFETY: no other code uses the objects, and they are destroyed last.
    let mut receiver = unsafe { Receiver::from_raw_cq(&pd, made.recv_cq, &config()) }.unwrap();
    for qp_type in [sys::IBV_QPT_RAW_PACKET, sys::IBV_QPT_XRC_RECV, sys::IBV_QPT_DRIVER] {
        // SAFETY: a copy of a live object: only its type is read.
        let mut other = unsafe { ptr::read(made.qp) };
        other.qp_type = qp_type;
        // SAFETY: as above.
        let refused = unsafe { attach(&mut receiver, OWN, &mut other) }.unwrap_err();
        assert!(refused.to_string().contains("raw packets"), "{refused}");
    }
    // SAFETY: as above.
    drop(unsafe { attach(&mut receiver, OWN, made.qp) }.unwrap());
    drop((receiver, made));
}

/// A CQ as large as the program needs for what it asked for, although libmlx5 makes larger rings; not one entry more.
#[test]
fn a_cq_made_by_hand_holds_what_was_asked_for() {
    const SENDS: u32 = 32;
    let pd = device::pd();
    let context = pd.context().as_raw();
    let cq = |entries| {
        // SAFETY: an open context; destroyed below.
        let cq = unsafe { sys::ibv_create_cq(context, entries, ptr::null_mut(), ptr::null_mut(), 0) };
        assert!(!cq.is_null());
        cq
    };
    let (send_cq, recv_cq, few) = (cq(63), cq(63), cq(15));
    let make = |send_cq| {
        let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq, qp_type: sys::IBV_QPT_RC, ..Default::default() };
        (init.cap.max_send_wr, init.cap.max_send_sge) = (SENDS, 1);
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (SENDS, 1);
        // SAFETY: a domain and CQs of its context; destroyed below.
        let qp = unsafe { sys::ibv_create_qp(pd.as_raw(), &mut init) };
        assert!(!qp.is_null());
        qp
    };
    let (qp, other) = (make(send_cq), make(few));
    // SAFETY: no other code uses the objects, and they are destroyed last.
    unsafe {
        let mut receiver = Receiver::from_raw_cq(&pd, recv_cq, &config()).unwrap();
        let mut sender = Sender::from_raw_cq(&pd, send_cq, &config()).unwrap();
        let builder = QueuePair::builder(&QpConfig::rc());
        let mut near = builder.receive(&mut receiver, OWN).send(&mut sender).attach(qp).unwrap();
        let queue = near.send_queue().unwrap();
        assert!((SENDS..=64).contains(&sender.capacity(queue)), "{}", sender.capacity(queue));

        // A peer without receives: all that the queue takes is outstanding, and then flushed, twice.
        let mut far_receiver = device::receiver(&pd, 64);
        let mut far = QueuePair::builder(&QpConfig::rc()).receive(&mut far_receiver, OWN).build().unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(256, 64)).unwrap();
        for _ in 0..2 {
            doorbell_tests::peers::join(&mut near, &mut far);
            let mut posted = 0;
            while sender.send(queue, pool.take().unwrap()).is_ok() {
                posted += 1;
            }
            assert_eq!(posted, sender.capacity(queue));
            near.to_error().unwrap();
            let flushed = sending::completions(&mut sender, posted as usize, |done| done.status);
            assert!(flushed.iter().all(|status| *status == WcStatus::WR_FLUSH_ERR));
            receiver.reset_qp(&mut near).unwrap();
            far_receiver.reset_qp(&mut far).unwrap();
            while sender.is_busy(queue) {
                assert!(sender.poll().next().is_none());
            }
        }

        let mut small = Sender::from_raw_cq(&pd, few, &config()).unwrap();
        let refused = QueuePair::builder(&QpConfig::rc()).send(&mut small).attach(other).unwrap_err().to_string();
        assert!(refused.contains("ibv_create_cq") && !refused.contains("CqConfig"), "{refused}");

        drop((near, far, sender, receiver, small));
        for qp in [qp, other] {
            assert_eq!(sys::ibv_destroy_qp(qp), 0);
        }
        for cq in [send_cq, recv_cq, few] {
            assert_eq!(sys::ibv_destroy_cq(cq), 0);
        }
    }
}
