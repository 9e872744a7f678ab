//! Completion queues that have as many entries as receives can complete, and not one more.

use std::mem::forget;

use doorbell::{DeviceEvent, Message};
use doorbell_tests::world::{TwoSrqs, let_the_device_work};
use doorbell_tests::{message, receiving};

/// Receives of each of the two SRQs.
const RECEIVES: u32 = 63;
/// Messages to each: more than twice as many as its SRQ holds.
const MESSAGES: u32 = 127;

/// The CQ is full, and all other messages wait for receives.
fn full() -> TwoSrqs {
    let mut world = TwoSrqs::new(RECEIVES);
    world.send(RECEIVES);
    world.settle();
    world.send(MESSAGES - RECEIVES);
    world
}

/// Checks that a message is the next one of its SRQ, and returns which that is.
fn count(numbers: [u32; 2], seen: &mut [u32; 2], message: &Message<'_>) -> usize {
    let at = numbers.iter().position(|&number| number == message.qp_num()).unwrap();
    assert_eq!(message::read(message).1, u64::from(seen[at]));
    seen[at] += 1;
    at
}

fn numbers(world: &TwoSrqs) -> [u32; 2] {
    world.clients.each_ref().map(|(near, _)| near[0].qp_num())
}

/// Takes the messages after `seen` of each, in order, and checks that the device reports no failure.
fn finish(mut world: TwoSrqs, mut seen: [u32; 2]) {
    let numbers = numbers(&world);
    let mut events = world.pd.context().events().unwrap();
    let left = (2 * MESSAGES - seen[0] - seen[1]) as usize;
    receiving::messages(&mut world.receiver, left, |message| {
        count(numbers, &mut seen, &message);
    });
    assert_eq!(seen, [MESSAGES; 2]);
    world.settle();
    while let Some(event) = events.try_next().unwrap() {
        assert!(!matches!(event, DeviceEvent::CqError { .. }), "{event:?}");
    }
}

/// Messages of the two SRQs by turns, each recycled before the next is taken. In the middle of the batch the device
/// delivers as much as it may.
#[test]
fn messages_of_two_queues_by_turns_do_not_overrun_their_cq() {
    let mut world = full();
    let (numbers, mut seen) = (numbers(&world), [0; 2]);
    let mut batch = world.receiver.poll();
    while let Some(next) = batch.next() {
        count(numbers, &mut seen, &next.unwrap());
        if seen == [RECEIVES / 2; 2] {
            let_the_device_work();
        }
    }
    drop(batch);
    finish(world, seen);
}

/// A batch of both SRQs is forgotten, and the buffers that were taken out of it are posted again.
#[test]
fn a_post_after_a_forgotten_batch_of_two_queues_does_not_overrun_their_cq() {
    let mut world = full();
    let (numbers, mut seen) = (numbers(&world), [0; 2]);
    let mut taken = [Vec::new(), Vec::new()];
    let mut batch = world.receiver.poll();
    for _ in 0..RECEIVES {
        let message = batch.next().expect("a message").unwrap();
        taken[count(numbers, &mut seen, &message)].push(message.take().unwrap());
    }
    forget(batch);
    for (srq, buffers) in world.srqs.into_iter().zip(taken) {
        world.receiver.post(srq, buffers).unwrap();
    }
    let_the_device_work();
    finish(world, seen);
}

/// Messages of the two SRQs are taken one at a time. All the while the device delivers as much as it may.
#[test]
fn messages_of_two_queues_one_at_a_time_do_not_overrun_their_cq() {
    let mut world = full();
    let (numbers, mut seen) = (numbers(&world), [0; 2]);
    for taken in 1..=RECEIVES {
        let message = world.receiver.next().expect("it has arrived").unwrap();
        count(numbers, &mut seen, &message);
        if taken % 8 == 0 {
            let_the_device_work();
        }
    }
    finish(world, seen);
}
