//! Shared parts of the tests on a stepped device. The device works only when it is stepped, so a test decides
//! what happens first.

#[path = "../../src/sending_qp.rs"]
pub mod sending_qp;
#[path = "../../src/sent.rs"]
pub mod sent;

pub mod frames;
mod sending;
mod stepped;

use std::os::fd::AsRawFd;

use doorbell::tags::{PeerId, TagMatchingConfig, TagMatchingSrq};
use doorbell::{BufferPool, CompletionChannel, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueuePair};
use soft_mlx5::{Builder, Device};

pub use sending::{Sending, two_buffers};
pub use stepped::Stepped;

/// Both paths, for tests that try one after the other.
pub const PATHS: [DataPath; 2] = [DataPath::Direct, DataPath::Verbs];

/// Makes two tests of each function: `direct::name` and `verbs::name`.
#[macro_export]
macro_rules! on_each_path {
    ($($test:ident)*) => {
        $crate::on_each_path!(direct, Direct, $($test)*);
        $crate::on_each_path!(verbs, Verbs, $($test)*);
    };
    ($module:ident, $path:ident, $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test(doorbell::DataPath::$path);
            })*
        }
    };
}

/// A CQ as large as its queue needs, for frames and tags.
pub const fn cq(path: DataPath) -> CqConfig {
    CqConfig::new(1).path(path)
}

/// Whether a program that sleeps on the channel wakes up.
pub fn is_readable(channel: &CompletionChannel) -> bool {
    let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Powers a device up, and opens it.
pub fn open(builder: Builder) -> (Device, ProtectionDomain) {
    let device = builder.build().expect("a device");
    let pd = doorbell::open(device.name()).unwrap().alloc_pd().unwrap();
    (device, pd)
}

/// Connects two queue pairs with each other.
pub fn join(one: &mut QueuePair, other: &mut QueuePair) {
    let (here, there) = (one.address().unwrap(), other.address().unwrap());
    one.connect(&there).unwrap();
    other.connect(&here).unwrap();
}

/// Makes two tag lists with filled SRQs, and connects a peer of each with the other.
pub fn tag_lists(pd: &ProtectionDomain, config: &TagMatchingConfig) -> [(TagMatchingSrq, PeerId); 2] {
    let slots = BufferPool::new(pd, &PoolConfig::new(256, 256)).unwrap();
    let mut lists = [(); 2].map(|()| {
        let mut tags = TagMatchingSrq::new(pd, config).unwrap();
        tags.keep_filled(&slots).unwrap();
        let peer = tags.add_peer(&QpConfig::rc()).unwrap();
        (tags, peer)
    });
    let addresses = lists.each_mut().map(|(tags, peer)| tags.address(*peer).unwrap());
    for ((tags, peer), there) in lists.iter_mut().zip(addresses.iter().rev()) {
        tags.connect(*peer, there).unwrap();
    }
    lists
}
