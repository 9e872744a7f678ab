//! Checking the signatures of CQEs: a receiver that checks them meets torn CQEs, and CQEs of another index.

use doorbell::{BufferPool, Compression, CqConfig, DataPath, Error, PoolConfig, Receiver, RqConfig};
use doorbell_stepped_tests::Stepped;
use soft_mlx5::Faults;
use soft_mlx5::faults::Defect;

const RECEIVES: u32 = 16;

fn world(verify: bool) -> Stepped {
    let config = CqConfig::new(2 * RECEIVES).path(DataPath::Direct);
    let mut world = Stepped::with(config, RECEIVES);
    if verify {
        world.receiver.verify_cqes().unwrap();
    }
    world
}

fn with_defect(world: &Stepped, defect: Defect) {
    world.device.set_faults(Faults { defect: Some(defect), ..Faults::default() });
}

fn counts(world: &Stepped) -> (u64, u64) {
    let counted = world.receiver.statistics().unwrap();
    (counted.verified_cqes, counted.wrong_cqes)
}

#[test]
fn every_cqe_of_a_sound_device_is_checked_and_right() {
    let mut world = world(true);
    for round in 1..=200 {
        for _ in 0..7 {
            world.send();
        }
        world.device.settle();
        assert_eq!(world.take(), 7);
        assert_eq!(counts(&world), (7 * round, 0), "through the laps of the CQ");
    }
    assert_eq!(world.receiver.wrong_cqe(), None);
}

#[test]
fn a_cqe_that_is_read_between_its_halves_is_found() {
    let mut world = world(true);
    for _ in 0..5 {
        world.send();
    }
    world.device.settle();
    assert_eq!(world.take(), 5);
    with_defect(&world, Defect::TornCqe);
    world.send_bytes(b"torn");
    world.device.settle();
    let (index, lap) = (5, 0);
    assert_eq!(world.take(), 1, "the message is delivered as the CQE says");
    assert_eq!(counts(&world), (6, 1));
    let wrong = world.receiver.wrong_cqe().unwrap();
    assert_eq!(wrong.index, index);
    assert_eq!(wrong.bytes[63] & 1, lap, "the half that has come says that it is ours");
    assert_eq!(wrong.bytes[..56], [0; 56], "the other half has not come");
    let text = wrong.to_string();
    assert!(text.starts_with(&format!("CQ {:#x}: the CQE at index 0x5 ", wrong.cqn)), "{text}");
    assert_eq!(world.receiver.wrong_cqe(), None);
}

#[test]
fn a_cqe_that_became_whole_before_it_is_read_is_right() {
    let mut world = world(true);
    with_defect(&world, Defect::TornCqe);
    world.send_bytes(b"whole");
    world.device.settle();
    world.device.advance(std::time::Duration::from_secs(1));
    world.device.settle();
    assert_eq!(world.take(), 1);
    assert_eq!(counts(&world), (1, 0));
}

#[test]
fn a_receiver_that_does_not_check_sees_nothing() {
    let mut world = world(false);
    world.receiver.enable_statistics();
    with_defect(&world, Defect::Signature);
    world.send();
    world.device.settle();
    assert_eq!(world.take(), 1);
    assert_eq!(counts(&world), (0, 0));
}

#[test]
fn wrong_ones_are_counted_all_and_kept_in_part() {
    let mut world = world(true);
    with_defect(&world, Defect::Signature);
    for _ in 0..30 {
        world.send();
        world.device.settle();
        assert_eq!(world.take(), 1);
    }
    assert_eq!(counts(&world), (30, 30));
    let kept: Vec<u32> = std::iter::from_fn(|| world.receiver.wrong_cqe()).map(|wrong| wrong.index).collect();
    assert_eq!(kept, (0..16).collect::<Vec<_>>());
}

/// A purge moves other CQEs to another index, where their signatures must be right.
#[test]
fn cqes_that_a_purge_moved_have_right_signatures() {
    let mut world = world(true);
    let (other, mut peer) = world.connect(RqConfig::new(4));
    let pool = BufferPool::new(&world.pd, &PoolConfig::new(4, 64)).unwrap();
    world.receiver.fill(other.receive_queue().unwrap(), &pool).unwrap();
    for number in 0..6u8 {
        world.send_bytes(&[number]);
        world.device.settle();
        if number % 2 == 0 {
            peer.send_inline(&[0xff], None).unwrap();
            world.device.settle();
        }
    }
    world.receiver.destroy_qp(other).unwrap();
    let mut batch = world.receiver.poll();
    let mut taken = Vec::new();
    while let Some(message) = batch.next() {
        taken.extend_from_slice(&message.unwrap());
    }
    drop(batch);
    assert_eq!(taken, [0, 1, 2, 3, 4, 5], "those of the destroyed queue pair are purged");
    assert_eq!(counts(&world), (6, 0));
}

#[test]
fn verify_cqes_is_refused_where_there_is_nothing_to_check() {
    let world = world(true);
    let config = CqConfig::new(8);
    for config in [config.clone().path(DataPath::Verbs), config.path(DataPath::Direct).compression(Compression::Hash)] {
        let refused = Receiver::new(&world.pd, &config).unwrap().verify_cqes();
        let Err(Error::Unsupported { operation, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(operation, "verify_cqes");
    }
}
