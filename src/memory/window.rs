//! Memory that one peer may access until its key is invalidated.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys as sys;

use super::buffer::Buffer;
use super::remote::{MemoryRegion, Registered};
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::pd::{DomainId, ProtectionDomain};
use crate::refused::Refused;
use crate::window_keys::Grant;

/// A key that gives one peer access to a part of a [`MemoryRegion`] or of a [`Buffer`] until it is revoked (memory
/// window of type 2).
///
/// | to | use |
/// |---|---|
/// | give access | [`Posting::bind`](crate::Posting::bind) or [`Request::bind`](crate::Request::bind), which return the [`RemoteRegion`](crate::RemoteRegion) for the peer |
/// | let the peer end it | [`send_with_invalidate`](crate::Posting::send_with_invalidate) at the peer: the access has ended when its message was polled ([`Message::invalidated_rkey`](crate::Message::invalidated_rkey)) |
/// | end it from this side | [`Posting::revoke`](crate::Posting::revoke), or drop the window |
/// | know whether it has ended | [`is_bound`](Self::is_bound) |
/// | get the buffer back | [`take_buffer`](Self::take_buffer), [`destroy`](Self::destroy) |
///
/// The queue pair needs [`QpConfig::memory_windows`](crate::QpConfig::memory_windows), a region
/// [`RemoteAccess::BIND`](crate::RemoteAccess::BIND), and a buffer
/// [`PoolConfig::memory_windows`](crate::PoolConfig::memory_windows). Only the peer of the queue pair through which the
/// window was bound can use the key, for the operations that both the bind and the queue pair allow
/// ([`QpConfig::remote_write`](crate::QpConfig::remote_write)).
///
/// While it is bound, a window owns its buffer, or keeps the memory of its region: dropping the region, the window, the
/// queue pair and the sender in any order frees nothing that the peer can reach. Dropping a window that is bound
/// revokes its key by deallocating the window, which is a system call.
///
/// A receiver ends the access when it polls the message that invalidated the key, on both paths. It cannot if the
/// program polls the rings itself ([`Receiver::as_direct`](crate::Receiver::as_direct)): then use `revoke` or drop the
/// window. A key that this side revoked comes back 256 binds later, and is not trusted then: a completion that was not
/// polled meanwhile could be of the earlier bind. So when all 256 keys of a window have been revoked from this side,
/// the messages of the peer do not end its access any more.
///
/// ```
/// # use doorbell::{CqConfig, RqConfig};
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{BufferPool, Completions, MemoryWindow, PoolConfig, QpConfig, QueuePair, RemoteAccess, RemoteRegion};
///
/// let config = QpConfig::rc().remote_write(true).memory_windows(true);
/// let pool = BufferPool::new(&pd, &PoolConfig::new(8, 4096).memory_windows(true))?;
/// # let mut sender = doorbell::Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
/// # let mut receiver = doorbell::Receiver::new(&pd, &CqConfig::new(512))?;
/// # let mut qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).send(&mut sender).build()?;
/// # let mut peer_sender = doorbell::Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
/// # let mut peer_receiver = doorbell::Receiver::new(&pd, &CqConfig::new(512))?;
/// # let own = RqConfig::new(4);
/// # let mut peer = QueuePair::builder(&config).receive(&mut peer_receiver, own).send(&mut peer_sender).build()?;
/// # receiver.fill(qp.receive_queue().unwrap(), &pool)?;
/// # peer_receiver.fill(peer.receive_queue().unwrap(), &BufferPool::new(&pd, &PoolConfig::new(4, 64))?)?;
/// # qp.connect(&peer.address()?)?;
/// # peer.connect(&qp.address()?)?;
/// let mut window = MemoryWindow::new(&pd)?;
///
/// // One buffer, for the peer of `qp` to write its first 64 bytes. The key follows in a message.
/// let buffer = pool.take().ok_or("no free buffer")?;
/// let mut posting = sender.post_many(&qp)?;
/// let region = posting.bind(&mut window, buffer, ..64, RemoteAccess::WRITE)?;
/// posting.send(&region.to_bytes())?;
/// posting.ring();
/// assert!(window.is_bound() && window.take_buffer().is_none());
///
/// // The peer writes, and gives the access back with its next message.
/// # peer_receiver.wait(None)?;
/// # let bytes: [u8; RemoteRegion::BYTES] = peer_receiver.next().unwrap()?[..].try_into()?;
/// let region = RemoteRegion::from_bytes(&bytes);
/// peer_sender.post(&peer)?.write(b"an answer", &region)?;
/// peer_sender.post(&peer)?.send_with_invalidate(b"written", region.rkey())?;
///
/// receiver.wait(None)?;
/// let message = receiver.next().ok_or("no message")??;
/// assert_eq!(message.invalidated_rkey(), Some(region.rkey()));
/// // The peer cannot reach the buffer any more.
/// let mut buffer = window.take_buffer().ok_or("bound")?;
/// buffer.set_len(9);
/// assert_eq!(*buffer, *b"an answer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryWindow(Arc<Window>);

/// A window as its requests keep it.
pub(crate) struct Window {
    /// Null when it was deallocated.
    mw: *mut sys::ibv_mw,
    pd: ProtectionDomain,
    state: Mutex<State>,
}

/// Memory and key of the last bind.
struct State {
    /// `[window-owns]`: memory that the grant gives access to, until that is over.
    memory: Option<Kept>,
    grant: Option<Arc<Grant>>,
    queue: SqId,
}

// SAFETY: verbs calls on a window are thread-safe (ibverbs(7)); what is written in `ibv_mw` is so under the lock.
unsafe impl Send for Window {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Window {}

/// Memory that a window gives access to.
pub enum Kept {
    Buffer(Buffer),
    Region(Arc<Registered>),
}

/// Registered memory, as a bind needs it.
pub struct Extent {
    pub(crate) domain: DomainId,
    pub(crate) start: u64,
    pub(crate) len: usize,
    pub(crate) mr: *mut sys::ibv_mr,
    /// Memory windows can be bound to it.
    pub(crate) has_windows: bool,
}

/// Memory that a [`MemoryWindow`] can be bound to: a [`Buffer`], which the window owns meanwhile, or a reference to a
/// [`MemoryRegion`].
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{MemoryRegion, MemoryWindow, NotSent, Posting, RemoteAccess, RemoteRegion, Refused, WindowMemory};
///
/// /// Gives read access to whatever memory the caller has.
/// fn lend<M: WindowMemory>(
///     posting: &mut Posting<'_>,
///     window: &mut MemoryWindow,
///     memory: M,
/// ) -> Result<RemoteRegion, Refused<M>> {
///     posting.bind(window, memory, .., RemoteAccess::READ)
/// }
/// # let _ = lend::<&MemoryRegion>;
/// ```
pub trait WindowMemory: sealed::WindowMemory {}

impl<M: sealed::WindowMemory> WindowMemory for M {}

pub(crate) mod sealed {
    use super::{Extent, Kept};

    pub trait WindowMemory: Sized {
        fn extent(&self) -> Extent;
        fn keep(self) -> Kept;
    }
}

impl sealed::WindowMemory for Buffer {
    fn extent(&self) -> Extent {
        let pool = self.pool();
        Extent {
            domain: pool.pd().id(),
            start: self.addr().as_ptr().expose_provenance() as u64,
            len: self.capacity(),
            mr: pool.mr,
            has_windows: pool.has_windows,
        }
    }

    fn keep(self) -> Kept {
        Kept::Buffer(self)
    }
}

impl sealed::WindowMemory for &MemoryRegion {
    fn extent(&self) -> Extent {
        let region = self.registered();
        Extent {
            domain: region.pd.id(),
            start: self.as_ptr().expose_provenance() as u64,
            len: region.len,
            mr: region.mr,
            has_windows: region.has_windows,
        }
    }

    fn keep(self) -> Kept {
        Kept::Region(Arc::clone(self.registered()))
    }
}

impl MemoryWindow {
    /// Allocates a window (`ibv_alloc_mw(3)`, type 2). It can be bound again and again.
    ///
    /// # Errors
    /// [`Error::Verbs`]: the device may have no windows of type 2, or none left (`max_mw`).
    pub fn new(pd: &ProtectionDomain) -> Result<Self> {
        // SAFETY: the domain is allocated.
        let mw = unsafe { sys::ibv_alloc_mw(pd.as_raw(), sys::IBV_MW_TYPE_2) };
        if mw.is_null() {
            return Err(Error::last_os("ibv_alloc_mw", pd.context().name()));
        }
        let state = State { memory: None, grant: None, queue: SqId::NONE };
        Ok(Self(Arc::new(Window { mw, pd: pd.clone(), state: Mutex::new(state) })))
    }

    /// Returns `true` while the peer may have access: from the bind on, until the message that invalidated the key or
    /// the completion of [`revoke`](crate::Posting::revoke) was polled. After a bind or a revocation that failed it
    /// stays `true`: drop the window, or [`destroy`](Self::destroy) it.
    pub fn is_bound(&self) -> bool {
        !self.0.state().is_over()
    }

    /// Returns the key that the peer has, or `None` if the window is not bound.
    pub fn rkey(&self) -> Option<u32> {
        let state = self.0.state();
        state.grant.as_ref().filter(|grant| !grant.is_over()).map(|grant| grant.rkey())
    }

    /// Takes the buffer back that the window was bound to. Its length is as it was, whatever the peer wrote. `None`
    /// while the window is [bound](Self::is_bound), if the buffer was taken, and for a region.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        let mut state = self.0.state();
        if !state.is_over() {
            return None;
        }
        state.memory.take()?.into_buffer()
    }

    /// Deallocates the window, which ends the access of the peer in any case, and returns the buffer. It is a system
    /// call.
    ///
    /// # Errors
    /// [`Refused`] with the window: [`Error::InUse`] while a bind or a revocation is outstanding; [`Error::Verbs`], and
    /// then dropping a window that is bound leaks its memory.
    pub fn destroy(self) -> Result<Option<Buffer>, Refused<Self, Error>> {
        let refused = |window, reason| Err(Refused { payload: Self(window), reason });
        let mut window = match Arc::try_unwrap(self.0) {
            Ok(window) => window,
            Err(shared) => {
                let (what, users) = ("memory window", "a request that is outstanding");
                let action = "poll the sender, or destroy the queue pair";
                return refused(shared, Error::InUse { what, users, action });
            }
        };
        match window.deallocate() {
            0 => Ok(window.lock().memory.take().and_then(Kept::into_buffer)),
            errno => {
                let reason = Error::returned("ibv_dealloc_mw", window.pd.context().name(), errno);
                refused(Arc::new(window), reason)
            }
        }
    }

    pub(crate) const fn window(&self) -> &Arc<Window> {
        &self.0
    }
}

impl Window {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while holding it")
    }

    fn lock(&mut self) -> &mut State {
        self.state.get_mut().expect("nothing panics while holding it")
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_mw {
        self.mw
    }

    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns what the last bind gave, and the queue through which that was.
    pub(crate) fn grant(&self) -> Option<(Arc<Grant>, SqId)> {
        let state = self.state();
        Some((Arc::clone(state.grant.as_ref()?), state.queue))
    }

    /// Returns the key of the last bind, or the one that the window was made with.
    pub(crate) fn key(&self) -> u32 {
        let _locked = self.state();
        // SAFETY: the window is allocated, and the lock held under which its key is written.
        unsafe { (*self.mw).rkey }
    }

    /// Keeps the memory of a bind that was posted.
    pub(crate) fn keep(&self, memory: Kept, grant: Arc<Grant>, queue: SqId) {
        let mut state = self.state();
        // SAFETY: the window is allocated, and the lock held. The program keeps the key of a window of type 2
        // (ibv_bind_mw(3)).
        unsafe { (*self.mw).rkey = grant.rkey() };
        let before = mem::replace(&mut *state, State { memory: Some(memory), grant: Some(grant), queue });
        // The bind before is over; its buffer may return to its pool.
        drop(state);
        drop(before);
    }

    /// Deallocates the window, which ends the access of the peer; returns `errno`. A forked child leaves the window to
    /// its parent.
    fn deallocate(&mut self) -> i32 {
        if let Some(grant) = &self.lock().grant {
            if !grant.is_over() {
                // Before the device can give the key to another window.
                grant.forget();
            }
        }
        let context = self.pd.context();
        if !context.owner().is_this_process() {
            return libc::EPERM;
        }
        // SAFETY: allocated by us; no request refers to it, for each keeps the window.
        let errno = unsafe { sys::ibv_dealloc_mw(self.mw) };
        if context.destroyed("ibv_dealloc_mw", errno) {
            self.mw = std::ptr::null_mut();
            self.lock().grant = None;
        }
        if self.mw.is_null() { 0 } else { errno }
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.is_over())
    }
}

impl Kept {
    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Region(_) => None,
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.mw.is_null() {
            return;
        }
        let is_over = self.lock().is_over();
        if self.deallocate() != 0 && !is_over {
            // [window-owns]: the peer may still have access.
            mem::forget(self.lock().memory.take());
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").field("rkey", &self.rkey()).finish_non_exhaustive()
    }
}
