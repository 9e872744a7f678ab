//! Compressed CQEs as the device writes them, read through the receiver.

use doorbell::{Compression, CqConfig, DataPath, QpConfig};
use doorbell::{QueuePair, RqConfig, raw::mlx5_ring::completion::CqeKind};
use doorbell_stepped_tests::Stepped;

/// Whether the next CQE is the title of a block.
fn is_compressed(world: &mut Stepped) -> bool {
    let rq = world.near.receive_queue().unwrap();
    // SAFETY: nothing is completed, taken or drained through the rings.
    let mut direct = unsafe { world.receiver.as_direct() }.unwrap();
    let (cq, _) = direct.rq(rq).unwrap();
    cq.peek().is_some_and(|cqe| cqe.kind() == CqeKind::Compressed)
}

#[test]
fn every_message_of_every_block_comes_once_and_in_order() {
    take_blocks(false);
}

/// With a second queue the queue of each message is looked up.
#[test]
fn every_message_of_every_block_comes_once_beside_another_queue() {
    take_blocks(true);
}

/// Blocks of every length, at every place of the queue, taken in batches of every size.
fn take_blocks(beside: bool) {
    for compression in [Compression::Hash, Compression::Checksum] {
        let config = CqConfig::new(127).path(DataPath::Direct);
        let mut world = Stepped::with(config.compression(compression), 64);
        let other = QpConfig::rc();
        let _other =
            beside.then(|| QueuePair::builder(&other).receive(&mut world.receiver, RqConfig::new(8)).build().unwrap());
        let (mut sent, mut taken) = (0u32, 0u32);
        let mut compressed = 0;
        for round in 0..1500u32 {
            let len = 1 + round * 7 % 64;
            for _ in 0..len {
                let number = sent.to_le_bytes();
                world.send_bytes(&number.repeat(1 + sent as usize % 16));
                sent += 1;
            }
            world.device.settle();
            if len > 1 && round % 3 == 0 {
                compressed += u32::from(is_compressed(&mut world));
            }
            let budget = 1 + round % 11;
            while taken < sent {
                let mut batch = world.receiver.poll_up_to(budget);
                let mut got = 0;
                while let Some(message) = batch.next() {
                    let message = message.unwrap();
                    let number = taken.to_le_bytes();
                    assert_eq!(message[..], number.repeat(1 + taken as usize % 16), "{taken}");
                    (taken, got) = (taken + 1, got + 1);
                }
                drop(batch);
                assert!(got == budget || taken == sent, "{got} of {budget}");
                world.device.settle();
            }
        }
        assert!(compressed > 400, "{compressed}");
    }
}
