//! Completion queues: creating the extended form, polling both forms, asking for an event.

use crate::context::{UNSUPPORTED, entry, unsupported};
use crate::{
    __be32, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_wc,
    ibv_wc_opcode, ibv_wc_tm_info,
};
use core::ffi::{c_int, c_uint};

/// Makes an extended completion queue. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `cq_attr` can be read and names valid objects.
#[inline]
pub unsafe fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: `context` is open, and `cq_attr` can be read and names valid objects.
    unsafe {
        match entry!(context, create_cq_ex) {
            Some(create) => create(context, cq_attr),
            None => unsupported(),
        }
    }
}

/// The plain view of an extended completion queue, which begins with it.
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Changes how completion events are moderated. Returns 0 or an errno.
///
/// # Safety
/// `cq` is valid; `attr` can be read.
#[inline]
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: `cq` is valid, and `attr` can be read.
    unsafe {
        match entry!((*cq).context, modify_cq) {
            Some(modify) => modify(cq, attr),
            None => UNSUPPORTED,
        }
    }
}

/// Takes up to `num_entries` completions. Returns their number, or a negative value on failure.
///
/// # Safety
/// `cq` is valid; `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `cq` is valid, and `wc` has room for `num_entries`; libibverbs fills every entry of `ops`.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, num_entries, wc) }
}

/// Asks for an event at the next completion, or at the next solicited one. Returns 0 or an errno.
///
/// # Safety
/// `cq` is valid.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is valid; libibverbs fills every entry of `ops`.
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap_unchecked()(cq, solicited_only) }
}

/// Starts a batch: makes the first completion current and takes the queue's lock. Returns 0,
/// `ENOENT` when there is none (and then no lock is held), or another errno.
///
/// # Safety
/// `cq` is valid and not in a batch; `attr` can be read.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: `cq` is valid and not in a batch, and `attr` can be read; the provider sets the entry.
    unsafe { (*cq).start_poll.unwrap_unchecked()(cq, attr) }
}

/// Declares a reader of the current completion, or a step of a batch.
macro_rules! of_current {
    ($($(#[$doc:meta])* $name:ident => $entry:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `cq` is valid and in a batch that [`ibv_start_poll`] started, and was created with the
        /// flag (`IBV_WC_EX_WITH_*`) of the field that is read.
        #[inline]
        pub unsafe fn $name(cq: *mut ibv_cq_ex $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: `cq` is valid, in a batch, and was created with the flag. The provider sets the entries that the
            // flags ask for.
            unsafe { (*cq).$entry.unwrap_unchecked()(cq $(, $arg)*) }
        }
    )*};
}

of_current! {
    /// Makes the next completion current. Returns 0, `ENOENT` when there is none, or an errno.
    ibv_next_poll => next_poll() -> c_int;
    /// Ends the batch: gives the entries back to the device and releases the lock.
    ibv_end_poll => end_poll();
    /// The kind of completion.
    ibv_wc_read_opcode => read_opcode() -> ibv_wc_opcode;
    /// The vendor's error code of a failed completion.
    ibv_wc_read_vendor_err => read_vendor_err() -> u32;
    /// The number of bytes received.
    ibv_wc_read_byte_len => read_byte_len() -> u32;
    /// The immediate data, in network byte order.
    ibv_wc_read_imm_data => read_imm_data() -> __be32;
    /// The key that the sender invalidated.
    ibv_wc_read_invalidated_rkey => read_imm_data() -> u32;
    /// The number of the local queue pair.
    ibv_wc_read_qp_num => read_qp_num() -> u32;
    /// The number of the sender's queue pair.
    ibv_wc_read_src_qp => read_src_qp() -> u32;
    /// The flags (`IBV_WC_GRH` and so on).
    ibv_wc_read_wc_flags => read_wc_flags() -> c_uint;
    /// The sender's LID.
    ibv_wc_read_slid => read_slid() -> u32;
    /// The service level.
    ibv_wc_read_sl => read_sl() -> u8;
    /// The path bits of the destination LID.
    ibv_wc_read_dlid_path_bits => read_dlid_path_bits() -> u8;
    /// The time of completion in ticks of the device's clock.
    ibv_wc_read_completion_ts => read_completion_ts() -> u64;
    /// The time of completion in nanoseconds of wall-clock time.
    ibv_wc_read_completion_wallclock_ns => read_completion_wallclock_ns() -> u64;
    /// The customer VLAN tag.
    ibv_wc_read_cvlan => read_cvlan() -> u16;
    /// The tag that a steering rule attached.
    ibv_wc_read_flow_tag => read_flow_tag() -> u32;
    /// The tag-matching header of the message.
    ibv_wc_read_tm_info => read_tm_info(tm_info: *mut ibv_wc_tm_info);
}
