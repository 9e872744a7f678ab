//! The calls of libibverbs that both twins need. Errors are panics: refusals of the device are not tested here.

use std::ffi::CStr;
use std::ptr::{self, NonNull};

use mlx5_ring::sq;
use rdma_core_sys as sys;

use crate::difference::{Difference, Result, same};
use crate::qp_states;

/// Opens the device of this name.
pub fn open(name: &str) -> *mut sys::ibv_context {
    // SAFETY: the list is used before it is freed.
    unsafe {
        let list = sys::ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null(), "{}", std::io::Error::last_os_error());
        let device = (0..)
            .map(|index| *list.add(index))
            .take_while(|device| !device.is_null())
            .find(|device| CStr::from_ptr(sys::ibv_get_device_name(*device)).to_str() == Ok(name))
            .unwrap_or_else(|| panic!("libibverbs does not list {name}"));
        let context = sys::ibv_open_device(device);
        sys::ibv_free_device_list(list);
        made(context, "ibv_open_device")
    }
}

/// Panics when a call returned no object.
pub fn made<T>(object: *mut T, call: &str) -> *mut T {
    assert!(!object.is_null(), "{call}: {}", std::io::Error::last_os_error());
    object
}

/// Panics when a call returned an errno.
pub fn done(errno: i32, call: &str) {
    assert_eq!(errno, 0, "{call}: {}", std::io::Error::from_raw_os_error(errno));
}

/// A channel for events, from which reading does not wait.
pub fn channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    // SAFETY: the callers' contexts are open; the descriptor is the channel's.
    unsafe {
        let channel = made(sys::ibv_create_comp_channel(context), "ibv_create_comp_channel");
        assert_eq!(libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        channel
    }
}

/// Takes all events of the only CQ of a channel.
pub fn take_events(channel: *mut sys::ibv_comp_channel) {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the callers' channels and their CQs are alive.
    unsafe {
        while sys::ibv_get_cq_event(channel, &mut cq, &mut context) == 0 {
            sys::ibv_ack_cq_events(cq, 1);
        }
    }
}

/// Queue key of all QPs.
pub const QKEY: u32 = 0x1122_3344;

/// Takes a QP to states one after the other.
pub fn to(qp: *mut sys::ibv_qp, states: &[sys::ibv_qp_state]) {
    connect(qp, states, Default::default());
}

/// Takes a QP to states one after the other, with these attributes of the peer.
pub fn connect(qp: *mut sys::ibv_qp, to: &[sys::ibv_qp_state], peer: sys::ibv_qp_attr) {
    let attr = sys::ibv_qp_attr {
        port_num: 1,
        qp_access_flags: sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_ATOMIC,
        qkey: QKEY,
        rq_psn: 0x10,
        sq_psn: 0x10,
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        // 0.01 ms.
        min_rnr_timer: 1,
        timeout: 8,
        retry_cnt: 7,
        rnr_retry: 7,
        ..peer
    };
    // SAFETY: the callers' QPs are alive.
    unsafe { qp_states::to(qp, to, attr) }
}

/// Links work requests, and posts them with one call. Returns how many were taken, and the errno.
pub fn post_list<W>(
    wrs: &mut [W],
    next: fn(&mut W) -> &mut *mut W,
    post: impl FnOnce(*mut W, &mut *mut W) -> i32,
) -> (usize, i32) {
    if wrs.is_empty() {
        return (0, 0);
    }
    let (first, mut bad) = (wrs.as_mut_ptr(), ptr::null_mut());
    for index in 1..wrs.len() {
        // SAFETY: two elements of the list.
        unsafe { *next(&mut *first.add(index - 1)) = first.add(index) };
    }
    match post(first, &mut bad) {
        0 => (wrs.len(), 0),
        // SAFETY: `bad` is an element of the list.
        errno => (unsafe { bad.offset_from(first) as usize }, errno),
    }
}

/// Asks libmlx5 for the memory of an object.
pub fn init_obj(kind: u32, fill: impl FnOnce(&mut sys::mlx5dv_obj)) {
    // SAFETY: a structure of pointers.
    let mut obj: sys::mlx5dv_obj = unsafe { std::mem::zeroed() };
    fill(&mut obj);
    let mlx5dv = sys::Mlx5dv::get().expect("libmlx5 is loaded");
    // SAFETY: the callers' live objects of an mlx5 device, and writable structures.
    done(unsafe { (mlx5dv.init_obj)(&mut obj, kind.into()) }, "mlx5dv_init_obj");
}

pub fn some<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).expect("a queue has memory")
}

/// Where the send queue of a QP is.
pub fn send_queue(qp: *mut sys::ibv_qp) -> sq::Layout {
    // SAFETY: a structure of integers and pointers.
    let mut out: sys::mlx5dv_qp = unsafe { std::mem::zeroed() };
    init_obj(sys::MLX5DV_OBJ_QP, |obj| (obj.qp.in_, obj.qp.out) = (qp, &mut out));
    sq::Layout {
        buf: some(out.sq.buf).cast(),
        dbrec: some(out.dbrec.cast()),
        wqe_cnt: out.sq.wqe_cnt,
        stride: out.sq.stride,
        register: some(out.bf.reg).cast(),
        register_size: out.bf.size,
        // SAFETY: the callers' QPs are alive.
        qpn: unsafe { (*qp).qp_num },
    }
}

/// The LID of port 1.
pub fn lid(context: *mut sys::ibv_context) -> u16 {
    let mut port = sys::ibv_port_attr::default();
    // SAFETY: the callers' contexts are open.
    done(unsafe { sys::ibv_query_port(context, 1, &mut port) }, "ibv_query_port");
    port.lid
}

/// Takes at most `budget` completions with one call, as a program would.
pub fn poll(cq: *mut sys::ibv_cq, budget: u32) -> Vec<sys::ibv_wc> {
    // SAFETY: the callers' CQs are alive.
    let entries = unsafe { (*cq).cqe } as u32 + 1;
    let mut room = vec![sys::ibv_wc::default(); budget.min(entries) as usize];
    // SAFETY: as above; the array has room for as many.
    let polled = unsafe { sys::ibv_poll_cq(cq, room.len() as i32, room.as_mut_ptr()) };
    assert!(polled >= 0, "ibv_poll_cq: {polled}");
    room.truncate(polled as usize);
    room
}

/// The fields of a completion of libibverbs that its status and flags make valid.
pub fn fields(wc: &sys::ibv_wc) -> Vec<(&'static str, u64)> {
    let mut fields = vec![
        ("wr_id", wc.wr_id),
        ("status", wc.status.into()),
        ("vendor_err", wc.vendor_err.into()),
        ("qp_num", wc.qp_num.into()),
    ];
    if wc.status == sys::IBV_WC_SUCCESS {
        fields.extend([
            ("opcode", u64::from(wc.opcode)),
            ("byte_len", wc.byte_len.into()),
            ("src_qp", wc.src_qp.into()),
            ("wc_flags", wc.wc_flags.into()),
            ("with_imm", (wc.wc_flags & sys::IBV_WC_WITH_IMM != 0).into()),
            ("pkey_index", wc.pkey_index.into()),
            ("slid", wc.slid.into()),
            ("sl", wc.sl.into()),
            ("dlid_path_bits", wc.dlid_path_bits.into()),
        ]);
        if wc.wc_flags & sys::IBV_WC_WITH_IMM != 0 {
            // SAFETY: the flag says which member of the union was written.
            let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
            fields.push(("imm_data", imm.into()));
        }
    }
    fields
}

/// Compares the fields of a completion that doorbell reports with those of libmlx5, which may report more.
pub fn same_fields(
    completion: impl Fn(&str) -> String,
    theirs: &[(&str, u64)],
    ours: &[(&'static str, u64)],
) -> Result<()> {
    for (name, ours) in ours {
        let Some((_, theirs)) = theirs.iter().find(|(known, _)| known == name) else {
            return Err(Difference::new(completion(name), "absent", format!("{ours:#x}")));
        };
        same(|| completion(name), *theirs, *ours)?;
    }
    Ok(())
}
