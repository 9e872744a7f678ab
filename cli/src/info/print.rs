//! The report as text.

use std::fmt::Write;

use super::Report;
use super::device::{Device, Port};

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for (i, device) in report.devices.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out += &of_device(device);
    }
    let process = &report.process;
    let memlock = match process.memlock_limit {
        Some(bytes) => format!("RLIMIT_MEMLOCK {} KiB", bytes / 1024),
        None => "RLIMIT_MEMLOCK unlimited".to_owned(),
    };
    match (process.cpu, process.numa_node) {
        (Some(cpu), Some(node)) => {
            let _ = writeln!(out, "\nthis process: CPU {cpu}, NUMA node {node}; {memlock}");
        }
        _ => {
            let _ = writeln!(out, "\nthis process: {memlock}");
        }
    }
    out
}

fn of_device(device: &Device) -> String {
    let mut out = format!("{}\n", device.name);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "  {name:<16} {value}");
    };
    if let Some(error) = &device.error {
        line("error", error);
        return out;
    }
    let unknown = || "unknown".to_owned();
    let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(unknown);

    line("driver", device.driver.as_deref().unwrap_or("none in the kernel"));
    line("PCI function", device.pci.as_deref().unwrap_or("none"));
    line("description", &or_unknown(&device.description));
    line("firmware", &or_unknown(&device.firmware));
    let board = or_unknown(&device.board);
    line("board", &format!("{board}, vendor {:#x}, part {}", device.vendor_id, device.part_id));
    line("NUMA node", &device.numa_node.map_or_else(unknown, |node| node.to_string()));
    match &device.not_direct {
        None => line("path", &device.path),
        Some(reason) => line("path", &format!("{}, because {reason}", device.path)),
    }
    for port in &device.ports {
        line(&format!("port {}", port.number), &of_port(port));
        for gid in &port.gids {
            line("", &format!("GID {}: {} ({})", gid.index, gid.gid, gid.kind));
        }
    }
    line(
        "tag matching",
        &device.tag_matching.as_ref().map_or("no".to_owned(), |caps| {
            format!(
                "{} tags, {} operations outstanding, rendezvous header of {} bytes{}",
                caps.max_tags,
                caps.max_operations,
                caps.max_rendezvous_header,
                if caps.rc { ", on RC" } else { "" }
            )
        }),
    );
    line(
        "CQE compression",
        &device.cqe_compression.as_ref().map_or("no".to_owned(), |caps| {
            format!(
                "up to {} completions, by {}{}",
                caps.max_completions,
                caps.formats.join(", "),
                if caps.cqe_128 { "; 128-byte CQEs too" } else { "" }
            )
        }),
    );
    line(
        "timestamps",
        &device.timestamps.as_ref().map_or("no".to_owned(), |caps| {
            let unit = if caps.real_time { "real time" } else { "ticks of the free-running clock" };
            format!("{} bits, {unit}, clock of {} kHz", caps.bits, caps.clock_khz)
        }),
    );
    let limits = &device.limits;
    line("limits", &format!("{} QPs of {} receives of {} buffers", limits.qps, limits.qp_wr, limits.qp_sge));
    line("", &format!("{} SRQs of {} receives of {} buffers", limits.srqs, limits.srq_wr, limits.srq_sge));
    let vectors = limits.comp_vectors;
    line("", &format!("{} CQs of {} entries, {vectors} completion vectors", limits.cqs, limits.cqe));
    match limits.mr_size {
        u64::MAX => line("", "memory regions of any size"),
        size => line("", &format!("memory regions of {size} bytes")),
    }
    for warning in &device.warnings {
        line("WARNING", warning);
    }
    out
}

fn of_port(port: &Port) -> String {
    let mut text = format!("{}, {}", port.state, port.link_layer);
    if let (Some(rate), Some(speed)) = (port.gigabits, &port.speed) {
        let _ = write!(text, ", {rate} Gb/s ({speed})");
    }
    if let (Some(active), Some(max)) = (port.active_mtu, port.max_mtu) {
        let _ = write!(text, ", MTU {active} of {max}");
    }
    if port.lid != 0 {
        let _ = write!(text, ", LID {:#x}", port.lid);
    }
    text
}
