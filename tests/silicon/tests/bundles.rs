//! CQEs in `bundles`, which devices wrote under `doorbell selftest`: each is read as it was meant.
//!
//! `soft-mlx5 replay` compares the same files with the model (`soft-mlx5/src/replay/tests.rs`).

use doorbell_silicon::bundles;
use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::is_signed;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::vendor;

#[test]
fn each_cqe_is_signed_and_reads_the_same_again() {
    for (name, cqes) in bundles() {
        assert!(cqes.len() > 100, "{name}");
        for (index, bytes) in &cqes {
            assert!(is_signed(bytes, *index), "{name}: {bytes:02x?}");
            let cqe = Cqe64::from_bytes(bytes);
            assert_eq!(cqe.to_bytes(), *bytes, "{name}");
            assert!(!matches!(cqe.opcode(), CqeOpcode::Unknown(_) | CqeOpcode::Invalid), "{name}");
        }
    }
}

#[test]
fn each_error_is_explained() {
    for (name, cqes) in bundles() {
        let errors = cqes.iter().filter(|(_, bytes)| matches!(bytes[63] >> 4, 13 | 14));
        let mut seen = 0;
        for (_, bytes) in errors {
            let cqe = ErrorCqe::from_bytes(bytes);
            assert_eq!(cqe.to_bytes(), *bytes, "{name}");
            let syndrome = Syndrome::new(cqe.syndrome);
            assert!(syndrome.names().is_some(), "{name}: {syndrome:?}");
            assert!(vendor::with_vendor(cqe.vendor_err_synd).next().is_some(), "{name}: {cqe:?}");
            seen += 1;
        }
        assert!(seen > 5, "{name}");
    }
}
