//! `doorbell-info`: the RDMA devices of this machine, the path that doorbell would take on each, and what
//! stands in the way of it.

mod device;
mod names;
mod print;
mod process;
mod sysfs;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;

use device::Device;
use process::Process;

/// Tell what doorbell makes of the RDMA devices of this machine
#[derive(Parser)]
#[command(name = "doorbell-info", version)]
struct Args {
    /// Names of the devices to tell about [default: all]
    devices: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// All that is printed.
#[derive(Serialize)]
struct Report {
    process: Process,
    devices: Vec<Device>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("doorbell-info: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every device could be told about.
fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let present = doorbell::devices().map_err(|error| explain(&error))?;
    let mut names: Vec<&str> = present.iter().map(doorbell::Device::name).collect();
    if !args.devices.is_empty() {
        if let Some(name) = args.devices.iter().find(|name| !names.contains(&&***name)) {
            // It says which there are.
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
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        print::text(&report)
    };
    write(&text)?;
    Ok(report.devices.iter().all(|device| device.error.is_none()))
}

/// Writes to standard output. A reader that has read enough, such as `head`, is no error.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The error, and what sysfs says about it: the kernel may have devices that libibverbs has no provider for.
fn explain(error: &doorbell::Error) -> String {
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
