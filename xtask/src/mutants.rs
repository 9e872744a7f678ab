//! Puts in errors of the kind that drivers have, one at a time, and checks that a test catches each.
//!
//! A patch in scripts/mutants describes the error, the tests (arguments of `cargo test`) that must fail with it, and
//! the path (`direct` or `verbs`) on which they run if they need a device. The device has no errors. The same tests
//! must pass without the patch. A filter selects patches by a part of their names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, iter, thread};

use crate::isolate::Totals;
use crate::limits::{self, Ended};
use crate::session::Session;
use crate::{Result, artifacts};

/// Processor time of tests. An error may well make a test run for ever.
const LIMIT: Duration = Duration::from_secs(60);

struct Mutant {
    name: String,
    patch: PathBuf,
    /// The error, in words.
    error: String,
    test: Test,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    /// Arguments of `cargo test`.
    arguments: String,
    /// The path, when the test runs on a device.
    device: Option<String>,
}

/// Where the patches are applied.
struct Tree {
    tree: PathBuf,
    target: PathBuf,
    log: PathBuf,
    /// The device without errors.
    device: PathBuf,
}

impl Test {
    /// The package, which `-p` names at the start of the arguments.
    fn package(&self) -> Option<&str> {
        self.arguments.split_whitespace().nth(1)
    }
}

enum Tests {
    Pass,
    Fail,
    /// They were stopped, and why.
    Stopped(String),
}

/// Tries all chosen patches, in two trees: one is built while the tests of the other run.
pub fn run(session: &Session) -> Result<Totals> {
    let all = read_patches(&session.root.join("scripts/mutants"))?;
    let wanted = |m: &&Mutant| session.filter.as_ref().is_none_or(|part| m.name.contains(part));
    let chosen: Vec<_> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(format!("no patch has {:?} in its name", session.filter));
    }
    if chosen.iter().any(|mutant| mutant.test.device.is_some()) {
        artifacts::build(&mut session.cargo("build --bin soft-mlx5"))?;
    }
    let trees = [Tree::new(session, 0)?, Tree::new(session, 1)?];
    // All patches, also when only some are tried: a changed line shows at once which patches must be updated.
    for mutant in &all {
        trees[0].apply(mutant, &["--check"])?;
    }
    // The tests of a package are built in one tree only.
    let packages: Vec<_> = chosen.chunk_by(|a, b| a.test.package() == b.test.package()).collect();
    let verdicts = side_by_side(&trees, packages, try_all)?.concat();
    let tried = verdicts.len();
    let failures: Vec<String> = verdicts.into_iter().flatten().collect();
    let failed = failures.len();
    let totals = Totals { passed: tried - failed, failed, skipped: 0, failures };
    println!("mutants: {} caught, {} missed", totals.passed, totals.failed);
    Ok(totals)
}

/// Tries patches one after another, and returns the names of those that no test detects.
fn try_all(tree: &Tree, mutants: &[&Mutant]) -> Result<Vec<Option<String>>> {
    // Each test must pass without a patch: a test that always fails detects nothing.
    for test in mutants.iter().map(|mutant| &mutant.test).collect::<BTreeSet<_>>() {
        match tree.tests(test)? {
            Tests::Pass if tree.log()?.contains("test result: ok. 0 passed") => {
                return Err(format!("cargo test {} runs no test", test.arguments));
            }
            Tests::Pass => {}
            _ => return Err(format!("cargo test {} fails without an error\n{}", test.arguments, tree.log()?)),
        }
    }
    let verdict = |mutant: &&Mutant| {
        tree.apply(mutant, &[])?;
        let tests = tree.tests(&mutant.test).map_err(|e| format!("{}: {e}", mutant.name))?;
        tree.apply(mutant, &["--reverse"])?;
        let (caught, verdict) = match tests {
            Tests::Pass => (false, "FAILED, no test sees it".into()),
            Tests::Fail => (true, "ok".into()),
            Tests::Stopped(why) => (true, format!("ok, {why}")),
        };
        println!("test mutants::{} ... {verdict}: {}", mutant.name, mutant.error);
        Ok((!caught).then(|| mutant.name.clone()))
    };
    mutants.iter().map(verdict).collect()
}

/// Calls `each` with every item and a free tree.
fn side_by_side<T: Send, R: Send>(
    trees: &[Tree],
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    each: impl Fn(&Tree, T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().ok()?.next();
    let worker = |tree| iter::from_fn(next).map(|item| each(tree, item)).collect();
    thread::scope(|scope| {
        let (worker, mut workers) = (&worker, Vec::new());
        workers.extend(trees.iter().map(|tree| scope.spawn(move || worker(tree))));
        let mut results = Vec::new();
        for worker in workers {
            let done: Result<Vec<R>> = worker.join().map_err(|_| "a worker panicked")?;
            results.extend(done?);
        }
        Ok(results)
    })
}

fn read_patches(folder: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
        let patch = entry.path();
        let text = fs::read_to_string(&patch).map_err(|e| format!("{}: {e}", patch.display()))?;
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let line = |start| text.lines().find_map(|line| line.strip_prefix(start)).map(String::from);
        let arguments = line("Test: ").ok_or(format!("{name} does not say which tests see it"))?;
        let test = Test { device: line("Device: "), arguments };
        let error = text.lines().next().unwrap_or_default().to_owned();
        mutants.push(Mutant { name, patch, error, test });
    }
    mutants.sort_by(|a, b| (&a.test, &a.name).cmp(&(&b.test, &b.name)));
    Ok(mutants)
}

impl Tree {
    /// Copies the files of the repository, also files that are not committed.
    fn new(session: &Session, number: usize) -> Result<Self> {
        let folder = session.target.join("mutants");
        let tree = folder.join(format!("tree-{number}"));
        let _ = fs::remove_dir_all(&tree);
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let files = list.current_dir(&session.root).output().map_err(|e| format!("git: {e}"))?;
        for file in String::from_utf8_lossy(&files.stdout).split('\0') {
            let (from, to) = (session.root.join(file), tree.join(file));
            if from.is_file() {
                let into = to.parent().unwrap_or(&tree);
                let copied = fs::create_dir_all(into).and_then(|()| fs::copy(&from, &to));
                copied.map_err(|e| format!("copying {file}: {e}"))?;
            }
        }
        // Cargo gives the same crates of two trees the same names.
        let target = folder.join(format!("target-{number}"));
        let log = folder.join(format!("log-{number}"));
        let device = session.target.join("debug/soft-mlx5");
        Ok(Self { tree, target, log, device })
    }

    fn apply(&self, mutant: &Mutant, how: &[&str]) -> Result<()> {
        let mut apply = Command::new("git");
        apply.args(["apply", "--recount"]).args(how).arg(&mutant.patch);
        // Git must not take the tree for a part of the repository around it.
        apply.env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        match apply.current_dir(&self.tree).status() {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!("{} does not apply any more: change the patch", mutant.name)),
        }
    }

    fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).map_err(|e| format!("{}: {e}", self.log.display()))
    }

    /// Builds and runs tests.
    fn tests(&self, test: &Test) -> Result<Tests> {
        let Test { device, arguments } = test;
        let mut build = self.cargo(arguments);
        let Ended::Itself(built) = self.run(build.arg("--no-run"), None)? else {
            return Err("the compiler makes no progress".into());
        };
        if !built.success() {
            return Err(format!("cargo test --no-run {arguments} fails\n{}", self.log()?));
        }
        let mut run = self.cargo(arguments);
        // In place of the runner of .cargo/config.toml, which would build a device in this tree.
        let mut runner = "env".to_owned();
        if let Some(path) = device {
            runner = format!("{} run --strict --", self.device.display());
            run.env("DOORBELL_PATH", path);
        }
        run.args(["--config", &format!("target.'cfg(all())'.runner='{runner}'")]);
        Ok(match self.run(&mut run, Some(LIMIT))? {
            Ended::Itself(status) if status.success() => Tests::Pass,
            Ended::Itself(_) => Tests::Fail,
            Ended::Stopped(why) => Tests::Stopped(why),
        })
    }

    fn cargo(&self, arguments: &str) -> Command {
        let mut command = Command::new("cargo");
        command.args(["test", "--quiet", "--offline"]);
        // Building costs most. Only the tests of the rings, which explore many states, are worth an optimised build.
        for option in ["opt-level=0", "debug=false", "package.soft-mlx5.opt-level=0", "package.mlx5-ring.opt-level=1"] {
            command.args(["--config", &format!("profile.dev.{option}")]);
        }
        command.args(arguments.split_whitespace()).current_dir(&self.tree).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        // Few cases, the same each time, without shrinking.
        command.env("PROPTEST_CASES", "24").env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("RING_SEED", "1");
        command
    }

    fn run(&self, command: &mut Command, limit: Option<Duration>) -> Result<Ended> {
        let log = fs::File::create(&self.log).map_err(|e| format!("the log: {e}"))?;
        let copy = log.try_clone().map_err(|e| format!("the log: {e}"))?;
        limits::wait(&mut limits::spawn(command.stdout(log).stderr(copy))?, limit)
    }
}
