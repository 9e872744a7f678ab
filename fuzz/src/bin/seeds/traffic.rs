//! What libmlx5 and the device write for one work request.

use std::path::Path;
use std::ptr;

use doorbell::{BufferPool, Compression, QpConfig, Receiver, ReceiverConfig, Sender, SenderConfig};
use doorbell_fuzz::memory::ARENA;
use doorbell_fuzz::world::{QKEY, Queues, Scene, World};
use rdma_core_sys::*;
use soft_mlx5::Device;
use soft_mlx5::nic::inspect::CompletionQueue;

const RECORD: usize = 16;
const ETHERNET: usize = 14;
const FILE_HEADER: usize = 24;

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Of so many bytes.
    Send(u32),
    /// The bytes are in the WQE.
    Inline(u32),
    /// With immediate data.
    SendImm(u32),
    /// With a key to invalidate.
    SendInv(u32),
    /// RDMA WRITE.
    Write(u32),
    /// RDMA WRITE with immediate data.
    WriteImm(u32),
    /// RDMA READ.
    Read(u32),
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// A SEND with a key that is none.
    BadKey,
    /// A tag, and a message that it matches.
    Tag,
    /// A tag that is taken back.
    Untag,
    /// A message that no tag matches, and what follows from it.
    Unexpected,
}

impl Work {
    /// What a scene can do.
    pub fn of(scene: Scene) -> Vec<Self> {
        use Work::*;
        let messages =
            [Send(20), Send(60), Send(200), Inline(24), SendImm(24), SendImm(200), BadKey];
        let remote = [Write(300), WriteImm(20)];
        let reliable = [SendInv(24), Send(700), Read(20), Read(700), CompareSwap, FetchAdd];
        match scene {
            Scene::Ud => messages.to_vec(),
            Scene::Uc => [&messages[..], &remote].concat(),
            Scene::Rc | Scene::Shared => [&messages[..], &remote, &reliable].concat(),
            Scene::Tags => vec![Send(20), Send(200), Tag, Untag, Unexpected],
        }
    }
}

/// What was written.
#[derive(Debug)]
pub struct Traffic {
    /// Data segments of receives.
    pub receives: Vec<[u8; 64]>,
    /// Basic blocks, by the queue pair.
    pub sends: Vec<(usize, Vec<[u8; 64]>)>,
    /// Packets, by the queue pair they are for.
    pub packets: Vec<(usize, Vec<u8>)>,
    /// CQEs.
    pub cqes: Vec<[u8; 64]>,
}

fn bytes_at<const N: usize>(addr: u64) -> [u8; N] {
    // SAFETY: inside a queue of this process, which nobody writes now.
    unsafe { (addr as *const [u8; N]).read_volatile() }
}

fn cqes_since(cq: &CompletionQueue, from: u32) -> Vec<[u8; 64]> {
    let at = |index: u32| cq.attr.buf + u64::from(index % cq.attr.cqe_count) * 64;
    (from..cq.produced).map(|index| bytes_at(at(index))).collect()
}

/// The packets that a capture has more than `seen` bytes of.
fn captured(file: &Path, seen: &mut usize) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).expect("a capture");
    let mut at = (*seen).max(FILE_HEADER);
    let mut packets = Vec::new();
    while at < bytes.len() {
        let len: [u8; 4] = bytes[at + 8..at + 12].try_into().expect("four bytes");
        let end = at + RECORD + u32::from_ne_bytes(len) as usize;
        let mut packet = vec![0, 2, 0, 1, 0, 0, 0, 1];
        packet.extend(&bytes[at + RECORD + ETHERNET..end]);
        packets.push(packet);
        at = end;
    }
    *seen = at;
    packets
}

impl Traffic {
    /// Does it on new queues.
    pub fn run(world: &World, scene: Scene, work: Work, capture: &Path, seen: &mut usize) -> Self {
        let queues = world.queues(scene, None);
        let before = world.device.queues();
        captured(capture, seen);
        let receives = if scene == Scene::Tags { 40 } else { 2 };
        (0..receives).for_each(|n| post_receive(world, &queues, n));
        let run = Run { world, queues: &queues, scene };
        match work {
            Work::Tag => {
                run.tag(IBV_WR_TAG_ADD, 0);
                run.message(3, 7);
            }
            Work::Untag => {
                let handle = run.tag(IBV_WR_TAG_ADD, 0);
                run.tag(IBV_WR_TAG_DEL, handle);
            }
            Work::Unexpected => {
                run.message(3, 9);
                run.message(0, 9);
                run.message(1, 9);
                run.tag(IBV_WR_TAG_SYNC, 1);
            }
            _ => run.send(work),
        }
        for _ in 0..4 {
            world.settle();
            world.device.advance(std::time::Duration::from_millis(1));
        }
        let after = world.device.queues();
        let numbers: Vec<_> = queues.qps.iter().map(|qp| qp.number()).collect();
        let mut sends = Vec::new();
        for qp in &after.qps {
            let ours = numbers.iter().position(|number| *number == qp.number);
            // The queue pair that libmlx5 makes for the list stands for ours.
            let index = ours.unwrap_or(numbers.len() - 1);
            let from = before.qps.iter().find(|old| old.number == qp.number);
            let mut at = from.map_or(0, |old| old.send_index);
            while at != qp.send_index {
                let block = |index: u16| {
                    bytes_at(qp.attr.sq.buf + u64::from(u32::from(index) % qp.attr.sq.count) * 64)
                };
                let first: [u8; 64] = block(at);
                let count = u16::from(first[7] & 0x3f).div_ceil(4).max(1);
                sends.push((index, (0..count).map(|n| block(at.wrapping_add(n))).collect()));
                at = at.wrapping_add(count);
            }
        }
        let receiver = after.qps.iter().find(|qp| qp.number == numbers[1]).expect("it is there");
        let receives = match after.srqs.last().filter(|_| receiver.attr.srq.is_some()) {
            Some(srq) => {
                let wqe = bytes_at::<32>(srq.attr.buf);
                let mut block = [0; 64];
                block[..16].copy_from_slice(&wqe[16..]);
                vec![block; receives]
            }
            None => vec![bytes_at(receiver.attr.rq.buf); receives],
        };
        let to = |packet: &[u8]| u32::from_be_bytes([0, packet[61], packet[62], packet[63]]);
        let packets = captured(capture, seen).into_iter();
        let index = |number| numbers.iter().position(|own| *own == number).unwrap_or(0);
        let packets = packets.map(|packet| (index(to(&packet)), packet)).collect();
        let cqes = cqes_since(&after.cqs[0], before.cqs[0].produced);
        Self { receives, sends, packets, cqes }
    }
}

fn post_receive(world: &World, queues: &Queues, n: usize) {
    let mut sge = ibv_sge { addr: ARENA + 256 * n as u64, length: 4096, lkey: world.key() };
    let mut wr = ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
    let mut bad = ptr::null_mut();
    // SAFETY: live queues with room.
    let errno = unsafe {
        match &queues.srq {
            Some(srq) => ibv_post_srq_recv(srq.raw(), &mut wr, &mut bad),
            None => ibv_post_recv(queues.qps[1].raw(), &mut wr, &mut bad),
        }
    };
    assert_eq!(errno, 0);
}

struct Run<'a> {
    world: &'a World,
    queues: &'a Queues,
    scene: Scene,
}

impl Run<'_> {
    fn post(&self, mut wr: ibv_send_wr, length: u32) {
        let mut sge = ibv_sge { addr: ARENA + 0x8000, length, lkey: self.world.key() };
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        wr.send_flags |= IBV_SEND_SIGNALED;
        if self.scene == Scene::Ud {
            wr.wr.ud.ah = self.world.address_handle();
            wr.wr.ud.remote_qpn = self.queues.qps[1].number();
            wr.wr.ud.remote_qkey = QKEY;
        }
        // SAFETY: a live queue pair with room, memory that stays.
        let errno =
            unsafe { ibv_post_send(self.queues.qps[0].raw(), &mut wr, &mut ptr::null_mut()) };
        assert_eq!(errno, 0);
        self.world.settle();
    }

    fn send(&self, work: Work) {
        let mut wr = ibv_send_wr::default();
        let (opcode, length) = match work {
            Work::SendImm(length) => (IBV_WR_SEND_WITH_IMM, length),
            Work::SendInv(length) => (IBV_WR_SEND_WITH_INV, length),
            Work::Write(length) => (IBV_WR_RDMA_WRITE, length),
            Work::WriteImm(length) => (IBV_WR_RDMA_WRITE_WITH_IMM, length),
            Work::Read(length) => (IBV_WR_RDMA_READ, length),
            Work::CompareSwap => (IBV_WR_ATOMIC_CMP_AND_SWP, 8),
            Work::FetchAdd => (IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
            // Beyond the registered memory.
            Work::BadKey => (IBV_WR_SEND, 1 << 16),
            Work::Send(length) | Work::Inline(length) => (IBV_WR_SEND, length),
            Work::Tag | Work::Untag | Work::Unexpected => unreachable!("done elsewhere"),
        };
        wr.opcode = opcode;
        if matches!(work, Work::Inline(_)) {
            wr.send_flags |= IBV_SEND_INLINE;
        }
        if matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
            (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = (ARENA + 64, self.world.key());
            (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (0, 5);
        } else if self.scene != Scene::Ud {
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (ARENA + 64, self.world.key());
        }
        match work {
            Work::SendInv(_) => wr.__bindgen_anon_1.invalidate_rkey = 0x7777,
            _ => wr.__bindgen_anon_1.imm_data = 0x1234_5678,
        }
        self.post(wr, length);
    }

    /// A message with the header of tag matching.
    fn message(&self, opcode: u8, tag: u64) {
        let mut header = [opcode, 0, 0, 0, 0, 0, 0, 9].to_vec();
        header.extend(tag.to_be_bytes());
        // Address, key and length of a rendezvous.
        header.extend((ARENA + 0x9000).to_be_bytes());
        header.extend(self.world.key().to_be_bytes());
        header.extend(100u32.to_be_bytes());
        self.world.arena.write(0x8000, &header);
        self.post(ibv_send_wr { opcode: IBV_WR_SEND, ..Default::default() }, 40);
    }

    fn tag(&self, opcode: ibv_ops_wr_opcode, handle: u32) -> u32 {
        let mut sge = ibv_sge { addr: ARENA + 0x4000, length: 256, lkey: self.world.key() };
        let mut wr = ibv_ops_wr { opcode, flags: IBV_OPS_SIGNALED as i32, ..Default::default() };
        match opcode {
            IBV_WR_TAG_ADD => {
                (wr.tm.add.sg_list, wr.tm.add.num_sge) = (&mut sge, 1);
                (wr.tm.add.tag, wr.tm.add.mask) = (7, u64::MAX);
            }
            IBV_WR_TAG_DEL => wr.tm.handle = handle,
            _ => {
                wr.flags |= IBV_OPS_TM_SYNC as i32;
                wr.tm.unexpected_cnt = handle;
            }
        }
        let srq = self.queues.srq.as_ref().expect("an SRQ with tags").raw();
        // SAFETY: a live SRQ, memory that stays.
        assert_eq!(unsafe { ibv_post_srq_ops(srq, &mut wr, &mut ptr::null_mut()) }, 0);
        self.world.settle();
        wr.tm.handle
    }
}

/// A block of `count` compressed CQEs, as it stands in a CQ.
pub fn compressed(format: Compression, count: usize) -> Vec<[u8; 64]> {
    let device = Device::builder().stepped().build().expect("a stepped device");
    let pd = doorbell::open(device.name()).expect("the device").alloc_pd().expect("a domain");
    let config = ReceiverConfig::new().cq_capacity(63).compression(format);
    let mut receiver = Receiver::new(&pd, &config).expect("a receiver");
    let cq = device.queues().cqs[0].number;
    let mut far_receiver = Receiver::new(&pd, &ReceiverConfig::new()).expect("a receiver");
    let config = QpConfig::rc().receives(32, 1).sends(32).max_inline(64);
    let mut near = receiver.create_qp(&config).expect("a queue pair");
    let mut sender = Sender::new(&pd, &SenderConfig::new()).expect("a sender");
    let far = far_receiver.create_qp_with_sender(&config, &mut sender);
    let mut far = far.expect("a queue pair");
    let queue = far.send_queue().expect("it has one");
    near.connect(&far.address().expect("an address")).expect("a connection");
    far.connect(&near.address().expect("an address")).expect("a connection");
    let pool = BufferPool::new(&pd, 32, 64).expect("a pool");
    receiver.fill(near.receive_queue().expect("it has one"), &pool).unwrap();
    let mut posting = sender.post(queue).expect("a connection");
    for n in 0..count {
        posting.send(&[n as u8; 40][..n + 8]).expect("room");
    }
    drop(posting);
    device.settle();
    let queues = device.queues();
    let cq = queues.cqs.iter().find(|found| found.number == cq).expect("it is there");
    cqes_since(cq, 0)
}
