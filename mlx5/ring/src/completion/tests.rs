//! The fields of a CQE against its bytes: any byte anywhere.

use std::format;

use mlx5_wire::opcode::CqeOpcode;

use super::{Cqe, CqeKind};
use crate::testing::{Arena, CqDevice, Random, cases, seed};

/// The bytes from `at` on as one number.
fn number<const N: usize>(bytes: &[u8; 64], at: usize) -> u64 {
    bytes[at..at + N].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The offsets and masks are those of `struct mlx5_cqe64` and `struct mlx5_err_cqe`, and of libmlx5 where it
/// reads them.
fn compare(cqe: &Cqe<'_>, bytes: &[u8; 64]) {
    assert_eq!(cqe.bytes(), *bytes);
    assert_eq!(u64::from(cqe.rx_hash_result()), number::<4>(bytes, 12));
    assert_eq!(cqe.dlid_path_bits(), bytes[17] & 0x7f);
    assert_eq!(u64::from(cqe.check_sum()), number::<2>(bytes, 20));
    assert_eq!(u64::from(cqe.slid()), number::<2>(bytes, 22));
    assert_eq!(cqe.has_grh(), bytes[24] & 0x30 != 0);
    assert_eq!(cqe.sl(), bytes[24] & 0xf);
    assert_eq!(u64::from(cqe.source_qpn()), number::<3>(bytes, 25));
    let (l3_and_l4, ipv4) = (bytes[28] & 6 == 6, bytes[29] >> 2 & 3 == 2);
    assert_eq!(cqe.is_checksum_ok(), l3_and_l4 && ipv4);
    assert_eq!(u64::from(cqe.srqn_uidx()), number::<3>(bytes, 33));
    assert_eq!(u64::from(cqe.imm_inval_pkey()), number::<4>(bytes, 36));
    assert_eq!(cqe.app(), bytes[40]);
    assert_eq!(cqe.app_op().get(), bytes[41]);
    assert_eq!(u64::from(cqe.app_info()), number::<2>(bytes, 42));
    assert_eq!(u64::from(cqe.byte_count()), number::<4>(bytes, 44));
    assert_eq!(cqe.timestamp(), number::<8>(bytes, 48));
    assert_eq!(cqe.vendor_err_synd(), bytes[54]);
    assert_eq!(cqe.syndrome().get(), bytes[55]);
    let absent = bytes[55] == 0x22 && matches!(bytes[54], 0x93 | 0x99);
    assert_eq!(cqe.is_odp_page_fault(), absent);
    assert_eq!(cqe.send_opcode(), bytes[56]);
    assert_eq!(u64::from(cqe.qpn()), number::<3>(bytes, 57));
    assert_eq!(u64::from(cqe.wqe_counter()), number::<2>(bytes, 60));
    assert_eq!(cqe.opcode(), CqeOpcode::from_bits(bytes[63] >> 4));
    if cqe.kind() == CqeKind::Invalidated {
        assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendInv);
    }
    if matches!(cqe.kind(), CqeKind::Send | CqeKind::Invalidated | CqeKind::Written | CqeKind::Inline) {
        assert_eq!(cqe.has_imm_or_key(), cqe.opcode() != CqeOpcode::ResponderSend);
    }
    assert_eq!(cqe.format() as u8, bytes[63] >> 2 & 3);

    let result = cqe.list_result();
    assert_eq!(u64::from(result.success.get()), number::<4>(bytes, 0));
    assert_eq!(u64::from(result.hw_phase_cnt.get()), number::<2>(bytes, 4));
    let tmh = cqe.tmh();
    assert_eq!((tmh.opcode, &tmh.reserved1[..]), (bytes[0], &bytes[1..4]));
    assert_eq!(u64::from(tmh.app_ctx.get()), number::<4>(bytes, 4));
    assert_eq!(tmh.tag.get(), number::<8>(bytes, 8));

    let name = if bytes[63] >> 4 >= 13 { "ErrorCqe" } else { "Cqe64" };
    assert!(format!("{cqe:?}").starts_with(name), "{cqe:?} with opcode {}", bytes[63] >> 4);
}

#[test]
fn every_field() {
    let mut random = Random::new(seed());
    for sample in 0..cases(4000) {
        let (mut arena, size) = (Arena::default(), 64 << (sample % 2));
        let device = CqDevice::new(&mut arena, 1, size);
        let mut bytes = [0; 64];
        bytes.fill_with(|| random.next() as u8);
        if random.once_in(4) {
            bytes[54..56].copy_from_slice(&[random.pick(&[0x93, 0x99]), 0x22]);
        }
        // Software's on the first lap.
        bytes[63] = random.below(0xf0) as u8 & !1;
        // SAFETY: the CQE proper is the last 64 bytes of the entry.
        unsafe { device.entry(0).add(size - 64).cast::<[u8; 64]>().write(bytes) }
        let mut cq = device.queue();
        compare(&cq.next().expect("a CQE has arrived"), &bytes);
    }
}
