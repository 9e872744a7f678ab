//! Writes of a sender to the registers of its queue pairs: a copy of a small WQE to a dedicated register, eight bytes
//! to a register that may be shared.

use std::{ptr, thread};

use doorbell::{
    BufferPool, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig, Sender, SqId,
};
use doorbell_stepped_tests::{Sending, open};
use rdma_core_sys as sys;
use soft_mlx5::Device;

const SENDS: u32 = 4;
/// Inline, such a message needs more basic blocks than are copied to a register.
const LONG: usize = 300;

/// Posts one inline request, and returns how many bytes of either half of the register are written: the last that is
/// not 0. The device has not seen them yet.
fn written(device: &Device, sender: &mut Sender, queue: SqId, qp_num: u32) -> usize {
    sender.post(queue).unwrap().send(&[0xff; 16]).unwrap();
    let register = device.register(qp_num).expect("a register");
    let length = |half: &[u8; 64]| half.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    device.settle();
    while sender.poll().next().is_some() {}
    register.iter().map(length).max().unwrap()
}

/// Control segment of 16 bytes, header of inline data of 4, 16 bytes.
const WQE: usize = 36;

#[test]
fn a_sender_copies_to_a_register_of_its_own() {
    let config = QpConfig::rc().max_send_wr(SENDS).max_inline(16);
    let mut s = Sending::new(open(Device::builder().stepped()), DataPath::Auto, &config, 1, 16);
    let (queue, qp_num) = (s.queue(0), s.near[0].qp_num());
    for _ in 0..3 {
        assert_eq!(written(&s.device, &mut s.sender, queue, qp_num), WQE);
    }
}

/// Calls `with` with queue pairs that libmlx5 made, each connected with itself, their receiver and their sender.
/// libmlx5 has 16 registers for the queue pairs of a context.
fn with_raw(pd: &ProtectionDomain, count: usize, with: impl FnOnce(&[QueuePair], &mut Receiver, &mut Sender)) {
    let context = pd.context().as_raw();
    // SAFETY: an open context and its domain; the objects live until the end, no other code uses them, and they are
    // destroyed last.
    unsafe {
        let cq = || sys::ibv_create_cq(context, 288, ptr::null_mut(), ptr::null_mut(), 0);
        let (send_cq, recv_cq) = (cq(), cq());
        let mut raw = Receiver::from_raw_cq(pd, recv_cq, &CqConfig::new(4096).path(DataPath::Direct)).unwrap();
        let mut sender = Sender::from_raw_cq(pd, send_cq, &CqConfig::new(4096)).unwrap();
        let cap = sys::ibv_qp_cap {
            max_send_wr: SENDS,
            max_send_sge: 1,
            max_recv_wr: 4,
            max_recv_sge: 1,
            max_inline_data: LONG as u32,
        };
        let qp_type = sys::IBV_QPT_RC;
        let mut init = sys::ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type, ..Default::default() };
        let create = || sys::ibv_create_qp(pd.as_raw(), &mut init);
        let qps: Vec<_> = std::iter::repeat_with(create).take(count).collect();
        let config = QpConfig::rc();
        let attach = |&qp| {
            let builder = QueuePair::builder(&config);
            let both = builder.receive(&mut raw, RqConfig::new(4)).send(&mut sender);
            let mut qp = both.attach(qp).unwrap();
            qp.connect(&qp.address().unwrap()).unwrap();
            qp
        };
        let attached: Vec<_> = qps.iter().map(attach).collect();
        with(&attached, &mut raw, &mut sender);
        drop((attached, sender, raw));
        qps.into_iter().for_each(|qp| assert_eq!(sys::ibv_destroy_qp(qp), 0));
        assert_eq!(sys::ibv_destroy_cq(send_cq), 0);
        assert_eq!(sys::ibv_destroy_cq(recv_cq), 0);
    }
}

/// libmlx5 gives the queue pairs of a program registers that they share when it has none left.
#[test]
fn a_sender_copies_nothing_to_the_register_of_a_queue_pair_made_elsewhere() {
    let (device, pd) = open(Device::builder().stepped());
    let pool = BufferPool::new(&pd, &PoolConfig::new(4, 64)).unwrap();
    with_raw(&pd, 1, |qps, receiver, sender| {
        receiver.fill(qps[0].receive_queue().unwrap(), &pool).unwrap();
        let queue = qps[0].send_queue().unwrap();
        for _ in 0..3 {
            assert_eq!(written(&device, sender, queue, qps[0].qp_num()), 8);
        }
    });
}

/// The device executes what a register holds. If the first thread copied a WQE to a shared register, the eight bytes of
/// the second thread would be executed with the rest of that copy.
#[test]
fn two_threads_share_registers_and_each_wqe_is_executed_whole() {
    let (device, pd) = open(Device::builder().stepped().strict(true).blue_flame(true));
    let pool = BufferPool::new(&pd, &PoolConfig::new(4 * 32, 512)).unwrap();
    with_raw(&pd, 16, |near, near_receiver, near_sender| {
        with_raw(&pd, 16, |far, far_receiver, far_sender| {
            let threads = [(0x55, 16, near, near_receiver, near_sender), (0xaa, LONG, far, far_receiver, far_sender)];
            let threads = threads.map(|(byte, length, qps, receiver, sender)| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for qp in qps {
                            receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
                            let mut posting = sender.post_many(qp.send_queue().unwrap()).unwrap();
                            posting.send(&[byte; LONG][..length]).unwrap();
                        }
                    });
                });
                (byte, length, receiver, sender)
            });
            device.settle();
            for (byte, length, receiver, sender) in threads {
                let mut sent = sender.poll();
                while let Some(done) = sent.next() {
                    done.unwrap();
                }
                let mut batch = receiver.poll();
                let mut received = 0;
                while let Some(message) = batch.next() {
                    assert_eq!(*message.unwrap(), [byte; LONG][..length]);
                    received += 1;
                }
                assert_eq!(received, 16);
            }
        });
    });
}
