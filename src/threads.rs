//! Which values move between threads and which are shared by them, checked by the compiler.

use static_assertions::{assert_impl_all, assert_not_impl_any};

use crate::opaque::{Opaque, OpaqueMemory};
use crate::tags::{self, TagMatchingSrq};
use crate::*;

// Objects of libibverbs that any thread may use.
assert_impl_all!(Context: Send, Sync);
assert_impl_all!(Device: Send);
assert_impl_all!(ProtectionDomain: Send, Sync);
assert_impl_all!(CompletionChannel: Send, Sync);
assert_impl_all!(AddressHandle: Send, Sync);
assert_impl_all!(BufferPool: Send, Sync);
assert_impl_all!(Buffer: Send, Sync);
assert_impl_all!(SharedPoster: Send, Sync);
assert_impl_all!(OpaqueMemory: Send, Sync);
assert_impl_all!(BufferPool<Opaque>: Send, Sync);
assert_impl_all!(Buffer<Opaque>: Send, Sync);
assert_impl_all!(MemoryRegion: Send);
assert_impl_all!(MemoryWindow: Send, Sync);
assert_impl_all!(DeviceEvents: Send);

// Values with one owner at a time.
assert_impl_all!(Receiver: Send);
assert_impl_all!(Receiver<Opaque>: Send);
assert_impl_all!(QueuePair: Send);
assert_impl_all!(TagMatchingSrq: Send);
assert_impl_all!(Sender: Send);
assert_not_impl_any!(Sender: Sync);
assert_not_impl_any!(Receiver: Sync);
assert_impl_all!(Batch<'static>: Send);
assert_not_impl_any!(Batch<'static>: Sync);
assert_not_impl_any!(Message<'static>: Send, Sync);

// Plain values, configurations, and what a call gives back.
assert_impl_all!(DeviceEvent: Send, Sync);
assert_impl_all!(Clock: Send, Sync);
assert_impl_all!(Timestamp: Send, Sync);
assert_impl_all!(Gid: Send, Sync);
assert_impl_all!(MulticastGroup: Send, Sync);
assert_impl_all!(PoolConfig: Send, Sync);
assert_impl_all!(QpAddress: Send, Sync);
assert_impl_all!(QpConfig: Send, Sync);
assert_impl_all!(CqConfig: Send, Sync);
assert_impl_all!(DatagramSource: Send, Sync);
assert_impl_all!(RemoteAccess: Send, Sync);
assert_impl_all!(RemoteRegion: Send, Sync);
assert_impl_all!(SendCompletion<'static>: Send);
assert_impl_all!(SqId: Send, Sync);
assert_impl_all!(SrqConfig: Send, Sync);
assert_impl_all!(Statistics: Send, Sync);
assert_impl_all!(QueueId: Send, Sync);
assert_impl_all!(tags::ReceiveId: Send, Sync);
assert_impl_all!(tags::TagEvent: Send, Sync);
assert_impl_all!(tags::TaggedBuffer: Send, Sync);

// Errors go into `Box<dyn Error + Send + Sync>` and `anyhow::Error`.
assert_impl_all!(Error: Send, Sync, std::error::Error);
assert_impl_all!(Failure: Send, Sync, std::error::Error);
assert_impl_all!(SendFailure: Send, Sync, std::error::Error);
assert_impl_all!(Refused<Vec<u8>, Error>: Send, Sync, std::error::Error);
assert_impl_all!(NotSent: Send, Sync, std::error::Error);
assert_impl_all!(PostError: Send, Sync, std::error::Error);
assert_impl_all!(Refused<Buffer, PostFailure>: Send, Sync, std::error::Error);
assert_impl_all!(Refused<Buffer>: Send, Sync, std::error::Error);
assert_impl_all!(AddressError: Send, Sync, std::error::Error);
assert_impl_all!(WrongClock: Send, Sync, std::error::Error);
assert_impl_all!(Refused<tags::TaggedBuffer, tags::NotSentTagged>: Send, Sync, std::error::Error);

#[cfg(feature = "rdmacm")]
mod connection_manager {
    use super::*;
    use crate::rdmacm::{ConnectRequest, Connection, Listener, Route};

    assert_impl_all!(Connection: Send, Sync);
    assert_impl_all!(Listener: Send, Sync);
    assert_impl_all!(ConnectRequest: Send, Sync);
    assert_impl_all!(Route: Send, Sync);
}

/// Requirements of a multi-threaded runtime for a future that is spawned.
#[cfg(feature = "tokio")]
mod futures {
    use super::*;

    assert_impl_all!(Async<Receiver>: Send);
    assert_impl_all!(Async<TagMatchingSrq>: Send, futures_core::Stream);
    assert_impl_all!(EventStream: Send, futures_core::Stream);

    const _: fn(&mut Async<Receiver>) = |receiver| {
        fn spawned<F: Future + Send>(_: F) {}
        spawned(receiver.ready());
    };
}
