//! The program `doorbell`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use doorbell_cli::args::{Cli, Command};
use doorbell_cli::{decode, doctor, info, run, selftest};

/// There is something to look at.
const FINDING: u8 = 1;
/// The command could not do what it was asked for.
const WRONG_USE: u8 = 2;

fn main() -> ExitCode {
    let (name, done) = match Cli::parse().command {
        Command::Info(args) => ("info", info::run(&args)),
        Command::Decode(args) => ("decode", decode::run(&args)),
        Command::Doctor(args) => ("doctor", doctor::run(&args)),
        Command::Selftest(args) => ("selftest", selftest::run(&args)),
        Command::Run(args) => ("run", run::run(&args)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "doorbell", &mut io::stdout());
            ("completions", Ok(true))
        }
        Command::Man => ("man", man().map(|()| true).map_err(Into::into)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FINDING),
        Err(error) => {
            eprintln!("doorbell {name}: {error}");
            ExitCode::from(WRONG_USE)
        }
    }
}

/// Prints the page of the program, and those of its commands after it.
fn man() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
        clap_mangen::Man::new(subcommand.clone()).render(&mut out)?;
    }
    out.flush()
}
