//! For a caller that provides all of verbs: only flags ask for CQEs, and data comes in CQEs.

use core::ptr::NonNull;

use mlx5_wire::cqe::{Cqe64, CqeFormat, op_own};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::super::{Flags, Remote};
use super::rig::{QPN, Rig};
use crate::completion::Cqe;
use crate::sge::Sge;
use crate::testing::Arena;

const NONE: Flags = Flags::NONE;
const SIGNALED: Flags = Flags::SIGNALED;

#[test]
fn only_the_flags_ask_for_a_cqe() {
    let mut rig = Rig::new(8, 1);
    let asks = |rig: &mut Rig| {
        for data in 0..8 {
            rig.send(1, NONE, data).unwrap();
        }
        rig.device.look();
        rig.device.queue.drain(..).filter(|wqe| wqe.asks()).count()
    };
    assert!(asks(&mut rig) > 0, "without it the queue asks");
    rig.start_at(0, 0);
    let queue = core::mem::replace(&mut rig.queue, Rig::new(8, 1).queue);
    rig.queue = queue.without_asking();
    assert_eq!(asks(&mut rig), 0);
}

/// Data of a READ that came in its CQE, of a WQE that goes on at the start of the ring.
#[test]
fn data_in_a_cqe_goes_to_the_buffers_of_the_wqe() {
    let mut rig = Rig::new(4, 2);
    rig.start_at(3, 0);
    let mut memory = [[0_u8; 8]; 4];
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    let sge = |index: u64, length| Sge { addr: start + 8 * index, length, lkey: 7 };
    let from = Remote { addr: 1, rkey: 2 };
    let list = [sge(0, 3), sge(1, 2), sge(2, 8), sge(3, 8)];
    let mut post = |list: &[Sge], data| {
        // SAFETY: [memory] is the test's, and the device a model.
        unsafe { rig.queue.posting().read(from, list, SIGNALED, data) }.unwrap();
    };
    post(&list, 1);
    post(&list[3..], 2);
    let progress = rig.queue.progress();
    let mut arena = Arena::default();
    let cqe: NonNull<u8> = arena.cut(64);
    let arrive = |format, opcode: WqeOpcode, wqe_counter: u16, byte_cnt: u32| {
        let mut bytes = Cqe64 {
            byte_cnt: byte_cnt.into(),
            sop_drop_qpn: (u32::from(opcode.get()) << 24 | QPN).into(),
            wqe_counter: wqe_counter.into(),
            op_own: op_own(CqeOpcode::Requester, format, false, 0),
            ..Cqe64::zeroed()
        }
        .to_bytes();
        bytes[..16].copy_from_slice(b"abcdefghijklmnop");
        // SAFETY: an aligned CQE in the arena; the buffers are the test's.
        unsafe {
            cqe.cast().write(bytes);
            progress.scatter_inline(Cqe::read(cqe, 0, 64))
        }
    };
    let read = WqeOpcode::RDMA_READ;
    assert!(!arrive(CqeFormat::Plain, read, 3, 16), "there is no data");
    assert!(!arrive(CqeFormat::Inline64, read, 3, 16), "a CQE of 64 bytes has no room for them");
    assert!(!arrive(CqeFormat::Inline32, read, 4, 16), "no WQE starts there");
    assert!(!arrive(CqeFormat::Inline32, WqeOpcode::SEND, 3, 16), "no data comes for a SEND");
    // SAFETY: read where the queue has written it.
    let now = || unsafe { (&raw const memory).read_volatile() };
    assert_eq!(now(), [[0; 8]; 4]);
    assert!(arrive(CqeFormat::Inline32, read, 3, 15));
    assert_eq!(now(), [*b"abc\0\0\0\0\0", *b"de\0\0\0\0\0\0", *b"fghijklm", *b"no\0\0\0\0\0\0"]);
    assert!(arrive(CqeFormat::Inline32, read, 5, 3));
    assert_eq!(now()[3], *b"abc\0\0\0\0\0");
}
