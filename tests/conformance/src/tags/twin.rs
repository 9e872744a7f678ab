//! One of two equal sets of objects: a device, a tag-matching SRQ, and peers that send to it.
//!
//! Each has a command queue pair besides the hidden one of libmlx5. The twin of doorbell changes the list
//! through it; the twin of libmlx5 has it for the sake of equal numbers.

use std::ptr;

use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};
use rdma_core_sys as sys;

use super::plan::{Send, SendKind, Shape};
use crate::base::{self, Base};
use crate::memory::Region;
use crate::sizes::{HEADER, HEADERS};
use crate::twin::Objects;
use crate::twins;
use crate::verbs::{self, done, made};

/// Sends that a peer can have outstanding, and receives for messages that end a rendezvous.
const SENDS: u32 = 256;
const FINS: u32 = 128;
const FIN: usize = Tmh::SIZE + Rvh::SIZE;

pub struct Twin {
    pub base: Base,
    pub cq: *mut sys::ibv_cq_ex,
    pub srq: *mut sys::ibv_srq,
    /// The command queue pair that libmlx5 made, as the device numbers it.
    pub hidden: u32,
    pub command: *mut sys::ibv_qp,
    /// List operations that libmlx5 lets be outstanding.
    pub max_post: u32,
    send_cq: *mut sys::ibv_cq,
    source: (Region, u32),
    headers: (Region, u32),
    fins: (Region, u32),
    next_header: usize,
}

/// Fields that the CQ reports.
const WC_FLAGS: u32 = sys::IBV_WC_EX_WITH_BYTE_LEN | sys::IBV_WC_EX_WITH_QP_NUM | sys::IBV_WC_EX_WITH_TM_INFO;

impl Twin {
    /// Peers send from `source` and `headers`, and get their FINs in `fins`.
    pub fn new(name: &str, shape: &Shape, [source, headers, fins]: [Region; 3]) -> Self {
        let mut base = Base::new(name, &shape.settings);
        let register = |base: &mut Base, memory, access| (memory, base.register(base.peer_pd, memory, access));
        // SAFETY: the context is open, and everything made from it is destroyed before it is closed.
        let (cq, srq, send_cq) = unsafe {
            let mut init =
                sys::ibv_cq_init_attr_ex { cqe: shape.cq_entries(), wc_flags: WC_FLAGS.into(), ..Default::default() };
            let cq = made(sys::ibv_create_cq_ex(base.context, &mut init), "ibv_create_cq_ex");
            let srq = create_srq(base.context, base.pd, cq, shape);
            (cq, srq, base::cq(base.context, 1, ptr::null_mut()))
        };
        // So far there is one queue pair, which libmlx5 made by itself.
        let [hidden] = &base.queues().qps[..] else { panic!("one queue pair") };
        let hidden = hidden.number;
        // List operations are posted to the first one. The others have no send queue for the program: the device
        // uses it to read rendezvous.
        let mut max_post = 0;
        let mut on_list = |cq, max_send_wr| {
            let mut init =
                sys::ibv_qp_init_attr { send_cq: cq, recv_cq: cq, srq, qp_type: sys::IBV_QPT_RC, ..Default::default() };
            (init.cap.max_send_wr, init.cap.max_send_sge) = (max_send_wr, 1);
            let qp = base.create(&mut init);
            max_post = max_post.max(init.cap.max_send_wr);
            qp
        };
        let command = on_list(cq.cast(), shape.max_ops);
        let qps: Vec<_> = (0..shape.qps).map(|_| on_list(send_cq, 0)).collect();
        base.qps = qps;
        let cap = sys::ibv_qp_cap {
            max_send_wr: SENDS,
            max_send_sge: 2,
            max_recv_wr: FINS,
            max_recv_sge: 1,
            ..Default::default()
        };
        base.add_peers(shape.qps, cap);
        let source = register(&mut base, source, sys::IBV_ACCESS_REMOTE_READ);
        let headers = register(&mut base, headers, 0);
        let fins = register(&mut base, fins, sys::IBV_ACCESS_LOCAL_WRITE);
        verbs::to(command, &[sys::IBV_QPS_INIT]);
        base.to_rtr(command, command);
        verbs::to(command, &[sys::IBV_QPS_RTS]);
        let twin = Self { base, cq, srq, hidden, command, max_post, send_cq, source, headers, fins, next_header: 0 };
        for index in 0..shape.qps as usize {
            verbs::to(twin.base.qps[index], &[sys::IBV_QPS_INIT]);
            twin.connect(index);
        }
        twin
    }

    pub fn objects(&self) -> Objects {
        let (channel, cq) = (ptr::null_mut(), self.cq.cast());
        Objects { channel, cq, srq: self.srq, qps: Vec::new() }
    }

    /// Connects QP `index`, which is in INIT, with its peer, which is in RESET.
    fn connect(&self, index: usize) {
        let peer = self.base.peers[index];
        verbs::to(peer, &[sys::IBV_QPS_INIT]);
        (0..FINS).for_each(|_| self.post_fin(peer));
        self.base.connect(index);
        // The device sends on this queue pair by itself.
        verbs::to(self.base.qps[index], &[sys::IBV_QPS_RTS]);
    }

    /// A receive for the end of a rendezvous.
    fn post_fin(&self, peer: *mut sys::ibv_qp) {
        let (fins, key) = self.fins;
        let mut sge = sys::ibv_sge { addr: fins.address(), length: FIN as u32, lkey: key };
        let mut wr = sys::ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: the peer is alive, and so are the list and the memory that it names.
        done(unsafe { sys::ibv_post_recv(peer, &mut wr, &mut ptr::null_mut()) }, "ibv_post_recv");
    }

    /// A QP and its peer are reset and connected.
    pub fn reset(&self, index: usize) {
        verbs::to(self.base.qps[index], &[sys::IBV_QPS_RESET, sys::IBV_QPS_INIT]);
        verbs::to(self.base.peers[index], &[sys::IBV_QPS_RESET]);
        self.connect(index);
    }
}

impl twins::Twin for Twin {
    type Send = Send;

    fn base(&self) -> &Base {
        &self.base
    }

    fn send(&mut self, index: usize, sends: &[Send]) -> usize {
        for (number, send) in sends.iter().enumerate() {
            let at = self.next_header % HEADERS;
            let (headers, key) = self.headers;
            let (source, source_key) = self.source;
            let (bytes, payload) = header(send, source.address(), source_key);
            headers.write_at(at, &bytes);
            let mut sges = [
                sys::ibv_sge { addr: headers.address() + at as u64, length: bytes.len() as u32, lkey: key },
                sys::ibv_sge { addr: source.address(), length: payload, lkey: source_key },
            ];
            let mut wr = sys::ibv_send_wr {
                wr_id: number as u64,
                sg_list: sges.as_mut_ptr(),
                num_sge: 1 + i32::from(payload > 0),
                opcode: sys::IBV_WR_SEND,
                ..Default::default()
            };
            // SAFETY: the peer is alive, and the list and the memory that it names can be read.
            let errno = unsafe { sys::ibv_post_send(self.base.peers[index], &mut wr, &mut ptr::null_mut()) };
            if errno != 0 {
                return number;
            }
            self.next_header += HEADER;
        }
        sends.len()
    }

    fn poll_peers(&mut self) -> Vec<sys::ibv_wc> {
        let completions = verbs::poll(self.base.peer_cq, u32::MAX);
        for wc in &completions {
            if wc.status == sys::IBV_WC_SUCCESS && wc.opcode == sys::IBV_WC_RECV {
                self.post_fin(self.base.peers[self.base.peer(wc.qp_num)]);
            }
        }
        completions
    }
}

/// The header of a message, and how many bytes of payload follow it.
fn header(send: &Send, source: u64, key: u32) -> (Vec<u8>, u32) {
    let opcode = match send.kind {
        SendKind::Eager => TmhOpcode::Eager,
        SendKind::Rendezvous | SendKind::Wild => TmhOpcode::Rendezvous,
        SendKind::NoTag | SendKind::Malformed => TmhOpcode::NoTag,
    };
    let tmh = Tmh { opcode: opcode.byte(), app_ctx: send.context.into(), tag: send.tag.into(), ..Tmh::zeroed() };
    let mut bytes = tmh.to_bytes().to_vec();
    let rkey = if send.kind == SendKind::Wild { !key } else { key };
    let rvh = Rvh { va: source.into(), rkey: rkey.into(), len: send.length.into() };
    match send.kind {
        SendKind::Rendezvous | SendKind::Wild => {
            bytes.extend(rvh.to_bytes());
            return (bytes, 0);
        }
        SendKind::Malformed => {
            bytes.truncate(Tmh::SIZE / 2);
            return (bytes, 0);
        }
        SendKind::Eager | SendKind::NoTag => {}
    }
    (bytes, send.length)
}

/// # Safety
/// All objects are alive.
unsafe fn create_srq(
    context: *mut sys::ibv_context,
    pd: *mut sys::ibv_pd,
    cq: *mut sys::ibv_cq_ex,
    shape: &Shape,
) -> *mut sys::ibv_srq {
    let mut init = sys::ibv_srq_init_attr_ex {
        comp_mask: sys::IBV_SRQ_INIT_ATTR_TYPE
            | sys::IBV_SRQ_INIT_ATTR_PD
            | sys::IBV_SRQ_INIT_ATTR_CQ
            | sys::IBV_SRQ_INIT_ATTR_TM,
        srq_type: sys::IBV_SRQT_TM,
        pd,
        cq: cq.cast(),
        tm_cap: sys::ibv_tm_cap { max_num_tags: shape.tags.into(), max_ops: shape.max_ops },
        ..Default::default()
    };
    (init.attr.max_wr, init.attr.max_sge) = (shape.slots, 1);
    // SAFETY: all objects are alive, and the attributes are valid.
    made(unsafe { sys::ibv_create_srq_ex(context, &mut init) }, "ibv_create_srq_ex")
}

impl Drop for Twin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.base.destroy_qps();
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            done(sys::ibv_destroy_qp(self.command), "ibv_destroy_qp");
            done(sys::ibv_destroy_srq(self.srq), "ibv_destroy_srq");
            for cq in [self.cq.cast(), self.send_cq] {
                done(sys::ibv_destroy_cq(cq), "ibv_destroy_cq");
            }
        }
    }
}

impl Shape {
    /// Entries for the receives, and for all completions of each tag and each operation.
    fn cq_entries(&self) -> u32 {
        self.slots + 4 * (u32::from(self.tags) + 1) + 8 * self.max_ops + 64
    }
}
