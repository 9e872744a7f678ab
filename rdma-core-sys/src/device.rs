//! Attributes of a device, its ports and its clock.

use crate::context::{UNSUPPORTED, entry};
use crate::{
    ibv_context, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_qp_type, ibv_query_device_ex_input,
    ibv_values_ex,
};
use core::ffi::c_int;
use core::mem::{offset_of, size_of};

mod linked {
    use crate::{ibv_context, ibv_port_attr};
    use core::ffi::c_int;

    unsafe extern "C" {
        /// Writes only the fields that existed before the extended call.
        pub(super) fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr) -> c_int;
    }
}

/// Reads the attributes of a port. Returns 0 or an errno.
///
/// # Safety
/// `context` is open; `port_attr` can be written.
#[inline]
pub unsafe fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: `context` is open, and `port_attr` can be written. The old entry point fills a prefix of the
    // structure, so the rest is cleared first.
    unsafe {
        match entry!(context, query_port) {
            Some(query_port) => query_port(context, port_num, port_attr, size_of::<ibv_port_attr>()),
            None => {
                port_attr.write_bytes(0, 1);
                linked::ibv_query_port(context, port_num, port_attr)
            }
        }
    }
}

/// The attributes of a port as any version of rdma-core fills them. Newer versions end with `active_speed_ex`, in the
/// word after that of `port_cap_flags2`.
#[repr(C)]
union PortAttrOfAnyVersion {
    attr: ibv_port_attr,
    words: [u32; 16],
}

/// Place of `active_speed_ex` in words.
const ACTIVE_SPEED_EX: usize = offset_of!(ibv_port_attr, port_cap_flags2) / 4 + 1;
const _: () = assert!(ACTIVE_SPEED_EX == 13 && size_of::<PortAttrOfAnyVersion>() == 64);

/// Reads the attributes of a port, and stores the speed of a lane in `speed` as a code that can have more than 8 bits:
/// `active_speed_ex`, or `active_speed` where the library or the kernel does not report the longer code. Returns 0 or
/// an errno.
///
/// # Safety
/// As for [`ibv_query_port`].
pub unsafe fn query_port_and_speed(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: &mut ibv_port_attr,
    speed: &mut u32,
) -> c_int {
    let mut any = PortAttrOfAnyVersion { words: [0; 16] };
    // SAFETY: `context` is open. The library clears as many bytes as it is told, and fills those that it knows. The old
    // entry point fills a prefix. Every field of the union is integers.
    unsafe {
        let ret = match entry!(context, query_port) {
            Some(query_port) => query_port(context, port_num, &mut any.attr, size_of::<PortAttrOfAnyVersion>()),
            None => linked::ibv_query_port(context, port_num, &mut any.attr),
        };
        *port_attr = any.attr;
        *speed = match any.words[ACTIVE_SPEED_EX] {
            0 => any.attr.active_speed.into(),
            code => code,
        };
        ret
    }
}

/// Reads the attributes of a device, those of the extended verbs included. Returns 0 or an errno.
///
/// # Safety
/// `context` is open; `input` is null or can be read; `attr` can be written.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: `context` is open, `input` is null or can be read, and `attr` can be written.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return libc::EINVAL;
        }
        if let Some(query) = entry!(context, query_device_ex) {
            let ret = query(context, input, attr, size_of::<ibv_device_attr_ex>());
            if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
                return ret;
            }
        }
        attr.write_bytes(0, 1);
        crate::ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

/// Reads one entry of the GID table with its type. Returns 0 or an errno.
///
/// # Safety
/// `context` is open; `entry` can be written.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: `context` is open, and `entry` can be written.
    unsafe { crate::_ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) }
}

/// Reads all valid GIDs of all ports. Returns their number or a negative errno.
///
/// # Safety
/// `context` is open; `entries` has room for `max_entries`.
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: `context` is open, and `entries` has room for `max_entries`.
    unsafe { crate::_ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}

/// Reads the values asked for in `values.comp_mask`, such as the device's clock. Returns 0 or an
/// errno.
///
/// # Safety
/// `context` is open; `values` can be read and written.
#[inline]
pub unsafe fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: `context` is open, and `values` can be read and written.
    unsafe {
        match entry!(context, query_rt_values) {
            Some(query) => query(context, values),
            None => UNSUPPORTED,
        }
    }
}

/// Whether the capability mask `caps` contains the transport `qpt`.
#[inline]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> bool {
    caps & (1 << qpt) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VERBS_ABI_IS_EXTENDED, verbs_context, verbs_get_ctx};

    /// Fills as many bytes as it is told: as libmlx5 of version 44 with 16 as the speed, or with a longer code.
    unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, len: usize) -> c_int {
        // SAFETY: the caller's structure has `len` bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, len);
            (*attr).active_speed = 128;
            if port == 2 {
                attr.cast::<u32>().add(13).write(256);
            }
        }
        0
    }

    #[test]
    fn a_longer_code_of_the_speed_goes_first() {
        // SAFETY: pointers and integers: zero is a value of each.
        let mut extended: verbs_context = unsafe { core::mem::zeroed() };
        extended.sz = size_of::<verbs_context>();
        extended.query_port = Some(query_port);
        extended.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut core::ffi::c_void;
        let context = &raw mut extended.context;
        // SAFETY: the context is a part of the extended one.
        assert_eq!(unsafe { verbs_get_ctx(context) }, &raw mut extended);
        for (port, expected) in [(1, 128), (2, 256)] {
            let (mut attr, mut speed) = (ibv_port_attr::default(), 0);
            // SAFETY: a made-up context whose entry takes any port.
            assert_eq!(unsafe { query_port_and_speed(context, port, &mut attr, &mut speed) }, 0);
            assert_eq!((speed, attr.active_speed), (expected, 128));
        }
    }
}
