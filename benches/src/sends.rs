//! Sends: the objects, and the adapter that completes the requests.
//!
//! A subject posts a batch and takes its completion, again and again. The CQEs of a whole round are written before it
//! begins, because the last WQE of each batch asks for a CQE. The WQEs are not read.

use std::mem::{ManuallyDrop, offset_of};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use doorbell::{AddressHandle, CqConfig, DataPath, QpConfig, QueuePair, Receiver, RqConfig, Sender};
use mlx5_ring::cq;
use mlx5_wire::cqe::{self, Cqe64, CqeFormat};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::*;

use crate::adapter::{Complete, Form, Order};
use crate::name::Name;
use crate::sum::Sum;
use crate::world::{Memory, Request, Shape, World, made};

/// Bytes that are copied.
pub const INLINE: usize = 32;
const QKEY: u32 = 0x1234;

/// A CQ and the queue pairs that send.
pub struct Objects {
    /// The queue pairs; the subjects of a sender and of its rings have the sender, too.
    pub qps: Vec<*mut ibv_qp>,
    /// The CQ of the sends.
    pub cq: *mut ibv_cq,
    /// Where the CQ is.
    pub cq_layout: cq::Layout,
    /// Memory for the buffers.
    pub memory: Memory,
    /// Their shape.
    pub shape: Shape,
    /// Where datagrams go.
    pub to: ManuallyDrop<AddressHandle>,
    /// As an address handle of libibverbs.
    pub ah: *mut ibv_ah,
    /// User index by which libmlx5 finds each queue pair.
    users: Vec<u32>,
    /// The objects of doorbell.
    pub doorbell: Option<(Sender, Vec<QueuePair>, Receiver)>,
}

impl Objects {
    /// Makes objects for one of the subjects.
    pub fn new(world: &World, shape: Shape, request: Request, name: Name) -> Self {
        let cq_capacity = shape.slots * shape.qps;
        let config = if request == Request::Datagram { QpConfig::ud(QKEY) } else { QpConfig::rc() };
        let inline = if request == Request::Inline { INLINE as u32 } else { 0 };
        let sends = shape.slots / shape.qps;
        let config = config.max_send_wr(sends).max_inline(inline);
        let receiver = CqConfig::new(8 * shape.qps).path(DataPath::Direct);
        let mut receiver = Receiver::new(&world.pd, &receiver).expect("a receiver");
        let sender = CqConfig::new(2 * cq_capacity).path(DataPath::Direct);
        let mut sender = Sender::new(&world.pd, &sender).expect("a sender");
        let mut made_by_doorbell: Vec<_> = (0..shape.qps)
            .map(|_| {
                let mut qp = QueuePair::builder(&config)
                    .receive(&mut receiver, RqConfig::new(1))
                    .send(&mut sender)
                    .build()
                    .expect("a QP");
                let itself = qp.address().expect("an address");
                match request {
                    Request::Datagram => qp.activate(),
                    _ => qp.connect(&itself),
                }
                .expect("connected");
                qp
            })
            .collect();
        let first = &mut made_by_doorbell[0];
        let itself = first.address().expect("an address");
        let to = match request {
            Request::Datagram => first.address_handle(&itself, QKEY),
            _ => QueuePair::builder(&QpConfig::ud(QKEY))
                .receive(&mut receiver, RqConfig::new(1))
                .build()
                .and_then(|qp| qp.address_handle(&itself, QKEY)),
        };
        let to = ManuallyDrop::new(to.expect("an address handle"));
        let memory = world.memory(shape.slots);
        let locks = name.locks();
        let has_sender = matches!(name, Name::Sender | Name::Ring);
        let (qps, cq): (Vec<_>, _) = if has_sender {
            // SAFETY: live queue pairs.
            let cq = unsafe { (*made_by_doorbell[0].as_raw()).send_cq };
            (made_by_doorbell.iter().map(QueuePair::as_raw).collect(), cq)
        } else {
            let cq: *mut ibv_cq = world.cq(2 * cq_capacity, 64, locks).cast();
            let caps =
                ibv_qp_cap { max_send_wr: sends, max_send_sge: 1, max_inline_data: inline, ..Default::default() };
            let qp = || world.sending_qp(locks, cq, caps, request == Request::Datagram);
            ((0..shape.qps).map(|_| qp()).collect(), cq)
        };
        let cq_layout = world.cq_layout(cq.cast());
        let ah = world.address_handle();
        let mut users = Vec::new();
        if !has_sender {
            for (index, &qp) in (0..).zip(&qps) {
                users.push(world.greet_sender(qp, cq, &cq_layout, index));
            }
        }
        let doorbell = has_sender.then_some((sender, made_by_doorbell, receiver));
        Self { qps, cq, cq_layout, memory, shape, to, ah, users, doorbell }
    }
}

/// The device's side.
pub struct Completer {
    cq: cq::Layout,
    qps: Vec<Taken>,
    /// CQEs written.
    written: u32,
    blocks: u32,
    batch: u32,
    next: usize,
}

struct Taken {
    qpn: u32,
    user: u32,
    /// Basic blocks.
    blocks: u16,
}

// SAFETY: addresses of memory that stays mapped.
unsafe impl Send for Completer {}

impl Completer {
    /// Completes batches of such requests.
    pub fn new(objects: &Objects, request: Request, batch: u32) -> Self {
        // SAFETY: live queue pairs.
        let numbers = objects.qps.iter().map(|&qp| unsafe { (*qp).qp_num });
        let user = |index| objects.users.get(index).copied();
        let taken = numbers.enumerate().map(|(index, qpn)| Taken {
            qpn,
            user: user(index).unwrap_or(0),
            blocks: user(index).map_or(0, |_| 1),
        });
        let blocks = match request {
            Request::Datagram => 2,
            Request::Write | Request::Read | Request::Send | Request::Inline => 1,
        };
        let (cq, written) = (objects.cq_layout, objects.users.len() as u32);
        Self { cq, qps: taken.collect(), written, blocks, batch, next: 0 }
    }

    fn write(&mut self, qpn: u32, user: u32, wqe_counter: u16) {
        let index = self.written;
        self.written += 1;
        let owner = (index & self.cq.cqe_cnt != 0) as u8;
        let op_own = cqe::op_own(CqeOpcode::Requester, CqeFormat::Plain, false, owner);
        let cqe = Cqe64 {
            srqn_uidx: user.into(),
            sop_drop_qpn: (0x0a00_0000 | qpn).into(),
            wqe_counter: wqe_counter.into(),
            op_own: op_own ^ cqe::OWNER,
            ..Cqe64::zeroed()
        };
        let at = (index & (self.cq.cqe_cnt - 1)) as usize * self.cq.cqe_size as usize;
        // SAFETY: inside of the CQ; software does not read it before its owner has changed.
        unsafe {
            let to: NonNull<u8> = self.cq.buf.add(at + self.cq.cqe_size as usize - Cqe64::SIZE);
            to.cast().write(cqe.to_bytes());
            fence(Ordering::Release);
            to.add(offset_of!(Cqe64, op_own)).write_volatile(op_own);
        }
    }
}

impl Complete for Completer {
    fn complete(&mut self, count: u32, _: Order, _: Form) -> Sum {
        for _ in 0..count / self.batch {
            let blocks = self.blocks;
            let qp = &mut self.qps[self.next];
            let last = qp.blocks.wrapping_add(((self.batch - 1) * blocks) as u16);
            qp.blocks = last.wrapping_add(blocks as u16);
            let (qpn, user) = (qp.qpn, qp.user);
            self.next = (self.next + 1) % self.qps.len();
            self.write(qpn, user, last);
        }
        Sum { ids: count.into(), bytes: 0 }
    }
}

impl World {
    /// A queue pair for libmlx5, connected to itself.
    fn sending_qp(&self, locks: crate::world::Locks, cq: *mut ibv_cq, cap: ibv_qp_cap, datagrams: bool) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: if datagrams { IBV_QPT_UD } else { IBV_QPT_RC },
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.domain(locks),
            send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
            ..Default::default()
        };
        if !datagrams {
            init.send_ops_flags |= u64::from(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ);
        }
        // SAFETY: an open context, live objects, an initialised structure.
        unsafe {
            let qp = made(ibv_create_qp_ex(self.pd.context().as_raw(), &mut init));
            if datagrams {
                self.activate(qp)
            } else {
                self.connect(qp, (*qp).qp_num)
            }
            qp
        }
    }

    /// Has the device complete one request without bytes as CQE `index` of the CQ; returns the user index of the queue
    /// pair.
    fn greet_sender(&self, qp: *mut ibv_qp, cq: *mut ibv_cq, layout: &cq::Layout, index: usize) -> u32 {
        // SAFETY: a live queue pair that was connected to itself, a live CQ; the CQE was written.
        unsafe {
            let mut wr = ibv_send_wr { send_flags: IBV_SEND_SIGNALED, ..Default::default() };
            wr.opcode = IBV_WR_RDMA_WRITE;
            if (*qp).qp_type == IBV_QPT_RC {
                let qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
                let mut attr = ibv_qp_attr { qp_access_flags, ..Default::default() };
                assert_eq!(ibv_modify_qp(qp, &mut attr, IBV_QP_ACCESS_FLAGS as i32), 0);
            } else {
                wr.opcode = IBV_WR_SEND;
                wr.wr.ud.ah = self.address_handle();
                (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = ((*qp).qp_num, QKEY);
            }
            assert_eq!(ibv_post_send(qp, &mut wr, &mut std::ptr::null_mut()), 0);
            let mut wc = ibv_wc::default();
            for _ in 0..1000 {
                self.device.settle();
                if ibv_poll_cq(cq, 1, &mut wc) != 0 {
                    break;
                }
                self.device.advance(std::time::Duration::from_micros(100));
            }
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            let at = (index + 1) * layout.cqe_size as usize - Cqe64::SIZE;
            let cqe: [u8; Cqe64::SIZE] = layout.buf.add(at).cast().read();
            Cqe64::from_bytes(&cqe).srqn_uidx.get()
        }
    }

    /// # Safety
    /// A fresh queue pair for datagrams.
    unsafe fn activate(&self, qp: *mut ibv_qp) {
        let state = |qp_state| ibv_qp_attr { qp_state, ..Default::default() };
        let init = ibv_qp_attr { port_num: 1, qkey: QKEY, ..state(IBV_QPS_INIT) };
        let to_init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        let (rtr, rts) = (state(IBV_QPS_RTR), state(IBV_QPS_RTS));
        for (mut attr, mask) in [(init, to_init), (rtr, 0), (rts, IBV_QP_SQ_PSN)] {
            // SAFETY: a fresh queue pair for datagrams, and a valid structure.
            let errno = unsafe { ibv_modify_qp(qp, &mut attr, (mask | IBV_QP_STATE) as i32) };
            assert_eq!(errno, 0);
        }
    }

    fn address_handle(&self) -> *mut ibv_ah {
        let port = self.pd.context().query_port(1).expect("a port");
        let mut attr = ibv_ah_attr { dlid: port.lid, port_num: 1, ..Default::default() };
        // SAFETY: a live domain and an initialised structure.
        made(unsafe { ibv_create_ah(self.pd.as_raw(), &mut attr) })
    }
}

/// The address of the first queue pair, as a WQE has it.
pub fn datagram_segment(world: &World, objects: &Objects) -> DatagramSegment {
    let mut out = mlx5dv_ah { av: std::ptr::null_mut(), comp_mask: 0 };
    let mut obj = mlx5dv_obj::default();
    (obj.ah.in_, obj.ah.out) = (objects.ah, &mut out);
    world.init_obj(&mut obj, MLX5DV_OBJ_AH);
    // SAFETY: the address vector of a live handle, which has the size of the segment.
    let vector = unsafe { out.av.cast::<[u8; DatagramSegment::SIZE]>().read() };
    let (qpn, qkey) = datagram_to(objects);
    DatagramSegment::from_bytes(&vector).to(qpn, qkey)
}

/// The number of the first queue pair and its key, for datagrams of libmlx5.
pub fn datagram_to(objects: &Objects) -> (u32, u32) {
    // SAFETY: a live queue pair.
    (unsafe { (*objects.qps[0]).qp_num }, QKEY)
}
