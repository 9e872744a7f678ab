//! Stock libmlx5 as a witness: it and doorbell report the same fields of the same CQEs.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::{mem, slice};

use doorbell::{
    BufferPool, Cause, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QpState, QueuePair, Receiver,
    RqConfig, WcFlags, WcStatus,
};
use doorbell_tests::by_hand::Made;
use doorbell_tests::peers::known_state;
use doorbell_tests::{device, direct_only, receiving};
use mlx5_ring::cq::{CompletionQueue, Layout};
use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe, FRESH_OP_OWN, op_own};
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;
use sys::Mlx5dv;

const ENTRIES: u32 = 256;
const RECEIVES: u32 = 128;
const BUFFER: usize = 256;

/// A CQ of libmlx5, its memory, and a queue pair on it.
struct Witness {
    cq: *mut sys::ibv_cq_ex,
    made: Made,
    memory: sys::mlx5dv_cq,
}

impl Witness {
    fn new(pd: &ProtectionDomain, cqe_size: u16, qp_type: sys::ibv_qp_type) -> Self {
        let mlx5dv = Mlx5dv::get().unwrap();
        let flags = sys::IBV_WC_EX_WITH_BYTE_LEN
            | sys::IBV_WC_EX_WITH_IMM
            | sys::IBV_WC_EX_WITH_QP_NUM
            | sys::IBV_WC_EX_WITH_SRC_QP
            | sys::IBV_WC_EX_WITH_SLID
            | sys::IBV_WC_EX_WITH_SL
            | sys::IBV_WC_EX_WITH_DLID_PATH_BITS
            | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
        let mut attr = sys::ibv_cq_init_attr_ex { cqe: ENTRIES - 1, wc_flags: flags.into(), ..Default::default() };
        let mut mlx5 = sys::mlx5dv_cq_init_attr {
            comp_mask: sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE.into(),
            cqe_comp_res_format: 0,
            flags: 0,
            cqe_size,
        };
        // SAFETY: live objects and initialised structures; `Made` destroys them.
        unsafe {
            let cq = (mlx5dv.create_cq)(pd.context().as_raw(), &mut attr, &mut mlx5);
            let plain = sys::ibv_cq_ex_to_cq(cq);
            let made = Made::on(pd, plain, qp_type, (RECEIVES, 2), false);
            let mut memory: sys::mlx5dv_cq = mem::zeroed();
            let mut obj: sys::mlx5dv_obj = mem::zeroed();
            (obj.cq.in_, obj.cq.out) = (plain, &mut memory);
            assert_eq!((mlx5dv.init_obj)(&mut obj, sys::MLX5DV_OBJ_CQ.into()), 0);
            assert_eq!(memory.cqe_size, u32::from(cqe_size));
            Self { cq, made, memory }
        }
    }

    /// A receiver on both.
    fn wrap(&self, pd: &ProtectionDomain, qp: &QpConfig) -> (Receiver, QueuePair) {
        let config = CqConfig::new(4096).path(DataPath::Direct);
        // SAFETY: no other code uses the objects, and they are destroyed last.
        unsafe {
            let mut receiver = Receiver::from_raw_cq(pd, self.made.recv_cq, &config).unwrap();
            let own = RqConfig::new(RECEIVES).max_sge(2);
            let near = QueuePair::builder(qp).receive(&mut receiver, own);
            let near = near.attach(self.made.qp).unwrap();
            (receiver, near)
        }
    }

    fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.made.qp).qp_num }
    }

    fn to(&self, state: sys::ibv_qp_state) {
        let mut attr = sys::ibv_qp_attr { qp_state: state, port_num: 1, ..Default::default() };
        let mut mask = sys::IBV_QP_STATE;
        if state == sys::IBV_QPS_INIT {
            // SAFETY: the queue pair is alive.
            let datagrams = unsafe { (*self.made.qp).qp_type } == sys::IBV_QPT_UD;
            mask |= sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT;
            mask |= if datagrams { sys::IBV_QP_QKEY } else { sys::IBV_QP_ACCESS_FLAGS };
        }
        // SAFETY: a live queue pair and an initialised structure.
        assert_eq!(unsafe { sys::ibv_modify_qp(self.made.qp, &mut attr, mask as i32) }, 0);
    }

    /// Plays the device: writes a CQE, with `front` before it in entries of 128 bytes.
    fn write(&self, index: u32, cqe: &[u8; 64], front: &[u8; 64]) {
        let size = self.memory.cqe_size as usize;
        let mut bytes = *cqe;
        bytes[63] = bytes[63] & !1 | (index / ENTRIES % 2) as u8;
        // SAFETY: inside the buffer, which nothing else writes: no message is sent.
        unsafe {
            let entry = self.memory.buf.cast::<u8>().add((index % ENTRIES) as usize * size);
            if size == 128 {
                entry.copy_from_nonoverlapping(front.as_ptr(), 64);
            }
            entry.add(size - 64).copy_from_nonoverlapping(bytes.as_ptr(), 64);
        }
    }
}

/// A form of CQE, for the queue pair and the place that it gets.
struct Form {
    name: String,
    cqe: [u8; 64],
    front: [u8; 64],
}

impl Form {
    fn is_checksum_ok(&self) -> bool {
        Cqe64::from_bytes(&self.cqe).is_checksum_ok()
    }
}

fn forms(cqe_size: u16) -> Vec<Form> {
    let mut forms = Vec::new();
    let pattern = |seed: u8| std::array::from_fn::<u8, 64, _>(|i| seed.wrapping_add(i as u8 * 3));
    let responders = [
        CqeOpcode::ResponderSend,
        CqeOpcode::ResponderSendImm,
        CqeOpcode::ResponderSendInv,
        CqeOpcode::ResponderWriteImm,
    ];
    let formats = [CqeFormat::Plain, CqeFormat::Inline32, CqeFormat::Inline64];
    for (n, opcode) in responders.into_iter().enumerate() {
        for format in formats {
            let inline = match format {
                CqeFormat::Inline32 => 32,
                CqeFormat::Inline64 => 64,
                _ => 200,
            };
            // In entries of 128 bytes a device uses the form of 64.
            if (cqe_size == 64 && inline == 64) || (cqe_size == 128 && inline == 32) {
                continue;
            }
            for variant in 0..6u32 {
                let mut cqe = Cqe64::zeroed();
                cqe.ml_path = 0x80 | (variant as u8 * 5);
                cqe.slid = (0x100 + variant as u16).into();
                cqe.flags_rqpn = (((variant & 3) << 28) | ((variant * 3) << 24) | 0x0a_0b00 | n as u32).into();
                cqe.imm_inval_pkey = (0xcafe_0000 | (variant << 8) | n as u32).into();
                cqe.byte_cnt = [0, 1, 31, 32, inline, inline][variant as usize].min(inline).into();
                cqe.timestamp = ((u64::from(variant) << 40) | 77).into();
                // IPv4, and each combination of good checksums.
                (cqe.hds_ip_ext, cqe.l4_hdr_type_etc) = ((variant as u8 & 3) << 1, 2 << 2);
                cqe.op_own = op_own(opcode, format, variant & 1 != 0, 0);
                let mut bytes = cqe.to_bytes();
                if format == CqeFormat::Inline32 {
                    bytes[..32].copy_from_slice(&pattern(variant as u8)[..32]);
                }
                let name = format!("{opcode:?} {format:?} {variant}");
                forms.push(Form { name, cqe: bytes, front: pattern(variant as u8 ^ 0x55) });
            }
        }
    }
    for syndrome in (0..0x18).chain(0x20..0x25) {
        let mut cqe = ErrorCqe::zeroed();
        (cqe.syndrome, cqe.vendor_err_synd) = (syndrome, 0x80 + syndrome);
        cqe.op_own = op_own(CqeOpcode::ResponderError, CqeFormat::Plain, false, 0);
        let name = format!("syndrome {syndrome:#x}");
        forms.push(Form { name, cqe: cqe.to_bytes(), front: [0; 64] });
    }
    assert!(forms.len() <= RECEIVES as usize, "{}", forms.len());
    forms
}

/// Status and vendor error of a failure.
type Failed = (WcStatus, u32);

/// Fields of the completion of a message.
#[derive(Debug, PartialEq)]
struct Reported {
    len: u32,
    written: Option<u32>,
    imm: Option<u32>,
    invalidated_rkey: Option<u32>,
    source: Option<(u32, u16, u8, u8)>,
    flags: WcFlags,
    timestamp: u64,
    payload: Vec<u8>,
}

/// Returns the fields that libmlx5 reports of the current completion. `buffer` is its buffer. `overwritten`: payload
/// overwrote the source, so libmlx5 reports bytes of the payload as the source.
///
/// # Safety
/// `cq` is in a batch.
unsafe fn reported_by_libmlx5(cq: *mut sys::ibv_cq_ex, buffer: &[u8], overwritten: bool) -> Result<Reported, Failed> {
    // SAFETY: the caller is in a batch.
    unsafe {
        let status = WcStatus::from_raw((*cq).status);
        if !status.is_success() {
            return Err((status, sys::ibv_wc_read_vendor_err(cq)));
        }
        let mut flags = WcFlags::from_bits_retain(sys::ibv_wc_read_wc_flags(cq));
        let written = sys::ibv_wc_read_opcode(cq) == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        let bytes = sys::ibv_wc_read_byte_len(cq);
        let len = if written { 0 } else { bytes };
        let source = (
            sys::ibv_wc_read_src_qp(cq),
            sys::ibv_wc_read_slid(cq) as u16,
            sys::ibv_wc_read_sl(cq),
            sys::ibv_wc_read_dlid_path_bits(cq),
        );
        if overwritten {
            flags -= WcFlags::GRH;
        }
        Ok(Reported {
            len,
            written: written.then_some(bytes),
            imm: flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(sys::ibv_wc_read_imm_data(cq))),
            invalidated_rkey: flags.contains(WcFlags::WITH_INV).then(|| sys::ibv_wc_read_invalidated_rkey(cq)),
            source: (!overwritten).then_some(source),
            flags,
            timestamp: sys::ibv_wc_read_completion_ts(cq),
            payload: buffer[..len as usize].to_vec(),
        })
    }
}

/// The user index by which libmlx5 finds a queue pair. No header has it, but every CQE of the device does. A queue
/// pair in error gives a receive back at once.
fn user_index(witness: &Witness) -> [u8; 4] {
    witness.to(sys::IBV_QPS_INIT);
    witness.to(sys::IBV_QPS_ERR);
    post(witness.made.qp, 1, ptr::null_mut(), 0);
    let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
    receiving::wait("a flushed receive", || {
        // SAFETY: a live CQ that no other code polls, not in a batch.
        unsafe { sys::ibv_start_poll(witness.cq, &mut attr) == 0 }
    });
    // SAFETY: in a batch; the CQE is the first of the buffer.
    unsafe {
        sys::ibv_end_poll(witness.cq);
        let cqe = witness.memory.buf.cast::<u8>().add(witness.memory.cqe_size as usize - 64);
        cqe.add(32).cast::<[u8; 4]>().read()
    }
}

/// Posts receives of `BUFFER` bytes each from `memory` on, or of nothing.
fn post(qp: *mut sys::ibv_qp, count: usize, memory: *mut u8, lkey: u32) {
    for i in 0..count {
        let addr = memory.wrapping_add(i * BUFFER).expose_provenance() as u64;
        let mut sge = sys::ibv_sge { addr, length: BUFFER as u32, lkey };
        let mut wr = sys::ibv_recv_wr {
            wr_id: i as u64,
            sg_list: &mut sge,
            num_sge: i32::from(!memory.is_null()),
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair with room; the memory outlives the test's use of it.
        assert_eq!(unsafe { sys::ibv_post_recv(qp, &mut wr, &mut bad) }, 0);
    }
}

fn compare(pd: &ProtectionDomain, cqe_size: u16, qp_type: sys::ibv_qp_type) {
    let datagrams = qp_type == sys::IBV_QPT_UD;
    let config = if datagrams { QpConfig::ud(1) } else { QpConfig::rc() };
    let (one, other) = (Witness::new(pd, cqe_size, qp_type), Witness::new(pd, cqe_size, qp_type));
    let forms = forms(cqe_size);
    let mut expected = Vec::new();

    // The receives of libmlx5 complete in order.
    let uidx = user_index(&one);
    let memory = UnsafeCell::new(vec![0u8; forms.len() * BUFFER]);
    // In state ERR the device would complete the receives itself.
    one.to(sys::IBV_QPS_RESET);
    one.to(sys::IBV_QPS_INIT);
    // SAFETY: there is no reference to the memory while libmlx5 copies to it, in `ibv_start_poll` and the like.
    let start = unsafe { (*memory.get()).as_mut_ptr() };
    post(one.made.qp, forms.len(), start, 0);
    let mut recorded = Vec::new();
    for (i, form) in forms.iter().enumerate() {
        let mut cqe = form.cqe;
        cqe[32..36].copy_from_slice(&uidx);
        cqe[57..60].copy_from_slice(&one.qp_num().to_be_bytes()[1..]);
        cqe[60..62].copy_from_slice(&(i as u16).to_be_bytes());
        one.write(i as u32 + 1, &cqe, &form.front);
        recorded.push(cqe);
    }
    let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
    for (i, form) in forms.iter().enumerate() {
        // SAFETY: a live CQ that no other code polls.
        unsafe {
            let got = if i == 0 { sys::ibv_start_poll(one.cq, &mut attr) } else { sys::ibv_next_poll(one.cq) };
            assert_eq!(got, 0, "libmlx5 does not see {}", form.name);
            assert_eq!((*one.cq).wr_id, i as u64);
            assert_eq!(sys::ibv_wc_read_qp_num(one.cq), one.qp_num());
            let overwritten = CqeFormat::from_op_own(form.cqe[63]) == CqeFormat::Inline32;
            let buffer = slice::from_raw_parts(start.add(i * BUFFER), BUFFER);
            let mut reported = reported_by_libmlx5(one.cq, buffer, overwritten);
            if let Ok(message) = &mut reported {
                // libmlx5 reports the checksums of raw packets and underlay queue pairs only.
                assert!(!message.flags.contains(WcFlags::IP_CSUM_OK), "{}", form.name);
                if datagrams && !overwritten && form.is_checksum_ok() {
                    message.flags |= WcFlags::IP_CSUM_OK;
                }
            }
            expected.push(reported);
        }
    }
    // SAFETY: in a batch.
    unsafe { sys::ibv_end_poll(one.cq) };

    let (mut receiver, near) = other.wrap(pd, &config);
    let rq = near.receive_queue().unwrap();
    let pool = BufferPool::new(pd, &PoolConfig::new(RECEIVES, BUFFER as u32)).unwrap();
    receiver.fill(rq, &pool).unwrap();
    for (i, form) in forms.iter().enumerate() {
        let mut cqe = form.cqe;
        cqe[57..60].copy_from_slice(&other.qp_num().to_be_bytes()[1..]);
        cqe[60..62].copy_from_slice(&(i as u16).to_be_bytes());
        other.write(i as u32, &cqe, &form.front);
    }
    let mut batch = receiver.poll_up_to(ENTRIES);
    let timestamps = timestamps(&recorded);
    for ((i, form), expected) in forms.iter().enumerate().zip(&expected) {
        let reported = match batch.next().unwrap_or_else(|| panic!("{} is not seen", form.name)) {
            Ok(message) => {
                assert_eq!(message.qp_num(), other.qp_num());
                let reported = Reported {
                    len: message.len() as u32,
                    written: message.written(),
                    imm: message.imm(),
                    invalidated_rkey: message.invalidated_rkey(),
                    source: message
                        .source()
                        .map(|source| (source.qp_num, source.lid, source.sl, source.dlid_path_bits)),
                    flags: message.flags(),
                    timestamp: timestamps[i],
                    payload: message.to_vec(),
                };
                // Posted again it would be one too many for the device, which knows nothing of these CQEs.
                drop(message.take().unwrap());
                Ok(reported)
            }
            Err(failure) => {
                assert_eq!(failure.qp_num, other.qp_num());
                let Cause::Status(status) = failure.cause else { panic!("{}: {failure}", form.name) };
                Err((status, failure.vendor_err))
            }
        };
        assert_eq!(reported, *expected, "{}", form.name);
    }
    assert!(batch.next().is_none());
    drop(batch);
    drop((near, receiver));
}

/// The timestamps of the recorded CQEs, which the ring alone reads in plain memory.
fn timestamps(recorded: &[[u8; 64]]) -> Vec<u64> {
    let mut timestamps = Vec::new();
    let mut memory = vec![[u64::from_ne_bytes([FRESH_OP_OWN; 8]); 8]; ENTRIES as usize];
    let mut record = [0u32; 2];
    for (slot, cqe) in memory.iter_mut().zip(recorded) {
        for (word, bytes) in slot.iter_mut().zip(cqe.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
    }
    let layout = Layout {
        buf: NonNull::from(&mut memory[0]).cast(),
        dbrec: NonNull::from(&mut record).cast(),
        cqe_cnt: ENTRIES,
        cqe_size: 64,
    };
    // SAFETY: memory of this function, which the queue does not outlive.
    let mut queue = unsafe { CompletionQueue::new(layout) }.unwrap();
    while let Some(cqe) = queue.next() {
        let error = cqe.opcode() == CqeOpcode::ResponderError;
        timestamps.push(if error { 0 } else { cqe.timestamp() });
    }
    assert_eq!(timestamps.len(), recorded.len());
    timestamps
}

/// Both agree but for checksums of datagrams.
#[test]
fn libmlx5_and_doorbell_agree_on_every_form() {
    let context = device::open_unpoisoned();
    direct_only!(&context);
    let pd = context.alloc_pd().unwrap();
    for (cqe_size, qp_type) in [(64, sys::IBV_QPT_RC), (128, sys::IBV_QPT_RC), (64, sys::IBV_QPT_UD)] {
        println!("CQEs of {cqe_size} bytes, type of queue pair {qp_type}");
        compare(&pd, cqe_size, qp_type);
    }
}

/// A completion that is not a message is reported once, and changes nothing else.
#[test]
fn cqes_without_a_message_are_classified() {
    let context = device::open_unpoisoned();
    direct_only!(&context);
    let pd = context.alloc_pd().unwrap();
    let made = Witness::new(&pd, 64, sys::IBV_QPT_RC);
    let (mut receiver, mut near) = made.wrap(&pd, &QpConfig::rc());
    let rq = near.receive_queue().unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES, BUFFER as u32)).unwrap();
    let posted = receiver.fill(rq, &pool).unwrap();
    let cqe = |opcode, counter: u16, syndromes: [u8; 2]| {
        let mut cqe = ErrorCqe::zeroed();
        [cqe.vendor_err_synd, cqe.syndrome] = syndromes;
        cqe.s_wqe_opcode_qpn = made.qp_num().into();
        cqe.wqe_counter = counter.into();
        cqe.op_own = op_own(opcode, CqeFormat::Plain, false, 0);
        cqe.to_bytes()
    };
    let status = Cause::Status(WcStatus::WR_FLUSH_ERR);
    let cases = [
        (cqe(CqeOpcode::ResponderError, 0, [0x93, 0x22]), Cause::PageFault, 1),
        (cqe(CqeOpcode::Requester, 0, [0, 0]), Cause::NotAReceive, 0),
        (cqe(CqeOpcode::RequesterError, 1, [0, 5]), Cause::NotAReceive, 0),
        (cqe(CqeOpcode::NoPacket, 1, [0, 0]), Cause::NotAReceive, 0),
        (cqe(CqeOpcode::SignatureError, 1, [0, 0]), Cause::NotAReceive, 0),
        (cqe(CqeOpcode::ResizeCq, 1, [0, 0]), Cause::Stray, 0),
        (cqe(CqeOpcode::Unknown(9), 1, [0, 0]), Cause::Stray, 0),
        // Completed already, and never posted.
        (cqe(CqeOpcode::ResponderSend, 0, [0, 0]), Cause::Stray, 0),
        (cqe(CqeOpcode::ResponderSend, 40_000, [0, 0]), Cause::Stray, 0),
        (cqe(CqeOpcode::ResponderError, 1, [0xf9, 5]), status, 1),
    ];
    for (i, (cqe, cause, buffers)) in cases.iter().enumerate() {
        made.write(i as u32, cqe, &[0; 64]);
        // Only the last of them is a failure of the queue pair.
        assert_eq!(near.state().unwrap(), QpState::Init);
        let mut batch = receiver.poll();
        let failure = batch.next().unwrap().unwrap_err();
        assert_eq!((failure.cause, failure.qp_num), (*cause, made.qp_num()), "{i}");
        assert_eq!(failure.buffers.len(), *buffers, "{i}");
        assert!(batch.next().is_none(), "{i}");
    }
    assert_eq!(known_state(&mut near), QpState::Error);
    assert_eq!(receiver.free_slots(rq), 2, "of {posted}");
    drop((near, receiver));
}

/// A message has no byte outside of its buffers, whatever length its completion names.
#[test]
fn lengths_that_cannot_be_true_end_with_the_buffers() {
    let context = device::open_unpoisoned();
    direct_only!(&context);
    let pd = context.alloc_pd().unwrap();
    let made = Witness::new(&pd, 64, sys::IBV_QPT_RC);
    let (mut receiver, near) = made.wrap(&pd, &QpConfig::rc());
    let rq = near.receive_queue().unwrap();
    let (large, small) = (
        BufferPool::new(&pd, &PoolConfig::new(8, BUFFER as u32)).unwrap(),
        BufferPool::new(&pd, &PoolConfig::new(8, 10)).unwrap(),
    );
    let complete = |index: u16, length: u32| {
        let mut cqe = Cqe64::zeroed();
        cqe.byte_cnt = length.into();
        cqe.sop_drop_qpn = made.qp_num().into();
        cqe.wqe_counter = index.into();
        cqe.op_own = op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);
        made.write(index.into(), &cqe.to_bytes(), &[0; 64]);
    };
    let lengths = [0, 5, 10, 11, 256, 257, 266, 267, 1 << 31, u32::MAX];
    for (index, &length) in (0u16..).zip(&lengths) {
        let scattered = index % 2 == 1;
        let mut buffers = vec![large.take().unwrap()];
        if scattered {
            buffers.insert(0, small.take().unwrap());
        }
        receiver.post_scatter(rq, buffers).unwrap();
        let room = BUFFER + usize::from(scattered) * 10;
        complete(index, length);
        let mut batch = receiver.poll();
        let message = batch.next().unwrap().unwrap();
        let len = room.min(length as usize);
        assert_eq!(message.len(), len);
        assert_eq!((*message).len(), if scattered { len.min(10) } else { len });
        assert_eq!(message.segments().map(<[u8]>::len).sum::<usize>(), len);
        let buffers = message.into_buffers();
        assert_eq!(buffers.iter().map(|buffer| buffer.len()).sum::<usize>(), len);
    }
    // The common case, a receive of one buffer, keeps to the same bounds.
    let buffer = large.take().unwrap();
    let inside = buffer.as_ptr();
    receiver.post(rq, [buffer]).unwrap();
    complete(lengths.len() as u16, u32::MAX);
    let mut batch = receiver.poll();
    let message = batch.next().unwrap().unwrap();
    assert_eq!((message.as_ptr(), message.len()), (inside, BUFFER));
    assert_eq!(message.take().unwrap().len(), BUFFER);
    drop(batch);
    drop((near, receiver));
}
