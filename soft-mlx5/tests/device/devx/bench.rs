//! Objects that programs make by firmware commands, through the stock `mlx5dv_devx_*`.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::command::{Created, Numbered, Opcode, Reply, Request};
use mlx5_wire::firmware::cq::{CqContext, CreateCq, ModifyCq, modify};
use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::qp::{AddressPath, CreateQp, ModifyQp, QpContext};
use mlx5_wire::opcode::WqeOpcode;
use rdma_core_sys::*;
use soft_mlx5::{Builder, Device, LinkLayer};

use crate::world::{World, errno};

pub const PAGE: usize = 4096;
const LOG_WQES: u8 = 4;
const RESIZED: u8 = 5;
const RQ: usize = 16 << LOG_WQES;

pub type Object = *mut mlx5dv_devx_obj;
pub type Umem = mlx5dv_devx_umem;

/// Returns the functions of libmlx5.
pub fn dv() -> &'static Mlx5dv {
    Mlx5dv::get().unwrap()
}

/// A refused command: errno, status and syndrome.
pub type Refused = (i32, u8, u32);

/// Bytes of the program that the device uses, page by page.
pub fn memory(len: usize) -> *mut u8 {
    // SAFETY: the layout has a size. The memory stays for the life of the process.
    unsafe { alloc_zeroed(Layout::from_size_align(len, PAGE).unwrap()) }
}

/// A context with a user of the firmware, a domain, a register and memory for doorbell records.
pub struct Bench {
    pub world: World,
    pub uar: *mut mlx5dv_devx_uar,
    pub eqn: u32,
    pub records: *mut u8,
    pub records_umem: *mut Umem,
}

/// A CQ that a command made.
pub struct Cq {
    pub object: Object,
    pub number: u32,
    pub ring: *mut u8,
    pub umem: *mut Umem,
    pub taken: u32,
    arms: u32,
    log_size: u8,
}

/// A queue pair that a command made.
pub struct Qp {
    pub object: Object,
    pub number: u32,
    pub ring: *mut u8,
    pub umem: *mut Umem,
    pub posted: u32,
    receives: u32,
}

const CQ_RECORD: usize = 0;
const QP_RECORD: usize = 64;

pub fn request(opcode: Opcode) -> Request {
    Request::new(opcode)
}

pub fn numbered(opcode: Opcode, number: u32) -> [u8; Numbered::SIZE] {
    Numbered { request: request(opcode), number, ..Numbered::ZERO }.to_bytes()
}

pub fn outcome(error: i32, output: &[u8]) -> Result<(), Refused> {
    let reply = Reply::from_prefix(output).unwrap();
    if error == 0 { Ok(()) } else { Err((error, reply.status, reply.syndrome)) }
}

impl Bench {
    pub fn new() -> Self {
        Self::on(LinkLayer::InfiniBand)
    }

    pub fn on(link: LinkLayer) -> Self {
        Self::with(Device::builder().stepped().strict(true).link_layer(link))
    }

    pub fn with(builder: Builder) -> Self {
        let world = World::new(builder.devx(true));
        // SAFETY: the context is open.
        let uar = unsafe { (dv().devx_alloc_uar)(world.ctx, 0) };
        assert!(!uar.is_null(), "{}", errno());
        let mut eqn = 0;
        // SAFETY: the context is open, and the number is writable.
        assert_eq!(unsafe { (dv().devx_query_eqn)(world.ctx, 0, &mut eqn) }, 0);
        let records = memory(PAGE);
        let mut bench = Self { world, uar, eqn, records, records_umem: std::ptr::null_mut() };
        bench.records_umem = bench.umem(records, PAGE).unwrap();
        bench
    }

    pub fn uar_page(&self) -> u32 {
        // SAFETY: the register is alive.
        unsafe { (*self.uar).page_id }
    }

    pub fn umem(&self, memory: *mut u8, len: usize) -> Result<*mut Umem, i32> {
        // SAFETY: the context is open, and the memory stays.
        let umem = unsafe { (dv().devx_umem_reg)(self.world.ctx, memory.cast(), len, IBV_ACCESS_LOCAL_WRITE) };
        if umem.is_null() { Err(errno()) } else { Ok(umem) }
    }

    /// Registers memory with these page sizes.
    pub fn umem_with(&self, memory: *mut u8, size: usize, page_sizes: u64) -> Result<*mut Umem, i32> {
        let mut given = mlx5dv_devx_umem_in {
            addr: memory.cast(),
            size,
            access: 1,
            pgsz_bitmap: page_sizes,
            comp_mask: 0,
            dmabuf_fd: -1,
        };
        // SAFETY: the context is open, and the memory stays.
        let umem = unsafe { (dv().devx_umem_reg_ex)(self.world.ctx, &mut given) };
        if umem.is_null() { Err(errno()) } else { Ok(umem) }
    }

    /// Executes a command about no object; returns the answer.
    pub fn general(&self, input: &[u8], len: usize) -> Result<Vec<u8>, Refused> {
        let mut output = vec![0; len];
        // SAFETY: the context is open, and both areas have their lengths.
        let error = unsafe {
            (dv().devx_general_cmd)(self.world.ctx, input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(), len)
        };
        outcome(error, &output).map(|()| output)
    }

    /// Makes an object; returns it with its number.
    pub fn create(&self, input: &[u8]) -> Result<(Object, u32), Refused> {
        create_in(self.world.ctx, input)
    }

    pub fn cq_command(&self, umem: u32) -> CreateCq {
        CreateCq {
            request: request(Opcode::CREATE_CQ),
            context: CqContext {
                log_size: 6,
                uar_page: self.uar_page(),
                eqn: self.eqn as u8,
                dbr_addr: CQ_RECORD as u64,
                // SAFETY: the UMEM is alive.
                dbr_umem_id: unsafe { (*self.records_umem).umem_id },
                ..CqContext::ZERO
            },
            umem_id: umem,
            ..CreateCq::ZERO
        }
    }

    /// Makes a CQ of 64 entries. One CQ and one queue pair at a time use the records.
    pub fn cq(&self) -> Cq {
        self.cq_with(|_| {})
    }

    /// Makes such a CQ with a context that `change` has changed.
    pub fn cq_with(&self, change: impl FnOnce(&mut CqContext)) -> Cq {
        self.clear_record(CQ_RECORD);
        let (ring, umem) = self.entries(PAGE);
        // SAFETY: the UMEM is alive.
        let mut command = self.cq_command(unsafe { (*umem).umem_id });
        change(&mut command.context);
        let (object, number) = self.create(&command.to_bytes()).unwrap();
        Cq { object, number, ring, umem, taken: 0, arms: 0, log_size: 6 }
    }

    /// Returns entries of a CQ that no CQE was written to.
    fn entries(&self, len: usize) -> (*mut u8, *mut Umem) {
        let ring = memory(len);
        for entry in 0..len / 64 {
            // SAFETY: the entry is in the memory.
            unsafe { ring.add(entry * 64 + 63).write_volatile(0xf1) };
        }
        (ring, self.umem(ring, len).unwrap())
    }

    /// Moves a CQ to twice as many entries; returns the UMEM of the old ones.
    pub fn grow(&self, cq: &mut Cq) -> Result<*mut Umem, Refused> {
        let (ring, umem) = self.entries(PAGE << (cq.log_size - 5));
        let context = CqContext { log_size: cq.log_size + 1, ..CqContext::ZERO };
        let mut head = request(Opcode::MODIFY_CQ);
        head.op_mod = modify::RESIZE;
        // SAFETY: the UMEM is alive.
        let umem_id = unsafe { (*umem).umem_id };
        let resize = ModifyCq { request: head, cqn: cq.number, context, umem_id, ..ModifyCq::ZERO };
        modify_object(cq.object, &resize.to_bytes())?;
        assert_eq!(self.poll(cq), Some((RESIZED, 0)), "the last CQE of the old entries");
        (cq.ring, cq.log_size) = (ring, cq.log_size + 1);
        Ok(std::mem::replace(&mut cq.umem, umem))
    }

    pub fn qp_command(&self, pd: u32, cqn: u32, umem: u32) -> CreateQp {
        CreateQp {
            request: request(Opcode::CREATE_QP),
            context: QpContext {
                pd,
                pm_state: 3,
                log_rq_size: LOG_WQES,
                log_sq_size: LOG_WQES,
                uar_page: self.uar_page(),
                cqn_snd: cqn,
                cqn_rcv: cqn,
                dbr_addr: QP_RECORD as u64,
                // SAFETY: the UMEM is alive.
                dbr_umem_id: unsafe { (*self.records_umem).umem_id },
                ..QpContext::ZERO
            },
            umem_id: umem,
            ..CreateQp::ZERO
        }
    }

    /// Returns the number of a UMEM.
    pub fn umem_id(&self, umem: *mut Umem) -> u32 {
        // SAFETY: the UMEM is alive.
        unsafe { (*umem).umem_id }
    }

    /// Returns the number of the domain.
    pub fn pdn(&self) -> u32 {
        pdn(self.world.pd)
    }

    /// Makes an RC queue pair of 16 receives and 16 basic blocks.
    pub fn qp(&self, cq: &Cq) -> Qp {
        self.clear_record(QP_RECORD);
        let ring = memory(PAGE);
        let umem = self.umem(ring, PAGE).unwrap();
        // SAFETY: the UMEM is alive.
        let create = self.qp_command(self.pdn(), cq.number, unsafe { (*umem).umem_id });
        let (object, number) = self.create(&create.to_bytes()).unwrap();
        Qp { object, number, ring, umem, posted: 0, receives: 0 }
    }

    pub fn modify(&self, qp: &Qp, opcode: Opcode, context: QpContext) -> Result<(), Refused> {
        self.modify_with(qp, opcode, 0, context)
    }

    /// Changes a queue pair, with a mask of optional fields.
    pub fn modify_with(&self, qp: &Qp, opcode: Opcode, optional: u32, context: QpContext) -> Result<(), Refused> {
        let modify = ModifyQp { request: request(opcode), qpn: qp.number, optional, context };
        modify_object(qp.object, &modify.to_bytes())
    }

    /// Connects a queue pair to itself.
    pub fn connect(&self, qp: &Qp) {
        self.connect_by(qp.number, |opcode, context| self.modify(qp, opcode, context).unwrap());
    }

    /// Connects a queue pair to itself by the commands that `modify` executes.
    pub fn connect_by(&self, number: u32, modify: impl Fn(Opcode, QpContext)) {
        let mut port = ibv_port_attr::default();
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        unsafe {
            assert_eq!(ibv_query_port(self.world.ctx, 1, &mut port), 0);
            assert_eq!(ibv_query_gid(self.world.ctx, 1, 1, &mut gid), 0);
        }
        let path = AddressPath { port: 1, ..AddressPath::ZERO };
        let init = QpContext { pm_state: 3, rre: true, rwe: true, path, ..QpContext::ZERO };
        modify(Opcode::RST2INIT_QP, init);
        // SAFETY: every form of a GID is bytes.
        let rgid = unsafe { gid.raw };
        let path = match u32::from(port.link_layer) {
            1 => AddressPath { rlid: port.lid, port: 1, ..AddressPath::ZERO },
            _ => AddressPath { rgid, src_addr_index: 1, hop_limit: 64, port: 1, ..AddressPath::ZERO },
        };
        let rtr = QpContext {
            pm_state: 3,
            mtu: 3,
            log_msg_max: 30,
            remote_qpn: number,
            min_rnr_nak: 12,
            path,
            ..QpContext::ZERO
        };
        modify(Opcode::INIT2RTR_QP, rtr);
        let path = AddressPath { ack_timeout: 14, ..AddressPath::ZERO };
        let rts = QpContext { pm_state: 3, retry_count: 7, rnr_retry: 7, path, ..QpContext::ZERO };
        modify(Opcode::RTR2RTS_QP, rts);
    }

    /// Sends `len` bytes from one address to another, both under a key, and lets the device work.
    pub fn send(&self, qp: &mut Qp, key: u32, from: u64, to: u64, len: u32) {
        self.post(qp, key, from, to, len, CQ_UPDATE);
        self.world.device().settle();
    }

    /// Posts such a message, with flags of the control segment.
    pub fn post(&self, qp: &mut Qp, key: u32, from: u64, to: u64, len: u32, flags: u8) {
        self.post_receive(qp, key, to, len);
        self.post_send(qp, key, from, len, flags);
    }

    /// Posts a receive.
    pub fn post_receive(&self, qp: &mut Qp, key: u32, to: u64, len: u32) {
        let slot = qp.receives as usize & ((1 << LOG_WQES) - 1);
        qp.receives += 1;
        // SAFETY: the WQE and the record are memory of this test.
        unsafe {
            store(qp.ring.add(16 * slot), DataSegment::new(to, len, key).to_bytes());
            self.record(QP_RECORD, qp.receives);
        }
    }

    /// Posts a SEND, with flags of the control segment.
    pub fn post_send(&self, qp: &mut Qp, key: u32, from: u64, len: u32, flags: u8) {
        let index = qp.posted as u16;
        qp.posted += 1;
        let slot = usize::from(index) & ((1 << LOG_WQES) - 1);
        let control = ControlSegment::new(WqeOpcode::SEND.get(), index, qp.number, 2, flags);
        // SAFETY: the WQE, the record and the register are memory of this test.
        unsafe {
            store(qp.ring.add(RQ + 64 * slot), control.to_bytes());
            store(qp.ring.add(RQ + 64 * slot + 16), DataSegment::new(from, len, key).to_bytes());
            self.record(QP_RECORD + 4, qp.posted);
            let first = qp.ring.add(RQ + 64 * slot).cast::<u64>().read();
            (*self.uar).reg_addr.cast::<u64>().write_volatile(first);
        }
    }

    fn clear_record(&self, offset: usize) {
        // SAFETY: the records are memory of this test.
        unsafe {
            self.record(offset, 0);
            self.record(offset + 4, 0);
        }
    }

    unsafe fn record(&self, offset: usize, value: u32) {
        // SAFETY: the offset is that of a record in the page.
        unsafe { &*self.records.add(offset).cast::<AtomicU32>() }.store(value.to_be(), Ordering::Release);
    }

    /// Arms a CQ.
    pub fn arm(&self, cq: &mut Cq) {
        let word = (cq.arms & 3) << 28 | cq.taken & 0xff_ffff;
        cq.arms += 1;
        // SAFETY: the records and the register are memory of this test.
        unsafe {
            self.record(CQ_RECORD + 4, word);
            fence(Ordering::SeqCst);
            let doorbell = (u64::from(word) << 32 | u64::from(cq.number)).to_be();
            (*self.uar).base_addr.cast::<u8>().add(0x20).cast::<u64>().write_volatile(doorbell);
        }
        self.world.device().settle();
    }

    /// Takes the next CQE: its opcode and its queue pair.
    pub fn poll(&self, cq: &mut Cq) -> Option<(u8, u32)> {
        let slot = cq.taken as usize & ((1 << cq.log_size) - 1);
        // SAFETY: the entry is in the page.
        let cqe: [u8; 64] = unsafe { cq.ring.add(slot * 64).cast::<[u8; 64]>().read_volatile() };
        if cqe[63] >> 4 == 0xf || u32::from(cqe[63] & 1) != cq.taken >> cq.log_size & 1 {
            return None;
        }
        cq.taken += 1;
        // SAFETY: the record is memory of this test.
        unsafe { self.record(CQ_RECORD, cq.taken) };
        Some((cqe[63] >> 4, u32::from_be_bytes([0, cqe[57], cqe[58], cqe[59]])))
    }
}

/// # Safety
/// There is room for a segment.
unsafe fn store(at: *mut u8, segment: [u8; 16]) {
    // SAFETY: the caller promises the room.
    unsafe { at.cast::<[u8; 16]>().write_volatile(segment) };
}

/// An object of verbs, which commands name by its handle.
#[derive(Clone, Copy)]
pub enum Verbs {
    Cq(*mut ibv_cq),
    Srq(*mut ibv_srq),
    Qp(*mut ibv_qp),
    Wq(*mut ibv_wq),
    Table(*mut ibv_rwq_ind_table),
}

impl Verbs {
    /// Executes a query about the object.
    pub fn query<T: Value>(self, opcode: Opcode, number: u32) -> Result<T, Refused> {
        self.query_bytes(opcode, number, T::SIZE).map(|output| T::read(&output, 0, 0))
    }

    /// Executes a query with an answer of this length.
    pub fn query_bytes(self, opcode: Opcode, number: u32, len: usize) -> Result<Vec<u8>, Refused> {
        let (input, mut output) = (numbered(opcode, number), vec![0; len]);
        let (from, size, to) = (input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast());
        // SAFETY: the object is alive, and both areas have their lengths.
        let error = unsafe {
            match self {
                Self::Cq(cq) => (dv().devx_cq_query)(cq, from, size, to, len),
                Self::Srq(srq) => (dv().devx_srq_query)(srq, from, size, to, len),
                Self::Qp(qp) => (dv().devx_qp_query)(qp, from, size, to, len),
                Self::Wq(wq) => (dv().devx_wq_query)(wq, from, size, to, len),
                Self::Table(table) => (dv().devx_ind_tbl_query)(table, from, size, to, len),
            }
        };
        outcome(error, &output).map(|()| output)
    }

    /// Executes a command that changes the object.
    pub fn modify(self, input: &[u8]) -> Result<(), Refused> {
        let mut output = [0; 16];
        let (from, size, to) = (input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast());
        // SAFETY: the object is alive, and both areas have their lengths.
        let error = unsafe {
            match self {
                Self::Cq(cq) => (dv().devx_cq_modify)(cq, from, size, to, 16),
                Self::Srq(srq) => (dv().devx_srq_modify)(srq, from, size, to, 16),
                Self::Qp(qp) => (dv().devx_qp_modify)(qp, from, size, to, 16),
                Self::Wq(wq) => (dv().devx_wq_modify)(wq, from, size, to, 16),
                Self::Table(table) => (dv().devx_ind_tbl_modify)(table, from, size, to, 16),
            }
        };
        outcome(error, &output)
    }
}

/// Makes an object in another context.
pub fn create_in(ctx: *mut ibv_context, input: &[u8]) -> Result<(Object, u32), Refused> {
    let mut output = [0; Created::SIZE];
    // SAFETY: the context is open, and both areas have their lengths.
    let object = unsafe {
        (dv().devx_obj_create)(ctx, input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(), output.len())
    };
    outcome(if object.is_null() { errno() } else { 0 }, &output)?;
    Ok((object, Created::from_prefix(&output).unwrap().number))
}

pub fn modify_object(object: Object, input: &[u8]) -> Result<(), Refused> {
    let mut output = [0; 16];
    // SAFETY: the object is alive, and both areas have their lengths.
    let error =
        unsafe { (dv().devx_obj_modify)(object, input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(), 16) };
    outcome(error, &output)
}

pub fn query_object(object: Object, input: &[u8], len: usize) -> Result<Vec<u8>, Refused> {
    let mut output = vec![0; len];
    // SAFETY: the object is alive, and both areas have their lengths.
    let error =
        unsafe { (dv().devx_obj_query)(object, input.as_ptr().cast(), input.len(), output.as_mut_ptr().cast(), len) };
    outcome(error, &output).map(|()| output)
}

pub fn destroy(object: Object) -> i32 {
    // SAFETY: the object is alive, and not used after this succeeds.
    unsafe { (dv().devx_obj_destroy)(object) }
}

pub fn deregister(umem: *mut Umem) -> i32 {
    // SAFETY: the UMEM is alive, and not used after this succeeds.
    unsafe { (dv().devx_umem_dereg)(umem) }
}

/// Returns the number of a domain of verbs.
pub fn pdn(pd: *mut ibv_pd) -> u32 {
    let mut found = mlx5dv_pd::default();
    let mut object = mlx5dv_obj::default();
    (object.pd.in_, object.pd.out) = (pd, &mut found);
    // SAFETY: the domain is alive, and the result is writable.
    assert_eq!(unsafe { (dv().init_obj)(&mut object, MLX5DV_OBJ_PD.into()) }, 0);
    found.pdn
}
