//! DPDK's testpmd, over verbs queues and with commands of the firmware.

use std::fs;
use std::path::Path;

use crate::common::{Running, run, start};
use crate::own_driver::{datagram, write_capture};

/// Frames of a capture, and how many must get through.
const FRAMES: usize = 2000;
const LEAST: u32 = 1990;

/// Waits until testpmd has counted enough frames, and lets it print its counts. Its rings hold all frames.
const SCRIPT: &str = r#"
cd "$0"
ask() {
    for _ in {1..600}; do
        ! grep -Eq "$2-packets: (199[0-9]|2000) " log || break
        echo show fwd stats all
        sleep 0.1
    done
    printf 'stop\nquit\n'
}
touch log
ask $* | dpdk-testpmd -l 0,1 --no-huge -m 256 --iova-mode va --no-telemetry --file-prefix "$$" \
    -a 0000:80:00.0,dv_flow_en=0 -- -i --auto-start --no-mlockall --forward-mode=$1 --rxd=2048 --txd=2048 \
    --total-num-mbufs=8192 >log 2>&1
cat log
"#;

fn testpmd(place: &Path, mode: &str, count: &str, devx: &str) -> Running {
    let place = place.join(format!("{mode}-{devx}"));
    fs::create_dir_all(&place).unwrap();
    let place = place.to_str().unwrap();
    let capture = format!("{place}/../frames.pcap");
    let options = ["--strict", "--link", "roce", "--devx", devx, "--frames", &capture];
    start(&mut run(&options, &["bash", "-c", SCRIPT, place, mode, count]))
}

#[test]
fn frames_reach_testpmd_and_come_back() {
    let place = std::env::temp_dir().join(format!("soft-mlx5-testpmd-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    write_capture(&place.join("frames.pcap"), &vec![datagram(9001); FRAMES], 200);
    let runs = [("rxonly", "RX", "on"), ("rxonly", "RX", "off"), ("macswap", "TX", "on"), ("macswap", "TX", "off")];
    let running = runs.map(|(mode, count, devx)| testpmd(&place, mode, count, devx));
    for ((mode, count, devx), running) in runs.into_iter().zip(running) {
        let printed = running.finish().succeeded();
        let line = printed.lines().rev().find_map(|line| line.trim().strip_prefix(&format!("{count}-packets: ")));
        let frames: u32 = line.and_then(|line| line.split(' ').next()?.parse().ok()).expect(&printed);
        assert!((LEAST..=FRAMES as u32).contains(&frames), "{mode}, DEVX {devx}: {frames}\n{printed}");
    }
    fs::remove_dir_all(&place).unwrap();
}
