//! The base of a twin of each kind: a device, and QPs under test that are connected with peers.

use std::ptr;
use std::time::Duration;

use rdma_core_sys as sys;
use soft_mlx5::Device;
use soft_mlx5::engine::inspect::Queues;

use crate::library;
use crate::memory::Region;
use crate::sequence::Settings;
use crate::verbs::{self, done, made};

/// Longer than the RNR timer of the queues under test.
const RETRY: Duration = Duration::from_micros(50);

pub struct Base {
    pub device: Device,
    pub context: *mut sys::ibv_context,
    pub pd: *mut sys::ibv_pd,
    pub qps: Vec<*mut sys::ibv_qp>,
    peer_context: *mut sys::ibv_context,
    pub peer_pd: *mut sys::ibv_pd,
    pub peer_cq: *mut sys::ibv_cq,
    pub peers: Vec<*mut sys::ibv_qp>,
    mrs: Vec<*mut sys::ibv_mr>,
    dms: Vec<*mut sys::ibv_dm>,
    pub lid: u16,
    mtu: sys::ibv_mtu,
}

impl Base {
    /// Without QPs so far.
    pub fn new(name: &str, settings: &Settings) -> Self {
        set_environment(settings);
        let device = Device::builder().name(name).stepped().strict(true).seed(1).build();
        let device = device.unwrap_or_else(|error| panic!("no device: {error}"));
        let (context, peer_context) = (verbs::open(name), verbs::open(name));
        // SAFETY: the contexts are open, and everything made from them is destroyed before they are closed.
        unsafe {
            Self {
                device,
                context,
                pd: made(sys::ibv_alloc_pd(context), "ibv_alloc_pd"),
                qps: Vec::new(),
                peer_context,
                peer_pd: made(sys::ibv_alloc_pd(peer_context), "ibv_alloc_pd"),
                peer_cq: ptr::null_mut(),
                peers: Vec::new(),
                mrs: Vec::new(),
                dms: Vec::new(),
                lid: verbs::lid(context),
                mtu: if settings.small_mtu { sys::IBV_MTU_256 } else { sys::IBV_MTU_1024 },
            }
        }
    }

    /// Makes a QP beside the peers.
    pub fn create(&self, init: &mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp {
        // SAFETY: all objects named are alive.
        made(unsafe { sys::ibv_create_qp(self.pd, init) }, "ibv_create_qp")
    }

    /// Adds `count` peers, each with the capabilities `cap`. The objects under test exist already: their CQ is the
    /// first one.
    pub fn add_peers(&mut self, count: u32, cap: sys::ibv_qp_cap) {
        self.add_peers_of(sys::IBV_QPT_RC, count, cap);
    }

    /// As [`add_peers`](Self::add_peers), of another type.
    pub fn add_peers_of(&mut self, qp_type: sys::ibv_qp_type, count: u32, cap: sys::ibv_qp_cap) {
        let entries = (cap.max_send_wr + cap.max_recv_wr) * count;
        // SAFETY: the context is open.
        self.peer_cq = unsafe { cq(self.peer_context, entries, ptr::null_mut()) };
        for _ in 0..count {
            let mut init = sys::ibv_qp_init_attr {
                send_cq: self.peer_cq,
                recv_cq: self.peer_cq,
                qp_type,
                sq_sig_all: 1,
                cap,
                ..Default::default()
            };
            // SAFETY: all objects named are alive.
            let peer = unsafe { sys::ibv_create_qp(self.peer_pd, &mut init) };
            self.peers.push(made(peer, "ibv_create_qp"));
        }
    }

    /// Registers memory; returns its key, which is local and remote.
    pub fn register(&mut self, pd: *mut sys::ibv_pd, memory: Region, access: u32) -> u32 {
        let (start, len) = (memory.start().cast(), memory.len());
        // SAFETY: the domain is alive, and the memory outlives the twin.
        self.keep(made(unsafe { sys::ibv_reg_mr(pd, start, len, access) }, "ibv_reg_mr"))
    }

    /// Keeps a region that was registered just now; returns its key.
    pub fn keep(&mut self, mr: *mut sys::ibv_mr) -> u32 {
        self.mrs.push(mr);
        // SAFETY: registered just now; lkey and rkey are equal.
        unsafe { (*mr).lkey }
    }

    /// Returns the region with this key.
    pub fn region(&self, key: u32) -> *mut sys::ibv_mr {
        // SAFETY: all are registered.
        *self.mrs.iter().find(|mr| unsafe { (***mr).lkey } == key).expect("a region of ours")
    }

    /// Allocates memory of the adapter.
    pub fn alloc_dm(&mut self, pd: *mut sys::ibv_pd, length: usize) -> *mut sys::ibv_dm {
        let mut attr = sys::ibv_alloc_dm_attr { length, log_align_req: 0, comp_mask: 0 };
        // SAFETY: the domain is alive, and so is its context.
        let dm = made(unsafe { sys::ibv_alloc_dm((*pd).context, &mut attr) }, "ibv_alloc_dm");
        self.dms.push(dm);
        dm
    }

    /// Registers memory for the queues under test.
    pub fn register_arena(&mut self, memory: Region, access: u32) -> u32 {
        self.register(self.pd, memory, access)
    }

    pub fn number(&self, qp: *mut sys::ibv_qp) -> u32 {
        // SAFETY: the callers' QPs are alive.
        unsafe { (*qp).qp_num }
    }

    pub fn qp_num(&self, index: usize) -> u32 {
        self.number(self.qps[index])
    }

    pub fn queues(&self) -> Queues {
        self.device.queues()
    }

    /// Takes a QP in INIT to RTR.
    pub fn to_rtr(&self, qp: *mut sys::ibv_qp, peer: *mut sys::ibv_qp) {
        let (path_mtu, dest_qp_num) = (self.mtu, self.number(peer));
        let mut attr = sys::ibv_qp_attr { path_mtu, dest_qp_num, ..Default::default() };
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (self.lid, 1);
        verbs::connect(qp, &[sys::IBV_QPS_RTR], attr);
    }

    /// Connects QP `index` with its peer, both of which are in INIT. The QP can receive then.
    pub fn connect(&self, index: usize) {
        let (qp, peer) = (self.qps[index], self.peers[index]);
        self.to_rtr(peer, qp);
        verbs::to(peer, &[sys::IBV_QPS_RTS]);
        self.to_rtr(qp, peer);
    }

    pub fn fail(&self, index: usize) {
        verbs::to(self.qps[index], &[sys::IBV_QPS_ERR]);
    }

    /// The index of the peer with this number.
    pub fn peer(&self, qp_num: u32) -> usize {
        let found = self.peers.iter().position(|peer| self.number(*peer) == qp_num);
        found.expect("a QP of ours")
    }

    /// Lets the device work until there is nothing left to do, and again when peers that found no receive
    /// try again. Returns the number of steps.
    pub fn work(&self) -> usize {
        let steps = self.device.settle();
        self.device.advance(RETRY);
        steps + self.device.settle()
    }

    /// Destroys the QPs, so that the objects that they use can be destroyed.
    pub fn destroy_qps(&mut self) {
        for qp in self.qps.drain(..).chain(self.peers.drain(..)) {
            // SAFETY: made by `create` or `add_peers`, destroyed once.
            done(unsafe { sys::ibv_destroy_qp(qp) }, "ibv_destroy_qp");
        }
    }
}

/// Makes a CQ, with a channel or without.
///
/// # Safety
/// The context is open, and the channel one of it or null.
pub unsafe fn cq(
    context: *mut sys::ibv_context,
    entries: u32,
    channel: *mut sys::ibv_comp_channel,
) -> *mut sys::ibv_cq {
    // SAFETY: "the context is open, and the channel one of it or null".
    let cq = unsafe { sys::ibv_create_cq(context, entries as i32, ptr::null_mut(), channel, 0) };
    made(cq, "ibv_create_cq")
}

/// Sets the environment variables that libmlx5 reads when it creates CQs and QPs.
fn set_environment(settings: &Settings) {
    let set = |name, value| {
        // SAFETY: the program has one thread.
        unsafe { std::env::set_var(name, value) }
    };
    set("MLX5_CQE_SIZE", if settings.large_cqe { "128" } else { "64" });
    let is_drop_ins = library::is_dropped_in() && !library::is_being_made();
    if is_drop_ins && !settings.scatter_to_cqe {
        // The drop-in creates queue pairs without payload in CQEs by itself.
        // SAFETY: as above.
        unsafe { std::env::remove_var("MLX5_SCATTER_TO_CQE") }
    } else {
        set("MLX5_SCATTER_TO_CQE", if settings.scatter_to_cqe { "1" } else { "0" });
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            done(sys::ibv_destroy_cq(self.peer_cq), "ibv_destroy_cq");
            // Buffers that were posted to an SRQ stay registered: doorbell does not know when the program
            // destroys an SRQ that doorbell did not make. Then closing the context frees the domain.
            for mr in self.mrs.drain(..) {
                sys::ibv_dereg_mr(mr);
            }
            for dm in self.dms.drain(..) {
                done(sys::ibv_free_dm(dm), "ibv_free_dm");
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
