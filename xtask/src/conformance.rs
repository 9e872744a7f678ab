//! Conformance of doorbell and libmlx5: both write the same bytes.

use std::process::Command;

use crate::isolate::{self, Totals};
use crate::needs::Needs;
use crate::session::{Session, whole};
use crate::suite::{EVERYTHING, options, tests};
use crate::{Result, artifacts};

/// The tests of the comparison itself, and a short comparison.
pub fn short(session: &Session) -> Result<Totals> {
    let twins = tests(session, EVERYTHING, &[Needs::Twins])?;
    let mut totals = isolate::run(&twins, &options(session, 300))?;
    if session.filter.is_none() {
        totals += compare(session, 10_000)?;
    }
    Ok(totals)
}

/// A short comparison of libmlx5 with the drop-in under libibverbs.
pub fn dropped_in(session: &Session) -> Result<Totals> {
    let [doorbell, conformance] = ["doorbell", "conformance"].map(|name| session.target.join("debug").join(name));
    let mut command = Command::new(doorbell);
    command.args(["run", "--"]).arg(conformance);
    whole(command.args(["--operations", &(operations(session) / 10).to_string()]))
}

/// A long comparison with the libmlx5 of this system.
pub fn long(session: &Session) -> Result<Totals> {
    artifacts::build(&mut session.cargo(EVERYTHING))?;
    compare(session, operations(session))
}

/// A long comparison with the libmlx5 of Debian 13, which is unpacked below the target directory, and a short one under
/// the drop-in.
pub fn newer(session: &Session) -> Result<Totals> {
    let with = |operations: u32| {
        let mut command = session.script("conformance.sh");
        command.arg(operations.to_string()).env("SUITE", "trixie");
        command
    };
    let mut totals = whole(&mut with(operations(session)))?;
    totals += whole(with(operations(session) / 10).env("DROP_IN", "1"))?;
    Ok(totals)
}

fn operations(session: &Session) -> u32 {
    if session.long { 1_000_000 } else { 100_000 }
}

fn compare(session: &Session, operations: u32) -> Result<Totals> {
    let mut command = Command::new(session.target.join("debug/conformance"));
    whole(command.args(["--operations", &operations.to_string()]))
}
