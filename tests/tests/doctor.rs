//! `doorbell doctor` on the software device: what is well, and what is not.

use std::process::Output;

use doorbell_tests::programs::{built, on_soft_mlx5};

fn doctor(options: &[&str]) -> Output {
    on_soft_mlx5(options, built("doorbell")).arg("doctor").output().unwrap()
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn a_message_goes_through_each_gid_of_either_link() {
    for link in ["ib", "roce"] {
        let output = doctor(&["--link", link]);
        let report = text(&output);
        assert_eq!(output.status.code(), Some(0), "{report}");
        assert!(report.contains("ok       port 1 loopback through GID 0"), "{report}");
        assert!(report.contains("note     ODP: the device takes no page faults"), "{report}");
        assert!(!report.contains("WARNING") && !report.contains("FAILURE"), "{report}");
    }
}

#[test]
fn a_link_that_loses_everything_is_found() {
    let output = doctor(&["--loss", "1"]);
    let report = text(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("WARNING  port 1 loopback"), "{report}");
    assert!(report.contains("(vendor syndrome 0x81)"), "{report}");
}

#[test]
fn json_has_each_check_with_its_level() {
    let output =
        on_soft_mlx5(&[], built("doorbell")).args(["doctor", "mlx5_0", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report[0]["device"], "mlx5_0");
    let checks = report[0]["checks"].as_array().unwrap();
    assert!(
        checks.iter().any(|check| check["what"] == "port 1" && check["level"] == "ok"),
        "{report}"
    );
    let unknown = on_soft_mlx5(&[], built("doorbell")).args(["doctor", "mlx5_7"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}
