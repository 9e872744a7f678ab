//! A posted buffer belongs to the queue until it completes.

use doorbell::{BufferPool, Posting, Receiver, RemoteRegion, Sender, SqId, SrqId};

pub fn right(receiver: &mut Receiver, srq: SrqId, pool: &BufferPool) {
    let buffer = pool.take().unwrap();
    let first = buffer.first().copied();
    receiver.post(srq, [buffer]).unwrap();
    drop(first);
}

pub fn from_a_borrow(receiver: &mut Receiver, srq: SrqId, pool: &BufferPool) {
    let mut buffer = pool.take().unwrap();
    receiver.post(srq, [&mut buffer]).unwrap(); //~ E0271
}

pub fn from_a_slice(receiver: &mut Receiver, srq: SrqId) {
    let mut memory = [0u8; 64];
    receiver.post(srq, [&mut memory[..]]).unwrap(); //~ E0271
}

pub fn read_after_posting(receiver: &mut Receiver, srq: SrqId, pool: &BufferPool) -> usize {
    let buffer = pool.take().unwrap();
    receiver.post(srq, [buffer]).unwrap();
    buffer.len() //~ E0382
}

pub fn reference_that_outlives_the_post(receiver: &mut Receiver, srq: SrqId, pool: &BufferPool) {
    let buffer = pool.take().unwrap();
    let inside = &buffer[..];
    receiver.post(srq, [buffer]).unwrap(); //~ E0505
    println!("{inside:?}");
}

pub fn written_after_sending(posting: &mut Posting<'_>, pool: &BufferPool) {
    let mut buffer = pool.take().unwrap();
    posting.send(buffer).unwrap();
    buffer[0] = 1; //~ E0382
}

pub fn looked_at_while_a_read_writes(
    posting: &mut Posting<'_>,
    pool: &BufferPool,
    from: &RemoteRegion,
) -> usize {
    let buffer = pool.take().unwrap();
    posting.read(buffer, from).unwrap();
    buffer.len() //~ E0382
}

pub fn polled_between_two_requests(sender: &mut Sender, queue: SqId) {
    let mut posting = sender.post_many(queue).unwrap();
    posting.send(b"one").unwrap();
    sender.poll(); //~ E0499
    posting.send(b"two").unwrap();
}

pub fn one_request_posted_twice(sender: &mut Sender, queue: SqId) {
    let request = sender.post(queue).unwrap();
    request.send(b"one").unwrap();
    request.send(b"two").unwrap(); //~ E0382
}

pub fn pushed_to_a_ring_without_a_contract(receiver: &mut Receiver) {
    receiver.as_direct(); //~ E0133
}
