//! Objects that most tests need: a device, a context on it, a domain, and a few more.

use std::ffi::CStr;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_core_sys::*;
use soft_mlx5::{Builder, Device};

use crate::qp_states;

/// Longest time without progress. Even the busiest machine gives a thread some time in it.
pub const PATIENCE: Duration = Duration::from_secs(240);

// A process has few slots for devices, and tests count descriptors: one test runs at a time.
static SERIAL: Mutex<()> = Mutex::new(());

/// A device with an open context and a domain.
pub struct World {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub device: Option<Device>,
    _serial: MutexGuard<'static, ()>,
}

impl World {
    /// Makes a device that works only when stepped.
    pub fn stepped() -> Self {
        Self::new(Device::builder().stepped())
    }

    /// Makes a device with a thread of its own.
    pub fn threaded() -> Self {
        Self::new(Device::builder())
    }

    pub fn new(builder: Builder) -> Self {
        let serial = serial();
        let device = builder.build().unwrap();
        let ctx = open(device.name());
        // SAFETY: the context is open.
        let pd = unsafe { ibv_alloc_pd(ctx) };
        assert!(!pd.is_null());
        Self { ctx, pd, device: Some(device), _serial: serial }
    }

    pub fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    pub fn channel(&self) -> *mut ibv_comp_channel {
        // SAFETY: the context is open.
        let channel = unsafe { ibv_create_comp_channel(self.ctx) };
        assert!(!channel.is_null());
        channel
    }

    pub fn cq(&self, entries: i32) -> *mut ibv_cq {
        self.cq_with(entries, ptr::null_mut())
    }

    pub fn cq_with(&self, entries: i32, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the context is open, and the channel, if any, belongs to it.
        let cq = unsafe { ibv_create_cq(self.ctx, entries, ptr::null_mut(), channel, 0) };
        assert!(!cq.is_null());
        cq
    }

    pub fn srq(&self, max_wr: u32) -> *mut ibv_srq {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, 1);
        // SAFETY: the domain is alive.
        let srq = unsafe { ibv_create_srq(self.pd, &mut init) };
        assert!(!srq.is_null());
        srq
    }

    /// Makes a QP of one SGE and 16 work requests each way.
    pub fn qp(&self, qp_type: ibv_qp_type, cq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr { srq, ..init_attr(qp_type, cq, 16) };
        init.cap.max_inline_data = 32;
        create_qp(self.pd, &mut init).unwrap()
    }

    /// Lets time pass until a timer of the device ends, and the device work; returns `false` if there is no timer.
    pub fn wait_for_timer(&self) -> bool {
        let Some(time) = self.device().next_timer() else { return false };
        self.device().advance(time.saturating_sub(self.device().now()));
        self.device().settle();
        true
    }

    /// Lets a QP that is connected to itself send `len` bytes from the start of a region to the bytes after them.
    pub fn exchange(&self, qp: *mut ibv_qp, mr: *mut ibv_mr, len: u32) {
        post_recv(qp, mr, len as usize, len);
        post_send(qp, mr, 0, len);
        self.device().settle();
    }

    /// Makes an RC QP connected to itself.
    pub fn connected(&self, cq: *mut ibv_cq, srq: *mut ibv_srq) -> *mut ibv_qp {
        let qp = self.qp(IBV_QPT_RC, cq, srq);
        self.connect(qp, qp);
        qp
    }

    /// Moves an RC QP to RTS, connected to `peer` of this device.
    pub fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        // SAFETY: the QP is alive.
        let qpn = unsafe { (*peer).qp_num };
        assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
        let mut rtr = self.to_rtr(qpn);
        // Ethernet has no LIDs.
        if rtr.ah_attr.dlid == 0 {
            (rtr.ah_attr.is_global, rtr.ah_attr.grh.hop_limit) = (1, 64);
            // SAFETY: the context is open.
            assert_eq!(unsafe { ibv_query_gid(self.ctx, 1, 0, &mut rtr.ah_attr.grh.dgid) }, 0);
        }
        assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR)), 0);
        assert_eq!(modify(qp, &to_rts(), rc(IBV_QPS_RTS)), 0);
    }

    /// Returns the attributes that connect to a QP of this device.
    pub fn to_rtr(&self, qpn: u32) -> ibv_qp_attr {
        let mut port = ibv_port_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { ibv_query_port(self.ctx, 1, &mut port) }, 0);
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_1024, ..Default::default() };
        (attr.dest_qp_num, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (qpn, 1, 1);
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (port.lid, 1);
        attr
    }

    pub fn reg(&self, memory: &mut [u8], access: u32) -> *mut ibv_mr {
        // SAFETY: the memory outlives the test, which destroys the context at its end.
        unsafe { ibv_reg_mr(self.pd, memory.as_mut_ptr().cast(), memory.len(), access) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: the context is open since the start; its objects end with it.
        unsafe { ibv_close_device(self.ctx) };
    }
}

/// Returns the errno if the QP is refused.
pub fn create_qp(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, i32> {
    // SAFETY: the callers' objects are alive.
    let qp = unsafe { ibv_create_qp(pd, init) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

/// Returns the attributes of a QP of one SGE and so many work requests each way.
pub fn init_attr(qp_type: ibv_qp_type, cq: *mut ibv_cq, wrs: u32) -> ibv_qp_init_attr {
    let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type, ..Default::default() };
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (wrs, wrs);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init
}

/// Keeps other tests out.
pub fn serial() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `with` with the devices of the list and their names.
fn with_devices<T>(with: impl FnOnce(Vec<(*mut ibv_device, String)>) -> T) -> T {
    // SAFETY: the list is used before it is freed.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null());
        let devices = (0..).map(|index| *list.add(index)).take_while(|device| !device.is_null());
        let name = |device| CStr::from_ptr(ibv_get_device_name(device)).to_str().unwrap().into();
        let result = with(devices.map(|device| (device, name(device))).collect());
        ibv_free_device_list(list);
        result
    }
}

/// Returns the names in the device list.
pub fn names() -> Vec<String> {
    with_devices(|devices| devices.into_iter().map(|(_, name)| name).collect())
}

/// Opens the device of this name.
pub fn open(name: &str) -> *mut ibv_context {
    let ctx = with_devices(|devices| {
        let device = devices.into_iter().find(|(_, found)| found == name);
        // SAFETY: the list still exists.
        unsafe { ibv_open_device(device.unwrap_or_else(|| panic!("no device {name}")).0) }
    });
    assert!(!ctx.is_null(), "{}", std::io::Error::last_os_error());
    ctx
}

/// Returns the errno of the last failed call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Returns the attributes that the change of an RC QP to a state names.
pub fn rc(state: ibv_qp_state) -> u32 {
    qp_states::mask(IBV_QPT_RC, state)
}

pub fn to_init() -> ibv_qp_attr {
    ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: IBV_ACCESS_REMOTE_WRITE, ..Default::default() }
}

pub fn to_rts() -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..Default::default()
    }
}

pub fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: u32) -> i32 {
    let mut attr = *attr;
    // SAFETY: the QP is alive.
    unsafe { ibv_modify_qp(qp, &mut attr, mask as i32) }
}

pub fn query(qp: *mut ibv_qp) -> ibv_qp_attr {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the QP is alive.
    assert_eq!(unsafe { ibv_query_qp(qp, &mut attr, 0, &mut init) }, 0);
    attr
}

pub fn post_recv(qp: *mut ibv_qp, mr: *mut ibv_mr, offset: usize, length: u32) {
    // SAFETY: QP and MR are alive.
    unsafe {
        let mut sge = ibv_sge { addr: (*mr).addr as u64 + offset as u64, length, lkey: (*mr).lkey };
        let mut wr = ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        assert_eq!(ibv_post_recv(qp, &mut wr, &mut bad), 0);
    }
}

pub fn post_srq_recv(srq: *mut ibv_srq, mr: *mut ibv_mr, wr_id: u64, offset: usize, length: u32) {
    // SAFETY: SRQ and MR are alive.
    unsafe {
        let mut sge = ibv_sge { addr: (*mr).addr as u64 + offset as u64, length, lkey: (*mr).lkey };
        let mut wr = ibv_recv_wr { wr_id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        assert_eq!(ibv_post_srq_recv(srq, &mut wr, &mut bad), 0);
    }
}

/// `wr_id` of sends; receives have 0.
pub const SEND: u64 = 1;

pub fn post_send(qp: *mut ibv_qp, mr: *mut ibv_mr, offset: usize, length: u32) {
    post_send_with(qp, mr, offset, length, 0);
}

pub fn post_send_with(qp: *mut ibv_qp, mr: *mut ibv_mr, offset: usize, length: u32, flags: ibv_send_flags) {
    // SAFETY: QP and MR are alive.
    unsafe {
        let mut sge = ibv_sge { addr: (*mr).addr as u64 + offset as u64, length, lkey: (*mr).lkey };
        let mut wr = ibv_send_wr {
            wr_id: SEND,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED | flags,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        assert_eq!(ibv_post_send(qp, &mut wr, &mut bad), 0);
    }
}

/// Takes one completion.
pub fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    // SAFETY: the CQ is alive.
    match unsafe { ibv_poll_cq(cq, 1, &mut wc) } {
        0 => None,
        1 => Some(wc),
        error => panic!("poll: {error}"),
    }
}

/// Returns the statuses of all completions.
pub fn statuses(cq: *mut ibv_cq) -> Vec<ibv_wc_status> {
    std::iter::from_fn(|| poll(cq)).map(|wc| wc.status).collect()
}

/// Takes one asynchronous event.
pub fn next_async(ctx: *mut ibv_context) -> Option<ibv_event_type> {
    next_event(ctx).map(|event| event.event_type)
}

/// Takes one asynchronous event with its object.
pub fn next_event(ctx: *mut ibv_context) -> Option<ibv_async_event> {
    let mut event = std::mem::MaybeUninit::<ibv_async_event>::uninit();
    // SAFETY: the context is open; the event is filled when 0 is returned, and then acknowledged.
    unsafe {
        let mut poll = libc::pollfd { fd: (*ctx).async_fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&mut poll, 1, 0) != 1 || ibv_get_async_event(ctx, event.as_mut_ptr()) != 0 {
            return None;
        }
        ibv_ack_async_event(event.as_mut_ptr());
        Some(event.assume_init())
    }
}
