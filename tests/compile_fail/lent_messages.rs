//! A message is lent until the batch goes on, and the batch keeps the receiver.

use doorbell::{Buffer, BufferPool, Receiver, SrqId};

pub fn right(receiver: &mut Receiver) -> Vec<Buffer> {
    let mut kept = Vec::new();
    let mut batch = receiver.poll();
    while let Some(message) = batch.next() {
        kept.push(message.unwrap().take().unwrap());
    }
    kept
}

pub fn two_at_once(receiver: &mut Receiver) {
    let mut batch = receiver.poll();
    let first = batch.next().unwrap().unwrap();
    let second = batch.next().unwrap().unwrap(); //~ E0499
    drop((first, second));
}

pub fn a_message_kept_over_the_next(receiver: &mut Receiver) -> usize {
    let message = receiver.next().unwrap().unwrap();
    drop(receiver.next()); //~ E0499
    message.len()
}

pub fn bytes_that_outlive_the_batch(receiver: &mut Receiver) -> &[u8] {
    let mut batch = receiver.poll();
    let message = batch.next().unwrap().unwrap();
    &*{ message } //~ E0515
}

pub fn posting_in_the_middle(receiver: &mut Receiver, srq: SrqId, pool: &BufferPool) {
    let mut batch = receiver.poll();
    let message = batch.next();
    receiver.fill(srq, pool).unwrap(); //~ E0499
    drop(message);
}

pub fn two_owners(receiver: &mut Receiver) {
    let mut batch = receiver.poll();
    let message = batch.next().unwrap().unwrap();
    drop(message.take());
    drop(message.take()); //~ E0382
}

pub fn written_in_place(receiver: &mut Receiver) {
    let mut batch = receiver.poll();
    let mut message = batch.next().unwrap().unwrap();
    message[0] = 1; //~ E0594
}
