//! Tag operations exist only where there is a tag list: a plain SRQ has none.

use doorbell::tags::{ReceiveId, TagMatchingSrq, TaggedReceive};
use doorbell::{Buffer, Receiver, SrqId};

pub fn right(tags: &mut TagMatchingSrq, buffer: Buffer) {
    let receive = tags.post(1, u64::MAX, buffer).unwrap();
    tags.cancel(receive).unwrap();
}

pub fn a_tag_on_a_plain_srq(receiver: &mut Receiver, srq: SrqId, receive: TaggedReceive) {
    receiver.post(srq, [receive]).unwrap(); //~ E0271
}

pub fn a_tagged_receive_of_a_plain_receiver(receiver: &mut Receiver, receive: ReceiveId) {
    receiver.cancel(receive).unwrap(); //~ E0599
}

pub fn a_list_of_a_plain_srq(srq: SrqId) -> TagMatchingSrq {
    TagMatchingSrq::from(srq) //~ E0308
}

pub fn posted_twice(tags: &mut TagMatchingSrq, buffer: Buffer) {
    tags.post(1, u64::MAX, buffer).unwrap();
    tags.post(2, u64::MAX, buffer).unwrap(); //~ E0382
}
