//! There is no rdma_cm device, and programs that need one say so.

use crate::LINKS;
use crate::common::{finish, run};

#[test]
fn librdmacm_finds_no_connection_manager() {
    for link in LINKS {
        for program in [
            &["rping", "-s", "-C", "1"][..],
            &["ucmatose"],
            &["ib_write_bw", "-R", "127.0.0.1"],
            &["fi_info", "-p", "verbs"],
        ] {
            let outcome = finish(&mut run(&["--link", link], program));
            // libfabric shows what works without.
            assert_eq!(outcome.status.success(), program[0] == "fi_info", "{outcome:?}");
            let ours = |line: &&str| line.starts_with("soft-mlx5: ");
            let lines: Vec<_> = outcome.stderr.lines().filter(ours).collect();
            assert_eq!(lines.len(), 1, "{outcome:?}");
            for word in ["connection manager", "/dev/infiniband/rdma_cm", "socket", "Soft-RoCE"] {
                assert!(lines[0].contains(word), "{outcome:?}");
            }
        }
    }
}
