//! The main job, as `make demo` does it, with fewer messages: on the direct path with the driver's
//! entries for posting and polling replaced by functions that abort.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

const MESSAGES: u32 = 20_000;

/// A file of this build, by its path in the directory of the profile.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(path.is_file(), "{} is not built: use scripts/test.sh", path.display());
    path
}

/// A program in a process that has a software device, on the fabric of this test.
fn on_device(program: &Path, poisoned: bool) -> Command {
    let mut command = Command::new(built("soft-mlx5"));
    command.args([
        "run",
        "--strict",
        "--fabric",
        &format!("demo-test-{}", std::process::id()),
        "--",
    ]);
    command.arg(program).stdin(Stdio::null());
    if poisoned {
        command.env("LD_PRELOAD", built("examples/libpoison.so"));
    }
    command
}

/// Runs the server on `path` and two clients; returns what the server said, and what it complained of.
fn main_job(path: &str, poisoned: bool) -> (bool, String, String) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let port = 20_000 + std::process::id() as u16 % 20_000 + NEXT.fetch_add(1, Ordering::Relaxed);
    let address = format!("127.0.0.1:{port}");
    let mut clients: Vec<Child> = (1..=2)
        .map(|seed| {
            on_device(&built("examples/srq_client"), poisoned)
                .args(["--connections", "2", "--messages", &(MESSAGES / 2).to_string()])
                .args(["--seed", &seed.to_string(), &address])
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let server = on_device(&built("examples/srq_server"), poisoned)
        .args(["--connections", "4", "--path", path, &address])
        .output()
        .unwrap();
    let mut ok = server.status.success();
    for client in &mut clients {
        if !ok {
            let _ = client.kill();
        }
        ok &= client.wait().unwrap().success();
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ok, text(&server.stdout), text(&server.stderr))
}

fn verdict(path: &str) -> String {
    format!(
        "demo: ok: {MESSAGES} messages, path {path}, device mlx5_0 (soft-mlx5), 0 lost, 0 corrupted"
    )
}

#[test]
fn the_direct_path_is_direct() {
    let (ok, said, complained) = main_job("direct", true);
    assert!(ok, "{said}\n{complained}");
    assert_eq!(said.lines().last(), Some(&*verdict("direct")), "{said}\n{complained}");
    assert!(complained.contains("poison: direct or not at all"), "{complained}");
}

#[test]
fn the_verbs_path_does_the_same() {
    let (ok, said, complained) = main_job("verbs", false);
    assert!(ok, "{said}\n{complained}");
    assert_eq!(said.lines().last(), Some(&*verdict("verbs")), "{said}\n{complained}");
}

#[test]
fn the_poison_works() {
    let (ok, said, complained) = main_job("verbs", true);
    assert!(!ok, "{said}");
    assert!(
        complained.contains("the direct path called post_srq_recv of the driver"),
        "{complained}"
    );
}
