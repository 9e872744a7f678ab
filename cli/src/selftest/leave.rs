//! Group J: nothing is left behind.

use super::check::{Check, Needs, Stop, fail};
use super::lab::Lab;

pub const CHECKS: &[Check] = &[
    Check {
        id: "J51",
        name: "no descriptor of a channel or device is left open",
        needs: Needs::Device,
        run: descriptors,
    },
    Check { id: "J52", name: "messages that met no receive", needs: Needs::Device, run: counters },
];

/// Open descriptors of this process.
pub fn open_descriptors() -> usize {
    // One is that of the listing.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

fn descriptors(lab: &mut Lab) -> Result<String, Stop> {
    let (before, now) = (lab.descriptors, open_descriptors());
    if now > before {
        return fail(format!("{now} descriptors are open, {before} were before the checks"));
    }
    Ok(format!("{now}, as before the checks"))
}

fn counters(lab: &mut Lab) -> Result<String, Stop> {
    match lab.context.out_of_buffer(lab.port)? {
        Some(count) => Ok(format!("out_of_buffer is {count}; C13 and E31 add to it")),
        None => Err(Stop::Cannot("the driver has no counter out_of_buffer".into())),
    }
}
