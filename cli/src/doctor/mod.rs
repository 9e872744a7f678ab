//! `doorbell doctor`: finds causes that keep objects from being created, queue pairs from connecting, or messages from
//! arriving. It changes nothing on the machine.

pub(crate) mod counters;
mod loopback;
mod nldev;
mod odp;
mod port;
mod queue_pairs;
mod room;
mod routes;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::process::Process;

/// `RLIMIT_MEMLOCK` in bytes below which hardly anything can be registered.
const LEAST_MEMLOCK: u64 = 1 << 20;

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Probably a cause of trouble.
    Warning,
    /// Nothing works with it.
    Failure,
}

/// One check and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Its subject, in a few words.
    pub what: String,
    /// Its result.
    pub level: Level,
    /// The observation, and what to do about it.
    pub text: String,
}

/// All checks of a device.
#[derive(Debug, Serialize)]
pub struct Patient {
    /// Name of the device.
    pub device: String,
    /// In the order in which they were made.
    pub checks: Vec<Check>,
}

impl Patient {
    fn add(&mut self, level: Level, what: impl Into<String>, text: impl Into<String>) {
        self.checks.push(Check { what: what.into(), level, text: text.into() });
    }
}

/// Prints the results. Returns `true` if all is well.
pub fn run(args: &DoctorArgs) -> Result<bool, Box<dyn std::error::Error>> {
    let present = match doorbell::devices() {
        Ok(present) => present,
        Err(error) => {
            eprintln!("doorbell doctor: {}", crate::info::explain(&error));
            return Ok(false);
        }
    };
    if let Some(name) = &args.device {
        if present.iter().all(|device| device.name() != name) {
            // The error lists the devices.
            doorbell::open(name)?;
        }
    }
    let wanted = |device: &&doorbell::Device| args.device.as_ref().is_none_or(|name| name == device.name());
    let process = Process::this();
    let patients: Vec<Patient> = present.iter().filter(wanted).map(|device| examine(device, &process)).collect();
    let text =
        if args.json { serde_json::to_string_pretty(&patients)? + "\n" } else { patients.iter().map(text).collect() };
    crate::output::write(&text)?;
    let checks = patients.iter().flat_map(|patient| &patient.checks);
    Ok(checks.into_iter().all(|check| matches!(check.level, Level::Ok | Level::Note)))
}

fn examine(device: &doorbell::Device, process: &Process) -> Patient {
    let mut patient = Patient { device: device.name().to_owned(), checks: Vec::new() };
    match process.memlock_limit {
        None => patient.add(Level::Ok, "RLIMIT_MEMLOCK", "unlimited"),
        Some(bytes) => {
            let level = if bytes < LEAST_MEMLOCK { Level::Warning } else { Level::Note };
            let text = format!(
                "{} KiB: registering more memory fails with ENOMEM, and memory counts once for each device that registers it; ulimit -l unlimited, or LimitMEMLOCK=infinity of the service",
                bytes / 1024
            );
            patient.add(level, "RLIMIT_MEMLOCK", text);
        }
    }
    let context = match device.open() {
        Ok(context) => context,
        Err(error) => {
            patient.add(Level::Failure, "opening the device", error.to_string());
            return patient;
        }
    };
    patient.add(Level::Ok, "opening the device", format!("firmware {}", context.firmware()));
    odp::examine(&mut patient, &context);
    room::examine(&mut patient, &context);
    for number in 1..=context.attr().phys_port_cnt {
        if let Err(error) = port::examine(&mut patient, &context, number) {
            patient.add(Level::Failure, format!("port {number}"), error.to_string());
        }
    }
    patient
}

fn text(patient: &Patient) -> String {
    let mut out = format!("{}\n", patient.device);
    for check in &patient.checks {
        let level = match check.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "WARNING",
            Level::Failure => "FAILURE",
        };
        out += &format!("  {level:<8} {}: {}\n", check.what, check.text);
    }
    out
}
