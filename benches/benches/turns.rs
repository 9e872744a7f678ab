//! Arms that take turns inside of each sample, so that a disturbance of the machine affects all of them.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};

/// One step of a subject: returns its time, that of some messages.
pub type Step<'a> = Box<dyn FnMut() -> Duration + 'a>;

/// Medians of a comparison, in nanoseconds for each message.
#[derive(Debug)]
pub struct Row {
    /// The comparison.
    pub op: String,
    /// doorbell.
    pub doorbell: f64,
    /// The fastest of the others, and its name.
    pub reference: (f64, String),
}

impl Row {
    /// The time of doorbell divided by that of the reference.
    pub fn ratio(&self) -> f64 {
        self.doorbell / self.reference.0
    }
}

/// Steps whose times are kept for the medians of [`Row`].
const KEPT: usize = 20_000;

/// Measures arms whose steps take `messages` messages. The first is doorbell. `make` makes them once criterion's filter
/// has let one through.
pub fn compare<'a>(
    criterion: &mut Criterion,
    title: &str,
    messages: u64,
    names: &[String],
    make: impl Fn() -> Vec<Step<'a>>,
) -> Option<Row> {
    let made: RefCell<Option<Vec<Step<'a>>>> = RefCell::new(None);
    let times = RefCell::new(vec![Vec::new(); names.len()]);
    let mut group = criterion.benchmark_group(title);
    if messages > 1 {
        group.throughput(Throughput::Elements(messages));
    }
    for (own, name) in names.iter().enumerate() {
        group.bench_function(name, |bencher| {
            let (mut made, mut times) = (made.borrow_mut(), times.borrow_mut());
            let arms = made.get_or_insert_with(&make);
            bencher.iter_custom(|rounds| {
                let mut measured = Duration::ZERO;
                for _ in 0..rounds {
                    for (index, arm) in arms.iter_mut().enumerate() {
                        let time = arm();
                        if index == own {
                            measured += time;
                        }
                        if times[index].len() < KEPT {
                            times[index].push(time.as_nanos() as u64);
                        }
                    }
                }
                measured
            });
        });
    }
    group.finish();
    let mut medians = times.into_inner().into_iter().map(|mut times| {
        times.sort_unstable();
        Some(*times.get(times.len() / 2)? as f64 / messages as f64)
    });
    let doorbell = medians.next()??;
    let others = medians.flatten().zip(names[1..].iter().cloned());
    let reference = others.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Row { op: title.into(), doorbell, reference })
}

/// A criterion whose whole suite takes a few minutes.
pub fn criterion(samples: usize, each: Duration) -> Criterion {
    let criterion = Criterion::default().sample_size(samples).nresamples(10_000);
    let criterion = criterion.warm_up_time(each / 4).measurement_time(each);
    criterion.configure_from_args()
}

/// The target directory.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Writes the rows for `bench.json`, and prints where the report is and the line that can be sent back.
pub fn finish(suite: &str, device: &str, rows: &[Row], began: Instant) {
    if rows.is_empty() {
        return;
    }
    let mut json = String::new();
    for Row { op, doorbell, reference: (reference, name) } in rows {
        let ratio = doorbell / reference;
        json += &format!(
            "  {{\"op\": \"{op}\", \"unit\": \"ns/message\", \"doorbell\": {doorbell:.3}, \
             \"reference\": {reference:.3}, \"reference_name\": \"{name}\", \"ratio\": {ratio:.4}}}\n"
        );
    }
    let folder = target().join("bench");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(format!("{suite}.rows")), json));
    if let Err(error) = written {
        eprintln!("{}: {error}", folder.display());
    }
    println!("\n{:<62} {:>10} {:>10} {:>6}  compared with", "ns for a message", "doorbell", "reference", "ratio");
    for row in rows {
        let (reference, name) = &row.reference;
        println!("{:<62} {:>10.1} {reference:>10.1} {:>6.2}  {name}", row.op, row.doorbell, row.ratio());
    }
    let mut ratios: Vec<_> = rows.iter().map(Row::ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let (median, worst) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
    println!("report: {}", target().join("criterion/report/index.html").display());
    println!(
        "{suite}: ok: {device}, {} rows in {} s, doorbell takes {median:.2} of the time of its reference in the median, \
         {worst:.2} in the worst row",
        rows.len(),
        began.elapsed().as_secs()
    );
}
