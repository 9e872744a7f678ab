//! Commands of chance beside queue pairs of verbs: no panic, no object lost, none of another context touched.

use std::ptr;

use mlx5_wire::firmware::command::Opcode;
use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, access_mode};
use mlx5_wire::firmware::srq::{CreateRmp, CreateXrq, RmpContext, XrqContext};
use mlx5_wire::firmware::transport::{CreateRq, CreateSq, CreateTir, CreateTis, RqContext, RqTable, SqContext};
use mlx5_wire::firmware::wq::{WorkQueue, kind, state};
use rdma_core_sys::*;
use soft_mlx5::{Device, LinkLayer};

use super::bench::*;
use crate::world::{World, open, poll};

/// Commands of a run of the suite; `DOORBELL_COMMANDS` names another number.
const COMMANDS: u64 = 4000;
const OBJECTS: usize = 64;
const LEN: u32 = 64;

/// Numbers of chance (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    /// Changes a few words behind the head: to numbers of objects, to a bit, or to anything.
    fn change(&mut self, command: &mut [u8]) {
        for _ in 0..self.below(4) {
            let at = 8 + 4 * self.below((command.len() as u64 - 8) / 4) as usize;
            let word = match self.below(4) {
                0 => self.below(8) as u32,
                1 => 0x400 + self.below(16) as u32,
                2 => 1 << self.below(32),
                _ => self.below(1 << 32) as u32,
            };
            command[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
    }
}

fn templates(bench: &Bench, umem: u32) -> Vec<Vec<u8>> {
    let (pd, records) = (bench.pdn(), bench.cq_command(0).context.dbr_umem_id);
    let queue = |kind| WorkQueue {
        kind,
        pd,
        uar_page: bench.uar_page(),
        log_stride: 6,
        log_size: 4,
        dbr_umem_id: records,
        umem_id: umem,
        ..WorkQueue::ZERO
    };
    let key = |access_mode| MkeyContext {
        access_mode,
        local_read: true,
        qpn: 0xff_ffff,
        pd,
        len: PAGE as u64,
        log_page_size: 12,
        ..MkeyContext::ZERO
    };
    let mkey = |mode| CreateMkey {
        request: request(Opcode::CREATE_MKEY),
        context: key(mode),
        umem_id: umem,
        ..CreateMkey::ZERO
    };
    let rmp = RmpContext { state: state::RDY, queue: queue(kind::CYCLIC), ..RmpContext::ZERO };
    let xrq = XrqContext {
        topology: 1,
        offload: 1,
        cqn: 0x401,
        log_list_size: 4,
        queue: queue(kind::LINKED_LIST),
        ..XrqContext::ZERO
    };
    let sq = SqContext { cqn: 0x401, tis_count: 1, tisn: 1, queue: queue(kind::CYCLIC), ..SqContext::ZERO };
    let rq = RqContext { cqn: 0x401, queue: queue(kind::CYCLIC), ..RqContext::ZERO };
    vec![
        bench.cq_command(umem).to_bytes().to_vec(),
        bench.qp_command(pd, 0x401, umem).to_bytes().to_vec(),
        mkey(access_mode::MTT).to_bytes().to_vec(),
        mkey(access_mode::KLM).to_bytes().to_vec(),
        CreateRmp { request: request(Opcode::CREATE_RMP), context: rmp }.to_bytes().to_vec(),
        CreateXrq { request: request(Opcode::CREATE_XRQ), context: xrq }.to_bytes().to_vec(),
        CreateSq { request: request(Opcode::CREATE_SQ), context: sq }.to_bytes().to_vec(),
        CreateRq { request: request(Opcode::CREATE_RQ), context: rq }.to_bytes().to_vec(),
        CreateTis { request: request(Opcode::CREATE_TIS), ..CreateTis::ZERO }.to_bytes().to_vec(),
        CreateTir { request: request(Opcode::CREATE_TIR), inline_rqn: 0x2000, ..CreateTir::ZERO }.to_bytes().to_vec(),
        [
            &RqTable { request: request(Opcode::CREATE_RQT), actual_size: 1, ..RqTable::ZERO }.to_bytes()[..],
            &[0, 0, 0x20, 0],
        ]
        .concat(),
        numbered(Opcode::ALLOC_PD, 0).to_vec(),
        numbered(Opcode::ALLOC_TRANSPORT_DOMAIN, 0).to_vec(),
        numbered(Opcode::ALLOC_XRCD, 0).to_vec(),
        numbered(Opcode::ALLOC_Q_COUNTER, 0).to_vec(),
    ]
}

fn exchange(world: &World, qp: *mut ibv_qp, mr: *mut ibv_mr, cq: *mut ibv_cq) {
    world.exchange(qp, mr, LEN);
    let statuses: Vec<_> = std::iter::from_fn(|| poll(cq)).map(|wc| wc.status).collect();
    assert_eq!(statuses, [IBV_WC_SUCCESS; 2]);
}

fn run(link: LinkLayer, commands: u64) {
    let bench = Bench::with(Device::builder().stepped().link_layer(link));
    let world = &bench.world;
    let cq = world.cq(16);
    let qp = world.connected(cq, ptr::null_mut());
    let mut bytes = [7; 256];
    let mr = world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    // Objects of another context: a domain, and a CQ of verbs.
    let ctx = open(world.device().name());
    let (other_pd, _) = create_in(ctx, &numbered(Opcode::ALLOC_PD, 0)).unwrap();
    // SAFETY: the context is open.
    let other_cq = unsafe { ibv_create_cq(ctx, 16, ptr::null_mut(), ptr::null_mut(), 0) };
    let umem = bench.umem(memory(2 * PAGE), 2 * PAGE).unwrap();
    // SAFETY: the UMEM is alive.
    let templates = templates(&bench, unsafe { (*umem).umem_id });
    let mut chance = Chance(u64::from(link == LinkLayer::Ethernet));
    let mut made = Vec::new();
    let mut count = 0;
    for n in 0..commands {
        let mut command = templates[chance.below(templates.len() as u64) as usize].clone();
        match chance.below(8) {
            0..3 => {
                chance.change(&mut command);
                if let Ok((object, number)) = bench.create(&command) {
                    made.push((object, number));
                    count += 1;
                }
            }
            kind if !made.is_empty() => {
                let (object, number) = made[chance.below(made.len() as u64) as usize];
                command[..2].copy_from_slice(&(chance.below(0xb00) as u16).to_be_bytes());
                command[8..12].copy_from_slice(&number.to_be_bytes());
                if kind < 6 {
                    let _ = modify_object(object, &command);
                } else {
                    let _ = query_object(object, &command, 0x150);
                }
            }
            _ => {}
        }
        while made.len() > OBJECTS {
            let at = chance.below(made.len() as u64) as usize;
            // An object in use waits for its users.
            if destroy(made[at].0) == 0 {
                made.swap_remove(at);
            }
        }
        if n % 256 == 0 {
            exchange(world, qp, mr, cq);
        }
    }
    assert!(count > commands / 10, "only {count} objects were made");
    while !made.is_empty() {
        let before = made.len();
        made.retain(|(object, _)| destroy(*object) != 0);
        assert!(made.len() < before, "objects that nothing uses stay");
    }
    exchange(world, qp, mr, cq);
    assert_eq!(deregister(umem), 0, "no queue is left");
    // SAFETY: the objects are alive until their destruction succeeds.
    unsafe {
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq), ibv_dereg_mr(mr)), (0, 0, 0));
        assert_eq!(ibv_dealloc_pd(world.pd), 0, "nothing is left in the domain");
        assert_eq!((destroy(other_pd), ibv_destroy_cq(other_cq), ibv_close_device(ctx)), (0, 0, 0));
    }
}

#[test]
fn commands_of_chance_touch_nothing_else() {
    let commands = std::env::var("DOORBELL_COMMANDS").ok().and_then(|number| number.parse().ok());
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        run(link, commands.unwrap_or(COMMANDS));
    }
}
