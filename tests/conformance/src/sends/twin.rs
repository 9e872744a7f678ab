//! One of two equal sets of objects: a device, queue pairs that send, and peers that have receives posted.

use std::ptr;

use rdma_core_sys as sys;

use super::plan::Shape;
use super::request::Windows;
use crate::base::{self, Base};
use crate::memory::{Memory, Region};
use crate::twins;
use crate::verbs::{self, done, made};

/// Receives that a peer has posted.
const RECEIVES: u32 = 256;
/// Places of arriving messages, which are used in turn.
const PLACES: u64 = 8;
/// Bytes of each.
const PLACE: u32 = 4096;

pub struct Twin {
    pub base: Base,
    pub cq: *mut sys::ibv_cq,
    /// The capabilities that libmlx5 granted.
    pub cap: sys::ibv_qp_cap,
    /// To the port that all peers are at.
    pub ah: *mut sys::ibv_ah,
    recv_cq: *mut sys::ibv_cq,
    datagrams: bool,
    inbox: (Region, u32),
    next_place: u64,
    pub keys: Keys,
    /// Windows of each queue pair that binds some.
    pub windows: Vec<Windows>,
    /// Where this process sees the memory of results, and that of the peers.
    pub written: [Region; 2],
}

/// Memory as the device knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub address: u64,
    pub key: u32,
}

/// Addresses and keys of memory, which are equal on both twins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    pub source: Known,
    pub results: Known,
    pub target: Known,
}

const OPERATIONS: u32 = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
const CONNECTED: u32 = OPERATIONS
    | sys::IBV_QP_EX_WITH_SEND_WITH_INV
    | sys::IBV_QP_EX_WITH_RDMA_WRITE
    | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | sys::IBV_QP_EX_WITH_RDMA_READ
    | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

const WINDOWS: u32 = sys::IBV_QP_EX_WITH_BIND_MW | sys::IBV_QP_EX_WITH_LOCAL_INV;

impl Twin {
    /// Requests send from `source` and read into the arena; peers have `target` and receive in `headers`.
    pub fn new(name: &str, shape: &Shape, memory: &Memory) -> Self {
        set_environment(shape);
        let mut base = Base::new(name, &shape.settings);
        // SAFETY: the context is open.
        let (cq, recv_cq) = unsafe {
            let none = ptr::null_mut();
            (base::cq(base.context, 2 * shape.max_wr * shape.qps, none), base::cq(base.context, 1, none))
        };
        let mut cap = sys::ibv_qp_cap::default();
        for _ in 0..shape.qps {
            // SAFETY: all objects named are alive.
            let (qp, made) = unsafe { create(&base, cq, recv_cq, shape) };
            base.qps.push(qp);
            cap = made;
        }
        let peers = sys::ibv_qp_cap {
            max_send_wr: 1,
            max_send_sge: 1,
            max_recv_wr: RECEIVES,
            max_recv_sge: 1,
            ..Default::default()
        };
        let kind = if shape.datagrams { sys::IBV_QPT_UD } else { sys::IBV_QPT_RC };
        base.add_peers_of(kind, shape.qps, peers);
        let (pd, peer_pd) = (base.pd, base.peer_pd);
        let local = sys::IBV_ACCESS_LOCAL_WRITE;
        let remote = local | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_ATOMIC;
        let bound = if shape.windows { sys::IBV_ACCESS_MW_BIND } else { 0 };
        let mut register = |pd, region, access| {
            let (place, [key]) = base.register_as(pd, shape.backing, memory, region, [access]);
            (place.region, Known { address: place.address, key })
        };
        let (_, source) = register(pd, memory.source, 0);
        let (results, arena) = register(pd, memory.arena, local | bound);
        let (target, peers) = register(peer_pd, memory.target, remote);
        let keys = Keys { source, results: arena, target: peers };
        let region = base.region(keys.results.key);
        let windows =
            if shape.windows { base.qps.iter().map(|_| windows_of(pd, region)).collect() } else { Vec::new() };
        let inbox = (memory.headers, base.register(peer_pd, memory.headers, local));
        let mut attr = sys::ibv_ah_attr { dlid: base.lid, port_num: 1, ..Default::default() };
        // SAFETY: the domain is alive.
        let ah = made(unsafe { sys::ibv_create_ah(base.pd, &mut attr) }, "ibv_create_ah");
        let datagrams = shape.datagrams;
        let written = [results, target];
        let mut twin = Self { base, cq, cap, ah, recv_cq, datagrams, inbox, next_place: 0, keys, windows, written };
        for index in 0..shape.qps as usize {
            twin.connect(index);
        }
        twin
    }

    /// Takes QP `index` and its peer from RESET to where the QP can send.
    fn connect(&mut self, index: usize) {
        let (qp, peer) = (self.base.qps[index], self.base.peers[index]);
        verbs::to(peer, &[sys::IBV_QPS_INIT]);
        (0..RECEIVES).for_each(|_| self.post_receive(peer));
        if self.datagrams {
            verbs::to(peer, &[sys::IBV_QPS_RTR, sys::IBV_QPS_RTS]);
            verbs::to(qp, &[sys::IBV_QPS_INIT, sys::IBV_QPS_RTR, sys::IBV_QPS_RTS]);
        } else {
            verbs::to(qp, &[sys::IBV_QPS_INIT]);
            self.base.connect(index);
            verbs::to(qp, &[sys::IBV_QPS_RTS]);
        }
    }

    fn post_receive(&mut self, peer: *mut sys::ibv_qp) {
        let (inbox, key) = self.inbox;
        let addr = inbox.address() + self.next_place % PLACES * u64::from(PLACE);
        self.next_place += 1;
        let mut sge = sys::ibv_sge { addr, length: PLACE, lkey: key };
        let mut wr = sys::ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: the peer is alive, and so are the list and the memory that it names.
        done(unsafe { sys::ibv_post_recv(peer, &mut wr, &mut ptr::null_mut()) }, "ibv_post_recv");
    }

    /// A QP and its peer are reset and connected.
    pub fn reset(&mut self, index: usize) {
        verbs::to(self.base.qps[index], &[sys::IBV_QPS_RESET]);
        verbs::to(self.base.peers[index], &[sys::IBV_QPS_RESET]);
        self.connect(index);
    }
}

/// Allocates windows of a queue pair.
fn windows_of(pd: *mut sys::ibv_pd, region: *mut sys::ibv_mr) -> Windows {
    let windows = [sys::IBV_MW_TYPE_1, sys::IBV_MW_TYPE_2].map(|kind| {
        // SAFETY: the domain is alive.
        made(unsafe { sys::ibv_alloc_mw(pd, kind) }, "ibv_alloc_mw")
    });
    Windows { windows, region }
}

/// # Safety
/// All objects are alive.
unsafe fn create(
    base: &Base,
    send_cq: *mut sys::ibv_cq,
    recv_cq: *mut sys::ibv_cq,
    shape: &Shape,
) -> (*mut sys::ibv_qp, sys::ibv_qp_cap) {
    let operations = match shape {
        Shape { datagrams: true, .. } => OPERATIONS,
        Shape { windows: true, .. } => CONNECTED | WINDOWS,
        _ => CONNECTED,
    };
    // SAFETY: a structure of integers and pointers.
    let mut init: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (init.send_cq, init.recv_cq, init.pd) = (send_cq, recv_cq, base.pd);
    init.qp_type = if shape.datagrams { sys::IBV_QPT_UD } else { sys::IBV_QPT_RC };
    init.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = operations.into();
    init.cap = sys::ibv_qp_cap {
        max_send_wr: shape.max_wr,
        max_send_sge: shape.max_sge,
        max_inline_data: shape.max_inline,
        max_recv_wr: 1,
        max_recv_sge: 1,
    };
    // SAFETY: all objects are alive, and the attributes are valid.
    let qp = made(unsafe { sys::ibv_create_qp_ex(base.context, &mut init) }, "ibv_create_qp_ex");
    (qp, init.cap)
}

/// Sets the environment variables that libmlx5 reads when a context is opened.
fn set_environment(shape: &Shape) {
    let set = |name, value| {
        // SAFETY: the program has one thread.
        unsafe { std::env::set_var(name, if value { "1" } else { "0" }) }
    };
    set("MLX5_SHUT_UP_BF", shape.shut_up_bf);
    set("MLX5_POST_SEND_PREFER_BF", shape.prefer_bf);
}

impl twins::Twin for Twin {
    type Send = ();

    fn base(&self) -> &Base {
        &self.base
    }

    /// Peers only receive.
    fn send(&mut self, _: usize, sends: &[()]) -> usize {
        sends.len()
    }

    fn poll_peers(&mut self) -> Vec<sys::ibv_wc> {
        let completions = verbs::poll(self.base.peer_cq, u32::MAX);
        for wc in completions.iter().filter(|wc| wc.status == sys::IBV_WC_SUCCESS) {
            let peer = self.base.peers[self.base.peer(wc.qp_num)];
            self.post_receive(peer);
        }
        completions
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for name in ["MLX5_SHUT_UP_BF", "MLX5_POST_SEND_PREFER_BF"] {
            // SAFETY: the program has one thread.
            unsafe { std::env::remove_var(name) }
        }
        self.base.destroy_qps();
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            for window in self.windows.iter().flat_map(|of| of.windows) {
                done(sys::ibv_dealloc_mw(window), "ibv_dealloc_mw");
            }
            done(sys::ibv_destroy_ah(self.ah), "ibv_destroy_ah");
            for cq in [self.cq, self.recv_cq] {
                done(sys::ibv_destroy_cq(cq), "ibv_destroy_cq");
            }
        }
    }
}
