//! A destroyed object cannot be used, and nothing can be posted where there is no receive queue.

use doorbell::{Context, ProtectionDomain, QpConfig, QueuePair, Receiver, SrqConfig, SrqId};

pub fn right(receiver: &mut Receiver, srq: SrqId) {
    let qp = QueuePair::builder(&QpConfig::rc()).receive(receiver, srq).build().unwrap();
    receiver.destroy_qp(qp).unwrap();
    receiver.destroy_srq(srq).unwrap();
}

pub fn used_after_destruction(receiver: &mut Receiver, qp: QueuePair) {
    receiver.destroy_qp(qp).unwrap();
    qp.to_error().unwrap(); //~ E0382
}

pub fn receives_beside_the_srq(receiver: &mut Receiver) {
    let srq = receiver.create_srq(&SrqConfig::new(16)).unwrap();
    let qp = QueuePair::builder(&QpConfig::rc()).receive(receiver, srq).build().unwrap();
    qp.post_recv(); //~ E0599
}

pub fn a_queue_pair_as_a_queue(receiver: &mut Receiver, qp: &QueuePair) -> u32 {
    receiver.capacity(qp) //~ E0277
}

pub fn handles_of_somebody_else(context: &Context) {
    ProtectionDomain::from_raw(context, std::ptr::null_mut()); //~ E0133
}
