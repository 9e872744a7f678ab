//! Long runs of connections, requests and messages.

use std::process::Command;

use crate::isolate::{self, Totals};
use crate::needs::Needs;
use crate::session::{Session, counted};
use crate::suite::{EVERYTHING, on_device, tests};
use crate::{Result, artifacts};

/// Options of the device that [`Needs::Soak`] names.
pub const DISTINCT: &[&str] = &["--distinct-qp-numbers"];
/// Options of the device that [`Needs::Lossy`] names.
pub const FAULTS: &[&str] = &["--loss", "0.005", "--duplicate", "0.005", "--reorder", "0.005"];

/// A part of `make soak`: connections that are made and destroyed, and requests and messages over a link that fails in
/// every way.
pub fn run(session: &Session) -> Result<Totals> {
    let mut totals = Totals::default();
    for path in ["direct", "verbs"] {
        let mut options = on_device(session, path, DISTINCT);
        if session.long {
            options.limit = 7200;
            options.variables.push(("SOAK_CONNECTIONS".into(), "100000".into()));
        }
        totals += isolate::run(&tests(session, EVERYTHING, &[Needs::Soak])?, &options)?;
        let mut lossy = on_device(session, path, FAULTS);
        if session.long {
            lossy.limit = 7200;
            lossy.variables.push(("SOAK_OPERATIONS".into(), "10000000".into()));
        }
        totals += isolate::run(&tests(session, EVERYTHING, &[Needs::Lossy])?, &lossy)?;
    }
    // scripts/soak.sh has the long form of the rest.
    if session.long {
        return Ok(totals);
    }
    let artifacts = artifacts::build(&mut session.cargo(EVERYTHING))?;
    for device in artifacts.iter().filter(|a| a.test && a.target == "soft_mlx5" && a.kind != "test") {
        let mut command = Command::new(&device.binary.path);
        command.args(["--ignored", "--nocapture", "engine::tests::soak::long"]);
        totals += counted(command.env("SOAK_MESSAGES", "3000000"))?;
    }
    Ok(totals)
}
