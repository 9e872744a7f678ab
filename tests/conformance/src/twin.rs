//! One of two equal sets of objects: a device, the queues under test, and peers that send to them.
//!
//! Both twins are made by the same code with libibverbs, in the same order, so that their devices give
//! out the same numbers and keys.

use std::ptr;

use rdma_core_sys as sys;

use crate::base::{self, Base};
use crate::memory::Region;
use crate::plan::{Send, SendKind, Shape};
use crate::twins;
use crate::verbs::{self, done, made};

/// Sends that a peer can have outstanding.
const SENDS: u32 = 512;

pub struct Twin {
    pub base: Base,
    pub channel: *mut sys::ibv_comp_channel,
    pub cq: *mut sys::ibv_cq,
    send_cqs: Vec<*mut sys::ibv_cq>,
    /// Null when each QP has a receive queue.
    pub srq: *mut sys::ibv_srq,
    source: sys::ibv_sge,
    target: u64,
    target_key: u32,
}

/// Queues that receives are posted to, and CQs that are polled.
#[derive(Clone)]
pub struct Objects {
    pub channel: *mut sys::ibv_comp_channel,
    pub cq: *mut sys::ibv_cq,
    /// Null when each QP has a receive queue.
    pub srq: *mut sys::ibv_srq,
    pub qps: Vec<*mut sys::ibv_qp>,
}

impl Twin {
    pub fn objects(&self) -> Objects {
        let Self { channel, cq, srq, ref base, .. } = *self;
        Objects { channel, cq, srq, qps: base.qps.clone() }
    }

    /// Peers send from `source`, and may write to `target`.
    pub fn new(name: &str, shape: &Shape, source: Region, target: Region) -> Self {
        let base = Base::new(name, &shape.settings);
        // SAFETY: the context is open, and everything made from it is destroyed before it is closed.
        unsafe {
            let channel = verbs::channel(base.context);
            let cq = base::cq(base.context, shape.cq_entries(), channel);
            let none = ptr::null_mut();
            let send_cqs = (0..shape.qps).map(|_| base::cq(base.context, 1, none)).collect();
            let srq = if shape.shared {
                let mut init = sys::ibv_srq_init_attr::default();
                (init.attr.max_wr, init.attr.max_sge) = (shape.max_wr, shape.max_sge);
                made(sys::ibv_create_srq(base.pd, &mut init), "ibv_create_srq")
            } else {
                ptr::null_mut()
            };
            let mut twin = Self {
                channel,
                cq,
                send_cqs,
                srq,
                source: sys::ibv_sge::default(),
                target: target.address(),
                target_key: 0,
                base,
            };
            for index in 0..shape.qps as usize {
                twin.add(shape, index);
            }
            let base = &mut twin.base;
            let cap = sys::ibv_qp_cap { max_send_wr: SENDS, max_send_sge: 1, ..Default::default() };
            base.add_peers(shape.qps, cap);
            let source_key = base.register(base.peer_pd, source, 0);
            twin.source = sys::ibv_sge { addr: source.address(), length: 0, lkey: source_key };
            let access = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE;
            twin.target_key = twin.base.register_arena(target, access);
            for index in 0..shape.qps as usize {
                twin.go_on(index);
            }
            twin
        }
    }

    fn add(&mut self, shape: &Shape, index: usize) {
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
        let qp = self.base.create(&mut init);
        self.base.qps.push(qp);
    }

    /// Connects QP `index`, which is in RESET or INIT, with its peer, which is in RESET. doorbell resets a QP to INIT
    /// without remote access.
    pub fn go_on(&self, index: usize) {
        for qp in [self.base.qps[index], self.base.peers[index]] {
            verbs::to(qp, &[sys::IBV_QPS_INIT]);
        }
        self.base.connect(index);
    }

    pub fn reset_peer(&self, index: usize) {
        verbs::to(self.base.peers[index], &[sys::IBV_QPS_RESET]);
    }
}

impl twins::Twin for Twin {
    type Send = Send;

    fn base(&self) -> &Base {
        &self.base
    }

    fn send(&mut self, index: usize, sends: &[Send]) -> usize {
        let at = |send: &Send| u64::from(send.length.wrapping_mul(37) % 2048);
        let mut sges: Vec<_> = sends
            .iter()
            .map(|send| sys::ibv_sge { addr: self.source.addr + at(send), length: send.length, lkey: self.source.lkey })
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
        // SAFETY: the peer is alive, and the list and the memory that it names can be read.
        let post = |first, bad: &mut _| unsafe { sys::ibv_post_send(self.base.peers[index], first, bad) };
        verbs::post_list(&mut wrs, |wr| &mut wr.next, post).0
    }

    fn poll_peers(&mut self) -> Vec<sys::ibv_wc> {
        verbs::poll(self.base.peer_cq, u32::MAX)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.base.destroy_qps();
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            if !self.srq.is_null() {
                done(sys::ibv_destroy_srq(self.srq), "ibv_destroy_srq");
            }
            for cq in self.send_cqs.drain(..).chain([self.cq]) {
                done(sys::ibv_destroy_cq(cq), "ibv_destroy_cq");
            }
            done(sys::ibv_destroy_comp_channel(self.channel), "ibv_destroy_comp_channel");
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
