//! Error CQEs as adapters write them: each byte that a published dump shows for the same cause.

use mlx5_wire::cqe::{Cqe64, ErrorCqe};
use mlx5_wire::ctrl::CQ_UPDATE;
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::signature::{is_signed, signature};
use mlx5_wire::umr::UmrControl;

use super::program::*;
use crate::objects::completion::Failure;
use crate::objects::*;

const DUMPS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/silicon/dumps.txt"));

/// Returns the CQE of this name in the collection.
fn dump(name: &str) -> [u8; 64] {
    let (_, stanza) = DUMPS.split_once(&format!("\ncqe {name}\n")).expect("a stanza");
    let (_, bytes) = stanza.split_once("\nbytes ").expect("its bytes");
    let number = |at: usize| u8::from_str_radix(&bytes[2 * at..2 * at + 2], 16).expect("hex");
    std::array::from_fn(number)
}

/// Returns a dump with the fields of this run: numbers of the queue pair and of the WQE, and the owner.
fn expected(name: &str, written: &Cqe64, index: u32) -> [u8; 64] {
    let of_adapter = ErrorCqe::from_bytes(&dump(name));
    let opcode = u32::from(of_adapter.send_opcode()) << 24;
    let mut cqe = ErrorCqe {
        srqn_uidx: written.srqn_uidx,
        s_wqe_opcode_qpn: (opcode | written.qpn()).into(),
        wqe_counter: written.wqe_counter,
        op_own: of_adapter.op_own & !1 | written.op_own & 1,
        ..of_adapter
    };
    cqe.signature = signature(&cqe.to_bytes(), index);
    cqe.to_bytes()
}

/// CQs of a few entries, which go through several laps.
fn setup(path: Path) -> Setup {
    Setup::with(Device::new(), 16, |device, send, recv| device.pair_with(|attr| attr, send, recv, path))
}

#[test]
fn errors_of_send_queues_are_those_of_the_dumps() {
    const WRITE: WqeOpcode = WqeOpcode::RDMA_WRITE;
    const READ: WqeOpcode = WqeOpcode::RDMA_READ;
    // Dump, operation, rights of the peer's queue pair, and changes of the lkey and the rkey.
    let cases: [(&str, WqeOpcode, Access, u32, u32); 8] = [
        ("A2", WRITE, ALL_ACCESS, 0, 1),
        ("B4", WRITE, ALL_ACCESS, 0, 1),
        ("A1", READ, ALL_ACCESS, 0, 1),
        ("A3", READ, 0, 0, 0),
        ("A7", WRITE, ALL_ACCESS, 1, 0),
        ("A8", WRITE, ALL_ACCESS, 1, 0),
        ("D1", WqeOpcode::SEND, ALL_ACCESS, 1, 0),
        // Bytes that are no WQE: the model does not know this opcode.
        ("S1", WqeOpcode::new(0x1e), ALL_ACCESS, 0, 0),
    ];
    for (name, opcode, access, lkey, rkey) in cases {
        let mut s = setup(Path { access, ..Path::default() });
        let mut work = Work::new(opcode);
        if opcode != WqeOpcode::SEND {
            work = work.remote(s.memory.addr(), s.key ^ rkey);
        }
        s.device.post(&mut s.a, &work.data(s.memory.addr(), 8, s.key ^ lkey));
        s.device.settle();
        let cqe = s.send.poll().expect("an error");
        let mut expected = expected(name, &cqe, 0);
        if name == "S1" {
            // The dump is filled at random, and its vendor syndrome is 0: only place and meaning of the fields count.
            for (at, byte) in expected.iter_mut().enumerate().filter(|(at, _)| *at < 55) {
                *byte = cqe.to_bytes()[at];
            }
            expected[62] = signature(&expected, 0);
        }
        assert_eq!(cqe.to_bytes(), expected, "{name}");
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_reported_as_by_an_adapter() {
    let mut s = setup(Path { rnr_retry: 0, ..Path::default() });
    s.device.post(&mut s.a, &Work::send().inline(b"anybody"));
    s.device.run_until(|| s.send.peek().is_some());
    let cqe = s.send.poll().unwrap();
    assert_eq!(cqe.to_bytes(), expected("A10", &cqe, 0));
}

#[test]
fn wqes_after_one_that_is_illegal_are_flushed_as_by_an_adapter() {
    let mut s = setup(Path::default());
    s.device.post(&mut s.a, &Work::new(WqeOpcode::UMR));
    let flushed = Work::new(WqeOpcode::SEND_INVAL).flags(CQ_UPDATE);
    s.device.post(&mut s.a, &flushed);
    s.device.settle();
    let cqe = s.send.poll().unwrap();
    // The cause differs from that of C2, a misaligned UMR: C3 has the same syndromes.
    let mut illegal = expected("C2", &cqe, 0);
    illegal[52] = dump("C3")[52];
    illegal[62] = signature(&illegal, 0);
    assert_eq!(cqe.to_bytes(), illegal);
    let cqe = s.send.poll().unwrap();
    assert_eq!(cqe.to_bytes(), expected("C4", &cqe, 1));
}

#[test]
fn changes_of_keys_fail_as_on_an_adapter() {
    // The size of a list, and a key that does not exist.
    for (units, name) in [(2, "C2"), (0, "B7")] {
        let mut s = setup(Path::default());
        let control = UmrControl { xlt_octowords: units.into(), ..UmrControl::zeroed() };
        let work = Work::new(WqeOpcode::UMR).imm(0x100).bytes(&control.to_bytes()).bytes(&[0; 64]);
        s.device.post(&mut s.a, &work);
        s.device.settle();
        let cqe = s.send.poll().expect("an error");
        assert_eq!(cqe.to_bytes(), expected(name, &cqe, 0), "{name}");
    }
}

#[test]
fn a_receive_into_memory_without_a_key_is_reported_as_on_an_srq_of_an_adapter() {
    let mut s = setup(Path::default());
    s.b.post_receive(&[DataSegment::new(s.memory.addr(), 64, 0x1234_5678)]);
    s.device.post(&mut s.a, &Work::send().inline(b"hello"));
    s.device.settle();
    // UCX printed it as "synd 0x4 vend 0x32 hw_synd 0/146". The other fields are those of another receive queue.
    let cqe = s.recv.poll().expect("an error");
    let mut expected = expected("B8", &cqe, 0);
    (expected[52], expected[54]) = (146, 0x32);
    expected[62] = signature(&expected, 0);
    assert_eq!(cqe.to_bytes(), expected);
}

#[test]
fn each_cause_has_a_vendor_syndrome_that_adapters_report() {
    let causes = [
        Failure::LOCAL_LENGTH,
        Failure::LOCAL_LENGTH_RECEIVE,
        Failure::LOCAL_QP_OP,
        Failure::LOCAL_PROT,
        Failure::LOCAL_PROT_RECEIVE,
        Failure::FLUSH,
        Failure::REMOTE_INVALID,
        Failure::REMOTE_ACCESS,
        Failure::REMOTE_OPERATION,
        Failure::RETRIES,
        Failure::RNR_RETRIES,
    ];
    for Failure { syndrome, vendor, .. } in causes {
        assert!(mlx5_wire::vendor::find(syndrome, vendor).is_some(), "{syndrome:?} {vendor:#x}");
    }
}

#[test]
fn good_cqes_are_signed_with_their_index_over_several_laps() {
    let mut s = setup(Path::default());
    for index in 0..40 {
        s.b.post_receive(&[DataSegment::new(s.memory.addr(), 64, s.key)]);
        s.device.post(&mut s.a, &Work::send().inline(b"hello"));
        s.device.settle();
        for cqe in [s.send.poll().unwrap(), s.recv.poll().unwrap()] {
            assert!(is_signed(&cqe.to_bytes(), index), "{index}");
            assert!(!is_signed(&cqe.to_bytes(), index + 16), "{index}");
        }
    }
}
