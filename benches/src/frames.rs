//! Receivers of frames, and the sender of the frames.
//!
//! The device itself delivers the frames, outside of the measurement. They come from another context, because a device
//! does not give a program its own frames back.

use std::mem::size_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use doorbell::frames::{Flow, FlowRule, FrameConfig, FrameReceiver};
use doorbell::{BufferPool, CqConfig, DataPath, PoolConfig, Sender};
use rdma_core_sys::*;
use soft_mlx5::Device;

use crate::adapter::{Complete, Form, Order};
use crate::qp_states;
use crate::sum::Sum;
use crate::world::{self, BUFFER, Locks, Shape, World, made};

/// WQEs of a striding queue, and strides of each: room for more frames than are received in one go.
const WQES: u32 = 16;
const STRIDES: u32 = 512;
const STRIDE: u32 = 64;
/// Frames that are sent in one go.
const BURST: u32 = 32;

/// Sends frames to one receiver, and has the device deliver them.
pub struct Feed {
    device: Arc<Device>,
    sender: Sender,
    /// Owner of the queue pair that sends.
    queue: FrameReceiver,
    pool: BufferPool,
    mac: [u8; 6],
    /// Sum of the addresses of all buffers of the receiver.
    addresses: u64,
    sent: u32,
}

impl Feed {
    fn new(world: &World, mac: [u8; 6], addresses: u64) -> Self {
        let context = doorbell::open(world.device.name());
        let pd = context.and_then(|context| context.alloc_pd()).expect("a domain");
        let with = CqConfig::new(4096).path(DataPath::Direct);
        let mut sender = Sender::new(&pd, &with).expect("a sender");
        let config =
            FrameConfig::new().plain(4, BUFFER).cq(CqConfig::new(1).path(DataPath::Direct)).max_send_wr(2 * BURST);
        let queue = FrameReceiver::with_sender(&pd, &config, &mut sender).expect("a queue pair");
        let pool = BufferPool::new(&pd, &PoolConfig::new(BURST, BUFFER)).expect("a pool");
        Self { device: Arc::clone(&world.device), sender, queue, pool, mac, addresses, sent: 0 }
    }

    /// Sends `count` frames of 64 to 191 bytes; returns the sum of their bytes.
    fn send(&mut self, count: u32) -> u64 {
        let mut bytes = 0;
        let queue = self.queue.send_queue().expect("made with a sender");
        let mut posting = self.sender.post_many(queue).expect("a queue");
        for _ in 0..count {
            let mut frame = self.pool.take().expect("a buffer of the burst before");
            frame.extend_from_slice(&self.mac);
            frame.set_len(64 + self.sent as usize % 128);
            self.sent += 1;
            bytes += frame.len() as u64;
            posting.send_frame(frame, false).expect("room");
        }
        drop(posting);
        let mut left = count;
        while left > 0 {
            self.device.settle();
            self.device.advance(Duration::from_micros(100));
            let mut batch = self.sender.poll();
            while let Some(done) = batch.next() {
                done.unwrap();
                left -= 1;
            }
        }
        bytes
    }
}

impl Complete for Feed {
    fn complete(&mut self, count: u32, _: Order, _: Form) -> Sum {
        let burst = |at| BURST.min(count - at);
        let bytes = (0..count).step_by(BURST as usize).map(|at| self.send(burst(at))).sum();
        Sum { ids: self.addresses, bytes }
    }
}

/// An address that no other receiver has.
pub(crate) fn fresh_mac() -> [u8; 6] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    [2, 0, 0, 0, 9, NEXT.fetch_add(1, Ordering::Relaxed)]
}

/// doorbell's receiver and its rule.
pub fn receiver(world: &World, shape: Shape, striding: bool) -> (FrameReceiver, FlowRule, Feed) {
    let config = FrameConfig::new().cq(CqConfig::new(1).path(DataPath::Direct));
    let config = match striding {
        true => config.striding(WQES, STRIDES, STRIDE),
        false => config.plain(shape.slots, BUFFER),
    };
    let receiver = FrameReceiver::new(&world.pd, &config).expect("a receiver of frames");
    let mac = fresh_mac();
    let rule = receiver.attach(&Flow::mac(mac)).expect("a rule");
    (receiver, rule, Feed::new(world, mac, 0))
}

/// Makes the queue of libmlx5, with a rule that stays: a raw packet queue pair, or a work queue as the reference of a
/// striding queue.
pub fn objects(world: &World, shape: Shape, locks: Locks, striding: bool) -> (world::Objects, Feed) {
    let mac = fresh_mac();
    let cq = world.cq(shape.receives(), 64, locks);
    // SAFETY: live objects and initialised structures; the specification follows the attributes.
    let objects = unsafe {
        let (qp, wq) = match striding {
            true => work_queue(world, shape, cq, locks),
            false => (raw_qp(world, shape, cq, locks), ptr::null_mut()),
        };
        steer(qp, mac);
        world::Objects { wq, ..world.describe(cq, Vec::new(), vec![qp], shape) }
    };
    let start = objects.memory.start;
    let address = |i| start + u64::from(i) * u64::from(BUFFER);
    let feed = Feed::new(world, mac, (0..shape.slots).map(address).sum());
    (objects, feed)
}

/// Makes a rule that stays: frames to this address go to the queue pair.
///
/// # Safety
/// A live queue pair.
pub(crate) unsafe fn steer(qp: *mut ibv_qp, mac: [u8; 6]) {
    let mut rule = Rule::default();
    rule.attr.size = size_of::<Rule>() as u16;
    (rule.attr.num_of_specs, rule.attr.port) = (1, 1);
    (rule.eth.type_, rule.eth.size) = (IBV_FLOW_SPEC_ETH, size_of::<ibv_flow_spec_eth>() as u16);
    (rule.eth.val.dst_mac, rule.eth.mask.dst_mac) = (mac, [0xff; 6]);
    // SAFETY: the caller's queue pair is live; the specification follows the attributes.
    unsafe { made(ibv_create_flow(qp, (&raw mut rule).cast())) };
}

/// # Safety
/// A live CQ of the world.
pub(crate) unsafe fn raw_qp(world: &World, shape: Shape, cq: *mut ibv_cq_ex, locks: Locks) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr {
        send_cq: world.send_cq(),
        recv_cq: ibv_cq_ex_to_cq(cq),
        qp_type: IBV_QPT_RAW_PACKET,
        ..Default::default()
    };
    (init.cap.max_recv_wr, init.cap.max_recv_sge) = (shape.slots, 1);
    // SAFETY: live objects and initialised structures.
    unsafe {
        let qp = made(ibv_create_qp(world.domain(locks), &mut init));
        let attr = ibv_qp_attr { port_num: 1, ..Default::default() };
        qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR], attr);
        qp
    }
}

/// A work queue, and the hash queue pair that leads to it.
///
/// # Safety
/// A live CQ of the world.
unsafe fn work_queue(world: &World, shape: Shape, cq: *mut ibv_cq_ex, locks: Locks) -> (*mut ibv_qp, *mut ibv_wq) {
    let context = world.pd.context().as_raw();
    let pd = world.domain(locks);
    let mut init = ibv_wq_init_attr {
        wq_type: IBV_WQT_RQ,
        max_wr: shape.slots,
        max_sge: 1,
        pd,
        cq: ibv_cq_ex_to_cq(cq),
        ..Default::default()
    };
    let (attr_mask, wq_state) = (IBV_WQ_ATTR_STATE, IBV_WQS_RDY);
    let mut ready = ibv_wq_attr { attr_mask, wq_state, ..Default::default() };
    let mut key = [0x5a; 40];
    // SAFETY: live objects and initialised structures.
    unsafe {
        let wq = made(ibv_create_wq(context, &mut init));
        assert_eq!(ibv_modify_wq(wq, &mut ready), 0);
        let mut wqs = [wq];
        let mut init = ibv_rwq_ind_table_init_attr { ind_tbl: wqs.as_mut_ptr(), ..Default::default() };
        let rwq_ind_tbl = made(ibv_create_rwq_ind_table(context, &mut init));
        let mut init = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_RAW_PACKET,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
            pd,
            rwq_ind_tbl,
            ..Default::default()
        };
        init.rx_hash_conf = ibv_rx_hash_conf {
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: 0,
        };
        (made(ibv_create_qp_ex(context, &mut init)), wq)
    }
}

#[repr(C)]
#[derive(Default)]
struct Rule {
    attr: ibv_flow_attr,
    eth: ibv_flow_spec_eth,
}
