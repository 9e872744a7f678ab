//! `soft-mlx5 run [OPTIONS] -- COMMAND`: any verbs program on a software mlx5 device.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use soft_mlx5::faults::{self, FaultOption};
use soft_mlx5::runner::{Runner, exit_code};
use soft_mlx5::{Faults, LinkLayer};

/// Exit code for everything that keeps the command from being run.
const UNUSABLE: u8 = 2;

fn cli() -> Command {
    let run = Command::new("run")
        .about("Run a command; each of its processes finds a ConnectX-5 named mlx5_0")
        .arg(Arg::new("fabric").long("fabric").value_name("NAME").help(
            "Join a fabric: devices under one name reach each other [default: one for this run]",
        ))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .value_parser(value_parser!(u64))
                .default_value("0")
                .help("Seed of everything random"),
        )
        .arg(
            Arg::new("link")
                .long("link")
                .value_name("LAYER")
                .value_parser(["ib", "roce"])
                .default_value("ib")
                .help("Link layer of the port"),
        )
        .arg(
            Arg::new("shared-registers")
                .long("shared-registers")
                .action(ArgAction::SetTrue)
                .help("Let QPs share UAR registers, as on an adapter under many of them"),
        )
        .arg(
            Arg::new("blue-flame")
                .long("blue-flame")
                .action(ArgAction::SetTrue)
                .help("Share registers, and execute WQEs as they stand there: for programs that copy them whole"),
        )
        .arg(
            Arg::new("distinct-qp-numbers")
                .long("distinct-qp-numbers")
                .action(ArgAction::SetTrue)
                .help("Never give a QP a number that another one has had"),
        )
        .arg(
            Arg::new("memlock")
                .long("memlock")
                .action(ArgAction::SetTrue)
                .help("Count registered memory against RLIMIT_MEMLOCK, as the kernel does"),
        )
        .arg(
            Arg::new("real-time")
                .long("real-time")
                .action(ArgAction::SetTrue)
                .help("Offer timestamps in real time"),
        )
        .arg(
            Arg::new("strict")
                .long("strict")
                .action(ArgAction::SetTrue)
                .help("Stop the program where an adapter would silently mangle something"),
        )
        .arg(path("trace").help("Write a line for each WQE, doorbell and CQE to a file"))
        .arg(path("pcap").help("Write the packets between devices to a file that tshark reads"))
        .args(faults::OPTIONS.iter().map(fault))
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .value_parser(value_parser!(OsString))
                .num_args(0..)
                .trailing_var_arg(true)
                .help("Program and arguments"),
        );
    Command::new("soft-mlx5")
        .about("A software mlx5 device for any verbs program")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(run)
}

fn path(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf))
}

fn fault(option: &FaultOption) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.help).help_heading("Faults");
    match option.value {
        Some(value) => arg.value_name(value).action(ArgAction::Append),
        None => arg.action(ArgAction::SetTrue),
    }
}

fn faults_of(matches: &ArgMatches) -> Result<Faults, String> {
    let mut faults = Faults::default();
    for option in faults::OPTIONS {
        if option.value.is_none() {
            if matches.get_flag(option.name) {
                faults.set(option.name, "")?;
            }
            continue;
        }
        for value in matches.get_many::<String>(option.name).unwrap_or_default() {
            faults.set(option.name, value)?;
        }
    }
    Ok(faults)
}

fn main() -> ExitCode {
    let matches = match cli().try_get_matches() {
        Ok(matches) => matches,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return complain(&first_line(&error.to_string())),
    };
    match matches.subcommand() {
        Some(("run", matches)) => run(matches),
        _ => complain("there is nothing to do but `run`"),
    }
}

fn run(matches: &ArgMatches) -> ExitCode {
    let command: Vec<OsString> = matches.get_many("command").unwrap_or_default().cloned().collect();
    if command.is_empty() {
        return complain("there is no command to run: soft-mlx5 run [OPTIONS] -- COMMAND");
    }
    let link = match matches.get_one::<String>("link").map(String::as_str) {
        Some("roce") => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    };
    let faults = match faults_of(matches) {
        Ok(faults) => faults,
        Err(error) => return complain(&error),
    };
    let mut runner = Runner::new(command)
        .faults(faults)
        .seed(matches.get_one("seed").copied().unwrap_or(0))
        .link_layer(link)
        .shared_registers(matches.get_flag("shared-registers"))
        .blue_flame(matches.get_flag("blue-flame"))
        .distinct_qp_numbers(matches.get_flag("distinct-qp-numbers"))
        .memlock(matches.get_flag("memlock"))
        .real_time(matches.get_flag("real-time"))
        .strict(matches.get_flag("strict"));
    if let Some(name) = matches.get_one::<String>("fabric") {
        runner = runner.fabric(name);
    }
    if let Some(path) = matches.get_one::<PathBuf>("trace") {
        runner = runner.trace(path);
    }
    if let Some(path) = matches.get_one::<PathBuf>("pcap") {
        runner = runner.pcap(path);
    }
    match runner.run() {
        Ok(status) => ExitCode::from(exit_code(status)),
        Err(error) => complain(&error.to_string()),
    }
}

fn complain(what: &str) -> ExitCode {
    eprintln!("soft-mlx5: {what}");
    ExitCode::from(UNUSABLE)
}

fn first_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
