//! Writes what stock libmlx5 and the device write, as inputs of the targets: `fuzz-seeds DIRECTORY`.

mod traffic;

use std::path::Path;
use std::process::Command;

use doorbell_fuzz::world::{Scene, World};
use doorbell_fuzz::{completions, packets, wqes};
use soft_mlx5::Device;

use traffic::{Traffic, Work};

fn save(dir: &Path, target: &str, name: &str, bytes: &[u8]) {
    let dir = dir.join(target);
    std::fs::create_dir_all(&dir).expect("a directory for the seeds");
    std::fs::write(dir.join(name), bytes).expect("a seed");
}

/// The WQEs of a work request, and the receive that it finds.
fn wqe_seed(scene: usize, traffic: &Traffic) -> Vec<u8> {
    let mut bytes = vec![scene as u8];
    for wqe in &traffic.receives {
        bytes.extend([wqes::op::RECEIVE | wqes::SECOND]);
        bytes.extend(wqe);
    }
    for (qp, blocks) in &traffic.sends {
        bytes.push(wqes::op::SEND | (*qp as u8 * wqes::SECOND));
        bytes.push(blocks.len() as u8 - 1);
        bytes.extend(blocks.iter().flatten());
    }
    for _ in 0..3 {
        bytes.extend([wqes::op::STEP, 1]);
    }
    bytes
}

/// The packets of a work request, where the first queue pair has sent the same.
fn packet_seed(scene: usize, traffic: &Traffic) -> Vec<u8> {
    let mut bytes = vec![scene as u8];
    for _ in &traffic.receives {
        bytes.push(packets::op::RECEIVE | packets::SECOND);
        bytes.extend(4096u16.to_le_bytes());
    }
    for (_, blocks) in &traffic.sends {
        bytes.extend([packets::op::SEND, blocks[0][3]]);
        bytes.extend(64u16.to_le_bytes());
    }
    bytes.extend([packets::op::STEP, 0]);
    for (qp, packet) in &traffic.packets {
        bytes.push(packets::op::PACKET | (*qp as u8 * packets::SECOND));
        bytes.extend((packet.len() as u16).to_le_bytes());
        bytes.extend(packet);
    }
    bytes.extend([packets::op::STEP, 1, packets::op::STEP, 1]);
    bytes
}

/// CQEs, and batches of them.
fn completion_seed(kind: u8, cqes: &[[u8; 64]], form: u8) -> Vec<u8> {
    let mut bytes = vec![kind];
    for cqe in cqes {
        bytes.extend([completions::op::CQE | form, 0]);
        bytes.extend(cqe);
    }
    bytes.extend([completions::op::POLL, 64, 0x55, completions::op::POST]);
    for cqe in cqes {
        bytes.extend([completions::op::CQE, 0]);
        bytes.extend(cqe);
    }
    bytes.extend([completions::op::POLL, 3, 0, completions::op::POLL, 64, 0]);
    bytes
}

fn record(dir: &Path) {
    let file = dir.join("capture");
    let world = World::new(Device::builder().pcap(&file));
    let mut seen = 0;
    for (n, scene) in Scene::ALL.into_iter().enumerate() {
        for work in Work::of(scene) {
            let traffic = Traffic::run(&world, scene, work, &file, &mut seen);
            let name = format!("{scene:?}-{work:?}").to_lowercase();
            save(dir, "wqes", &name, &wqe_seed(n, &traffic));
            save(dir, "packets", &name, &packet_seed(n, &traffic));
            // One receive queue, a shared one, one of either kind.
            for kind in 0..4 {
                let name = format!("{name}-{kind}");
                save(dir, "completions", &name, &completion_seed(kind << 2, &traffic.cqes, 0));
                // With the payload in front of the CQE.
                let wide = completion_seed(kind << 2 | 3, &traffic.cqes, 0);
                save(dir, "completions", &format!("{name}-wide"), &wide);
            }
        }
    }
    std::fs::remove_file(file).expect("the capture");
}

fn record_compressed(dir: &Path) {
    for (kind, format) in [(1, doorbell::Compression::Hash), (2, doorbell::Compression::Checksum)] {
        let cqes = traffic::compressed(format, 12);
        let mut first = completion_seed(kind, &cqes, completions::RAW);
        // The rest are plain ones, in the lap after.
        first.truncate(1 + cqes.len() * 66 + 4);
        save(dir, "completions", &format!("compressed-{kind}"), &first);
    }
}

fn main() {
    let dir = std::env::args_os().nth(1).expect("usage: fuzz-seeds DIRECTORY [compressed]");
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir).expect("a directory for the seeds");
    // libibverbs looks for devices once, so a process has one.
    if std::env::args_os().nth(2).is_some() {
        return record_compressed(dir);
    }
    record(dir);
    let again = std::env::current_exe().expect("this program");
    let status = Command::new(again).arg(dir).arg("compressed").status().expect("this program");
    assert!(status.success());
}
