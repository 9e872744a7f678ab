//! The cases of `make bench` one arm at a time, with the statistics and the reports of criterion:
//! `cargo bench -p doorbell-benches -- "SRQ cycle, warm"`.
//!
//! The ratios in `docs/benchmarks.md` do not come from here: the machine changes between two arms that are measured
//! one after the other. `make bench` lets the arms take turns.

use std::time::Duration;

use criterion::{Criterion, Throughput};
use doorbell_benches::case;
use doorbell_benches::lines::{self, Lines};
use doorbell_benches::rig::Rig;
use doorbell_benches::world::World;

fn all(criterion: &mut Criterion) {
    let world = World::new();
    let other_core = lines::pin(1);
    lines::pin(0);
    for (case, lines) in case::timed() {
        if (lines == Lines::OtherCore || case.needs_two_cores()) && !other_core {
            continue;
        }
        let mut group = criterion.benchmark_group(case.timed_label(lines));
        for name in [case.doorbell, case.reference] {
            let mut rig = None;
            group.throughput(Throughput::Elements(case.operation.count().into()));
            group.bench_function(name.reference(), |bencher| {
                // Made when a filter has let it through.
                let rig = rig.get_or_insert_with(|| Rig::new(&world, case.operation, name));
                bencher.iter_custom(|rounds| (0..rounds).map(|_| rig.time(lines)).sum());
            });
        }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    all(&mut criterion);
    criterion.final_summary();
}
