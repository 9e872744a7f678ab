//! The time of doorbell and of libmlx5 for a message, on queues whose device is stopped: what the processor does, and
//! nothing of the device. `cargo bench -p doorbell-benches --bench processor -- "SRQ cycle"`.

mod turns;

use std::time::{Duration, Instant};

use doorbell_benches::case::{self, Timed};
use doorbell_benches::pin::pin;
use doorbell_benches::rig::Rig;
use doorbell_benches::world::World;
use turns::Step;

fn main() {
    let began = Instant::now();
    let mut criterion = turns::criterion(20, Duration::from_millis(250));
    let world = World::new();
    let has_two_cores = pin(1);
    pin(0);
    let mut rows = Vec::new();
    for Timed { label, operation, names, needs_two_cores } in case::timed() {
        if needs_two_cores && !has_two_cores {
            continue;
        }
        let words: Vec<_> = names.iter().map(|name| name.reference().to_owned()).collect();
        let arms = || {
            let step = |&name| {
                let mut rig = Rig::new(&world, operation, name);
                Box::new(move || rig.time()) as Step
            };
            names.iter().map(step).collect()
        };
        rows.extend(turns::compare(&mut criterion, &label, operation.count().into(), &words, arms));
    }
    criterion.final_summary();
    turns::finish("processor", "a device at rest", &rows, began);
}
