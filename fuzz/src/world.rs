//! A stepped device and queues on it that a fuzzer's program writes to by itself.

use std::ffi::CStr;
use std::ptr;

use rdma_core_sys::*;
use soft_mlx5::{Builder, Device};

use crate::memory::{ARENA, Arena};
use crate::qp_states;

/// The first bytes of the arena are registered; the rest must never change.
const REGISTERED: usize = 64 << 10;
/// Key of a new queue's datagrams.
const QKEY: u32 = 0x1111;
/// Slots of a send queue, at least, and of a receive queue.
const WRS: u32 = 16;
const TAGS: u32 = 4;

const ACCESS: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Kind of the queues of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
    /// Reliable connections with a shared receive queue.
    Shared,
    /// Reliable connections with tag matching.
    Tags,
}

impl Scene {
    /// Takes any byte.
    pub fn from_byte(byte: u8) -> Self {
        let all = [Self::Rc, Self::Uc, Self::Ud, Self::Shared, Self::Tags];
        all[usize::from(byte) % all.len()]
    }
}

/// A device, and the objects of all scenes.
pub struct World {
    /// The device.
    pub device: Device,
    /// Registered at its beginning.
    pub arena: Arena,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    // No completions are taken, so overruns are ignored.
    cq: *mut ibv_cq,
    lid: u16,
}

// SAFETY: fuzz targets have one thread.
unsafe impl Sync for World {}
// SAFETY: fuzz targets have one thread, which makes and uses the world.
unsafe impl Send for World {}

fn some<T>(made: *mut T) -> *mut T {
    assert!(!made.is_null(), "{}", std::io::Error::last_os_error());
    made
}

impl World {
    /// Powers a stepped device up and opens it.
    pub fn new(builder: Builder) -> Self {
        let device = builder.stepped().build().expect("a stepped device");
        let arena = Arena::new();
        // SAFETY: live objects and initialised structures; none is destroyed before the process ends.
        unsafe {
            let list = some(ibv_get_device_list(ptr::null_mut()));
            let mut devices = (0..).map(|i| *list.add(i)).take_while(|device| !device.is_null());
            let is_ours =
                |found: &*mut ibv_device| CStr::from_ptr(ibv_get_device_name(*found)).to_str() == Ok(device.name());
            let context = some(ibv_open_device(devices.find(is_ours).expect("the device")));
            ibv_free_device_list(list);
            let pd = some(ibv_alloc_pd(context));
            let mr = some(ibv_reg_mr(pd, ARENA as *mut _, REGISTERED, ACCESS));
            let mut attr = ibv_cq_init_attr_ex {
                cqe: 1023,
                comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
                flags: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
                ..Default::default()
            };
            let cq = some(ibv_cq_ex_to_cq(some(ibv_create_cq_ex(context, &mut attr))));
            let mut port = ibv_port_attr::default();
            assert_eq!(ibv_query_port(context, 1, &mut port), 0);
            Self { device, arena, context, pd, mr, cq, lid: port.lid }
        }
    }

    /// Key of the registered memory, local and remote.
    pub fn key(&self) -> u32 {
        // SAFETY: the MR is alive.
        unsafe { (*self.mr).lkey }
    }

    /// LID of the port.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// Lets the device work until it has nothing to do, or for long.
    pub fn settle(&self) {
        for _ in 0..64 {
            if !self.device.step() {
                break;
            }
        }
    }

    /// Checks that the device has not touched memory that is not registered.
    pub fn check(&self) {
        assert!(self.arena.is_clear(REGISTERED), "memory that is not registered was written");
    }

    fn qp(&self, kind: ibv_qp_type, srq: *mut ibv_srq) -> Qp {
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let mut init = ibv_qp_init_attr { send_cq, recv_cq, srq, qp_type: kind, ..Default::default() };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (WRS, WRS);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (4, 3);
        // SAFETY: domain, CQ and SRQ are alive; the structure that libmlx5 fills in is plain data.
        unsafe {
            let raw = some(ibv_create_qp(self.pd, &mut init));
            let mut memory: mlx5dv_qp = std::mem::zeroed();
            let mut obj: mlx5dv_obj = std::mem::zeroed();
            (obj.qp.in_, obj.qp.out) = (raw, &mut memory);
            let mlx5dv = Mlx5dv::get().expect("libmlx5");
            assert_eq!((mlx5dv.init_obj)(&mut obj, MLX5DV_OBJ_QP.into()), 0);
            let half = 0;
            Qp { raw, memory, sent: 0, received: 0, half }
        }
    }

    fn srq(&self, tags: bool) -> Srq {
        let mut attr = ibv_srq_init_attr_ex {
            srq_type: if tags { IBV_SRQT_TM } else { IBV_SRQT_BASIC },
            pd: self.pd,
            cq: self.cq,
            tm_cap: ibv_tm_cap { max_num_tags: TAGS, max_ops: 16 },
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                | IBV_SRQ_INIT_ATTR_PD
                | if tags { IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM } else { 0 },
            ..Default::default()
        };
        (attr.attr.max_wr, attr.attr.max_sge) = (if tags { 63 } else { 15 }, 1);
        // SAFETY: as above.
        unsafe {
            let raw = some(ibv_create_srq_ex(self.context, &mut attr));
            let mut memory: mlx5dv_srq = std::mem::zeroed();
            let mut obj: mlx5dv_obj = std::mem::zeroed();
            (obj.srq.in_, obj.srq.out) = (raw, &mut memory);
            let mlx5dv = Mlx5dv::get().expect("libmlx5");
            assert_eq!((mlx5dv.init_obj)(&mut obj, MLX5DV_OBJ_SRQ.into()), 0);
            Srq { raw, memory, posted: 0 }
        }
    }

    /// Makes the queues of a scene, connected with each other, or with `peer`, a LID and a QP number.
    pub fn queues(&self, scene: Scene, peer: Option<(u16, u32)>) -> Queues {
        let kind = match scene {
            Scene::Uc => IBV_QPT_UC,
            Scene::Ud => IBV_QPT_UD,
            Scene::Rc | Scene::Shared | Scene::Tags => IBV_QPT_RC,
        };
        let shared = matches!(scene, Scene::Shared | Scene::Tags);
        let srq = shared.then(|| self.srq(scene == Scene::Tags));
        let raw_srq = srq.as_ref().map_or(ptr::null_mut(), |srq| srq.raw);
        let mut qps = vec![self.qp(kind, ptr::null_mut()), self.qp(kind, raw_srq)];
        if scene == Scene::Tags {
            // The command queue pair of the list, which is connected to itself.
            qps.push(self.qp(kind, raw_srq));
        }
        let windows = [IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_MW_TYPE_2].map(|kind| Window::new(self.pd, kind));
        let queues = Queues { qps, srq, windows };
        let numbers: Vec<_> = queues.qps.iter().map(Qp::number).collect();
        for (qp, others) in queues.qps.iter().zip([1, 0, 2]) {
            let (lid, number) = peer.unwrap_or((self.lid, numbers[others]));
            qp.start(lid, number);
        }
        queues
    }
}

/// The queues of a scene, destroyed when dropped.
pub struct Queues {
    /// The first sends to the second, which has the shared receive queue.
    pub qps: Vec<Qp>,
    /// The shared receive queue.
    pub srq: Option<Srq>,
    /// Memory windows, which are free.
    pub windows: [Window; 3],
}

/// A memory window, freed when dropped.
pub struct Window(*mut ibv_mw);

impl Window {
    fn new(pd: *mut ibv_pd, kind: ibv_mw_type) -> Self {
        // SAFETY: the domain is alive.
        Self(some(unsafe { ibv_alloc_mw(pd, kind) }))
    }

    /// Returns its first key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { (*self.0).rkey }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: made by the world, freed once.
        assert_eq!(unsafe { ibv_dealloc_mw(self.0) }, 0);
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: made by the world, destroyed once.
        unsafe {
            for qp in &self.qps {
                assert_eq!(ibv_destroy_qp(qp.raw), 0);
            }
            if let Some(srq) = &self.srq {
                assert_eq!(ibv_destroy_srq(srq.raw), 0);
            }
        }
    }
}

/// A queue pair.
pub struct Qp {
    raw: *mut ibv_qp,
    memory: mlx5dv_qp,
    sent: u16,
    received: u16,
    half: u32,
}

fn write_record(record: *mut __be32, word: usize, value: u32) {
    // SAFETY: a doorbell record of two words, of a live queue.
    unsafe { record.add(word).write_volatile(value.to_be()) };
}

impl Qp {
    /// Returns the number of the queue pair.
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is alive.
        unsafe { (*self.raw).qp_num }
    }

    /// Basic blocks handed over.
    pub fn sent(&self) -> u16 {
        self.sent
    }

    /// Writes basic blocks at the producer index and moves it past them.
    pub fn put(&mut self, blocks: &[[u8; 64]]) {
        for block in blocks {
            let at = (u32::from(self.sent) % self.memory.sq.wqe_cnt) as usize * 64;
            // SAFETY: inside the send queue, which the device reads with atomics.
            unsafe {
                let to = self.memory.sq.buf.cast::<u8>().add(at);
                to.copy_from_nonoverlapping(block.as_ptr(), 64);
            }
            self.sent = self.sent.wrapping_add(1);
        }
    }

    /// Posts a WQE of any number of units, and rings the doorbell for it.
    pub fn post(&mut self, wqe: &[u8]) {
        let mut blocks = vec![[0; 64]; wqe.len().div_ceil(64)];
        blocks.as_flattened_mut()[..wqe.len()].copy_from_slice(wqe);
        self.put(&blocks);
        self.ring(u64::from_ne_bytes(wqe[..8].try_into().expect("a control segment")));
    }

    /// Rings the doorbell for the WQEs that were put: doorbell record, then the register.
    pub fn ring(&mut self, control: u64) {
        write_record(self.memory.dbrec, 1, self.sent.into());
        self.write_register(control);
    }

    /// Writes eight bytes, in the order of memory, to the register.
    pub fn write_register(&mut self, value: u64) {
        // SAFETY: the register of this queue pair: two halves of `size` bytes.
        unsafe {
            let half = self.memory.bf.reg.cast::<u8>().add((self.half * self.memory.bf.size) as usize);
            half.cast::<u64>().write_volatile(value);
        }
        self.half ^= 1;
    }

    /// Writes a receive WQE and its doorbell record; does nothing on a queue pair without receive queue.
    pub fn receive(&mut self, wqe: &[u8]) {
        if self.memory.rq.wqe_cnt == 0 {
            return;
        }
        let stride = self.memory.rq.stride as usize;
        let at = (u32::from(self.received) % self.memory.rq.wqe_cnt) as usize * stride;
        // SAFETY: inside the receive queue, which the device reads with atomics.
        unsafe {
            let to = self.memory.rq.buf.cast::<u8>().add(at);
            to.copy_from_nonoverlapping(wqe.as_ptr(), wqe.len().min(stride));
        }
        self.received = self.received.wrapping_add(1);
        write_record(self.memory.dbrec, 0, self.received.into());
    }

    /// Writes a word of the doorbell record: word 0 is for receives.
    pub fn record(&mut self, word: usize, value: u32) {
        write_record(self.memory.dbrec, word & 1, value);
    }

    /// Any state, whether or not it may follow the present one.
    pub fn set_state(&self, state: ibv_qp_state) {
        let mut attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        // SAFETY: the QP is alive.
        unsafe { ibv_modify_qp(self.raw, &mut attr, IBV_QP_STATE as i32) };
    }

    fn start(&self, lid: u16, number: u32) {
        let mut attr = ibv_qp_attr {
            port_num: 1,
            qp_access_flags: ACCESS,
            qkey: QKEY,
            path_mtu: IBV_MTU_256,
            dest_qp_num: number,
            max_dest_rd_atomic: 2,
            max_rd_atomic: 2,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 1,
            rnr_retry: 1,
            ..Default::default()
        };
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (lid, 1);
        // SAFETY: the QP is alive.
        unsafe { qp_states::to(self.raw, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr) }
    }
}

/// A shared receive queue.
pub struct Srq {
    raw: *mut ibv_srq,
    memory: mlx5dv_srq,
    posted: u16,
}

impl Srq {
    /// Writes the WQE of the next slot, with `link` or the right slot as the next one, and the doorbell record.
    pub fn receive(&mut self, segments: &[u8], link: Option<u16>) {
        let slots = self.memory.tail + 1;
        let stride = self.memory.stride as usize;
        let slot = u32::from(self.posted) % slots;
        let next = link.unwrap_or(((slot + 1) % slots) as u16);
        let len = segments.len().min(stride - 16);
        // SAFETY: inside the buffer of the SRQ, which the device reads with atomics.
        unsafe {
            let wqe = self.memory.buf.cast::<u8>().add(slot as usize * stride);
            wqe.add(2).cast::<[u8; 2]>().write_volatile(next.to_be_bytes());
            wqe.add(16).copy_from_nonoverlapping(segments.as_ptr(), len);
        }
        self.posted = self.posted.wrapping_add(1);
        self.record(self.posted.into());
    }

    /// Writes the doorbell record.
    pub fn record(&mut self, value: u32) {
        write_record(self.memory.dbrec, 0, value);
    }
}
