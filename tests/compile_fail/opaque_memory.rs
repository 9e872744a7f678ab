//! The processor does not look into opaque buffers.

use doorbell::opaque::{Opaque, OpaqueMemory};
use doorbell::tags::{PeerId, TagMatchingSrq, TaggedBuffer, TaggedReceive};
use doorbell::{Buffer, BufferPool, Receiver, Sender, SqId, SrqId};

pub fn right(receiver: &mut Receiver<Opaque>, sender: &mut Sender, queue: SqId, srq: SrqId, pool: &BufferPool<Opaque>) {
    receiver.fill(srq, pool).unwrap();
    let buffer = receiver.next().unwrap().unwrap().take().unwrap();
    sender.send(queue, buffer).unwrap();
}

pub fn look_into_a_buffer(buffer: &Buffer<Opaque>) -> u8 {
    buffer[0] //~ E0608
}

pub fn borrow_the_bytes_of_a_buffer(buffer: &Buffer<Opaque>) -> &[u8] {
    buffer //~ E0308
}

pub fn fill_a_buffer(buffer: &mut Buffer<Opaque>) {
    buffer.copy_from_slice(b"bytes"); //~ E0599
}

pub fn look_into_a_message(receiver: &mut Receiver<Opaque>) -> u8 {
    let message = receiver.next().unwrap().unwrap();
    message[0] //~ E0608
}

pub fn read_the_memory(memory: &OpaqueMemory) {
    let mut out = [0; 8];
    memory.read(0, &mut out); //~ E0599
}

pub fn receive_where_messages_are_read(receiver: &mut Receiver, srq: SrqId, buffer: Buffer<Opaque>) {
    receiver.post(srq, [buffer]).unwrap(); //~ E0271
}

pub fn read_a_completion(sender: &mut Sender) -> Vec<u8> {
    let buffer = sender.next().unwrap().unwrap().opaque_buffer().unwrap();
    buffer.to_vec() //~ E0599
}

pub fn send_with_a_tag(buffer: Buffer<Opaque>) {
    drop(TaggedBuffer::new(buffer)); //~ E0308
}

pub fn offer_with_a_tag(tags: &mut TagMatchingSrq, peer: PeerId, buffer: Buffer<Opaque>) {
    drop(tags.send_rendezvous(peer, 1, 0, buffer)); //~ E0308
}

pub fn receive_by_tag(tags: &mut TagMatchingSrq, buffer: Buffer<Opaque>) {
    drop(tags.post(1, u64::MAX, buffer)); //~ E0308
}

pub fn receive_many_by_tag(tags: &mut TagMatchingSrq, buffer: Buffer<Opaque>) {
    drop(tags.post_all([TaggedReceive::new(1, u64::MAX, buffer)])); //~ E0308
}

pub fn match_tags_of_messages_in_opaque_buffers(tags: &mut TagMatchingSrq, pool: &BufferPool<Opaque>) {
    tags.keep_filled(pool).unwrap(); //~ E0308
}

pub fn keep_a_message_over_the_next(receiver: &mut Receiver<Opaque>) -> usize {
    let message = receiver.next().unwrap().unwrap();
    drop(receiver.next()); //~ E0499
    message.len()
}

pub fn keep_a_message_of_a_batch_over_the_next(receiver: &mut Receiver<Opaque>) -> usize {
    let mut batch = receiver.poll();
    let message = batch.next().unwrap().unwrap();
    drop(batch.next()); //~ E0499
    message.len()
}
