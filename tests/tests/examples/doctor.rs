//! `doorbell doctor` on the software device, with and without problems.

use doorbell_tests::programs::{Ended, built, on_soft_mlx5};

fn doctor(options: &[&str], arguments: &[&str]) -> Ended {
    Ended::of(on_soft_mlx5(options, built("doorbell")).arg("doctor").args(arguments))
}

#[test]
fn a_message_goes_through_each_gid_of_either_link() {
    for link in ["ib", "roce"] {
        let Ended { code, printed: report, .. } = doctor(&["--link", link], &[]);
        assert_eq!(code, Some(0), "{report}");
        assert!(report.contains("ok       port 1 loopback through GID 0"), "{report}");
        assert!(report.contains("ok       vm.max_map_count") && report.contains("ok       objects: 0 qp"), "{report}");
        assert!(report.contains("note     ODP: the device takes no page faults"), "{report}");
        let unbound = "none is bound to a counter: rdma statistic qp set link mlx5_0/1 auto type on";
        assert!(report.contains(unbound), "{report}");
        assert!(!report.contains("WARNING") && !report.contains("FAILURE"), "{report}");
    }
}

#[test]
fn a_link_that_loses_everything_is_found() {
    let Ended { code, printed: report, .. } = doctor(&["--loss", "1"], &[]);
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("WARNING  port 1 loopback"), "{report}");
    assert!(report.contains("(vendor syndrome 0x81)"), "{report}");
}

#[test]
fn a_device_without_room_is_found() {
    for (option, errno) in
        [("--max-qps=0", "os error 12"), ("--max-mkeys=0", "os error 11"), ("--fail-create=cq", "os error 12")]
    {
        let Ended { code, printed: report, .. } = doctor(&[option], &[]);
        assert_eq!(code, Some(1), "{report}");
        let line = report.lines().find(|line| line.contains("FAILURE  a domain, a region, CQs and a queue pair"));
        assert!(line.is_some_and(|line| line.contains(errno)), "{option}: {report}");
    }
}

#[test]
fn json_has_each_check_with_its_level() {
    let printed = doctor(&[], &["mlx5_0", "--json"]).printed;
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report[0]["device"], "mlx5_0");
    let mut checks = report[0]["checks"].as_array().unwrap().iter();
    let port = checks.find(|check| check["what"] == "port 1").unwrap();
    assert_eq!(port["level"], "ok", "{report}");
    assert_eq!(doctor(&[], &["mlx5_7"]).code, Some(2));
}
