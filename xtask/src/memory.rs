//! The rings, the safe layer and the device under tools that check memory accesses. Conformance runs all three layers,
//! and libmlx5, in one process.
//!
//! The long form runs sixteen times as many random operations, and the tests of many messages.

use std::process::Command;

use crate::Result;
use crate::artifacts::{self, Artifact};
use crate::isolate::{self, Binary, Options, Totals};
use crate::session::{Session, built, counted, installed, skip, whole};
use crate::suite::{EVERYTHING, options};

const VALGRIND: &str = "valgrind -q --error-exitcode=9";

fn times(session: &Session) -> u32 {
    if session.long { 16 } else { 1 }
}

/// Runs tests and conformance under AddressSanitizer.
pub fn asan(session: &Session) -> Result<Totals> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Ok(skip("Rust has AddressSanitizer for x86_64-unknown-linux-gnu only"));
    }
    // The integration tests load the device without the sanitizer.
    artifacts::build(&mut session.cargo(EVERYTHING))?;
    // Only the tests that run, in one build. The tests of conformance build its program, too.
    let mut cargo = session.cargo(
        "test --no-run -p mlx5-ring -p soft-mlx5 -p doorbell-stepped-tests -p doorbell-tests \
         -p doorbell-conformance --lib --test suite --test tags --test report \
         --config profile.dev.package.soft-mlx5.opt-level=1 --target x86_64-unknown-linux-gnu --target-dir",
    );
    cargo.arg(session.target.join("asan"));
    // The stable compiler has it, and does not let on.
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    let built = artifacts::build_these(&mut cargo)?;
    let select = |wanted: fn(&str, &str) -> bool| -> Vec<Binary> {
        let chosen = built.iter().filter(|a: &&Artifact| a.test && wanted(&a.package, &a.target));
        chosen.map(|artifact| artifact.binary.clone()).collect()
    };

    // Nothing outlives the tests of the rings, so leaks count.
    let mut options = Options { limit: 900, jobs: session.jobs, ..Options::default() };
    options.variables =
        vec![("RING_SEED".into(), "1".into()), ("PROPTEST_CASES".into(), (8 * times(session)).to_string())];
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let rings = Options { arguments: words("--skip explorer"), ..options.clone() };
    let mut totals = isolate::run(&select(|package, _| package == "mlx5-ring"), &rings)?;

    // Buffers that a device may still write are never freed, and libibverbs keeps its lists. The device handles
    // signals itself, and passes on the signals of the program.
    let lenient = "detect_leaks=0:handle_segv=0:handle_sigbus=0";
    options.variables.push(("ASAN_OPTIONS".into(), lenient.into()));
    let device = select(|package, target| package == "soft-mlx5" && target == "soft_mlx5");
    totals += isolate::run(&device, &options)?;
    let stepped = select(|package, target| package == "doorbell-stepped-tests" && target == "suite");
    let modules = Options { arguments: words("events:: compression::"), ..options.clone() };
    totals += isolate::run(&stepped, &modules)?;

    let runner = session.target.join("debug/soft-mlx5").display().to_string();
    let on_device = Options {
        under: [runner].into_iter().chain(words("run --strict --")).collect(),
        arguments: words(if session.long { "" } else { "--skip many_messages_" }),
        ..options.clone()
    };
    let suites = select(|package, target| package == "doorbell-tests" && matches!(target, "suite" | "tags"));
    totals += isolate::run(&suites, &on_device)?;

    let program = session.target.join("asan/x86_64-unknown-linux-gnu/debug/conformance");
    let mut conformance = Command::new(program);
    conformance.env("ASAN_OPTIONS", lenient);
    totals += operations(&mut conformance, 16_000 * times(session))?;
    Ok(totals)
}

/// Runs threads that share queues on the drop-in under ThreadSanitizer. The program's part of it is compiled by GCC.
pub fn tsan(session: &Session) -> Result<Totals> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Ok(skip("Rust has ThreadSanitizer for x86_64-unknown-linux-gnu only"));
    }
    let chosen = artifacts::build(&mut session.cargo(EVERYTHING))?;
    let chosen = chosen.into_iter().filter(|a| a.test && a.package == "doorbell-tests" && a.target == "examples");
    let tests: Vec<Binary> = chosen.map(|artifact| artifact.binary).collect();
    let mut cargo =
        session.cargo("build -p doorbell-drop-in --lib --quiet --target x86_64-unknown-linux-gnu --target-dir");
    cargo.arg(session.target.join("tsan")).env("RUSTC_BOOTSTRAP", "1");
    // The standard library of rustup has no sanitizer: the drop-in has locks of its own.
    cargo.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    let library = built(&mut cargo)?;
    if !library.is_success() {
        return Ok(library);
    }
    let mut options = options(session, 300);
    let path = "tsan/x86_64-unknown-linux-gnu/debug/libdoorbell_drop_in.so";
    let path = session.target.join(path).display().to_string();
    options.variables.push(("THREAD_SANITIZER".into(), path));
    options.arguments = vec!["drop_in::threads_share_queues".into()];
    isolate::run(&tests, &options)
}

/// Runs conformance and the tests of the rings under valgrind.
pub fn valgrind(session: &Session) -> Result<Totals> {
    if !installed("valgrind") {
        return Ok(skip("valgrind is not installed"));
    }
    let built = artifacts::build(&mut session.cargo(EVERYTHING))?;
    let mut conformance = Command::new(session.target.join("debug/conformance"));
    conformance.env("CONFORMANCE_UNDER", VALGRIND);
    let mut totals = operations(&mut conformance, 3000 * times(session))?;
    for ring in built.iter().filter(|a| a.test && a.package == "mlx5-ring" && a.kind == "lib") {
        let mut words = VALGRIND.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(&ring.binary.path).current_dir(&ring.binary.directory);
        command.args("--quiet --skip explorer --test-threads 1".split_whitespace());
        // One case of each random test, unless more are asked for.
        command.env("PROPTEST_CASES", times(session).to_string()).env("RING_SEED", "1");
        totals += counted(&mut command)?;
    }
    Ok(totals)
}

fn operations(conformance: &mut Command, number: u32) -> Result<Totals> {
    whole(conformance.args(["--operations", &number.to_string(), "--seed", "1"]))
}
