//! Runs the tests and the checks of this repository, see docs/testing.md.
//!
//! ```text
//! cargo xtask                               lists the steps
//! cargo xtask test                          runs a tier of steps: check, test, proof or network
//! cargo xtask --filter order direct verbs   runs these steps, and of their tests those whose name contains `order`
//! cargo xtask --long mutants                runs the long form of a step
//! cargo xtask --busy 20 test                runs it beside 20 busy loops; --niceness 10 makes them yield
//! cargo xtask isolate BINARY [ARGUMENT...]  runs each test of a test binary in a process of its own
//! xtask runner BINARY [ARGUMENT...]         the same for `cargo test`: on a device, if the binary needs one
//! cargo xtask vm-files                      builds what goes into the virtual machines of `rxe` and `vm`, and lists it
//! ```

mod api;
mod artifacts;
mod conformance;
mod isolate;
mod limits;
mod memory;
mod mutants;
mod needs;
mod packages;
mod runner;
mod session;
mod soak;
mod steps;
mod suite;

use std::process::ExitCode;

use session::Session;

/// A failure that is not the failure of a test, in words.
type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        // As a test harness does.
        Ok(false) => ExitCode::from(101),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<bool> {
    match arguments.first().map(String::as_str) {
        None => {
            steps::list();
            Ok(true)
        }
        Some("isolate") => isolate::command(&arguments[1..]),
        Some("runner") => runner::command(&arguments[1..]),
        Some("vm-files") => steps::vm_files().map(|()| true),
        Some(_) => {
            let (session, names) = Session::parse(arguments)?;
            steps::run(session, &names)
        }
    }
}
