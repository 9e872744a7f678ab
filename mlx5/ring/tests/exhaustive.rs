//! Every interleaving of the steps of software and device on small queues, up to a number of states.

mod device;

use std::collections::{HashSet, VecDeque};

use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;

use device::random::{Random, steps};
use device::subject::{Data, Subject};
use device::world::World;

/// Runs a sequence of steps from the start. The model checks each.
fn replay<Q: Subject>(slots: u32, path: &[u8]) -> World<Q> {
    let mut world = World::<Q>::new(slots, 32, 4, 64);
    for step in path {
        // The same step does the same each time.
        let random = &mut Random::new(3 + u64::from(*step));
        match *step {
            0 => world.post(1, random),
            1 => {
                world.poll(1, [1, 0, 0], random);
            }
            2 => {
                world.poll(1, [0, 1, 0], random);
            }
            3 => {
                world.poll(1, [0, 0, 1], random);
            }
            4 => world.give_all_back(random),
            5 => {
                world.poll(4, [1, 0, 0], random);
            }
            6 => world.load(random),
            index => world.complete(u32::from(index) - 7, random),
        }
    }
    world
}

/// What decides how the queue goes on; which buffer is where does not.
fn key<Q: Subject>(world: &World<Q>) -> Vec<u32> {
    let device = &world.model.device;
    let mut key = vec![world.queue.vacant(), device.state.cursor];
    key.push(device.state.taken % device.slots);
    key.extend((0..device.slots).map(|slot| u32::from(world.queue.state(slot))));
    key.extend((0..device.slots).map(|slot| u32::from(device.wqes.be16(slot as usize * 32 + 2))));
    key.extend(&device.state.outstanding);
    let told = world.model.producer.state.told.iter();
    key.extend(told.map(|told| match told {
        device::cq::Told::Message { slot, .. } => 100 + slot,
        device::cq::Told::Failed { slot, .. } => 200 + slot,
        _ => 300,
    }));
    key.push(world.cq.consumer_index() % 8);
    key
}

fn explore<Q: Subject>(slots: u32, limit: usize) {
    let mut seen = HashSet::new();
    let mut paths = VecDeque::from([Vec::new()]);
    while let (true, Some(path)) = (seen.len() < limit, paths.pop_front()) {
        let world = replay::<Q>(slots, &path);
        if !seen.insert(key(&world)) {
            continue;
        }
        let outstanding = world.model.device.state.outstanding.len() as u8;
        for step in 0..7 + outstanding {
            let mut longer = path.clone();
            longer.push(step);
            paths.push_back(longer);
        }
        world.finish(&mut Random::new(2));
    }
    println!("{:?} of {slots}: {} states", Q::KIND, seen.len());
    assert!(seen.len() > 10);
}

#[test]
fn srq() {
    for slots in [2, 4, 8] {
        explore::<SharedReceiveQueue<Data>>(slots, steps(1500) as usize);
    }
}

#[test]
fn rq() {
    for slots in [1, 2, 4, 8] {
        explore::<ReceiveQueue<Data>>(slots, steps(1500) as usize);
    }
}
