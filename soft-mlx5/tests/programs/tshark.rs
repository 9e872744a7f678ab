//! Wireshark, which decodes what a device captured.

use crate::common::{finish, pingpong, run};

#[test]
fn a_run_can_be_watched_in_trace_and_capture() {
    let dir = std::env::temp_dir().join(format!("soft-mlx5-watched-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (trace, pcap) = (dir.join("trace"), dir.join("pcap"));
    let options = ["--strict", "--trace", trace.to_str().unwrap(), "--pcap", pcap.to_str().unwrap()];
    let script = pingpong("-s 1000 -n 100") + " && wait $!";
    finish(&mut run(&options, &["sh", "-c", &script])).succeeded();
    let lines = std::fs::read_to_string(&trace).unwrap();
    for (word, count) in [(" doorbell uar=", 200), ("opcode=RESP_SEND ", 200), ("opcode=REQ ", 200)] {
        assert_eq!(lines.lines().filter(|line| line.contains(word)).count(), count, "{word}");
    }
    // Each message and its acknowledgement, whichever process sent it, once.
    let mut decode = std::process::Command::new("tshark");
    let decode = decode.arg("-r").arg(&pcap).args(["-Y", "infiniband && !_ws.malformed"]);
    let decoded = finish(decode).succeeded();
    assert_eq!(decoded.matches("RC Send Only").count(), 200);
    assert_eq!(decoded.matches("RC Acknowledge").count(), 200);
    std::fs::remove_dir_all(&dir).unwrap();
}
