//! UC: the same packets as RC, without acknowledgements.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::base::faults::Faults;
use crate::engine::NicConfig;
use crate::objects::*;

fn unreliable(attr: QpAttr) -> QpAttr {
    QpAttr { service: Service::Uc, ..attr }
}

#[test]
fn a_send_completes_without_a_receiver() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(unreliable, &send, &recv);
    device.post(&mut a, &Work::send());
    device.settle();
    send.expect(CqeOpcode::Requester, &a, 0);
    b.post_receive(&[]);
    device.finish();
    recv.expect_nothing();
}

#[test]
fn lost_packets_lose_whole_messages_and_no_receives() {
    let faults = Faults { loss: 0.1, ..Faults::default() };
    let mut device = Device::with(NicConfig { faults, seed: 5, ..NicConfig::default() });
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let path = Path { mtu: 256, ..Path::default() };
    let (mut a, mut b) = device.pair_with(unreliable, &send, &recv, path);
    let memory = Memory::new(4096);
    let key = device.register(&memory, ALL_ACCESS);
    let mut counter = b.post_receive(&[DataSegment::new(memory.addr() + 2048, 2048, key)]);
    let mut arrived = 0;
    for number in 0..1000 {
        memory.set(0, &pattern(number, 1000));
        let work = Work::new(WqeOpcode::SEND_IMM).imm(number as u32);
        device.post(&mut a, &work.data(memory.addr(), 1000, key));
        device.settle();
        send.expect(CqeOpcode::Requester, &a, number as u16);
        if let Some(cqe) = recv.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendImm);
            assert_eq!((cqe.imm_inval_pkey.get(), cqe.byte_cnt.get()), (number as u32, 1000));
            assert_eq!(cqe.wqe_counter.get(), counter);
            assert_eq!(memory.get(2048, 1000), pattern(number, 1000));
            counter = b.post_receive(&[DataSegment::new(memory.addr() + 2048, 2048, key)]);
            arrived += 1;
        }
    }
    // Four packets each: about two thirds arrive whole.
    assert!((550..750).contains(&arrived), "{arrived}");
}
