//! Tag lists: the objects, and the sender of matching messages.
//!
//! An adapter changes a list and does not only follow it, so the device of soft-mlx5 does that here: it is stepped
//! outside of the measurement, where other kinds of queues have [`adapter`](crate::adapter).

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use mlx5_ring::{cq, sq};
use mlx5_wire::tmh::{Tmh, TmhOpcode};
use rdma_core_sys::*;
use soft_mlx5::Device;

use crate::adapter::{Complete, Form, Order};
use crate::name::Name;
use crate::sum::Sum;
use crate::world::{BUFFER, Memory, Shape, World, made};

/// Receives for messages that match nothing, which there must be though none comes.
const UNTAGGED: u32 = 64;

/// A CQ, a tag-matching SRQ, and the queue pair that sends to it.
pub struct Objects {
    /// The CQ.
    pub cq: *mut ibv_cq_ex,
    /// Where the CQ is.
    pub cq_layout: cq::Layout,
    /// The SRQ.
    pub srq: *mut ibv_srq,
    /// The send queue through which doorbell changes the list. The send queue of libmlx5 is hidden.
    pub command: sq::Layout,
    /// Memory for the buffers.
    pub memory: Memory,
    /// Their shape.
    pub shape: Shape,
    /// Sends to the SRQ, and its CQ.
    sender: *mut ibv_qp,
    send_cq: *mut ibv_cq,
}

impl Objects {
    /// Makes objects for one of the subjects.
    pub fn new(world: &World, shape: Shape, name: Name) -> Self {
        let pd = world.domain(name.locks());
        // For each tag a message, and some operations.
        let cq = world.cq(4 * shape.slots, shape.cqe_size, name.locks());
        let send_cq = world.send_cq();
        let mut attr = ibv_srq_init_attr_ex {
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
            srq_type: IBV_SRQT_TM,
            pd,
            cq: cq.cast(),
            tm_cap: ibv_tm_cap { max_num_tags: shape.receives(), max_ops: shape.slots },
            ..Default::default()
        };
        (attr.attr.max_wr, attr.attr.max_sge) = (UNTAGGED, 1);
        // SAFETY: an open context, live objects, an initialised structure.
        let srq = made(unsafe { ibv_create_srq_ex(world.pd.context().as_raw(), &mut attr) });
        let memory = world.memory(shape.slots + UNTAGGED);
        let mut init = ibv_qp_init_attr { qp_type: IBV_QPT_RC, srq, ..Default::default() };
        init.cap.max_send_sge = 2;
        let mut qp = |send_cq, recv_cq, srq, max_send_wr| {
            (init.send_cq, init.recv_cq, init.srq) = (send_cq, recv_cq, srq);
            init.cap.max_send_wr = max_send_wr;
            // SAFETY: live objects, an initialised structure.
            made(unsafe { ibv_create_qp(world.pd.as_raw(), &mut init) })
        };
        let command = qp(cq.cast(), cq.cast(), srq, shape.slots);
        let receiver = qp(send_cq, cq.cast(), srq, 0);
        let sender = qp(send_cq, send_cq, ptr::null_mut(), shape.slots);
        // SAFETY: fresh QPs.
        let command = unsafe {
            world.connect(command, (*command).qp_num);
            world.connect(receiver, (*sender).qp_num);
            world.connect(sender, (*receiver).qp_num);
            world.sq_layout(command)
        };
        let cq_layout = world.cq_layout(cq);
        let objects = Self { cq, cq_layout, srq, command, memory, shape, sender, send_cq };
        objects.post_untagged();
        objects
    }

    /// The address of a buffer.
    pub fn buffer(&self, index: u32) -> u64 {
        self.memory.start + u64::from(index) * u64::from(BUFFER)
    }

    fn post_untagged(&self) {
        let lkey = self.memory.lkey;
        for index in self.shape.slots..self.shape.slots + UNTAGGED {
            let mut sge = ibv_sge { addr: self.buffer(index), length: BUFFER, lkey };
            let mut wr = ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
            // SAFETY: a live SRQ, and memory that stays.
            let errno = unsafe { ibv_post_srq_recv(self.srq, &mut wr, &mut ptr::null_mut()) };
            assert_eq!(errno, 0);
        }
    }
}

/// Sends messages that match the receives of a list, in the order in which those were added.
pub struct Sender {
    device: Arc<Device>,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    /// The first buffer of the list, and how many there are.
    buffers: (u64, u32),
    /// For headers and data of messages.
    memory: Memory,
    written: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Sender {}

impl Sender {
    /// Sends to the list of `objects`, to which the buffers were added in the order of their addresses.
    pub fn new(world: &World, objects: &Objects) -> Self {
        Self {
            device: Arc::clone(&world.device),
            qp: objects.sender,
            cq: objects.send_cq,
            buffers: (objects.memory.start, objects.shape.receives()),
            memory: world.memory(objects.shape.slots),
            written: 0,
        }
    }

    fn send(&self, tag: u64, len: u32, index: u32, signaled: bool) {
        let Memory { start, lkey } = self.memory;
        let tmh = Tmh { opcode: TmhOpcode::Eager.byte(), tag: tag.into(), ..Tmh::zeroed() };
        let addr = start + u64::from(index) * u64::from(BUFFER);
        let to = ptr::with_exposed_provenance_mut::<[u8; Tmh::SIZE]>(addr as usize);
        // SAFETY: a buffer of the memory; messages that were sent from there before have arrived.
        unsafe { to.write(tmh.to_bytes()) }
        let mut sge = ibv_sge { addr, length: Tmh::SIZE as u32 + len, lkey };
        let mut wr = ibv_send_wr {
            sg_list: &mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: if signaled { IBV_SEND_SIGNALED } else { 0 },
            ..Default::default()
        };
        // SAFETY: a live QP, and memory that stays.
        let errno = unsafe { ibv_post_send(self.qp, &mut wr, &mut ptr::null_mut()) };
        assert_eq!(errno, 0);
    }

    /// Whether all that was sent has arrived.
    fn arrived(&self) -> bool {
        let mut wc = ibv_wc::default();
        // SAFETY: a live CQ.
        let polled = unsafe { ibv_poll_cq(self.cq, 1, &mut wc) };
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        polled == 1
    }
}

impl Complete for Sender {
    fn complete(&mut self, count: u32, order: Order, form: Form) -> Sum {
        assert_eq!((order, form), (Order::Posted, Form::Plain));
        let (start, buffers) = self.buffers;
        let mut sum = Sum::default();
        // Operations first: a message that comes before its receive would be unexpected.
        self.device.settle();
        for index in 0..count {
            let addr = start + u64::from(self.written % buffers) * u64::from(BUFFER);
            let len = 64 + self.written % 128;
            sum.add(addr, len.into());
            self.send(addr, len, index, index + 1 == count);
            self.written = (self.written + 1) % (128 * buffers);
        }
        for _ in 0..1000 {
            self.device.settle();
            if self.arrived() {
                return sum;
            }
            self.device.advance(Duration::from_micros(100));
        }
        panic!("messages do not arrive: receives are not posted");
    }
}
