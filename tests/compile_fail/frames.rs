//! A frame is lent until the batch goes on; a taken frame can go anywhere.

use std::thread;

use doorbell::frames::{Flow, Frame, FrameBatch, FrameReceiver, FlowRule, TakenFrame};

fn shared<T: Sync>(_: &T) {}

pub fn right(receiver: &mut FrameReceiver, flow: &Flow) -> (FlowRule, Vec<TakenFrame>) {
    let rule = receiver.attach(flow).unwrap();
    let mut kept = Vec::new();
    let mut batch = receiver.poll();
    while let Some(frame) = batch.next() {
        let frame = frame.unwrap().take();
        kept.push(thread::spawn(move || frame).join().unwrap());
    }
    (rule, kept)
}

pub fn what_may_go_to_other_threads(receiver: FrameReceiver, rule: FlowRule, taken: &TakenFrame) {
    thread::spawn(move || drop((receiver, rule)));
    shared(taken);
}

pub fn two_at_once(receiver: &mut FrameReceiver) {
    let mut batch = receiver.poll();
    let first = batch.next().unwrap().unwrap();
    let second = batch.next().unwrap().unwrap(); //~ E0499
    println!("{}", first.len() + second.len());
}

pub fn two_at_once_without_a_batch(receiver: &mut FrameReceiver) {
    let first = receiver.next().unwrap().unwrap();
    let second = receiver.next().unwrap().unwrap(); //~ E0499
    println!("{}", first.len() + second.len());
}

pub fn a_frame_that_outlives_its_batch(receiver: &mut FrameReceiver) -> Frame<'_> {
    let mut batch = receiver.poll();
    batch.next().unwrap().unwrap() //~ E0515
}

pub fn bytes_that_outlive_their_frame(batch: &mut FrameBatch<'_>) -> usize {
    let bytes = &batch.next().unwrap().unwrap()[..];
    batch.next(); //~ E0499
    bytes.len()
}

pub fn two_owners(batch: &mut FrameBatch<'_>) {
    let frame = batch.next().unwrap().unwrap();
    drop(frame.take());
    drop(frame.take()); //~ E0382
}

pub fn written_in_place(batch: &mut FrameBatch<'_>) {
    let mut frame = batch.next().unwrap().unwrap();
    frame[0] = 1; //~ E0594
}

pub fn written_after_it_was_taken(mut frame: TakenFrame) {
    frame[0] = 1; //~ E0594
}

pub fn polled_in_the_middle(receiver: &mut FrameReceiver) {
    let mut batch = receiver.poll();
    let frame = batch.next();
    receiver.poll(); //~ E0499
    drop(frame);
}

pub fn a_frame_that_two_threads_look_at(frame: &Frame<'_>) {
    shared(frame); //~ E0277
}

pub fn a_receiver_that_two_threads_look_at(receiver: &FrameReceiver) {
    shared(receiver); //~ E0277
}
