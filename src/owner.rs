//! Which process an object belongs to.

use std::process;

/// The process that made an object. After `fork` the child has copies of the handles but not of the
/// device's mappings: it must neither use nor destroy them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn this_process() -> Self {
        Self(process::id())
    }

    pub(crate) fn is_this_process(self) -> bool {
        self == Self::this_process()
    }
}

/// Says that a destroy function failed, and that what depends on the object is kept for ever.
pub(crate) fn warn_leak(operation: &str, device: &str, errno: i32) {
    let error = std::io::Error::from_raw_os_error(errno);
    #[cfg(feature = "tracing")]
    tracing::warn!(device, operation, %error, "leaked");
    eprintln!(
        "doorbell: {operation} on {device} failed ({error}): the object and the memory that it may still use are leaked"
    );
}
