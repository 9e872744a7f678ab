//! Start and unload, as the drivers of Linux do it.

use mlx5_wire::firmware::capabilities::{Atomic, GROUP, General, group};
use mlx5_wire::firmware::command::{
    ManagePages, Opcode, QueryAdapterReply, QueryIssiReply, QueryPagesReply, Request, SetIssi, Status, TeardownHca,
};

use super::Driver;
use crate::commands::capabilities;
use crate::commands::refusal::Refusal;
use crate::fabric::LinkLayer;

fn head(opcode: Opcode, op_mod: u16) -> [u8; 16] {
    let mut input = [0; 16];
    Request { op_mod, ..Request::new(opcode) }.put(input.first_chunk_mut().unwrap());
    input
}

fn group_of(driver: &mut Driver, op_mod: u16) -> Result<Vec<u8>, Refusal> {
    let answer = driver.execute(&head(Opcode::QUERY_HCA_CAP, op_mod), 0x1010)?;
    Ok(answer[GROUP..].to_vec())
}

fn set_general(driver: &mut Driver, wanted: General) -> Result<(), Refusal> {
    let mut input = vec![0; 0x1010];
    input[..16].copy_from_slice(&head(Opcode::SET_HCA_CAP, 0));
    wanted.put(input[GROUP..].first_chunk_mut().unwrap());
    driver.execute(&input, 16).map(drop)
}

#[test]
fn the_order_of_a_driver() {
    let mut driver = Driver::new(LinkLayer::InfiniBand);
    // ENABLE_HCA has room for the head alone.
    driver.execute(&head(Opcode::ENABLE_HCA, 0), 0xc).unwrap();
    let issi = driver.execute(&head(Opcode::QUERY_ISSI, 0), 0x70).unwrap();
    assert_eq!(QueryIssiReply::from_prefix(&issi).unwrap().supported, 2);
    let set = SetIssi { request: Request::new(Opcode::SET_ISSI), current: 1 };
    driver.execute(&set.to_bytes(), 16).unwrap();
    for pages in [1, 2] {
        let answer = driver.execute(&head(Opcode::QUERY_PAGES, pages), 16).unwrap();
        assert_eq!(QueryPagesReply::from_prefix(&answer).unwrap().pages, 0);
        driver.execute(&head(Opcode::MANAGE_PAGES, 1), 16).unwrap();
    }
    let maximum = group_of(&mut driver, group::GENERAL << 1).unwrap();
    let maximum = General::from_prefix(&maximum).unwrap();
    assert_eq!(maximum, capabilities::GENERAL);
    set_general(&mut driver, General { log_max_qp: 17, ..maximum }).unwrap();
    let current = group_of(&mut driver, group::GENERAL << 1 | 1).unwrap();
    let current = General::from_prefix(&current).unwrap();
    assert_eq!((current.log_max_qp, current.log_max_cq), (17, maximum.log_max_cq));
    let atomic = group_of(&mut driver, group::ATOMIC << 1 | 1).unwrap();
    assert_eq!(Atomic::from_prefix(&atomic).unwrap().operations, 3);
    driver.execute(&head(Opcode::INIT_HCA, 0), 16).unwrap();
    let board = driver.execute(&head(Opcode::QUERY_ADAPTER, 0), 0x110).unwrap();
    assert_eq!(QueryAdapterReply::from_prefix(&board).unwrap().psid[..4], *b"SOFT");
    let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
    assert_eq!(uar, 0x10);
    driver.numbered(Opcode::DEALLOC_UAR, uar).unwrap();
    let back = driver.execute(&head(Opcode::MANAGE_PAGES, 2), 16).unwrap();
    assert_eq!(QueryPagesReply::from_prefix(&back).unwrap().pages, 0);
    driver.execute(&head(Opcode::TEARDOWN_HCA, 0), 16).unwrap();
    driver.execute(&head(Opcode::DISABLE_HCA, 0), 0xc).unwrap();
    // The driver starts again on the same function.
    driver.start();
    assert_eq!(driver.numbered(Opcode::ALLOC_UAR, 0).unwrap(), 0x10);
}

#[test]
fn commands_out_of_order() {
    let mut driver = Driver::new(LinkLayer::InfiniBand);
    let state = |driver: &mut Driver, opcode| driver.execute(&head(opcode, 0), 16).err();
    assert_eq!(state(&mut driver, Opcode::INIT_HCA), Some(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::QUERY_PAGES), Some(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::ENABLE_HCA), None);
    assert_eq!(state(&mut driver, Opcode::ENABLE_HCA), Some(Refusal::ENABLED));
    assert_eq!(state(&mut driver, Opcode::ALLOC_PD), Some(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::TEARDOWN_HCA), Some(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::INIT_HCA), None);
    assert_eq!(state(&mut driver, Opcode::INIT_HCA), Some(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::SET_ISSI), Some(Refusal::STATE));
    assert_eq!(set_general(&mut driver, capabilities::GENERAL), Err(Refusal::STATE));
    assert_eq!(state(&mut driver, Opcode::DISABLE_HCA), Some(Refusal::STATE));
    assert_eq!(Refusal::STATE.status, Status::BadSystemState);
}

#[test]
fn parameters_of_the_start_that_are_refused() {
    let mut driver = Driver::new(LinkLayer::InfiniBand);
    let enable = |function_id: u8| {
        let mut input = head(Opcode::ENABLE_HCA, 0);
        input[11] = function_id;
        input
    };
    assert_eq!(driver.execute(&enable(1), 16).err(), Some(Refusal::FUNCTION));
    driver.execute(&enable(0), 16).unwrap();
    let issi = SetIssi { request: Request::new(Opcode::SET_ISSI), current: 2 };
    assert_eq!(driver.execute(&issi.to_bytes(), 16).err(), Some(Refusal::ISSI));
    let pages = driver.execute(&head(Opcode::QUERY_PAGES, 4), 16);
    assert_eq!(pages.err(), Some(Refusal::UNKNOWN_MODIFIER));
    let request = Request { op_mod: 1, ..Request::new(Opcode::MANAGE_PAGES) };
    let give = ManagePages { request, entries: 1, ..ManagePages::ZERO };
    assert_eq!(driver.execute(&give.to_bytes(), 16).err(), Some(Refusal::PAGES));
    // Groups whose capability is not there.
    for number in [group::ETHERNET, group::ROCE, group::FLOW_TABLE, 2, 0x7fff] {
        assert_eq!(group_of(&mut driver, number << 1).err(), Some(Refusal::GROUP));
    }
    let general = capabilities::GENERAL;
    let more = [
        General { log_max_qp: general.log_max_qp + 1, ..general },
        General { pkey_table_size: 1, ..general },
        General { cmdif_checksum: 1, ..general },
        General { log_uar_page_sz: 1, ..general },
    ];
    for wanted in more {
        assert_eq!(set_general(&mut driver, wanted), Err(Refusal::CAPABILITY));
    }
    driver.execute(&head(Opcode::INIT_HCA, 0), 16).unwrap();
    let request = Request::new(Opcode::TEARDOWN_HCA);
    let teardown = TeardownHca { request, profile: 1 };
    assert_eq!(driver.execute(&teardown.to_bytes(), 16).err(), Some(Refusal::PROFILE));
}

#[test]
fn teardown_and_reset_end_all_objects() {
    for ends in [Some(Opcode::TEARDOWN_HCA), None] {
        let mut driver = Driver::started(LinkLayer::InfiniBand);
        let uar = driver.numbered(Opcode::ALLOC_UAR, 0).unwrap();
        let pd = driver.numbered(Opcode::ALLOC_PD, 0).unwrap();
        let eq = driver.eq(6, 0, 0, uar);
        let cq = driver.cq(6, eq.number, uar);
        let (rmp, ..) = driver.rmp(pd, 4, 0);
        driver.qp(pd, uar, &cq, 0, Some(rmp));
        assert!(driver.function.has_queue_pairs());
        match ends {
            Some(opcode) => drop(driver.numbered(opcode, 0).unwrap()),
            None => driver.function.reset(),
        }
        assert!(!driver.function.has_queue_pairs());
        assert_eq!(driver.function.objects(), 0);
        assert_eq!(driver.numbered(Opcode::DESTROY_CQ, cq.number), Err(Refusal::STATE));
    }
}
