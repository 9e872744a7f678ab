//! The tests of the suite: how they are built, and under what they run.

use crate::isolate::{Binary, Options};
use crate::needs::Needs;
use crate::session::Session;
use crate::{Result, artifacts};

/// Everything that all tests need: programs, examples, preloaded libraries and test binaries.
pub const EVERYTHING: &str = "build --lib --bins --tests --examples";

/// Builds the targets, and returns the test binaries with these needs.
pub fn tests(session: &Session, targets: &str, needed: &[Needs]) -> Result<Vec<Binary>> {
    let artifacts = artifacts::build(&mut session.cargo(targets))?;
    let chosen =
        artifacts.into_iter().filter(|a| a.test && needed.contains(&Needs::of(&a.package, &a.kind, &a.source)));
    let chosen: Vec<Binary> = chosen.map(|artifact| artifact.binary).collect();
    if chosen.is_empty() {
        return Err(format!("cargo {targets} builds no test of this step"));
    }
    Ok(chosen)
}

/// Options for tests that may use `limit` seconds of processor time.
pub fn options(session: &Session, limit: u64) -> Options {
    let arguments = session.selection();
    Options { limit, arguments, jobs: session.jobs, ..Options::default() }
}

/// Addresses of the first device of a fabric, as soft-mlx5's connection manager gives them.
pub const ADDRESSES: &str = "10.219.0.1,fe80::db:ff:fe00:1";

/// Options for tests that run under `soft-mlx5 run --strict`.
pub fn on_device(session: &Session, path: &str, more: &[&str]) -> Options {
    let mut options = options(session, 300);
    options.under.push(session.target.join("debug/soft-mlx5").display().to_string());
    let arguments = ["run", "--strict"].iter().chain(more).chain(&["--"]);
    options.under.extend(arguments.map(ToString::to_string));
    options.variables.push(("DOORBELL_PATH".into(), path.into()));
    options.variables.push(("DOORBELL_ADDRESSES".into(), ADDRESSES.into()));
    options
}
