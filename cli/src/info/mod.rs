//! `doorbell info`: the RDMA devices of this machine, the path that doorbell would take on each, and why not the direct
//! path.

mod device;
pub(crate) mod names;
mod print;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::InfoArgs;
use crate::process::Process;
use crate::sysfs;
use device::Device;

/// All that is printed.
#[derive(Serialize)]
struct Report {
    process: Process,
    devices: Vec<Device>,
}

/// Prints the report; returns `true` if every device could be queried.
pub fn run(args: &InfoArgs) -> Result<bool, Box<dyn std::error::Error>> {
    let present = match doorbell::devices() {
        Ok(present) => present,
        // The error is the whole report: no device was queried.
        Err(error) => {
            eprintln!("doorbell info: {}", explain(&error));
            return Ok(false);
        }
    };
    let mut names: Vec<&str> = present.iter().map(doorbell::Device::name).collect();
    if !args.devices.is_empty() {
        if let Some(name) = args.devices.iter().find(|name| !names.contains(&&***name)) {
            // The error lists the devices.
            doorbell::open(name)?;
        }
        names.retain(|name| args.devices.iter().any(|wanted| wanted == name));
    }
    let process = Process::this();
    let devices = present
        .iter()
        .filter(|device| names.contains(&device.name()))
        .map(|device| Device::query(device, &process))
        .collect();
    let report = Report { process, devices };
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { print::text(&report) };
    crate::output::write(&text)?;
    Ok(report.devices.iter().all(|device| device.error.is_none()))
}

/// The error, and its explanation from sysfs: the kernel may have devices that libibverbs has no provider for.
pub(crate) fn explain(error: &doorbell::Error) -> String {
    let root = std::env::var_os("SYSFS_PATH").map_or(Path::new("/sys").into(), PathBuf::from);
    let kernel = sysfs::devices(&root);
    if !matches!(error, doorbell::Error::NoDevice) || kernel.is_empty() {
        return error.to_string();
    }
    format!(
        "libibverbs shows no RDMA device, but the kernel has {}: a provider is missing (Debian and Ubuntu: \
         package ibverbs-providers), or the module ib_uverbs is not loaded",
        kernel.join(", ")
    )
}
