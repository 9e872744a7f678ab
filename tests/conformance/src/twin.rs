//! One of two equal sets of objects: a device, the queues under test, and peers that send to them.
//!
//! Both twins are made by the same code with libibverbs, in the same order, so that their devices give
//! out the same numbers and keys.

use std::ptr;
use std::time::Duration;

use rdma_core_sys as sys;
use soft_mlx5::Device;
use soft_mlx5::nic::inspect::Queues;

use crate::memory::Region;
use crate::plan::{self, Send, SendKind, Shape};
use crate::verbs::{self, done, made};

/// Sends that a peer can have outstanding.
const SENDS: u32 = 512;

/// Longer than the RNR timer of the queues under test.
const RETRY: Duration = Duration::from_micros(50);

pub struct Twin {
    pub device: Device,
    pub context: *mut sys::ibv_context,
    pub pd: *mut sys::ibv_pd,
    pub channel: *mut sys::ibv_comp_channel,
    pub cq: *mut sys::ibv_cq,
    send_cqs: Vec<*mut sys::ibv_cq>,
    /// Null when each QP has a receive queue.
    pub srq: *mut sys::ibv_srq,
    pub qps: Vec<*mut sys::ibv_qp>,
    peer_context: *mut sys::ibv_context,
    peer_pd: *mut sys::ibv_pd,
    peer_cq: *mut sys::ibv_cq,
    peers: Vec<*mut sys::ibv_qp>,
    mrs: Vec<*mut sys::ibv_mr>,
    source: sys::ibv_sge,
    target: u64,
    target_key: u32,
    lid: u16,
    mtu: sys::ibv_mtu,
}

/// Sets what libmlx5 reads from the environment when it creates CQs and QPs.
pub fn set_environment(large_cqe: bool, scatter_to_cqe: bool) {
    let set = |name, value| {
        // SAFETY: the program has one thread.
        unsafe { std::env::set_var(name, value) }
    };
    set("MLX5_CQE_SIZE", if large_cqe { "128" } else { "64" });
    set("MLX5_SCATTER_TO_CQE", if scatter_to_cqe { "1" } else { "0" });
}

impl Twin {
    /// `source` is what peers send from, `target` where they may write.
    pub fn new(name: &str, shape: &Shape, source: Region, target: Region) -> Self {
        set_environment(shape.large_cqe, shape.scatter_to_cqe);
        let device = Device::builder().name(name).stepped().strict(true).seed(1).build();
        let device = device.unwrap_or_else(|error| panic!("no device: {error}"));
        let (context, peer_context) = (verbs::open(name), verbs::open(name));
        // SAFETY: the contexts are open, and everything made from them is destroyed before they are
        // closed.
        unsafe {
            let pd = made(sys::ibv_alloc_pd(context), "ibv_alloc_pd");
            let peer_pd = made(sys::ibv_alloc_pd(peer_context), "ibv_alloc_pd");
            let channel = verbs::channel(context);
            let cq = |context, entries, channel| {
                let cq = sys::ibv_create_cq(context, entries, ptr::null_mut(), channel, 0);
                made(cq, "ibv_create_cq")
            };
            let none = ptr::null_mut();
            let mut twin = Self {
                channel,
                cq: cq(context, shape.cq_entries() as i32, channel),
                send_cqs: (0..shape.qps).map(|_| cq(context, 1, none)).collect(),
                srq: ptr::null_mut(),
                qps: Vec::new(),
                peer_cq: cq(peer_context, (SENDS * shape.qps) as i32, none),
                peers: Vec::new(),
                mrs: Vec::new(),
                source: sys::ibv_sge::default(),
                target: target.address(),
                target_key: 0,
                lid: verbs::lid(context),
                mtu: if shape.small_mtu { sys::IBV_MTU_256 } else { sys::IBV_MTU_1024 },
                device,
                context,
                pd,
                peer_context,
                peer_pd,
            };
            if shape.shared {
                let mut init = sys::ibv_srq_init_attr::default();
                (init.attr.max_wr, init.attr.max_sge) = (shape.max_wr, shape.max_sge);
                twin.srq = made(sys::ibv_create_srq(pd, &mut init), "ibv_create_srq");
            }
            for index in 0..shape.qps as usize {
                twin.add_pair(shape, index);
            }
            let key = twin.register(twin.peer_pd, source, 0);
            twin.source = sys::ibv_sge { addr: source.address(), length: 0, lkey: key };
            let access = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE;
            twin.target_key = twin.register(pd, target, access);
            for index in 0..shape.qps as usize {
                twin.connect(index);
            }
            twin
        }
    }

    /// # Safety
    /// Called once for each index, in order.
    unsafe fn add_pair(&mut self, shape: &Shape, index: usize) {
        // SAFETY: all objects named are alive.
        unsafe {
            let mut init = sys::ibv_qp_init_attr {
                send_cq: self.send_cqs[index],
                recv_cq: self.cq,
                srq: self.srq,
                qp_type: sys::IBV_QPT_RC,
                ..Default::default()
            };
            (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
            if !shape.shared {
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (shape.max_wr, shape.max_sge);
            }
            self.qps.push(made(sys::ibv_create_qp(self.pd, &mut init), "ibv_create_qp"));
            let mut init = sys::ibv_qp_init_attr {
                send_cq: self.peer_cq,
                recv_cq: self.peer_cq,
                qp_type: sys::IBV_QPT_RC,
                sq_sig_all: 1,
                ..Default::default()
            };
            (init.cap.max_send_wr, init.cap.max_send_sge) = (SENDS, 1);
            self.peers.push(made(sys::ibv_create_qp(self.peer_pd, &mut init), "ibv_create_qp"));
        }
    }

    fn register(&mut self, pd: *mut sys::ibv_pd, memory: Region, access: u32) -> u32 {
        let (start, len) = (memory.start().cast(), memory.len());
        // SAFETY: the domain is alive, and the memory outlives the twin.
        let mr = made(unsafe { sys::ibv_reg_mr(pd, start, len, access) }, "ibv_reg_mr");
        self.mrs.push(mr);
        // SAFETY: registered just now.
        unsafe { (*mr).lkey }
    }

    /// Registers memory for the queues under test; returns its local key.
    pub fn register_arena(&mut self, memory: Region, access: u32) -> u32 {
        self.register(self.pd, memory, access)
    }

    pub fn qp_num(&self, index: usize) -> u32 {
        // SAFETY: the QP is alive.
        unsafe { (*self.qps[index]).qp_num }
    }

    pub fn queues(&self) -> Queues {
        self.device.queues()
    }

    /// Takes QP `index`, which is in RESET, to INIT.
    pub fn to_init(&self, index: usize) {
        verbs::to_init(self.qps[index]);
    }

    /// Connects QP `index`, which is in RESET or INIT, with its peer, which is in RESET.
    fn connect(&self, index: usize) {
        self.to_init(index);
        self.go_on(index);
    }

    /// Connects QP `index`, which is in INIT, with its peer, which is in RESET.
    pub fn go_on(&self, index: usize) {
        let peer = self.peers[index];
        // SAFETY: the QP is alive.
        let peer_num = unsafe { (*peer).qp_num };
        verbs::to_init(peer);
        verbs::to_rtr(peer, self.qp_num(index), self.lid, self.mtu);
        verbs::to_rts(peer);
        verbs::to_rtr(self.qps[index], peer_num, self.lid, self.mtu);
    }

    pub fn fail(&self, index: usize) {
        verbs::to_state(self.qps[index], sys::IBV_QPS_ERR);
    }

    pub fn reset_peer(&self, index: usize) {
        verbs::to_state(self.peers[index], sys::IBV_QPS_RESET);
    }

    /// The index of the peer with this number.
    pub fn peer(&self, qp_num: u32) -> usize {
        // SAFETY: the QPs are alive.
        let found = self.peers.iter().position(|peer| unsafe { (**peer).qp_num } == qp_num);
        found.expect("a QP of ours")
    }

    /// Posts sends on a peer; returns how many it took.
    pub fn send(&self, index: usize, sends: &[Send]) -> usize {
        let at = |send: &Send| u64::from(send.length.wrapping_mul(37) % 2048);
        let mut sges: Vec<_> = sends
            .iter()
            .map(|send| sys::ibv_sge {
                addr: self.source.addr + at(send),
                length: send.length,
                lkey: self.source.lkey,
            })
            .collect();
        let mut wrs: Vec<_> = sends
            .iter()
            .zip(&mut sges)
            .enumerate()
            .map(|(number, (send, sge))| {
                let mut wr = sys::ibv_send_wr {
                    wr_id: number as u64,
                    sg_list: sge,
                    num_sge: i32::from(send.length > 0),
                    send_flags: if send.solicited { sys::IBV_SEND_SOLICITED } else { 0 },
                    ..Default::default()
                };
                match send.kind {
                    SendKind::Plain => wr.opcode = sys::IBV_WR_SEND,
                    SendKind::Immediate(imm) => {
                        wr.opcode = sys::IBV_WR_SEND_WITH_IMM;
                        wr.__bindgen_anon_1.imm_data = imm.to_be();
                    }
                    SendKind::WriteImmediate(imm) => {
                        wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
                        wr.__bindgen_anon_1.imm_data = imm.to_be();
                        wr.wr.rdma.remote_addr = self.target;
                        wr.wr.rdma.rkey = self.target_key;
                    }
                }
                wr
            })
            .collect();
        for index in 1..wrs.len() {
            wrs[index - 1].next = &raw mut wrs[index];
        }
        let mut bad = ptr::null_mut();
        let first = wrs.as_mut_ptr();
        // SAFETY: the peer is alive, and the list and what it names can be read.
        match unsafe { sys::ibv_post_send(self.peers[index], first, &mut bad) } {
            0 => wrs.len(),
            // SAFETY: `bad` is an element of the list.
            _ => unsafe { bad.offset_from(first) as usize },
        }
    }

    /// Lets the device work until there is nothing left to do, and once more when peers that found no
    /// receive try again. Returns the number of steps.
    pub fn work(&self) -> usize {
        let steps = self.device.settle();
        self.device.advance(RETRY);
        steps + self.device.settle()
    }

    /// What the peers' sends led to.
    pub fn poll_peers(&self) -> Vec<sys::ibv_wc> {
        verbs::poll(self.peer_cq, u32::MAX)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            for qp in self.qps.drain(..).chain(self.peers.drain(..)) {
                done(sys::ibv_destroy_qp(qp), "ibv_destroy_qp");
            }
            if !self.srq.is_null() {
                done(sys::ibv_destroy_srq(self.srq), "ibv_destroy_srq");
            }
            for cq in self.send_cqs.drain(..).chain([self.cq, self.peer_cq]) {
                done(sys::ibv_destroy_cq(cq), "ibv_destroy_cq");
            }
            done(sys::ibv_destroy_comp_channel(self.channel), "ibv_destroy_comp_channel");
            // Buffers that were posted to an SRQ stay registered: doorbell does not know when the program
            // destroys an SRQ that it did not make. Then the domain goes with its context.
            for mr in self.mrs.drain(..) {
                sys::ibv_dereg_mr(mr);
            }
            for pd in [self.pd, self.peer_pd] {
                sys::ibv_dealloc_pd(pd);
            }
            for context in [self.context, self.peer_context] {
                done(sys::ibv_close_device(context), "ibv_close_device");
            }
        }
    }
}

impl Shape {
    /// Receives that the queues take together at most.
    pub fn cq_entries(&self) -> u32 {
        if self.shared {
            return (self.max_wr + 1).next_power_of_two();
        }
        // libmlx5 makes no receive queue smaller than 64 bytes.
        self.max_wr.next_power_of_two().max(4) * self.qps
    }

    /// Buffers for a pool: as many as the queues can hold, and some more.
    pub fn buffers(&self) -> u32 {
        self.cq_entries() * self.max_sge.min(2) + 64
    }
}

/// What peers send: bytes that tell where they come from.
pub fn fill_source(memory: Region) {
    let bytes: Vec<u8> = (0..memory.len()).map(|at| (at * 167 / 16 + at) as u8).collect();
    memory.write(&bytes);
}

/// Bytes that peers send from.
pub const SOURCE: usize = 2048 + plan::LONGEST as usize;
