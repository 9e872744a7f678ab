//! One frame at a time, from a queue pair to a receiver of another context.

use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::{ptr, slice};

use doorbell::frames::{Flow, FlowRule, FrameConfig, FrameReceiver};
use doorbell::{CqConfig, DataPath, ProtectionDomain, Sender, SqId};
use rdma_core_sys::*;

use super::{Costs, ROUNDS, Single, deliver, measure, median};
use crate::frames::{fresh_mac, raw_qp, steer};
use crate::qp_states;
use crate::step;
use crate::world::{BUFFER, Kind, Locks, Memory, Shape, World, made};

/// Buffers that are posted.
const RECEIVES: u32 = 256;
/// Requests that can be outstanding.
const SENDS: u32 = 64;

/// Where a frame has a price, which the order repeats.
const PRICE: usize = 42;

/// An end that answers a frame with a frame.
trait Trader: Single {
    /// Takes a frame, and sends one with the same price.
    fn answer(&mut self);
}

/// Returns the instructions from the poll that finds the CQE of a frame to the register of the answer.
#[inline(always)]
fn tick_to_order(world: &World, trader: &mut impl Trader) -> f64 {
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        trader.poll_nothing();
        trader.send();
        deliver(world);
        trader.sent();
        let answer = step::count(|| trader.answer());
        assert!(answer.to_register > 0, "the register was not written");
        counts.push(answer.to_register);
        deliver(world);
        trader.receive();
        trader.sent();
    }
    median(counts)
}

/// Measures an end: [`Costs`], and from tick to order.
#[inline(always)]
fn measure_all(world: &World, trader: &mut impl Trader) -> (Costs, f64) {
    (measure(world, trader), tick_to_order(world, trader))
}

/// A frame of `LEN` bytes for this address.
fn frame<const LEN: usize>(mac: [u8; 6]) -> [u8; LEN] {
    let mut bytes = [7; LEN];
    bytes[..6].copy_from_slice(&mac);
    bytes
}

/// Watches the register of a queue pair.
///
/// # Safety
/// A live queue pair that lives until the process ends or another is watched.
unsafe fn watch(world: &World, qp: *mut ibv_qp) {
    // SAFETY: a live queue pair, whose register stays mapped as long as it lives.
    unsafe {
        let layout = world.sq_layout(qp);
        step::watch(layout.register.cast(), layout.register_size);
    }
}

/// The domain of a context of its own: a device does not give a program its own frames back.
pub(super) fn other_domain(world: &World) -> ProtectionDomain {
    let context = doorbell::open(world.device.name());
    context.and_then(|context| context.alloc_pd()).expect("a domain")
}

struct Safe<const LEN: usize> {
    receiver: FrameReceiver,
    _rule: FlowRule,
    sender: Sender,
    queue: SqId,
    bytes: [u8; LEN],
    _sends: FrameReceiver,
}

impl<const LEN: usize> Single for Safe<LEN> {
    #[inline(always)]
    fn send(&mut self) {
        let request = self.sender.post(self.queue).expect("ready");
        request.send_frame(black_box(&self.bytes), false).expect("room");
    }

    #[inline(always)]
    fn send_unsignaled(&mut self, _is_last: bool) {
        let request = self.sender.post(self.queue).expect("ready");
        request.unsignaled().send_frame(black_box(&self.bytes), false).expect("room");
    }

    #[inline(always)]
    fn sent(&mut self) {
        if let Some(done) = self.sender.next() {
            black_box(done.expect("no failure").token);
        }
    }

    #[inline(always)]
    fn sent_unsignaled(&mut self) {
        assert!(self.sender.next().is_none());
    }

    #[inline(always)]
    fn receive(&mut self) {
        let frame = self.receiver.next().expect("a frame").expect("no failure");
        black_box((frame.as_ptr(), frame.len()));
        step::mark();
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        assert!(self.receiver.next().is_none());
    }
}

impl<const LEN: usize> Trader for Safe<LEN> {
    #[inline(always)]
    fn answer(&mut self) {
        let frame = self.receiver.next().expect("a frame").expect("no failure");
        self.bytes[PRICE..][..8].copy_from_slice(&frame[PRICE..][..8]);
        self.send();
    }
}

pub(super) fn safe<const LEN: usize>(world: &World) -> (Costs, f64) {
    let cq = |entries| CqConfig::new(entries).path(DataPath::Direct);
    let receiver = FrameConfig::new().plain(RECEIVES, BUFFER).cq(cq(1));
    let receiver = FrameReceiver::new(&world.pd, &receiver).expect("a receiver");
    let mac = fresh_mac();
    let rule = receiver.attach(&Flow::mac(mac)).expect("a rule");
    let pd = other_domain(world);
    let mut sender = Sender::new(&pd, &cq(1024)).expect("a sender");
    let config = FrameConfig::new().plain(4, BUFFER).cq(cq(1)).max_send_wr(SENDS).max_inline(LEN as u32);
    let sends = FrameReceiver::with_sender(&pd, &config, &mut sender).expect("a queue pair");
    let queue = sends.send_queue().expect("made with a sender");
    // SAFETY: a live queue pair, which lives until it is measured.
    unsafe { watch(world, sends.as_raw().expect("a raw packet queue pair")) };
    measure_all(world, &mut Safe::<LEN> { receiver, _rule: rule, sender, queue, bytes: frame(mac), _sends: sends })
}

/// Stock libmlx5 without locks: `ibv_poll_cq`, `ibv_post_recv`, and `ibv_wr_send` of an inline frame.
struct Libmlx5<const LEN: usize> {
    cq: *mut ibv_cq,
    receives: *mut ibv_qp,
    memory: Memory,
    send_cq: *mut ibv_cq,
    sends: *mut ibv_qp,
    bytes: [u8; LEN],
    _pd: ManuallyDrop<ProtectionDomain>,
}

impl<const LEN: usize> Libmlx5<LEN> {
    #[inline(always)]
    fn post(&mut self, wr_id: u64) {
        let mut sge = ibv_sge { addr: wr_id, length: BUFFER, lkey: self.memory.lkey };
        let mut wr = ibv_recv_wr { wr_id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: a live queue pair, and memory that stays.
        assert_eq!(unsafe { ibv_post_recv(self.receives, &mut wr, &mut ptr::null_mut()) }, 0);
    }

    #[inline(always)]
    fn send_with(&mut self, flags: u32) {
        let bytes = black_box(&raw mut self.bytes);
        // SAFETY: a live queue pair that was created for sends; the bytes are copied.
        let errno = unsafe {
            let qp = ibv_qp_to_qp_ex(self.sends);
            ibv_wr_start(qp);
            ((*qp).wr_id, (*qp).wr_flags) = (7, flags);
            ibv_wr_send(qp);
            ibv_wr_set_inline_data(qp, bytes.cast(), LEN);
            ibv_wr_complete(qp)
        };
        assert_eq!(errno, 0);
    }
}

/// Takes one completion. Returns its `wr_id` and length.
#[inline(always)]
pub(super) fn poll(cq: *mut ibv_cq) -> Option<(u64, u32)> {
    let mut wc = ibv_wc::default();
    // SAFETY: a live CQ, and room for one completion.
    let polled = unsafe { ibv_poll_cq(cq, 1, &mut wc) };
    if polled == 0 {
        return None;
    }
    assert_eq!((polled, wc.status), (1, IBV_WC_SUCCESS));
    Some((wc.wr_id, wc.byte_len))
}

impl<const LEN: usize> Single for Libmlx5<LEN> {
    #[inline(always)]
    fn send(&mut self) {
        self.send_with(IBV_SEND_SIGNALED);
    }

    #[inline(always)]
    fn send_unsignaled(&mut self, is_last: bool) {
        self.send_with(if is_last { IBV_SEND_SIGNALED } else { 0 });
    }

    #[inline(always)]
    fn sent(&mut self) {
        black_box(poll(self.send_cq).expect("a completion"));
    }

    #[inline(always)]
    fn sent_unsignaled(&mut self) {
        self.sent();
    }

    #[inline(always)]
    fn receive(&mut self) {
        let (wr_id, len) = poll(self.cq).expect("a frame");
        black_box((wr_id, len));
        step::mark();
        self.post(wr_id);
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        assert!(poll(self.cq).is_none());
    }
}

impl<const LEN: usize> Trader for Libmlx5<LEN> {
    #[inline(always)]
    fn answer(&mut self) {
        let (wr_id, len) = poll(self.cq).expect("a frame");
        // SAFETY: so many bytes of a buffer, whose number is its address, are the frame's.
        let frame = unsafe { slice::from_raw_parts(wr_id as *const u8, len as usize) };
        self.bytes[PRICE..][..8].copy_from_slice(&frame[PRICE..][..8]);
        self.send();
        self.post(wr_id);
    }
}

/// Makes a raw packet queue pair that sends without locks, and its CQ.
pub(super) fn sending_qp(pd: &ProtectionDomain, sends: u32, inline: u32) -> (*mut ibv_cq, *mut ibv_qp) {
    // SAFETY: an open context, live objects and initialised structures.
    unsafe {
        let context = pd.context().as_raw();
        let mut attr = ibv_cq_init_attr_ex { cqe: sends, comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS, ..Default::default() };
        attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        let send_cq = ibv_cq_ex_to_cq(made(ibv_create_cq_ex(context, &mut attr)));
        let td = made(ibv_alloc_td(context, &mut ibv_td_init_attr::default()));
        let mut attr = ibv_parent_domain_init_attr { pd: pd.as_raw(), td, ..Default::default() };
        let domain = made(ibv_alloc_parent_domain(context, &mut attr));
        let mut init = ibv_qp_init_attr_ex {
            send_cq,
            recv_cq: send_cq,
            qp_type: IBV_QPT_RAW_PACKET,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: domain,
            send_ops_flags: IBV_QP_EX_WITH_SEND.into(),
            ..Default::default()
        };
        (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (sends, 1, inline);
        let qp = made(ibv_create_qp_ex(context, &mut init));
        let attr = ibv_qp_attr { port_num: 1, ..Default::default() };
        qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr);
        (send_cq, qp)
    }
}

pub(super) fn libmlx5<const LEN: usize>(world: &World) -> (Costs, f64) {
    let cq = world.cq(RECEIVES, 64, Locks::Off);
    let memory = world.memory(RECEIVES);
    let shape = Shape::new(Kind::Frames { striding: false }, RECEIVES);
    let mac = fresh_mac();
    let pd = ManuallyDrop::new(other_domain(world));
    // SAFETY: live objects and initialised structures.
    let (receives, send_cq, sends) = unsafe {
        let receives = raw_qp(world, shape, cq, Locks::Off);
        steer(receives, mac);
        let (send_cq, sends) = sending_qp(&pd, SENDS, LEN as u32);
        watch(world, sends);
        (receives, send_cq, sends)
    };
    let cq = cq.cast();
    let bytes = frame(mac);
    let mut made = Libmlx5::<LEN> { cq, receives, memory, send_cq, sends, bytes, _pd: pd };
    let start = made.memory.start;
    (0..RECEIVES).for_each(|index| made.post(start + u64::from(index) * u64::from(BUFFER)));
    measure_all(world, &mut made)
}
