//! One of two equal sets of objects: a device, a tag-matching SRQ, and peers that send to it.
//!
//! Each has a command queue pair beside the one that libmlx5 keeps for itself: the twin of doorbell
//! changes the list through it, and that of libmlx5 has it for the sake of equal numbers.

use std::ptr;

use mlx5_wire::tmh::{Rvh, Tmh, TmhOpcode};
use rdma_core_sys as sys;
use soft_mlx5::Device;
use soft_mlx5::nic::inspect::Queues;

use super::plan::{Send, SendKind, Shape};
use crate::memory::Region;
use crate::twin::set_environment;
use crate::verbs::{self, done, made};

/// Sends that a peer can have outstanding, and receives for messages that end a rendezvous.
const SENDS: u32 = 256;
const FINS: u32 = 128;
const FIN: usize = Tmh::SIZE + Rvh::SIZE;

/// Headers that peers send: each stays until so many more were written.
const HEADER: usize = Tmh::SIZE + Rvh::SIZE;
pub const HEADERS: usize = 4096 * HEADER;

/// Longer than the RNR timer of the queues under test.
const RETRY: std::time::Duration = std::time::Duration::from_micros(50);

pub struct Twin {
    pub device: Device,
    pub context: *mut sys::ibv_context,
    pub pd: *mut sys::ibv_pd,
    pub cq: *mut sys::ibv_cq_ex,
    pub srq: *mut sys::ibv_srq,
    /// The command queue pair that libmlx5 made, as the device numbers it.
    pub hidden: u32,
    pub command: *mut sys::ibv_qp,
    /// List operations that libmlx5 lets be outstanding.
    pub max_post: u32,
    send_cq: *mut sys::ibv_cq,
    qps: Vec<*mut sys::ibv_qp>,
    peer_context: *mut sys::ibv_context,
    peer_pd: *mut sys::ibv_pd,
    peer_cq: *mut sys::ibv_cq,
    peers: Vec<*mut sys::ibv_qp>,
    mrs: Vec<*mut sys::ibv_mr>,
    source: (Region, u32),
    headers: (Region, u32),
    fins: (Region, u32),
    next_header: usize,
    lid: u16,
    mtu: sys::ibv_mtu,
}

/// What the CQ is asked to tell.
const WC_FLAGS: u32 =
    sys::IBV_WC_EX_WITH_BYTE_LEN | sys::IBV_WC_EX_WITH_QP_NUM | sys::IBV_WC_EX_WITH_TM_INFO;

impl Twin {
    /// Peers send from `source` and `headers`, and are told in `fins`.
    pub fn new(name: &str, shape: &Shape, [source, headers, fins]: [Region; 3]) -> Self {
        set_environment(shape.large_cqe, shape.scatter_to_cqe);
        let device = Device::builder().name(name).stepped().strict(true).seed(1).build();
        let device = device.unwrap_or_else(|error| panic!("no device: {error}"));
        let (context, peer_context) = (verbs::open(name), verbs::open(name));
        // SAFETY: the contexts are open, and everything made from them is destroyed before they are
        // closed.
        unsafe {
            let pd = made(sys::ibv_alloc_pd(context), "ibv_alloc_pd");
            let peer_pd = made(sys::ibv_alloc_pd(peer_context), "ibv_alloc_pd");
            let mut init = sys::ibv_cq_init_attr_ex {
                cqe: shape.cq_entries(),
                wc_flags: WC_FLAGS.into(),
                ..Default::default()
            };
            let cq = made(sys::ibv_create_cq_ex(context, &mut init), "ibv_create_cq_ex");
            let plain = |context, entries| {
                let none = ptr::null_mut();
                made(sys::ibv_create_cq(context, entries, none, none.cast(), 0), "ibv_create_cq")
            };
            let mut twin = Self {
                cq,
                srq: create_srq(context, pd, cq, shape),
                hidden: 0,
                command: ptr::null_mut(),
                max_post: 0,
                send_cq: plain(context, 1),
                qps: Vec::new(),
                peer_cq: plain(peer_context, ((SENDS + FINS) * shape.qps) as i32),
                peers: Vec::new(),
                mrs: Vec::new(),
                source: (source, 0),
                headers: (headers, 0),
                fins: (fins, 0),
                next_header: 0,
                lid: verbs::lid(context),
                mtu: if shape.small_mtu { sys::IBV_MTU_256 } else { sys::IBV_MTU_1024 },
                device,
                context,
                pd,
                peer_context,
                peer_pd,
            };
            // So far there is one queue pair, and nobody has asked for it.
            let [hidden] = &twin.queues().qps[..] else { panic!("one queue pair") };
            twin.hidden = hidden.number;
            twin.command = twin.qp_on_list(twin.cq.cast(), shape.max_ops);
            for _ in 0..shape.qps {
                // Without a send queue of its own: the device reads rendezvous with it.
                let qp = twin.qp_on_list(twin.send_cq, 0);
                twin.qps.push(qp);
            }
            for _ in 0..shape.qps {
                let mut init = sys::ibv_qp_init_attr {
                    send_cq: twin.peer_cq,
                    recv_cq: twin.peer_cq,
                    qp_type: sys::IBV_QPT_RC,
                    sq_sig_all: 1,
                    ..Default::default()
                };
                (init.cap.max_send_wr, init.cap.max_send_sge) = (SENDS, 2);
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (FINS, 1);
                twin.peers.push(made(sys::ibv_create_qp(peer_pd, &mut init), "ibv_create_qp"));
            }
            twin.source.1 = twin.register(peer_pd, source, sys::IBV_ACCESS_REMOTE_READ);
            twin.headers.1 = twin.register(peer_pd, headers, 0);
            twin.fins.1 = twin.register(peer_pd, fins, sys::IBV_ACCESS_LOCAL_WRITE);
            let (number, lid, mtu) = (twin.number(twin.command), twin.lid, twin.mtu);
            verbs::to_init(twin.command);
            verbs::to_rtr(twin.command, number, lid, mtu);
            verbs::to_rts(twin.command);
            for index in 0..shape.qps as usize {
                verbs::to_init(twin.qps[index]);
                twin.connect(index);
            }
            twin
        }
    }

    /// A QP that receives with the SRQ.
    fn qp_on_list(&mut self, cq: *mut sys::ibv_cq, max_send_wr: u32) -> *mut sys::ibv_qp {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            srq: self.srq,
            qp_type: sys::IBV_QPT_RC,
            ..Default::default()
        };
        (init.cap.max_send_wr, init.cap.max_send_sge) = (max_send_wr, 1);
        // SAFETY: all objects named are alive.
        let qp = made(unsafe { sys::ibv_create_qp(self.pd, &mut init) }, "ibv_create_qp");
        self.max_post = self.max_post.max(init.cap.max_send_wr);
        qp
    }

    fn register(&mut self, pd: *mut sys::ibv_pd, memory: Region, access: u32) -> u32 {
        let (start, len) = (memory.start().cast(), memory.len());
        // SAFETY: the domain is alive, and the memory outlives the twin.
        let mr = made(unsafe { sys::ibv_reg_mr(pd, start, len, access) }, "ibv_reg_mr");
        self.mrs.push(mr);
        // SAFETY: registered just now; lkey and rkey are equal.
        unsafe { (*mr).lkey }
    }

    /// Registers memory for the queues under test; returns its local key.
    pub fn register_arena(&mut self, memory: Region) -> u32 {
        self.register(self.pd, memory, sys::IBV_ACCESS_LOCAL_WRITE)
    }

    pub fn number(&self, qp: *mut sys::ibv_qp) -> u32 {
        // SAFETY: the callers' QPs are alive.
        unsafe { (*qp).qp_num }
    }

    pub fn queues(&self) -> Queues {
        self.device.queues()
    }

    /// Connects QP `index`, which is in INIT, with its peer, which is in RESET.
    fn connect(&self, index: usize) {
        let (qp, peer) = (self.qps[index], self.peers[index]);
        verbs::to_init(peer);
        (0..FINS).for_each(|_| self.post_fin(peer));
        verbs::to_rtr(peer, self.number(qp), self.lid, self.mtu);
        verbs::to_rts(peer);
        verbs::to_rtr(qp, self.number(peer), self.lid, self.mtu);
        // The device sends on it by itself.
        verbs::to_rts(qp);
    }

    /// A receive for the end of a rendezvous.
    fn post_fin(&self, peer: *mut sys::ibv_qp) {
        let (fins, key) = self.fins;
        let mut sge = sys::ibv_sge { addr: fins.address(), length: FIN as u32, lkey: key };
        let mut wr = sys::ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: the peer is alive, and the list and what it names are too.
        done(unsafe { sys::ibv_post_recv(peer, &mut wr, &mut ptr::null_mut()) }, "ibv_post_recv");
    }

    pub fn fail(&self, index: usize) {
        verbs::to_state(self.qps[index], sys::IBV_QPS_ERR);
    }

    /// A QP and its peer start anew.
    pub fn reset(&self, index: usize) {
        verbs::to_state(self.qps[index], sys::IBV_QPS_RESET);
        verbs::to_init(self.qps[index]);
        verbs::to_state(self.peers[index], sys::IBV_QPS_RESET);
        self.connect(index);
    }

    /// The index of the peer with this number.
    pub fn peer(&self, qp_num: u32) -> usize {
        let found = self.peers.iter().position(|peer| self.number(*peer) == qp_num);
        found.expect("a QP of ours")
    }

    /// Posts messages on a peer; returns how many it took.
    pub fn send(&mut self, index: usize, sends: &[Send]) -> usize {
        for (number, send) in sends.iter().enumerate() {
            let at = self.next_header % HEADERS;
            let (headers, key) = self.headers;
            let (source, source_key) = self.source;
            let (bytes, payload) = header(send, source.address(), source_key);
            headers.write_at(at, &bytes);
            let mut sges = [
                sys::ibv_sge {
                    addr: headers.address() + at as u64,
                    length: bytes.len() as u32,
                    lkey: key,
                },
                sys::ibv_sge { addr: source.address(), length: payload, lkey: source_key },
            ];
            let mut wr = sys::ibv_send_wr {
                wr_id: number as u64,
                sg_list: sges.as_mut_ptr(),
                num_sge: 1 + i32::from(payload > 0),
                opcode: sys::IBV_WR_SEND,
                ..Default::default()
            };
            // SAFETY: the peer is alive, and the list and what it names can be read.
            let errno =
                unsafe { sys::ibv_post_send(self.peers[index], &mut wr, &mut ptr::null_mut()) };
            if errno != 0 {
                return number;
            }
            self.next_header += HEADER;
        }
        sends.len()
    }

    /// Lets the device work until there is nothing left to do, and once more when peers that found no
    /// receive try again. Returns the number of steps.
    pub fn work(&self) -> usize {
        let steps = self.device.settle();
        self.device.advance(RETRY);
        steps + self.device.settle()
    }

    /// What the peers' sends led to, and what they were told.
    pub fn poll_peers(&self) -> Vec<sys::ibv_wc> {
        let completions = verbs::poll(self.peer_cq, u32::MAX);
        for wc in &completions {
            if wc.status == sys::IBV_WC_SUCCESS && wc.opcode == sys::IBV_WC_RECV {
                self.post_fin(self.peers[self.peer(wc.qp_num)]);
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
    let tmh = Tmh {
        opcode: opcode.byte(),
        app_ctx: send.context.into(),
        tag: send.tag.into(),
        ..Tmh::zeroed()
    };
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
    // SAFETY: the caller's contract.
    made(unsafe { sys::ibv_create_srq_ex(context, &mut init) }, "ibv_create_srq_ex")
}

impl Drop for Twin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            let commands = [self.command].into_iter();
            for qp in commands.chain(self.qps.drain(..)).chain(self.peers.drain(..)) {
                done(sys::ibv_destroy_qp(qp), "ibv_destroy_qp");
            }
            done(sys::ibv_destroy_srq(self.srq), "ibv_destroy_srq");
            for cq in [self.cq.cast(), self.send_cq, self.peer_cq] {
                done(sys::ibv_destroy_cq(cq), "ibv_destroy_cq");
            }
            for mr in self.mrs.drain(..) {
                done(sys::ibv_dereg_mr(mr), "ibv_dereg_mr");
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
    /// Receives, and for each tag and each operation what it can complete with.
    fn cq_entries(&self) -> u32 {
        self.slots + 4 * (u32::from(self.tags) + 1) + 8 * self.max_ops + 64
    }
}
