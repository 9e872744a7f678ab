//! Group J: nothing is left over.

use std::process::Command;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::stop::{Stop, fail};

pub const CHECKS: &[Check] = &[
    Check {
        id: "J51",
        name: "no descriptor and no object of the device is left",
        needs: Needs::Nothing,
        run: descriptors,
    },
    Check { id: "J52", name: "counters of trouble", needs: Needs::Nothing, run: counters },
];

/// Open descriptors of this process.
pub fn open_descriptors() -> usize {
    // The listing has one descriptor of its own.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

fn descriptors(lab: &mut Lab) -> Result<String, Stop> {
    // The software device keeps a connection to the device of the peer.
    let kept = usize::from(lab.model && lab.peer.is_some());
    let (before, now) = (lab.descriptors, open_descriptors());
    if now > before + kept {
        return fail(format!("{now} descriptors are open, {before} were before the checks"));
    }
    match objects(lab) {
        None => Ok(format!("{now} descriptors, as before; rdma resource show does not list the device")),
        Some(left) if left.is_empty() => Ok(format!("{now} descriptors, as before, and nothing in rdma resource show")),
        Some(left) => fail(format!("rdma resource show has objects of this process: {left:?}")),
    }
}

/// The kinds of the objects that the kernel has for this process on the device, by the program `rdma` of iproute2;
/// `None` where that program or the device is not there.
fn objects(lab: &Lab) -> Option<Vec<&'static str>> {
    let show = |kind: &[&str]| {
        let mut rdma = Command::new("rdma");
        let output = rdma.args(["-j", "resource", "show"]).args(kind).output().ok()?;
        serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout).ok()
    };
    let name = lab.context.name();
    if !show(&[])?.iter().any(|entry| entry["ifname"] == *name) {
        return None;
    }
    let ours = |entry: &serde_json::Value| entry["ifname"] == *name && entry["pid"] == u64::from(std::process::id());
    // Protection domains are left out: the domain of the checks still exists.
    let mut left = Vec::new();
    for kind in ["qp", "cq", "srq", "mr"] {
        let of_kind = show(&[kind]).unwrap_or_default();
        left.extend(of_kind.iter().filter(|entry| ours(entry)).map(|_| kind));
    }
    Some(left)
}

fn counters(lab: &mut Lab) -> Result<String, Stop> {
    match lab.counters.risen(&lab.read_counters()) {
        None => Err(Stop::Cannot("sysfs has no counters of this port".into())),
        Some(risen) if risen.is_empty() => Ok("none rose".into()),
        Some(risen) => {
            let risen = risen.iter().map(|(name, by)| format!("{name} by {by}"));
            let risen: Vec<_> = risen.collect();
            Ok(format!("{} (C13 and group E provoke some)", risen.join(", ")))
        }
    }
}
