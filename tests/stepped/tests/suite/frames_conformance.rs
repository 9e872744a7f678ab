//! Work queues: doorbell writes the same bits as libmlx5 does on `ibv_post_wq_recv` and `ibv_poll_cq`.
//!
//! Two devices have equal objects and get equal frames. After each batch everything that a device reads of a work queue
//! is compared: the WQEs that it has, both words of its doorbell record, those of the CQ, and the CQEs that wait.

use std::ptr;

use doorbell::frames::{FrameConfig, FrameReceiver, TakenFrame};
use doorbell::{Cause, DataPath, ProtectionDomain, WcStatus};
use doorbell_stepped_tests::cq;
use doorbell_stepped_tests::frames::{GROUP, Publisher, datagram, ethernet, feed};
use fastrand::Rng;
use mlx5_wire::data::DataSegment;
use rdma_core_sys::*;
use soft_mlx5::Device;

const WQES: u32 = 4;
const SPARE: u32 = 4;
const BYTES: u32 = 512;

/// Memory that the device of a twin reads and writes.
struct Memory {
    ring: *const [u8; DataSegment::SIZE],
    record: *const u32,
    cq: u32,
    cqes: *const [u8; 64],
    cq_record: *const u32,
    /// Address of the first buffer.
    buffers: u64,
}

impl Memory {
    /// The memory of the first work queue of a device. Its receives are posted.
    fn of(device: &Device) -> Self {
        let queues = device.queues();
        let wq = queues.wqs[0].attr;
        assert_eq!((wq.ring.count, 1 << wq.ring.shift), (WQES, DataSegment::SIZE));
        let cq = queues.cqs.iter().find(|cq| cq.number == wq.cq.0).unwrap();
        assert_eq!((cq.attr.cqe_count, cq.attr.cqe_size), (WQES, 64));
        let mut this = Self {
            ring: wq.ring.buf as *const _,
            record: wq.dbrec as *const _,
            cq: cq.number,
            cqes: cq.attr.buf as *const _,
            cq_record: cq.attr.dbrec as *const _,
            buffers: 0,
        };
        this.buffers = this.wqe(0).addr.get();
        this
    }

    fn wqe(&self, index: u32) -> DataSegment {
        // SAFETY: a WQE of a queue that lives as long as its twin, written by the driver, which rests.
        DataSegment::from_bytes(&unsafe { self.ring.add((index % WQES) as usize).read_volatile() })
    }

    /// WQEs posted, as the doorbell record says.
    fn posted(&self) -> u16 {
        words(self.record)[0] as u16
    }

    /// All that the device may read: the WQEs that it has, with addresses relative to the buffers, both records, and
    /// the CQEs that wait.
    fn view(&self, device: &Device) -> View {
        let queues = device.queues();
        let first = queues.wqs[0].receive_index;
        let wqes = (0..self.posted().wrapping_sub(first)).map(|number| {
            let wqe = self.wqe(first.wrapping_add(number).into());
            (wqe.addr.get() - self.buffers, wqe.byte_count.get(), wqe.lkey.get())
        });
        let produced = queues.cqs.iter().find(|cq| cq.number == self.cq).unwrap().produced;
        let consumed = words(self.cq_record)[0];
        let cqes = (0..produced.wrapping_sub(consumed) & 0xff_ffff).map(|number| {
            let slot = (consumed.wrapping_add(number) % WQES) as usize;
            // SAFETY: inside the CQ, which lives as long as its twin; the device rests.
            unsafe { self.cqes.add(slot).read_volatile() }
        });
        let records = [words(self.record), words(self.cq_record)];
        View { first, wqes: wqes.collect(), records, cqes: cqes.collect() }
    }
}

/// The parts of a queue that the device may read.
#[derive(Debug, PartialEq)]
struct View {
    /// Index of the first WQE.
    first: u16,
    wqes: Vec<(u64, u32, u32)>,
    records: [[u32; 2]; 2],
    cqes: Vec<[u8; 64]>,
}

/// The words of a doorbell record.
fn words(record: *const u32) -> [u32; 2] {
    // SAFETY: the record of a live queue, which the device does not write.
    unsafe { record.cast::<[u32; 2]>().read_volatile() }.map(u32::from_be)
}

/// A work queue that libmlx5 drives, of the same objects as that of a `FrameReceiver`.
struct Libmlx5 {
    cq: *mut ibv_cq,
    wq: *mut ibv_wq,
    table: *mut ibv_rwq_ind_table,
    qp: *mut ibv_qp,
    flow: *mut ibv_flow,
    mr: *mut ibv_mr,
    buffers: Vec<u8>,
    channel: *mut ibv_comp_channel,
    // Last.
    _pd: ProtectionDomain,
}

#[repr(C)]
#[derive(Default)]
struct Rule {
    attr: ibv_flow_attr,
    eth: ibv_flow_spec_eth,
}

impl Libmlx5 {
    fn new(device: &Device) -> Self {
        let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
        let context = pd.context().as_raw();
        let mut buffers = vec![0; (BYTES * (WQES + SPARE)) as usize];
        // SAFETY: live objects of one device and initialised structures; all of them are destroyed by `drop`.
        unsafe {
            let channel = ibv_create_comp_channel(context);
            let cq = ibv_create_cq(context, WQES as i32 - 1, ptr::null_mut(), channel, 0);
            let access = IBV_ACCESS_LOCAL_WRITE;
            let mr = ibv_reg_mr(pd.as_raw(), buffers.as_mut_ptr().cast(), buffers.len(), access);
            let mut init = ibv_wq_init_attr {
                wq_type: IBV_WQT_RQ,
                max_wr: WQES,
                max_sge: 1,
                pd: pd.as_raw(),
                cq,
                ..Default::default()
            };
            let wq = ibv_create_wq(context, &mut init);
            assert!(!mr.is_null() && !wq.is_null());
            let mut attr = ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: IBV_WQS_RDY, ..Default::default() };
            assert_eq!(ibv_modify_wq(wq, &mut attr), 0);
            let mut wqs = [wq];
            let mut init = ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 0, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
            let table = ibv_create_rwq_ind_table(context, &mut init);
            let mut key = [0x5a; 40];
            let mut init = ibv_qp_init_attr_ex {
                qp_type: IBV_QPT_RAW_PACKET,
                comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
                pd: pd.as_raw(),
                rwq_ind_tbl: table,
                ..Default::default()
            };
            init.rx_hash_conf = ibv_rx_hash_conf {
                rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
                rx_hash_key_len: key.len() as u8,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: 0,
            };
            let qp = ibv_create_qp_ex(context, &mut init);
            assert!(!qp.is_null());
            let mut rule = Rule::default();
            rule.attr.size = size_of::<Rule>() as u16;
            (rule.attr.num_of_specs, rule.attr.port) = (1, 1);
            rule.eth.type_ = IBV_FLOW_SPEC_ETH;
            rule.eth.size = size_of::<ibv_flow_spec_eth>() as u16;
            rule.eth.val.dst_mac = *datagram(GROUP, 0, 60, 0).first_chunk().unwrap();
            rule.eth.mask.dst_mac = [0xff; 6];
            let flow = ibv_create_flow(qp, (&raw mut rule).cast());
            assert!(!flow.is_null());
            let this = Self { cq, wq, table, qp, flow, mr, buffers, channel, _pd: pd };
            (0..WQES).for_each(|buffer| this.post(buffer));
            this
        }
    }

    /// Posts a buffer; its number is the `wr_id`.
    fn post(&self, buffer: u32) {
        // SAFETY: a live work queue; the memory is registered and stays.
        unsafe {
            let addr = self.buffers.as_ptr() as u64 + u64::from(buffer * BYTES);
            let mut sge = ibv_sge { addr, length: BYTES, lkey: (*self.mr).lkey };
            let wr_id = buffer.into();
            let mut wr = ibv_recv_wr { wr_id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
            assert_eq!(ibv_post_wq_recv(self.wq, &mut wr, &mut ptr::null_mut()), 0);
        }
    }

    fn poll(&self, budget: usize) -> Vec<ibv_wc> {
        let mut wcs = vec![ibv_wc::default(); budget];
        // SAFETY: a live CQ, and room for as many completions.
        let polled = unsafe { ibv_poll_cq(self.cq, budget as i32, wcs.as_mut_ptr()) };
        wcs.truncate(polled as usize);
        wcs
    }

    /// The bytes of a frame that has completed.
    fn frame(&self, wc: &ibv_wc) -> &[u8] {
        let start = wc.wr_id as usize * BYTES as usize;
        &self.buffers[start..start + wc.byte_len as usize]
    }
}

impl Drop for Libmlx5 {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed once, children before parents.
        unsafe {
            assert_eq!(ibv_destroy_flow(self.flow), 0);
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_rwq_ind_table(self.table), 0);
            assert_eq!(ibv_destroy_wq(self.wq), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
        }
    }
}

#[test]
fn a_work_queue_is_written_as_libmlx5_writes_it() {
    let [(ours_on, pd), (theirs_on, _)] = [ethernet(), ethernet()];
    let config = FrameConfig::new().plain(WQES, BYTES).spare(SPARE).cq(cq(DataPath::Direct));
    let mut receiver = FrameReceiver::spread(&pd, &config, 1).unwrap().remove(0);
    let _rule = receiver.attach(&feed()).unwrap();
    let libmlx5 = Libmlx5::new(&theirs_on);
    let [ours, theirs] = [&ours_on, &theirs_on].map(Memory::of);
    let mut publishers = [&ours_on, &theirs_on].map(|on| Publisher::new(on, DataPath::Direct));
    assert_eq!(ours.view(&ours_on), theirs.view(&theirs_on), "posted at first");

    let mut random = Rng::with_seed(0x22);
    let mut taken: Vec<TakenFrame> = Vec::new();
    let (mut completions, mut failures, mut exchanged, mut short) = (0u32, 0, 0, 0);
    // Past the 16 bits of the index of a WQE.
    while completions < 70_000 {
        for _ in 0..random.u32(1..4) {
            let len = random.usize(60..BYTES as usize + 20);
            let frame = datagram(GROUP, 5, len, random.u8(..));
            for (publisher, on) in publishers.iter_mut().zip([&ours_on, &theirs_on]) {
                publisher.send(on, &frame, true);
            }
        }
        assert_eq!(ours.view(&ours_on), theirs.view(&theirs_on), "after {completions} completions");

        let budget = random.u32(0..6);
        let before = ours.posted();
        let wcs = libmlx5.poll(budget as usize);
        let mut batch = receiver.poll_up_to(budget);
        for wc in &wcs {
            let frame = batch.next().expect("libmlx5 has a completion more");
            match frame {
                Ok(frame) => {
                    assert_eq!((wc.status, &*frame), (IBV_WC_SUCCESS, libmlx5.frame(wc)));
                    if random.u8(..8) == 0 && taken.len() < SPARE as usize + 2 {
                        taken.push(frame.take());
                    }
                }
                Err(failure) => {
                    assert_eq!(failure.cause, Cause::Status(WcStatus::LOC_LEN_ERR));
                    assert_eq!((wc.status, wc.vendor_err), (IBV_WC_LOC_LEN_ERR, failure.vendor_err));
                    failures += 1;
                }
            }
        }
        assert!(wcs.len() == budget as usize || batch.next().is_none(), "doorbell has one more");
        drop(batch);
        completions += wcs.len() as u32;
        // libmlx5 posts the buffers that doorbell posted: the queue does not choose the buffers.
        for number in 0..ours.posted().wrapping_sub(before) {
            let index = before.wrapping_add(number);
            let buffer = ((ours.wqe(index.into()).addr.get() - ours.buffers) / u64::from(BYTES)) as u32;
            exchanged += u32::from(wcs.iter().all(|wc| wc.wr_id != u64::from(buffer)));
            libmlx5.post(buffer);
        }
        short += u32::from(usize::from(ours.posted().wrapping_sub(before)) < wcs.len());
        if random.u8(..4) == 0 && !taken.is_empty() {
            drop(taken.swap_remove(random.usize(..taken.len())));
        }
        assert_eq!(ours.view(&ours_on), theirs.view(&theirs_on), "after {completions} completions");
    }
    assert!(failures > 1000 && exchanged > 1000 && short > 100, "{failures} {exchanged} {short}");
}
