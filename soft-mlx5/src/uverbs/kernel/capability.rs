//! Capabilities of the calling thread.

use super::Call;

/// `CAP_NET_RAW`.
pub const NET_RAW: u32 = 13;
/// `CAP_SYS_RAWIO`.
pub const RAW_IO: u32 = 17;
/// `CAP_IPC_LOCK`.
pub const IPC_LOCK: u32 = 14;

impl Call<'_> {
    /// Returns `true` if the program may make raw packet QPs and flows, and use privileged queue keys.
    pub(super) fn may_use_frames(&self) -> bool {
        !self.core.refuse_raw && may_use_frames()
    }
}

/// Returns `true` if this thread has a capability, one of the lower 32, in its effective set.
pub fn has(capability: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: VERSION_3, pid: 0 };
    // Effective, permitted and inheritable, of the lower and the upper 32.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: header and sets have the form that the version stands for, and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets) };
    done == 0 && sets[0][0] & 1 << capability != 0
}

/// Returns `true` if this thread may make raw packet QPs and flows. Unlike the kernel, the model also allows root
/// without the capability, which containers often lack.
fn may_use_frames() -> bool {
    // SAFETY: no arguments, no memory.
    has(NET_RAW) || unsafe { libc::geteuid() } == 0
}
