//! There is no rdma_cm device, and programs that need one say so.

use crate::LINKS;
use crate::common::{finish, run};

#[test]
fn librdmacm_is_told_that_there_is_no_connection_manager() {
    for link in LINKS {
        for program in [&["rping", "-s", "-C", "1"][..], &["ucmatose"]] {
            let outcome = finish(&mut run(&["--link", link], program));
            assert!(!outcome.status.success(), "{outcome:?}");
            assert!(outcome.stderr.contains("RDMA CM event channel"), "{outcome:?}");
            assert!(outcome.stderr.contains("No such file or directory"), "{outcome:?}");
        }
    }
}
