//! Group A: where the test runs.

use super::check::{Check, Needs, Stop, fail};
use super::lab::Lab;
use crate::info::names;
use crate::process::Process;

pub const CHECKS: &[Check] = &[
    Check { id: "A1", name: "device and firmware", needs: Needs::Device, run: device },
    Check { id: "A2", name: "who drives it", needs: Needs::Device, run: driver },
    Check {
        id: "A3",
        name: "limits and processors of this process",
        needs: Needs::Device,
        run: process,
    },
    Check { id: "A4", name: "port", needs: Needs::Device, run: port },
    Check { id: "A5", name: "what the device offers", needs: Needs::Device, run: attributes },
];

fn device(lab: &mut Lab) -> Result<String, Stop> {
    let attr = lab.context.attr();
    let board = super::board(&lab.context);
    Ok(format!(
        "vendor {:#x}, part {}, firmware {}, board {board}",
        attr.vendor_id,
        attr.vendor_part_id,
        lab.context.firmware()
    ))
}

fn driver(lab: &mut Lab) -> Result<String, Stop> {
    let (path, reason) = lab.context.auto_path();
    let why = reason.map_or(String::new(), |reason| format!(": {reason}"));
    Ok(format!("path {path}{why}"))
}

fn process(_: &mut Lab) -> Result<String, Stop> {
    let process = Process::this();
    let memlock =
        process.memlock_limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    let governor = std::path::Path::new("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = crate::sysfs::read(governor).unwrap_or("unknown".into());
    Ok(format!(
        "RLIMIT_MEMLOCK {memlock}, NUMA node {}, governor {governor}, {} processors, {}",
        process.numa_node.unwrap_or(0),
        std::thread::available_parallelism().map_or(0, usize::from),
        std::env::consts::ARCH
    ))
}

fn port(lab: &mut Lab) -> Result<String, Stop> {
    const ACTIVE: u32 = 4;
    let count = lab.context.attr().phys_port_cnt;
    for number in 1..=count {
        let attr = lab.context.query_port(number)?;
        if attr.state == ACTIVE {
            lab.port = number;
            let gids = lab.context.gids();
            let kinds = gids.iter().filter(|gid| gid.port == u32::from(number));
            let kinds: Vec<_> = kinds.map(|gid| names::gid_kind(gid.kind)).collect();
            return Ok(format!(
                "{number} of {count}, {}, MTU code {}, GIDs: {}",
                names::link_layer(attr.link_layer),
                attr.active_mtu,
                kinds.join(", ")
            ));
        }
    }
    fail("no port is active: see doorbell doctor")
}

fn attributes(lab: &mut Lab) -> Result<String, Stop> {
    let caps = lab.context.capabilities()?;
    let attr = lab.context.attr();
    Ok(format!(
        "tag matching {}, CQE compression {}, timestamps {}; {} WRs of a queue, {} of an SRQ, {} CQEs",
        yes(caps.tag_matching.is_some()),
        yes(caps.cqe_compression.is_some()),
        yes(caps.timestamps.is_some()),
        attr.max_qp_wr,
        attr.max_srq_wr,
        attr.max_cqe
    ))
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}
