//! What a sender writes to the registers of its queue pairs: a copy of a small WQE to one of its own, eight bytes to one
//! that others may have.

use std::ptr;

use doorbell::{
    Path, ProtectionDomain, QpConfig, Receiver, ReceiverConfig, Sender, SenderConfig, SqId,
};
use rdma_core_sys as sys;
use soft_mlx5::Device;

const SENDS: u32 = 4;

fn open() -> (Device, ProtectionDomain) {
    let device = Device::builder().stepped().build().unwrap();
    let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
    (device, pd)
}

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
    let (device, pd) = open();
    let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(32)).unwrap();
    let mut sender = Sender::new(&pd, &SenderConfig::new()).unwrap();
    let config = QpConfig::rc().receives(16, 1).sends(SENDS).max_inline(16);
    let mut near = receiver.create_qp_with_sender(&config, &mut sender).unwrap();
    let mut far = receiver.create_qp(&config).unwrap();
    near.connect(&far.address().unwrap()).unwrap();
    far.connect(&near.address().unwrap()).unwrap();
    let queue = near.send_queue().unwrap();
    for _ in 0..3 {
        assert_eq!(written(&device, &mut sender, queue, near.qp_num()), WQE);
    }
}

/// libmlx5 gives the queue pairs of a program registers that they share when it has none left.
#[test]
fn a_sender_copies_nothing_to_the_register_of_a_queue_pair_made_elsewhere() {
    let (device, pd) = open();
    let context = pd.context().as_raw();
    let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(32)).unwrap();
    // SAFETY: an open context and its domain; the objects live until the end, nobody else uses them, and they are
    // destroyed last.
    unsafe {
        let cq = || sys::ibv_create_cq(context, 64, ptr::null_mut(), ptr::null_mut(), 0);
        let (send_cq, recv_cq) = (cq(), cq());
        let cap = sys::ibv_qp_cap {
            max_send_wr: SENDS,
            max_send_sge: 1,
            max_recv_wr: 4,
            max_recv_sge: 1,
            max_inline_data: 16,
        };
        let qp_type = sys::IBV_QPT_RC;
        let mut init =
            sys::ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type, ..Default::default() };
        let qp = sys::ibv_create_qp(pd.as_raw(), &mut init);
        assert!(!qp.is_null());
        let mut raw = Receiver::from_raw_cq(&pd, recv_cq, Path::Direct).unwrap();
        let mut sender = Sender::from_raw_cq(&pd, send_cq, &SenderConfig::new()).unwrap();
        let config = QpConfig::rc().receives(4, 1);
        let mut near = raw.attach_raw_qp_with_sender(qp, &config, &mut sender).unwrap();
        let mut far = receiver.create_qp(&QpConfig::rc().receives(16, 1)).unwrap();
        near.connect(&far.address().unwrap()).unwrap();
        far.connect(&near.address().unwrap()).unwrap();
        let queue = near.send_queue().unwrap();
        for _ in 0..3 {
            assert_eq!(written(&device, &mut sender, queue, near.qp_num()), 8);
        }
        drop((near, sender, raw));
        assert_eq!(sys::ibv_destroy_qp(qp), 0);
        assert_eq!(sys::ibv_destroy_cq(send_cq), 0);
        assert_eq!(sys::ibv_destroy_cq(recv_cq), 0);
    }
}
