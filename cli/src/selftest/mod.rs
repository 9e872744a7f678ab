//! `doorbell selftest`: does this device do what doorbell relies on?
//!
//! Each group of checks is a file, and each check a function. Messages go from a port to itself, or come from a peer
//! (`--peer`); nothing outside of the objects that the checks make is changed.

mod barriers;
mod check;
mod cqes;
mod environment;
mod errors;
mod events;
mod far;
mod frames;
mod lab;
mod layout;
mod leave;
mod listen;
mod messages;
mod pair;
mod peer;
mod prerequisites;
mod receive;
mod report;
mod requests;
mod rings;
mod speed;
mod stop;
mod tags;
mod two_way;
mod windows;
mod witness;

use std::cell::RefCell;
use std::error::Error;
use std::io::IsTerminal;
use std::rc::Rc;

use crate::args::SelftestArgs;
use crate::sysfs;
use check::{Check, Ending, Needs, Outcome};
use lab::Lab;
use messages::Command;
use peer::Peer;

/// The checks in the order in which they run. Checks that need a peer do not count where there is none.
fn checks() -> impl Iterator<Item = &'static Check> {
    let groups = [
        environment::CHECKS,
        layout::CHECKS,
        receive::CHECKS,
        cqes::CHECKS,
        errors::CHECKS,
        events::CHECKS,
        requests::CHECKS,
        barriers::CHECKS,
        tags::CHECKS,
        frames::CHECKS,
        cqes::LAST,
        speed::CHECKS,
        speed::PEER,
        leave::CHECKS,
    ];
    groups.into_iter().flatten()
}

/// Runs the checks, and writes the report; returns `true` if none failed.
///
/// # Errors
/// The checks could not run: something is missing that they need, or the arguments are wrong.
pub fn run(args: &SelftestArgs) -> Result<bool, Box<dyn Error>> {
    if let Some(unknown) = args.only.iter().find(|id| checks().all(|check| check.id != **id)) {
        return Err(format!("there is no check {unknown}: docs/selftest.md has the groups").into());
    }
    let wanted = |check: &&Check| match args.only.is_empty() {
        true => args.peer.is_some() || speed::PEER.iter().all(|of_peer| of_peer.id != check.id),
        false => args.only.iter().any(|id| id == check.id),
    };
    let context = match &args.device {
        Some(name) => doorbell::open(name)?,
        None => prerequisites::choose()?,
    };
    // soft-mlx5 names itself in one of two files: within a process, and in a virtual machine.
    let path = context.sysfs_path();
    let model = [("node_desc", "soft-mlx5"), ("board_id", "SOFT")]
        .into_iter()
        .any(|(file, start)| sysfs::read(&path.join(file)).is_some_and(|text| text.starts_with(start)));
    let peer = match &args.peer {
        Some(host) => Some(Rc::new(RefCell::new(Peer::connect(host, args.tcp_port)?))),
        None => None,
    };
    let descriptors = leave::open_descriptors();
    let mut lab = Lab::new(context, model, args, descriptors)?;
    if args.listen {
        return match lab.missing.pop_first() {
            Some((_, missing)) => Err(missing.into()),
            None => listen::run(lab, args.tcp_port),
        };
    }
    lab.peer.clone_from(&peer);
    if peer.is_some() {
        lab::another_host();
    }
    let mut outcomes = Vec::new();
    let watched = !args.json && std::io::stdout().is_terminal();
    // Without messages, only the check that says why there are none, and those that need none.
    let possible = |check: &&Check| match lab.missing.is_empty() {
        true => wanted(check),
        false => lab.missing.contains_key(check.id) || check.needs == Needs::Nothing && wanted(check),
    };
    let chosen: Vec<&Check> = checks().filter(possible).collect();
    for check in chosen {
        if watched {
            // The line of the result overwrites this one.
            crate::output::write(&format!("{:<4} ...    {}\r", check.id, check.name))?;
        }
        let outcome = Outcome::of(check, &mut lab);
        if !args.json {
            crate::output::write(&format!("{outcome}\n"))?;
        }
        outcomes.push(outcome);
    }
    let verdict = verdict(&lab, &outcomes);
    if let Some(peer) = peer {
        // If the peer has ended, a check has reported it.
        _ = peer.borrow_mut().tell(&Command::End { verdict: verdict.clone() });
    }
    let report = report::text(&lab, &outcomes, &verdict);
    let path = args.report.clone().unwrap_or_else(|| report::file_name(&lab).into());
    std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    if let Some(bundle) = &args.bundle {
        let text = report::bundle(&lab, &outcomes);
        std::fs::write(bundle, text).map_err(|error| format!("{}: {error}", bundle.display()))?;
    }
    let text = if args.json {
        let json = serde_json::json!({ "verdict": verdict, "model": model, "checks": outcomes, "notes": lab.notes });
        serde_json::to_string_pretty(&json)? + "\n"
    } else {
        format!("{}{}report: {}\n{verdict}\n", report::notes(&lab), report::executed(&lab), path.display())
    };
    crate::output::write(&text)?;
    if !lab.missing.is_empty() {
        return Err("nothing was sent, so nothing is known about the device".into());
    }
    Ok(outcomes.iter().all(|outcome| outcome.ending != Ending::Fail))
}

/// The line that sums it up.
fn verdict(lab: &Lab, outcomes: &[Outcome]) -> String {
    if !lab.missing.is_empty() {
        let missing: Vec<_> = lab.missing.iter().map(|(check, why)| format!("{check}: {why}")).collect();
        return format!("selftest: could not run: {}", missing.join("; "));
    }
    let of = |ending| outcomes.iter().filter(move |outcome| outcome.ending == ending);
    let cannot = of(Ending::Cannot).count();
    let failed: Vec<&str> = of(Ending::Fail).map(|outcome| outcome.id).collect();
    let passed = of(Ending::Pass).count();
    let noted: Vec<&str> = lab.notes.keys().copied().collect();
    let noted = if noted.is_empty() { String::new() } else { format!("; noted: {}", noted.join(" ")) };
    if failed.is_empty() {
        return format!("selftest: ok: {passed} checks, {cannot} could not run{noted}");
    }
    format!("selftest: FAILED: {} ({passed} passed, {cannot} could not run{noted})", failed.join(" "))
}
