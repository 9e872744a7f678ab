//! Registers of the port and the board.

use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::register::{AccessRegister, Mcam, Mcia, Mcqi, McqiVersion, Mcqs, Pmtu, id};

use super::Driver;
use crate::commands::refusal::Refusal;
use crate::fabric::LinkLayer;

const WRITE: u16 = 0;
const READ: u16 = 1;

fn access(driver: &mut Driver, id: u16, op_mod: u16, register: &[u8], room: usize) -> Result<Vec<u8>, Refusal> {
    let request = Request { op_mod, ..Request::new(Opcode::ACCESS_REG) };
    let head = AccessRegister { request, id, argument: 0 }.to_bytes();
    let answer = driver.execute(&[&head[..], register].concat(), AccessRegister::SIZE + room)?;
    Ok(answer[AccessRegister::SIZE..].to_vec())
}

#[test]
fn the_mtu_is_what_the_driver_has_set() {
    let mtu = |driver: &mut Driver, op_mod, admin_mtu| {
        let register = Pmtu { port: 1, admin_mtu, ..Pmtu::ZERO }.to_bytes();
        let answer = access(driver, id::PMTU, op_mod, &register, register.len())?;
        let answer = Pmtu::from_prefix(&answer).unwrap();
        assert_eq!(answer.admin_mtu, answer.oper_mtu);
        Ok((answer.max_mtu, answer.oper_mtu))
    };
    let mut driver = Driver::started(LinkLayer::Ethernet);
    assert_eq!(mtu(&mut driver, READ, 0), Ok((10_000, 1522)));
    assert_eq!(mtu(&mut driver, WRITE, 9022), Ok((10_000, 9022)));
    assert_eq!(mtu(&mut driver, READ, 0), Ok((10_000, 9022)));
    assert_eq!(mtu(&mut driver, WRITE, 10_001), Err(Refusal::ATTRIBUTES));
    assert_eq!(mtu(&mut driver, WRITE, 59), Err(Refusal::ATTRIBUTES));
    let mut driver = Driver::started(LinkLayer::InfiniBand);
    assert_eq!(mtu(&mut driver, READ, 0), Ok((4096, 4096)));
    assert_eq!(mtu(&mut driver, WRITE, 2048), Err(Refusal::ATTRIBUTES));
}

#[test]
fn the_version_of_the_firmware() {
    let mut driver = Driver::started(LinkLayer::Ethernet);
    let groups = [0, 1].map(|group| {
        let register = Mcam { group, ..Mcam::ZERO }.to_bytes();
        let answer = access(&mut driver, id::MCAM, READ, &register, register.len()).unwrap();
        let answer = Mcam::from_prefix(&answer).unwrap();
        (answer.mcqi, answer.mcqs)
    });
    assert_eq!(groups, [(true, true), (false, false)]);
    let component = Mcqs::ZERO.to_bytes();
    let component = access(&mut driver, id::MCQS, READ, &component, component.len()).unwrap();
    let Mcqs { last, identifier, update_state, .. } = Mcqs::from_prefix(&component).unwrap();
    assert_eq!((last, identifier, update_state), (true, 1, 0));
    let other = Mcqs { component: 1, ..Mcqs::ZERO }.to_bytes();
    assert_eq!(access(&mut driver, id::MCQS, READ, &other, other.len()), Err(Refusal::REGISTER));
    let asked = Mcqi { info_type: 1, data_size: 124, ..Mcqi::ZERO };
    let room = Mcqi::SIZE + 124;
    let answer = access(&mut driver, id::MCQI, READ, &asked.to_bytes(), room).unwrap();
    let version = McqiVersion::from_prefix(&[&answer[Mcqi::SIZE..], &[0; 4]].concat()).unwrap().version;
    assert_eq!(version, 16 << 24 | 35 << 16 | 2000);
    let other = Mcqi { info_type: 0, ..asked }.to_bytes();
    assert_eq!(access(&mut driver, id::MCQI, READ, &other, room), Err(Refusal::REGISTER));
}

#[test]
fn what_the_port_does_not_have() {
    let mut driver = Driver::started(LinkLayer::Ethernet);
    for (id, len) in [(id::PFCC, 0x20), (id::PMLP, 0x40), (id::PPLM, 0x50), (id::PDDR, 0x100)] {
        let register = vec![0; len];
        assert_eq!(access(&mut driver, id, READ, &register, len), Ok(register.clone()));
        assert_eq!(access(&mut driver, id, WRITE, &register, len), Err(Refusal::REGISTER));
    }
    let module = access(&mut driver, id::MCIA, READ, &[0; 0x90], 0x90).unwrap();
    assert_eq!(Mcia::from_prefix(&module).unwrap().status, 1);
}
