//! Group A: where the test runs.

use doorbell::Mtu;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::stop::Stop;
use crate::info::names;
use crate::process::Process;
use crate::sysfs;

pub const CHECKS: &[Check] = &[
    Check { id: "A1", name: "device and firmware", needs: Needs::Nothing, run: device },
    Check { id: "A2", name: "who drives it", needs: Needs::Nothing, run: driver },
    Check { id: "A3", name: "limits and processors of this process", needs: Needs::Nothing, run: process },
    Check { id: "A4", name: "port", needs: Needs::Nothing, run: port },
    Check { id: "A5", name: "what the device offers", needs: Needs::Nothing, run: attributes },
];

fn device(lab: &mut Lab) -> Result<String, Stop> {
    let attr = lab.context.attr();
    let board = lab.board();
    let pci = |name: &str| sysfs::read(&lab.context.sysfs_path().join("device").join(name));
    let link = pci("current_link_width").zip(pci("current_link_speed"));
    let link = link.map_or("no PCI link".into(), |(width, speed)| format!("PCI x{width}, {speed}"));
    Ok(format!(
        "vendor {:#x}, part {}, firmware {}, board {board}, {link}",
        attr.vendor_id,
        attr.vendor_part_id,
        lab.context.firmware()
    ))
}

fn driver(lab: &mut Lab) -> Result<String, Stop> {
    let (path, reason) = lab.context.auto_path();
    let why = reason.map_or(String::new(), |reason| format!(": {reason}"));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    Ok(format!("{}; path {path}{why}", libraries(&maps, lab.context.name()).join(", ")))
}

/// The files of libibverbs and of the provider for a device of that name in a list of mappings: their names end with
/// the version of rdma-core. libibverbs loads all providers, so a provider of another name cannot be identified.
fn libraries<'a>(maps: &'a str, device: &str) -> Vec<&'a str> {
    let kind: String = device.chars().take_while(char::is_ascii_alphabetic).collect();
    let provider = format!("lib{kind}");
    let files = maps.lines().filter_map(|line| line.rsplit_once('/')).map(|(_, name)| name);
    let mut names: Vec<_> = files
        .filter(|name| name.contains(".so"))
        .filter(|name| name.starts_with("libibverbs.") || name.starts_with(&provider))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn process(lab: &mut Lab) -> Result<String, Stop> {
    let process = Process::this();
    let memlock = process.memlock_limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    let governor = std::path::Path::new("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = sysfs::read(governor).unwrap_or("unknown".into());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let huge = memory.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    let iommu = lab.context.sysfs_path().join("device/iommu_group/type");
    let iommu = sysfs::read(&iommu).unwrap_or("none".into());
    Ok(format!(
        "RLIMIT_MEMLOCK {memlock}, {} huge pages free, IOMMU {iommu}, NUMA node {}, governor {governor}, {} processors, {}",
        huge.map_or("no", str::trim),
        process.numa_node.unwrap_or(0),
        std::thread::available_parallelism().map_or(0, usize::from),
        std::env::consts::ARCH
    ))
}

fn port(lab: &mut Lab) -> Result<String, Stop> {
    let attr = lab.context.query_port(lab.port)?;
    let gids = lab.context.gids();
    let kinds = gids.iter().filter(|gid| gid.port == u32::from(lab.port));
    let kinds: Vec<_> = kinds.map(|gid| names::gid_kind(gid.kind)).collect();
    Ok(format!(
        "{} of {}, {}, MTU {}, GIDs: {}",
        lab.port,
        lab.context.attr().phys_port_cnt,
        attr.link_layer,
        attr.active_mtu.map_or(0, Mtu::bytes),
        kinds.join(", ")
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_listed_with_their_versions() {
        let maps = "7f00-7f01 r-xp 0 08:01 1  /usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0\n\
                    7f01-7f02 r--p 0 08:01 1  /usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0\n\
                    7f02-7f03 r--p 0 08:01 1  /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n\
                    7f03-7f04 r--p 0 08:01 1  /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so\n\
                    7f04-7f05 r--p 0 08:01 1  /opt/libsoft_mlx5.so\n7f05-7f06 rw-p 0 00:00 0\n";
        let verbs = "libibverbs.so.1.14.44.0";
        assert_eq!(libraries(maps, "mlx5_0"), [verbs, "libmlx5.so.1.24.44.0"]);
        assert_eq!(libraries(maps, "rxe0"), [verbs, "librxe-rdmav34.so"]);
    }
}
