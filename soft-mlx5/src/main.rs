//! `soft-mlx5 run [OPTIONS] -- COMMAND`: any verbs program on a software mlx5 device.
//! `soft-mlx5 serve --socket PATH [OPTIONS]`: the device for a virtual machine.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use soft_mlx5::pci::vfio_user::Server;
use soft_mlx5::runner::{self, DeviceOption, Runner, exit_code};

/// Exit code for everything that keeps the command from being run.
const UNUSABLE: u8 = 2;

fn cli() -> Command {
    let [device, faults] = runner::options();
    let run = Command::new("run")
        .about("Run a command; each of its processes finds a ConnectX-5 named mlx5_0")
        .after_help(
            "The device is a thread of each process. The run ends with COMMAND: processes that outlive it reach each other no more.",
        )
        .args(device.iter().map(argument))
        .args(faults.iter().map(|option| argument(option).help_heading("Faults")))
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .value_parser(value_parser!(OsString))
                .num_args(0..)
                .trailing_var_arg(true)
                .help("Program and arguments"),
        );
    let serve = Command::new("serve")
        .about("Serve a PCI function of a ConnectX-5 to a virtual machine, over vfio-user")
        .after_help(
            "Each virtual machine that connects finds a device that was just powered up; the next waits until this one is gone.",
        )
        .arg(
            Arg::new("socket")
                .long("socket")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("Listen on this socket"),
        )
        .args(device.iter().map(argument))
        .args(faults.iter().map(|option| argument(option).help_heading("Faults")));
    let replay = Command::new("replay")
        .about("Compare what a device wrote, by doorbell selftest --bundle, with what this model writes")
        .arg(
            Arg::new("bundle")
                .value_name("BUNDLE")
                .value_parser(value_parser!(PathBuf))
                .required(true)
                .help("The bundle"),
        );
    Command::new("soft-mlx5")
        .about("A software mlx5 device for any verbs program")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(run)
        .subcommand(serve)
        .subcommand(replay)
}

fn argument(option: &DeviceOption) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.help);
    match option.value {
        Some(value) => arg
            .value_name(value)
            .value_parser(value_parser!(OsString))
            .action(ArgAction::Append)
            .allow_hyphen_values(option.name == "seed"),
        None => arg.action(ArgAction::SetTrue),
    }
}

fn set_options(matches: &ArgMatches, mut set: impl FnMut(&str, &OsStr) -> Result<(), String>) -> Result<(), String> {
    for option in runner::options().into_iter().flatten() {
        if option.value.is_none() {
            if matches.get_flag(option.name) {
                set(option.name, OsStr::new(""))?;
            }
            continue;
        }
        for value in matches.get_many::<OsString>(option.name).unwrap_or_default() {
            set(option.name, value)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let matches = match cli().try_get_matches() {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return complain(&first_line(&error.to_string())),
    };
    match matches.subcommand() {
        Some(("run", matches)) => run(matches),
        Some(("serve", matches)) => serve(matches),
        Some(("replay", matches)) => match matches.get_one::<PathBuf>("bundle") {
            Some(bundle) => replay(bundle),
            None => complain("there is no bundle to replay"),
        },
        _ => complain("there is nothing to do but `run` and `serve`"),
    }
}

fn run(matches: &ArgMatches) -> ExitCode {
    let command: Vec<OsString> = matches.get_many("command").unwrap_or_default().cloned().collect();
    if command.is_empty() {
        return complain("there is no command to run: soft-mlx5 run [OPTIONS] -- COMMAND");
    }
    let mut runner = Runner::new(command);
    if let Err(error) = set_options(matches, |name, value| runner.set(name, value)) {
        return complain(&error);
    }
    match runner.run() {
        Ok(status) => ExitCode::from(exit_code(status)),
        Err(error) => complain(&error.to_string()),
    }
}

fn serve(matches: &ArgMatches) -> ExitCode {
    let Some(socket) = matches.get_one::<PathBuf>("socket") else {
        return complain("there is no socket to listen on: soft-mlx5 serve --socket PATH");
    };
    let mut server = Server::new(socket);
    if let Err(error) = set_options(matches, |name, value| server.set(name, value)) {
        return complain(&error);
    }
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string()),
    }
}

fn replay(bundle: &Path) -> ExitCode {
    let text = match std::fs::read(bundle) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return complain(&format!("{}: {error}", bundle.display())),
    };
    let found = soft_mlx5::engine::replay::replay(&text);
    println!("{found}");
    if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(what: &str) -> ExitCode {
    eprintln!("soft-mlx5: {what}");
    ExitCode::from(UNUSABLE)
}

fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
