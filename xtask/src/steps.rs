//! The steps of the test-suite, and the commands that run them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::isolate::{self, Totals};
use crate::needs::Needs;
use crate::session::{Session, built, counted, installed, oldest_toolchain, skip, there_is, whole};
use crate::suite::{EVERYTHING, on_device, options, tests};
use crate::{Result, api, artifacts, conformance, limits, memory, mutants, packages, soak};

/// When a step runs.
#[derive(Clone, Copy, PartialEq)]
enum Tier {
    /// After an edit.
    Check,
    /// After an edit, and before a release.
    CheckAndProof,
    /// For a newcomer's verdict.
    Test,
    /// Before a release, and in continuous integration.
    Proof,
    /// Before a release, where there is a network.
    Network,
}

struct Step {
    name: &'static str,
    tier: Tier,
    run: fn(&Session) -> Result<Totals>,
}

const fn step(name: &'static str, tier: Tier, run: fn(&Session) -> Result<Totals>) -> Step {
    Step { name, tier, run }
}

/// docs/testing.md describes what each step proves.
const STEPS: &[Step] = &[
    step("format", Tier::CheckAndProof, |s| whole(&mut s.cargo("fmt --all --check"))),
    step("clippy", Tier::CheckAndProof, clippy),
    step("quick", Tier::Check, quick),
    step("unit", Tier::Test, unit),
    step("device", Tier::Test, device),
    step("direct", Tier::Test, |s| integration(s, "direct")),
    step("verbs", Tier::Test, |s| integration(s, "verbs")),
    step("examples", Tier::Test, examples),
    step("conformance", Tier::Test, conformance::short),
    step("doctest", Tier::Test, doctest),
    step("doc", Tier::Proof, doc),
    step("package", Tier::Proof, packages::run),
    step("install", Tier::Proof, install),
    step("features", Tier::Proof, features),
    step("unchecked", Tier::Proof, unchecked),
    step("oldest", Tier::Proof, oldest),
    step("api", Tier::Proof, api::run),
    step("aarch64", Tier::Proof, aarch64),
    step("programs", Tier::Proof, programs),
    step("python", Tier::Proof, |s| python(s, "")),
    step("drop-in", Tier::Proof, drop_in),
    step("explore", Tier::Proof, explore),
    step("long-conformance", Tier::Proof, conformance::long),
    step("asan", Tier::Proof, memory::asan),
    step("tsan", Tier::Proof, memory::tsan),
    step("valgrind", Tier::Proof, memory::valgrind),
    step("mutants", Tier::Proof, mutants::run),
    step("fuzz", Tier::Proof, fuzz),
    step("counts", Tier::Proof, counts),
    step("timing", Tier::Proof, timing),
    step("soak", Tier::Proof, soak::run),
    step("rxe", Tier::Proof, rxe),
    step("vm-short", Tier::Network, vm_short),
    step("vm", Tier::Network, vm),
    step("newer-libmlx5", Tier::Network, conformance::newer),
    step("newer-python", Tier::Network, newer_python),
];

impl Step {
    fn is_in(&self, tier: &str) -> bool {
        match self.tier {
            Tier::Check => tier == "check",
            Tier::CheckAndProof => tier == "check" || tier == "proof",
            Tier::Test => tier == "test",
            Tier::Proof => tier == "proof",
            Tier::Network => tier == "network",
        }
    }
}

/// Prints the names of all steps.
pub fn list() {
    for tier in ["check", "test", "proof", "network"] {
        let names = STEPS.iter().filter(|step| step.is_in(tier)).map(|step| step.name);
        println!("{tier}: {}", names.collect::<Vec<_>>().join(" "));
    }
}

/// Runs steps and tiers by their names. A step that fails does not keep the others from running.
pub fn run(session: Session, names: &[String]) -> Result<bool> {
    let mut steps = Vec::new();
    for name in names {
        let before = steps.len();
        steps.extend(STEPS.iter().filter(|step| step.name == *name || step.is_in(name)));
        if steps.len() == before {
            return Err(format!("there is no step and no tier {name}: `cargo xtask` lists them"));
        }
    }
    let began = Instant::now();
    // The later steps do not use the network, except those of the tier `network`.
    if !whole(&mut session.cargo("fetch --locked --quiet"))?.is_success() {
        return Err("cargo fetch failed: is there a network?".into());
    }
    if session.busy > 0 {
        println!("test: {} busy loops, {} nicer than the tests", session.busy, session.niceness);
        limits::keep_busy(session.busy, session.niceness);
    }
    let (mut totals, mut broken) = (Totals::default(), Vec::new());
    for step in steps {
        println!("test: {}", step.name);
        let (began, used) = (Instant::now(), limits::children_time());
        let building = artifacts::building_time();
        let done = (step.run)(&session).unwrap_or_else(|message| {
            println!("{message}");
            Totals { failed: 1, ..Totals::default() }
        });
        let verdict = match done {
            Totals { failed: 1.., .. } => "FAILED",
            Totals { passed: 0, .. } => "skipped",
            _ => "ok",
        };
        if !done.is_success() {
            broken.push(format!("test: failed: {} {}", step.name, done.failures.join(" ")));
        }
        totals += done;
        println!(
            "test: {}: {verdict}, {} s, {} s of processor time, {} s of them building",
            step.name,
            began.elapsed().as_secs(),
            (limits::children_time() - used).as_secs(),
            (artifacts::building_time() - building).as_secs()
        );
    }
    let seconds = began.elapsed().as_secs();
    if let (Some(part), 0) = (&session.filter, totals.passed + totals.failed + totals.skipped) {
        return Err(format!("these steps have no test whose name contains {part}"));
    }
    if broken.is_empty() {
        println!("test: ok: {totals}, {seconds} s");
    } else {
        broken.iter().for_each(|step| println!("{}", step.trim_end()));
        println!("test: FAILED: {totals}, {seconds} s");
    }
    Ok(broken.is_empty())
}

fn clippy(session: &Session) -> Result<Totals> {
    built(&mut session.cargo("clippy --workspace --all-targets --quiet --locked -- -D warnings"))
}

/// The library, the direct path and the documents, without long tests.
fn quick(session: &Session) -> Result<Totals> {
    let build = "build --bin soft-mlx5 --test suite --test steady --test tags --test registration";
    let direct = tests(session, build, &[Needs::AnyDevice])?;
    let mut unit = options(session, 300);
    unit.arguments.extend(["--skip", "explorer", "--skip", "compile_fail"].map(String::from));
    let libraries = tests(session, "test --no-run --lib --test sources", &[Needs::Nothing])?;
    let mut totals = isolate::run(&libraries, &unit)?;
    // Fewer messages, and without the test of two laps of 16 bits.
    let mut device = on_device(session, "direct", &[]);
    device.variables.push(("DOORBELL_SHARE".into(), "10".into()));
    device.arguments.extend(["--skip", "wraparound"].map(String::from));
    totals += isolate::run(&direct, &device)?;
    Ok(totals)
}

/// Everything that needs no device.
fn unit(session: &Session) -> Result<Totals> {
    isolate::run(&tests(session, EVERYTHING, &[Needs::Nothing])?, &options(session, 900))
}

/// A breach of a rule stops the process, and a process has one device.
fn device(session: &Session) -> Result<Totals> {
    isolate::run(&tests(session, EVERYTHING, &[Needs::Device])?, &options(session, 300))
}

/// The integration tests do not link the device: they run on a device that libibverbs lists.
fn integration(session: &Session, path: &str) -> Result<Totals> {
    let binaries = tests(session, EVERYTHING, &[Needs::AnyDevice])?;
    let mut totals = isolate::run(&binaries, &on_device(session, path, &[]))?;
    if path == "direct" {
        // On Ethernet commands of the firmware make the queues of tag matching.
        let is_of_tags = |name: &OsStr| name.to_string_lossy().starts_with("tags-");
        let tags = binaries.into_iter().filter(|binary| binary.path.file_name().is_some_and(is_of_tags));
        totals += isolate::run(&tags.collect::<Vec<_>>(), &on_device(session, path, &["--link", "roce"]))?;
    }
    let fabric = format!("test-{}", std::process::id());
    let mut network = on_device(session, path, &["--fabric", &fabric]);
    network.variables.push(("DOORBELL_NETWORKED".into(), "1".into()));
    totals += isolate::run(&tests(session, EVERYTHING, &[Needs::Network])?, &network)?;
    Ok(totals)
}

/// The direct path on a device at the pace of an adapter, with a tenth of the messages. The tests wait most of the
/// time, so many run side by side.
fn timing(session: &Session) -> Result<Totals> {
    let binaries = tests(session, EVERYTHING, &[Needs::AnyDevice])?;
    let mut options = on_device(session, "direct", &["--timing", "adapter"]);
    options.variables.push(("DOORBELL_SHARE".into(), "10".into()));
    // Two laps of 16 bits, tests that wait for each of many thousand messages, and one that expects no event after it
    // has taken what an arm reported: an arm that takes effect late raises one.
    for skipped in ["wraparound", "one_at_a_time", "events_of_both_queues_do_not_pile_up"] {
        options.arguments.extend(["--skip", skipped].map(String::from));
    }
    options.jobs = 8;
    isolate::run(&binaries, &options)
}

/// The programs of this repository, each on a device of its own.
fn examples(session: &Session) -> Result<Totals> {
    isolate::run(&tests(session, EVERYTHING, &[Needs::Examples])?, &options(session, 300))
}

/// Verbs programs of the system on the device.
fn programs(session: &Session) -> Result<Totals> {
    isolate::run(&tests(session, EVERYTHING, &[Needs::Programs])?, &options(session, 300))
}

/// Verbs programs on doorbell's data path, as far as they post through libibverbs, and rdma-core's tests in Python.
fn drop_in(session: &Session) -> Result<Totals> {
    const PROGRAMS: [&str; 5] = ["pingpong::", "perftest::", "qperf::", "rdma_cm::", "ucx::small"];
    let under = format!("{} run --", session.target.join("debug/doorbell").display());
    let binaries = tests(session, EVERYTHING, &[Needs::Programs])?;
    let mut options = options(session, 300);
    options.variables.push(("UNDER".into(), under.clone()));
    options.variables.push(("DOORBELL_LOG".into(), "1".into()));
    if session.selection().is_empty() {
        options.arguments.extend(PROGRAMS.map(String::from));
    }
    let mut totals = isolate::run(&binaries, &options)?;
    totals += python(session, &under)?;
    if session.selection().is_empty() {
        totals += conformance::dropped_in(session)?;
    }
    Ok(totals)
}

fn doctest(session: &Session) -> Result<Totals> {
    let mut command = session.cargo("test --workspace --doc --no-fail-fast --locked --");
    counted(command.args(session.selection()))
}

fn doc(session: &Session) -> Result<Totals> {
    built(session.cargo("doc --workspace --no-deps --quiet --locked").env("RUSTDOCFLAGS", "-D warnings"))
}

/// The programs as `cargo install` makes them: one file each, which works from anywhere.
fn install(session: &Session) -> Result<Totals> {
    let root = session.target.join("installed");
    for program in ["soft-mlx5", "cli"] {
        let mut cargo = session.cargo("install --locked --offline --force --quiet --path");
        let installed = built(cargo.arg(program).arg("--root").arg(&root))?;
        if !installed.is_success() {
            return Ok(installed);
        }
    }
    let mut run = session.script("installed.sh");
    whole(run.arg(root.join("bin")))
}

/// The library with each feature by itself: all else is built with all of them.
fn features(session: &Session) -> Result<Totals> {
    let mut totals = Totals::default();
    for features in ["", "memmap2", "rdmacm", "serde", "tracing", "tokio"] {
        let mut command = session.cargo("clippy -p doorbell --quiet --locked --no-default-features");
        totals += built(command.args(["--features", features, "--", "-D", "warnings"]))?;
    }
    let mut command = session.cargo("clippy -p soft-mlx5 --lib --quiet --locked --no-default-features");
    totals += built(command.args(["--", "-D", "warnings"]))?;
    Ok(totals)
}

/// Numbers of the caller at their limits, in a library that does not check for overflow, as in a release build.
fn unchecked(session: &Session) -> Result<Totals> {
    const BUILD: &str =
        "build --config profile.dev.package.doorbell.overflow-checks=false --test suite --bin soft-mlx5";
    let binaries = tests(session, BUILD, &[Needs::AnyDevice])?;
    let mut options = on_device(session, "direct", &[]);
    options.arguments = vec!["at_the_limits".into()];
    isolate::run(&binaries, &options)
}

fn oldest(session: &Session) -> Result<Totals> {
    let toolchain = oldest_toolchain(session)?;
    if !there_is(&toolchain) {
        return Ok(skip(&format!("Rust {toolchain} is not installed")));
    }
    built(&mut session.cargo(&format!("+{toolchain} check --workspace --all-targets --quiet --locked")))
}

fn aarch64(session: &Session) -> Result<Totals> {
    if !installed("qemu-aarch64-static") {
        return Ok(skip("qemu-aarch64-static is not installed"));
    }
    let cargo = |more: &str| {
        let mut command = session.cargo(
            "test -p mlx5-wire -p mlx5-ring --lib --tests --no-fail-fast --locked \
             --target aarch64-unknown-linux-gnu",
        );
        let variable = |name| format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{name}");
        command.env(variable("LINKER"), "aarch64-linux-gnu-gcc");
        command.env(variable("RUNNER"), "qemu-aarch64-static -L /usr/aarch64-linux-gnu");
        command.arg(more);
        command
    };
    let tests = built(&mut cargo("--no-run"))?;
    if !tests.is_success() {
        return Ok(tests);
    }
    counted(cargo("--").args(session.selection()))
}

/// rdma-core's tests in Python; `under` is a command that starts each.
fn python(session: &Session, under: &str) -> Result<Totals> {
    artifacts::build(&mut session.cargo(EVERYTHING))?;
    let mut command = Command::new(session.root.join("soft-mlx5/tests/programs/pyverbs.py"));
    command.arg(session.target.join("debug/soft-mlx5")).args(session.selection());
    counted(command.env("UNDER", under))
}

/// The python tests of the newest rdma-core of Debian, which is unpacked below the target directory.
fn newer_python(session: &Session) -> Result<Totals> {
    artifacts::build(&mut session.cargo(EVERYTHING))?;
    let unpacked = session.script("newer-rdma-core.sh").args(["sid", "python"]).output();
    let unpacked = unpacked.map_err(|e| format!("scripts/newer-rdma-core.sh: {e}"))?;
    if !unpacked.status.success() {
        return Err(format!("rdma-core of sid: {}", String::from_utf8_lossy(&unpacked.stderr).trim_end()));
    }
    let mut command = Command::new(session.root.join("soft-mlx5/tests/programs/pyverbs.py"));
    command.arg("--newer").arg(String::from_utf8_lossy(&unpacked.stdout).trim_end());
    command.arg(session.target.join("debug/soft-mlx5")).args(session.selection());
    counted(&mut command)
}

/// Every state of small queues, and the first states of larger ones.
fn explore(session: &Session) -> Result<Totals> {
    const TESTS: &str = "test --release -p mlx5-ring --lib --locked";
    let tests = built(&mut session.cargo(&format!("{TESTS} --no-run --quiet")))?;
    if !tests.is_success() {
        return Ok(tests);
    }
    let mut command = session.cargo(&format!("{TESTS} explorer --"));
    command.args(["--include-ignored", "--nocapture"]);
    if session.long {
        command.args(["--test-threads", "1"]);
    }
    counted(&mut command)
}

fn fuzz(session: &Session) -> Result<Totals> {
    let targets = built(&mut session.script("fuzz.sh build"))?;
    if targets.passed == 0 {
        return Ok(targets);
    }
    whole(&mut session.script("fuzz.sh short"))
}

/// Instructions of the data path, which callgrind counts exactly.
fn counts(session: &Session) -> Result<Totals> {
    if !installed("valgrind") {
        return Ok(skip("valgrind is not installed"));
    }
    let bench = built(&mut session.cargo("build --release --quiet --locked -p doorbell-benches"))?;
    if !bench.is_success() {
        return Ok(bench);
    }
    let mut command = Command::new(session.target.join("release/bench"));
    command.args(["counts", "--baseline", "benches/baseline.txt", "--out"]);
    let mut totals = whole(command.arg(session.target.join("bench")).current_dir(&session.root))?;
    totals += counts_outside(session)?;
    Ok(totals)
}

/// Instructions of the data path in a program outside of the workspace, with the default profile.
fn counts_outside(session: &Session) -> Result<Totals> {
    let target = session.target.join("outside");
    // The program outside gets the versions that the workspace has.
    let lock = fs::copy(session.root.join("Cargo.lock"), session.root.join("benches/outside/Cargo.lock"));
    lock.map_err(|error| format!("benches/outside/Cargo.lock: {error}"))?;
    let mut command = session.cargo("build --release --quiet --manifest-path benches/outside/Cargo.toml");
    let built = built(command.arg("--target-dir").arg(&target))?;
    if !built.is_success() {
        return Ok(built);
    }
    let mut command = Command::new(session.target.join("release/bench"));
    command.args(["on-soft-mlx5", "--"]).arg(target.join("release/outside")).arg("benches/baseline.txt");
    whole(command.current_dir(&session.root))
}

/// The verbs path on Soft-RoCE, in a virtual machine.
fn rxe(session: &Session) -> Result<Totals> {
    let mut command = session.script("rxe/run.sh");
    counted(command.env("FILTER", session.filter.clone().unwrap_or_default()))
}

/// The direct path above the mlx5 driver of a kernel, in a virtual machine.
fn vm(session: &Session) -> Result<Totals> {
    let mut command = session.script("vm/run.sh");
    counted(command.env("FILTER", session.filter.clone().unwrap_or_default()))
}

/// A part of it: one kernel, a few tests of the direct path, the connection manager, no warning of the driver.
fn vm_short(session: &Session) -> Result<Totals> {
    counted(&mut session.script("vm/run.sh short"))
}

/// The packages whose programs and examples the tests in the virtual machine start.
const VM_PROGRAMS: &[&str] = &["doorbell", "doorbell-cli", "soft-mlx5", "xtask"];

/// Builds the files for the virtual machine, and prints a line `test FILE` or `program FILE` for each.
pub fn vm_files() -> Result<()> {
    let session = Session::new()?;
    let mut lines = BTreeSet::new();
    for artifact in artifacts::build(&mut session.cargo(EVERYTHING))? {
        let kind = match Needs::of(&artifact.package, &artifact.kind, &artifact.source) {
            Needs::AnyDevice | Needs::Network | Needs::Link if artifact.test => "test",
            _ if !artifact.test && VM_PROGRAMS.contains(&&*artifact.package) => "program",
            _ => continue,
        };
        lines.insert(format!("{kind} {}", artifact.binary.path.display()));
    }
    let device = session.target.join("debug/libsoft_mlx5.so");
    lines.insert(format!("program {}", device.display()));
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

impl Totals {
    /// Returns `true` if nothing failed.
    pub const fn is_success(&self) -> bool {
        self.failed == 0
    }
}
