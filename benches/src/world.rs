//! A device, and verbs objects on it.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use doorbell::ProtectionDomain;
use mlx5_ring::{cq, rq, sq, srq};
use mlx5_wire::cqe::FRESH_OP_OWN;
use rdma_core_sys::*;
use soft_mlx5::{Device, LinkLayer};

use crate::qp_states;

/// Bytes of a receive buffer.
pub const BUFFER: u32 = 256;
/// Bytes of the message that is sent to each QP once: more than fit into a CQE.
const GREETING: u32 = 65;

/// A device that works only when stepped, with a domain on it.
pub struct World {
    /// The device.
    pub device: Arc<Device>,
    /// The domain, for objects with locks. It is leaked, because its objects stay until the process ends.
    pub pd: ManuallyDrop<ProtectionDomain>,
    /// The parent domain of `pd` for a single thread: objects on it have no locks.
    pub parent_domain: *mut ibv_pd,
    /// The functions of libmlx5.
    pub mlx5dv: &'static Mlx5dv,
    ethernet: OnceCell<Box<World>>,
}

/// Which kind of receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A shared receive queue.
    Srq,
    /// The receive queue of one QP.
    Rq,
    /// The tag list of a shared receive queue: see [`tags`](crate::tags).
    Tags,
    /// Send queues: see [`sends`](crate::sends).
    Sends(Request),
    /// The receive queue of a receiver of Ethernet frames: see [`frames`](crate::frames).
    Frames {
        /// Many frames to a WQE. libmlx5 does not post to such queues, so its queue is a plain work queue then.
        striding: bool,
    },
}

/// Kind of the sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Request {
    /// A SEND of one buffer.
    Send,
    /// A SEND of bytes that are copied.
    Inline,
    /// An RDMA WRITE of one buffer.
    Write,
    /// An RDMA READ into one buffer.
    Read,
    /// A datagram of one buffer.
    Datagram,
}

/// Shape of the objects to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Kind of queue.
    pub kind: Kind,
    /// Slots of a queue, a power of two. On an SRQ, and in a tag list, one fewer can be posted.
    pub slots: u32,
    /// QPs that complete on the CQ, as many as queues with [`Kind::Rq`]. They take the queues in turn.
    pub qps: u32,
    /// SRQs or receive queues that complete on the CQ.
    pub queues: u32,
    /// Bytes of an entry of the CQ, 64 or 128.
    pub cqe_size: u16,
}

impl Shape {
    /// One QP, one queue, CQEs of 64 bytes.
    pub const fn new(kind: Kind, slots: u32) -> Self {
        Self { kind, slots, qps: 1, queues: 1, cqe_size: 64 }
    }

    /// Receives that can be posted to a queue.
    pub const fn receives(&self) -> u32 {
        match self.kind {
            Kind::Srq | Kind::Tags => self.slots - 1,
            Kind::Rq | Kind::Sends(_) | Kind::Frames { .. } => self.slots,
        }
    }
}

/// Whether libmlx5 takes its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// Locks of a program that asks for nothing.
    Default,
    /// A thread domain, and a CQ of a single thread.
    Off,
}

/// A CQ, queues, and the QPs that complete on them.
pub struct Objects {
    /// The CQ, created for both ways to poll.
    pub cq: *mut ibv_cq_ex,
    /// The SRQs, or none.
    pub srqs: Vec<*mut ibv_srq>,
    /// The QPs.
    pub qps: Vec<*mut ibv_qp>,
    /// The work queue that the QP leads to, or null.
    pub wq: *mut ibv_wq,
    /// Where the CQ is.
    pub cq_layout: cq::Layout,
    /// Where the queues are. QP `n` is served by queue `n` modulo their number.
    pub queues: Vec<Queue>,
    /// Memory for the buffers.
    pub memory: Memory,
    /// Their shape.
    pub shape: Shape,
}

/// Where a queue is.
#[derive(Clone, Copy, Debug)]
pub enum Queue {
    /// An SRQ.
    Srq(srq::Layout),
    /// A receive queue.
    Rq(rq::Layout),
}

/// Registered buffers.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The first byte.
    pub start: u64,
    /// Key of the region.
    pub lkey: u32,
}

pub(crate) fn made<T>(object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{}", std::io::Error::last_os_error());
    object
}

impl World {
    /// Powers a device up and opens it.
    pub fn new() -> Self {
        Self::on(LinkLayer::InfiniBand)
    }

    /// A second device, with an Ethernet port.
    pub fn ethernet(&self) -> &Self {
        self.ethernet.get_or_init(|| Box::new(Self::on(LinkLayer::Ethernet)))
    }

    fn on(link: LinkLayer) -> Self {
        let device = Device::builder().link_layer(link).stepped().build();
        let device = Arc::new(device.expect("a device"));
        let pd = doorbell::open(device.name()).and_then(|context| context.alloc_pd());
        let pd = ManuallyDrop::new(pd.expect("a domain"));
        let context = pd.context().as_raw();
        // SAFETY: an open context, a live domain, initialised structures.
        let parent_domain = unsafe {
            let td = made(ibv_alloc_td(context, &mut ibv_td_init_attr::default()));
            let mut attr = ibv_parent_domain_init_attr { pd: pd.as_raw(), td, ..Default::default() };
            made(ibv_alloc_parent_domain(context, &mut attr))
        };
        let mlx5dv = Mlx5dv::get().expect("libmlx5");
        Self { device, pd, parent_domain, mlx5dv, ethernet: OnceCell::new() }
    }

    /// Makes objects and connects each QP to itself.
    pub fn objects(&self, shape: Shape, locks: Locks) -> Objects {
        let pd = self.domain(locks);
        let cq = self.cq(shape.queues * shape.receives(), shape.cqe_size, locks);
        let send_cq = self.send_cq();
        // SAFETY: an open context, live objects, initialised structures.
        unsafe {
            let srqs: Vec<_> = match shape.kind {
                Kind::Srq => (0..shape.queues).map(|_| self.srq(pd, shape)).collect(),
                Kind::Rq => Vec::new(),
                Kind::Tags | Kind::Sends(_) | Kind::Frames { .. } => unreachable!("made elsewhere"),
            };
            let mut init =
                ibv_qp_init_attr { send_cq, recv_cq: ibv_cq_ex_to_cq(cq), qp_type: IBV_QPT_RC, ..Default::default() };
            (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
            if shape.kind == Kind::Rq {
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (shape.slots, 1);
            }
            let qps = (0..shape.qps as usize)
                .map(|index| {
                    if let Some(&srq) = srqs.get(index % shape.queues as usize) {
                        init.srq = srq;
                    }
                    let qp = made(ibv_create_qp(pd, &mut init));
                    self.connect(qp, (*qp).qp_num);
                    qp
                })
                .collect::<Vec<_>>();
            self.describe(cq, srqs, qps, shape)
        }
    }

    /// Looks up the memory of objects, and gives them memory for buffers.
    ///
    /// # Safety
    /// They are alive, and made like this.
    pub(crate) unsafe fn describe(
        &self,
        cq: *mut ibv_cq_ex,
        srqs: Vec<*mut ibv_srq>,
        qps: Vec<*mut ibv_qp>,
        shape: Shape,
    ) -> Objects {
        let queues = match shape.kind {
            // The device itself works on queues of frames.
            Kind::Frames { .. } => Vec::new(),
            Kind::Rq => qps.iter().map(|&qp| Queue::Rq(self.rq_layout(qp))).collect(),
            _ => srqs.iter().map(|&srq| Queue::Srq(self.srq_layout(srq))).collect(),
        };
        let cq_layout = self.cq_layout(cq);
        let memory = self.memory(shape.queues * shape.slots);
        Objects { cq, srqs, qps, wq: ptr::null_mut(), cq_layout, queues, memory, shape }
    }

    /// # Safety
    /// A live domain.
    pub(crate) unsafe fn srq(&self, pd: *mut ibv_pd, shape: Shape) -> *mut ibv_srq {
        let mut attr = ibv_srq_init_attr::default();
        (attr.attr.max_wr, attr.attr.max_sge) = (shape.receives(), 1);
        // SAFETY: a live domain, and an initialised structure.
        made(unsafe { ibv_create_srq(pd, &mut attr) })
    }

    /// The domain for objects with such locks.
    pub(crate) fn domain(&self, locks: Locks) -> *mut ibv_pd {
        match locks {
            Locks::Default => self.pd.as_raw(),
            Locks::Off => self.parent_domain,
        }
    }

    /// A CQ for both ways to poll.
    pub(crate) fn cq(&self, cqe: u32, cqe_size: u16, locks: Locks) -> *mut ibv_cq_ex {
        let mut attr = ibv_cq_init_attr_ex { cqe, wc_flags: IBV_WC_EX_WITH_BYTE_LEN.into(), ..Default::default() };
        if locks == Locks::Off {
            attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
            attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        }
        let mut mlx5 =
            mlx5dv_cq_init_attr { comp_mask: MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE.into(), cqe_size, ..Default::default() };
        let context = self.pd.context().as_raw();
        if cqe_size == 64 {
            // SAFETY: an open context, an initialised structure.
            return made(unsafe { ibv_create_cq_ex(context, &mut attr) });
        }
        // SAFETY: an open context of an mlx5 device, initialised structures.
        made(unsafe { (self.mlx5dv.create_cq)(context, &mut attr, &mut mlx5) })
    }

    /// A CQ for a few sends.
    pub(crate) fn send_cq(&self) -> *mut ibv_cq {
        let none = ptr::null_mut();
        // SAFETY: an open context.
        made(unsafe { ibv_create_cq(self.pd.context().as_raw(), 16, none, none.cast(), 0) })
    }

    /// Memory for `buffers` buffers, which stays until the process ends.
    pub(crate) fn memory(&self, buffers: u32) -> Memory {
        let len = buffers as usize * BUFFER as usize;
        let start = Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr();
        // SAFETY: memory that stays.
        let mr = unsafe { made(ibv_reg_mr(self.pd.as_raw(), start.cast(), len, IBV_ACCESS_LOCAL_WRITE)) };
        // SAFETY: a live region.
        Memory { start: start.expose_provenance() as u64, lkey: unsafe { (*mr).lkey } }
    }

    /// Connects a QP with the one of this number.
    ///
    /// # Safety
    /// A fresh QP of the device.
    pub(crate) unsafe fn connect(&self, qp: *mut ibv_qp, peer: u32) {
        let port = self.pd.context().query_port(1).expect("a port");
        let mut attr = ibv_qp_attr {
            port_num: 1,
            path_mtu: IBV_MTU_1024,
            dest_qp_num: peer,
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (port.lid, 1);
        // SAFETY: a fresh QP of the device.
        unsafe { qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr) }
    }

    fn srq_layout(&self, srq: *mut ibv_srq) -> srq::Layout {
        let mut out = mlx5dv_srq::default();
        let mut obj = mlx5dv_obj::default();
        (obj.srq.in_, obj.srq.out) = (srq, &mut out);
        self.init_obj(&mut obj, MLX5DV_OBJ_SRQ);
        srq::Layout {
            buf: NonNull::new(out.buf.cast()).expect("a buffer"),
            dbrec: NonNull::new(out.dbrec.cast()).expect("a record"),
            stride: out.stride,
            head: out.head,
            tail: out.tail,
        }
    }

    fn qp_layout(&self, qp: *mut ibv_qp) -> mlx5dv_qp {
        let mut out = mlx5dv_qp::default();
        let mut obj = mlx5dv_obj::default();
        (obj.qp.in_, obj.qp.out) = (qp, &mut out);
        self.init_obj(&mut obj, MLX5DV_OBJ_QP);
        out
    }

    /// # Safety
    /// A live QP.
    pub(crate) unsafe fn sq_layout(&self, qp: *mut ibv_qp) -> sq::Layout {
        let out = self.qp_layout(qp);
        sq::Layout {
            buf: NonNull::new(out.sq.buf.cast()).expect("a buffer"),
            dbrec: NonNull::new(out.dbrec.cast()).expect("a record"),
            wqe_cnt: out.sq.wqe_cnt,
            stride: out.sq.stride,
            register: NonNull::new(out.bf.reg.cast()).expect("a register"),
            register_size: out.bf.size,
            // SAFETY: a live QP.
            qpn: unsafe { (*qp).qp_num },
        }
    }

    fn rq_layout(&self, qp: *mut ibv_qp) -> rq::Layout {
        let out = self.qp_layout(qp);
        rq::Layout {
            buf: NonNull::new(out.rq.buf.cast()).expect("a buffer"),
            dbrec: NonNull::new(out.dbrec.cast()).expect("a record"),
            wqe_cnt: out.rq.wqe_cnt,
            stride: out.rq.stride,
        }
    }

    pub(crate) fn cq_layout(&self, cq: *mut ibv_cq_ex) -> cq::Layout {
        let mut out = mlx5dv_cq::default();
        let mut obj = mlx5dv_obj::default();
        (obj.cq.in_, obj.cq.out) = (ibv_cq_ex_to_cq(cq), &mut out);
        self.init_obj(&mut obj, MLX5DV_OBJ_CQ);
        cq::Layout {
            buf: NonNull::new(out.buf.cast()).expect("a buffer"),
            dbrec: NonNull::new(out.dbrec.cast()).expect("a record"),
            cqe_cnt: out.cqe_cnt,
            cqe_size: out.cqe_size,
        }
    }

    pub(crate) fn init_obj(&self, obj: &mut mlx5dv_obj, what: u32) {
        // SAFETY: the object is live, and the structures that `obj` points to can be written.
        assert_eq!(unsafe { (self.mlx5dv.init_obj)(obj, what.into()) }, 0);
    }

    /// Has the device deliver one message to each QP.
    pub fn greet(&self, objects: &Objects) {
        let Memory { start, lkey } = objects.memory;
        for (index, &qp) in objects.qps.iter().enumerate() {
            let mut sge = ibv_sge { addr: start, length: GREETING, lkey };
            let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_SEND, ..Default::default() };
            // SAFETY: a live QP, and memory that stays.
            let errno = unsafe { ibv_post_send(qp, &mut wr, &mut ptr::null_mut()) };
            assert_eq!(errno, 0);
            // A device with many registers does not read all of them in one step.
            for _ in 0..1000 {
                self.device.settle();
                if arrived(objects, index) {
                    break;
                }
                self.device.advance(Duration::from_micros(100));
            }
        }
    }
}

/// Whether the device has written CQE `index` of the first lap.
fn arrived(objects: &Objects, index: usize) -> bool {
    let cq::Layout { buf, cqe_size, .. } = objects.cq_layout;
    // SAFETY: the last byte of a CQE.
    let op_own = unsafe { buf.add((index + 1) * cqe_size as usize - 1).read_volatile() };
    op_own != FRESH_OP_OWN
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
