//! CQEs in a CQ of doorbell: with any content safe code reads nothing outside the CQ and the buffers, does not panic,
//! and no buffer has two owners.
//!
//! The queues lie in memory with an inaccessible page on either side.

mod cq;
pub mod frames;
pub mod receives;
pub mod sends;

use std::ptr;
use std::sync::OnceLock;

use doorbell::{Context, ProtectionDomain};
use rdma_core_sys as sys;
use soft_mlx5::{Device, LinkLayer};
use sys::Mlx5dv;

use crate::input::Input;
use crate::memory::{guarded_alloc, guarded_free};

/// In the byte of an operation: nothing is put right.
pub const RAW: u8 = 0x80;
/// In the byte of an operation: it is for the second queue pair.
pub const SECOND: u8 = 0x40;

/// A stepped device. Each queue lies in memory with an inaccessible page on either side.
struct Target {
    device: Device,
    context: Context,
    pd: ProtectionDomain,
}

/// Returns the device of this process with this link layer.
fn target(link: LinkLayer) -> &'static Target {
    static TARGETS: [OnceLock<Target>; 2] = [OnceLock::new(), OnceLock::new()];
    TARGETS[usize::from(link == LinkLayer::Ethernet)].get_or_init(|| {
        let device = Device::builder().stepped().link_layer(link);
        let device = device.build().expect("a stepped device");
        let context = doorbell::open(device.name()).expect("the device");
        let mut allocators =
            sys::mlx5dv_ctx_allocators { alloc: Some(guarded_alloc), free: Some(guarded_free), data: ptr::null_mut() };
        let set = Mlx5dv::get().expect("libmlx5").set_context_attr;
        // SAFETY: an open context; the structure is copied.
        let errno = unsafe { set(context.as_raw(), sys::MLX5DV_CTX_ATTR_BUF_ALLOCATORS, (&raw mut allocators).cast()) };
        assert_eq!(errno, 0);
        let pd = context.alloc_pd().expect("a domain");
        Target { device, context, pd }
    })
}

/// Executes the bytes after the first, which selects the owner of the CQ: a [`doorbell::Receiver`], a
/// [`doorbell::Sender`], or a [`doorbell::frames::FrameReceiver`].
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Some(owner) = input.u8() else { return };
    [receives::run, sends::run, frames::run][usize::from(owner) % 3](input.0);
}
