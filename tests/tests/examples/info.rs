//! `doorbell info` on the software device, and without a device.

use std::process::{Command, Stdio};
use std::{fs, thread};

use doorbell_tests::programs::{Ended, Temporary, built, on_soft_mlx5, succeed};
use serde_json::{Value, json};

/// `doorbell info`.
fn info() -> Command {
    let mut command = Command::new(built("doorbell"));
    command.arg("info");
    command
}

/// The lines of the first device.
fn first_device(ended: &Ended) -> &str {
    ended.printed.split("\n\n").next().unwrap()
}

fn on(link: &str) -> Command {
    let mut command = on_soft_mlx5(&["--link", link], built("doorbell"));
    command.arg("info");
    command
}

#[test]
fn an_infiniband_port() {
    let ended = succeed(&mut on("ib"));
    // One for each processor.
    let vectors = thread::available_parallelism().unwrap();
    assert_eq!(
        first_device(&ended).replace(&format!(", {vectors} completion vectors"), ""),
        "\
mlx5_0
  driver           mlx5_core
  PCI function     none
  description      soft-mlx5 lid 1
  firmware         16.35.2000
  board            MT_0000000008, vendor 0x2c9, part 4121
  NUMA node        unknown
  path             direct
  port 1           active, InfiniBand, 100 Gb/s (4x EDR), MTU 4096 of 4096, LID 0x1
                   GID 0: fe80::db:ff:fe00:1 (InfiniBand)
  tag matching     127 tags, 8192 operations outstanding, rendezvous header of 64 bytes, on RC
  CQE compression  up to 64 completions, by hash, checksum; 128-byte CQEs too
  timestamps       63 bits, ticks of the free-running clock, clock of 1000000 kHz
  limits           262144 QPs of 32768 receives of 30 buffers
                   8388608 SRQs of 32767 receives of 31 buffers
                   16777216 CQs of 4194303 entries
                   memory regions of any size"
    );
    assert!(ended.last_line().starts_with("this process: CPU "), "{ended}");
}

#[test]
fn an_ethernet_port() {
    let ended = succeed(&mut on("roce"));
    let device = first_device(&ended);
    let port = "active, Ethernet, 100 Gb/s (4x EDR), MTU 1024 of 4096\n";
    assert!(device.contains(port), "{device}");
    assert!(device.contains("(RoCE v2)"), "{device}");
    assert!(!device.contains("LID"), "{device}");
}

fn parsed(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command.arg("--json")).printed).unwrap()
}

#[test]
fn json_says_the_same() {
    let report = parsed(&mut on("roce"));
    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    assert_eq!(device["name"], "mlx5_0");
    assert_eq!(device["error"], Value::Null);
    assert_eq!(device["path"], "direct");
    assert_eq!(device["not_direct"], Value::Null);
    assert_eq!(device["warnings"], json!([]));
    let port = &device["ports"][0];
    assert_eq!(port["link_layer"], "Ethernet");
    assert_eq!(port["gigabits"], 100.0);
    assert_eq!(port["gids"][0]["kind"], "RoCE v1");
    assert_eq!(port["gids"][1]["kind"], "RoCE v2");
    assert_eq!(device["tag_matching"]["max_tags"], 127);
    assert_eq!(device["cqe_compression"]["formats"], json!(["hash", "checksum"]));
    assert_eq!(device["timestamps"]["bits"], 63);
    assert_eq!(device["limits"]["srq_wr"], 32767);
    assert!(report["process"]["cpu"].is_u64(), "{report}");
}

#[test]
fn the_reason_against_the_direct_path_is_printed() {
    let report = parsed(on("ib").env("MLX5_SRQ_SIGNATURE", "1"));
    let device = &report["devices"][0];
    assert_eq!(device["path"], "verbs");
    let reason = device["not_direct"].as_str().unwrap();
    assert!(reason.contains("MLX5_SRQ_SIGNATURE"), "{reason}");
    let warning = device["warnings"][0].as_str().unwrap();
    assert!(warning.contains(reason), "{warning}");
}

/// Returns the complaint of a command that fails with `code`.
fn refused(code: i32, command: &mut Command) -> String {
    let ended = Ended::of(command);
    assert_eq!((ended.code, &*ended.printed), (Some(code), ""));
    ended.complained
}

#[test]
fn an_unknown_device_is_refused_with_the_names_that_exist() {
    let complaint = refused(2, on("ib").args(["mlx5_0", "mlx5_9"]));
    assert_eq!(complaint, "doorbell info: no RDMA device named \"mlx5_9\": this host has mlx5_0\n");
}

#[test]
fn without_a_device_it_says_what_to_look_for() {
    if std::path::Path::new("/sys/class/infiniband_verbs").exists() {
        doorbell_tests::skip!("this machine has a device, which netlink shows");
    }
    // A tree of sysfs for libibverbs, which this test fills.
    let root = Temporary::folder("nothing");
    fs::create_dir_all(root.join("class/infiniband_verbs")).unwrap();
    fs::write(root.join("class/infiniband_verbs/abi_version"), "6\n").unwrap();
    let complaint = refused(1, info().env("SYSFS_PATH", &root));
    assert!(complaint.contains("no RDMA device found: load the driver"), "{complaint}");

    // The kernel has a device that libibverbs cannot use.
    fs::create_dir_all(root.join("class/infiniband/mlx5_3")).unwrap();
    let complaint = refused(1, info().env("SYSFS_PATH", &root));
    assert!(complaint.contains("the kernel has mlx5_3"), "{complaint}");
    assert!(complaint.contains("ibverbs-providers"), "{complaint}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    for arguments in [&["--json"][..], &[]] {
        let mut command = on("roce");
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // As `head` does it: the pipe is closed before anything was written.
        drop(child.stdout.take());
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!((ended.code, &*ended.complained), (Some(0), ""));
    }
}
