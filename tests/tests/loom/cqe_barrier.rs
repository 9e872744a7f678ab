//! The load barrier between the owner bit of a CQE and the rest of it, under a memory model that lets loads overtake
//! each other.
//!
//! loom has the memory model of C11, where relaxed loads may be reordered as on aarch64. An acquire fence stands for
//! `dmb oshld`, and the release store for the device's write of the word with the owner bit. With the barrier no CQE
//! has a wrong signature in any execution. Without it a CQE can have one: `CqConfig::verify_cqes` looks for such CQEs
//! on a real machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Std};

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use mlx5_wire::cqe::{CqeFormat, op_own};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::{is_signed, signature};

/// Index of the CQE that the device writes: the second lap of a CQ of one entry.
const INDEX: u32 = 1;

/// A CQE of that lap, signed; its byte count is `len`.
fn cqe(len: u32, index: u32) -> [u8; 64] {
    let mut cqe = [0; 64];
    cqe[44..48].copy_from_slice(&len.to_be_bytes());
    cqe[63] = op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, index as u8 & 1);
    cqe[62] = signature(&cqe, index);
    cqe
}

fn word(cqe: &[u8; 64], at: usize) -> u64 {
    u64::from_ne_bytes(*cqe[8 * at..].first_chunk().unwrap())
}

/// Polls while the device overwrites the CQE of the lap before; returns how many executions read a wrong CQE, and how
/// many a right one.
fn poll(barrier: bool) -> (usize, usize) {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&counts);
    loom::model(move || {
        let (old, new) = (cqe(7, INDEX - 1), cqe(9, INDEX));
        // Two of the eight words differ: the word of the byte count and the last one.
        let body = Arc::new(AtomicU64::new(word(&old, 5)));
        let last = Arc::new(AtomicU64::new(word(&old, 7)));
        let device = {
            let (body, last) = (Arc::clone(&body), Arc::clone(&last));
            thread::spawn(move || {
                body.store(word(&new, 5), Ordering::Relaxed);
                last.store(word(&new, 7), Ordering::Release);
            })
        };
        let seen = last.load(Ordering::Relaxed);
        if seen.to_ne_bytes()[7] & 1 == 1 {
            if barrier {
                fence(Ordering::Acquire);
            }
            let mut read = old;
            read[40..48].copy_from_slice(&body.load(Ordering::Relaxed).to_ne_bytes());
            read[56..].copy_from_slice(&seen.to_ne_bytes());
            let right = is_signed(&read, INDEX);
            assert_eq!(right, read == cqe(9, INDEX), "the signature tells them apart");
            counted[usize::from(right)].fetch_add(1, Std::Relaxed);
        }
        device.join().unwrap();
    });
    (counts[0].load(Std::Relaxed), counts[1].load(Std::Relaxed))
}

#[test]
fn with_the_barrier_no_cqe_is_torn() {
    let (wrong, right) = poll(true);
    assert!(wrong == 0 && right > 0, "{wrong} {right}");
}

#[test]
fn without_the_barrier_a_torn_cqe_has_a_wrong_signature() {
    let (wrong, right) = poll(false);
    assert!(wrong > 0 && right > 0, "{wrong} {right}");
}
