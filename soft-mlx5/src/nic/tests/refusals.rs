//! Operations that the device does not have.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::nic::objects::*;

const LOCAL_QP_OP: u8 = 0x02;
const LOCAL_PROT: u8 = 0x04;
const REMOTE_ACCESS: u8 = 0x13;

#[test]
fn unknown_opcodes_are_local_errors_on_every_service() {
    refused_with::<16>();
    refused_with::<32>();
}

fn refused_with<const OPERANDS: usize>() {
    use WqeOpcode as Op;
    for opcode in [Op::ATOMIC_MASKED_CS, Op::ATOMIC_MASKED_FA, Op::LOCAL_INVAL, Op::UMR, Op::SET_PSV] {
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            let mut device = Device::new();
            let (mut send, recv) = (device.cq(16), device.cq(16));
            let attr = device.qp_attr(service, &send, &recv);
            let mut qp = device.qp(attr);
            let lid = device.nic.port().lid;
            device.connect(&qp, lid, qp.number);
            let memory = Memory::new(64);
            let key = device.register(&memory, ALL_ACCESS);
            // As an atomic: remote address, operands (with masks twice as many), and the place of the answer.
            let work = Work::new(opcode).remote(memory.addr(), key).bytes(&[0xff; OPERANDS]);
            device.post(&mut qp, &work.data(memory.addr() + 32, 8, key));
            device.settle();
            send.expect_error(CqeOpcode::RequesterError, &qp, 0, LOCAL_QP_OP);
            assert_eq!(memory.get(0, 64), [0; 64]);
        }
    }
}

#[test]
fn a_peer_invalidates_no_key_of_a_region() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(16), device.cq(16));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let memory = Memory::new(64);
    let key = device.register(&memory, ALL_ACCESS);
    b.post_receive(&[DataSegment::new(memory.addr(), 64, key)]);
    device.post(&mut a, &Work::new(WqeOpcode::SEND_INVAL).imm(key));
    device.settle();
    send.expect_error(CqeOpcode::RequesterError, &a, 0, REMOTE_ACCESS);
    recv.expect_error(CqeOpcode::ResponderError, &b, 0, LOCAL_PROT);
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    b.post_receive(&[DataSegment::new(memory.addr(), 64, key)]);
    device.post(&mut a, &Work::send().inline(b"still"));
    device.settle();
    assert_eq!(memory.get(0, 5), b"still");
}
