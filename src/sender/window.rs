//! Binding memory windows, and revoking their keys.

use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::Arc;

use mlx5_ring::sq::{Flags, MAX_WINDOW, PostError, Remote, Window as Bind};
use rdma_core_sys as sys;

use super::one::Request;
use super::posting::Posting;
use super::queue::{DirectSq, SendRing};
use super::request::WorkRequest;
use super::settling::Posted;
use crate::memory::{self, Extent, MemoryWindow, RemoteAccess, RemoteRegion, Window, WindowMemory};
use crate::not_sent::NotSent;
use crate::refused::Refused;
use crate::window_keys::Grant;

/// The operations that a window can allow.
const OPERATIONS: RemoteAccess = RemoteAccess::READ.union(RemoteAccess::WRITE).union(RemoteAccess::ATOMIC);

/// Basic blocks of a bind, or of a revocation, and the NOP behind it.
const BIND_BLOCKS: u32 = 4;
const REVOKE_BLOCKS: u32 = 3;

/// A request that changes the key of a window.
enum Change<'a> {
    Bind(Extent, Bind, RemoteAccess, &'a Window),
    Revoke(u32),
}

impl Posting<'_> {
    /// Binds a window to a range of a buffer or region: from then on the peer of this queue pair can access these bytes
    /// for the operations of `access`, until the key is revoked. Returns the memory as the peer needs it, with a key
    /// that is new for each bind. A range counts bytes of the [capacity](crate::Buffer::capacity) of a buffer.
    ///
    /// The requests after it start when the bind is done, so one of them can send the key. The completion has no
    /// buffer: the window has it. The bind takes four basic blocks of the send queue on the direct path, and has a
    /// completion also if it is [unsignaled](Request::unsignaled).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::windows();
    /// # let (pd, queue) = (world.pd.clone(), world.queue());
    /// # let sender = &mut world.sender;
    /// use doorbell::{MemoryRegion, MemoryWindow, NotSent, RemoteAccess};
    ///
    /// let table = MemoryRegion::with_access(&pd, 4096, RemoteAccess::BIND)?;
    /// let mut window = MemoryWindow::new(&pd)?;
    /// let bound = sender.post(queue)?.bind(&mut window, &table, 1024..1088, RemoteAccess::READ);
    /// // The error need not return a region that was borrowed.
    /// let record = bound.map_err(NotSent::from)?;
    /// assert_eq!((record.len(), window.rkey()), (64, Some(record.rkey())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the memory. [`NotSent::WindowOutside`] for a range that is empty, or not inside the memory;
    /// [`NotSent::NoWindows`] for memory or a queue pair that was not made for windows; [`NotSent::WindowBound`];
    /// [`NotSent::WindowLost`]; [`NotSent::WindowAccess`] if `access` has no operation; [`NotSent::WrongDomain`];
    /// [`NotSent::Full`].
    pub fn bind<M: WindowMemory>(
        &mut self,
        window: &mut MemoryWindow,
        memory: M,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<RemoteRegion, Refused<M>> {
        let options = self.take_options();
        match self.try_bind(window.window(), memory.extent(), &range, access & OPERATIONS, options) {
            Ok((region, grant)) => {
                window.window().keep(memory.keep(), grant, self.entry.id);
                Ok(region)
            }
            Err(reason) => Err(Refused { payload: memory, reason }),
        }
    }

    fn try_bind(
        &mut self,
        window: &Arc<Window>,
        extent: Extent,
        range: &impl RangeBounds<usize>,
        access: RemoteAccess,
        options: (Flags, u64),
    ) -> Result<(RemoteRegion, Arc<Grant>), NotSent> {
        self.check_window(window)?;
        let (start, end) = memory::bounds(range, extent.len);
        let len = match end.checked_sub(start) {
            Some(len @ 1..) if end <= extent.len && len <= MAX_WINDOW as usize => len,
            _ => return Err(NotSent::WindowOutside { start, end, len: extent.len }),
        };
        if extent.domain != self.domain {
            return Err(NotSent::WrongDomain);
        }
        if !extent.has_windows {
            return Err(NotSent::NoWindows {
                what: "memory",
                setting: "RemoteAccess::BIND or PoolConfig::memory_windows",
            });
        }
        if access.is_empty() {
            return Err(NotSent::WindowAccess);
        }
        match window.grant() {
            Some((grant, _)) if grant.is_lost() => return Err(NotSent::WindowLost),
            Some((grant, _)) if !grant.is_over() => return Err(NotSent::WindowBound { rkey: grant.rkey() }),
            _ => {}
        }
        let key = window.key();
        let grant = Grant::next(window.pd().context().as_raw(), key);
        let remote = Remote { addr: extent.start + start as u64, rkey: grant.rkey() };
        // SAFETY: the region exists: what was passed for the memory keeps it.
        let lkey = unsafe { (*extent.mr).lkey };
        let bind = Bind {
            key,
            remote,
            len: len as u32,
            lkey,
            read: access.contains(RemoteAccess::READ),
            write: access.contains(RemoteAccess::WRITE),
            atomic: access.contains(RemoteAccess::ATOMIC),
        };
        // SAFETY: [window-owns]: the memory and the window are kept until the access is over, and the device reads and
        // writes memory of a buffer that nobody has, or of a region.
        if let Err(reason) = unsafe { self.change(Change::Bind(extent, bind, access, window), options) } {
            grant.withdraw();
            return Err(reason);
        }
        let posted = Posted { window: Arc::clone(window), grant: Arc::clone(&grant), is_bind: true };
        self.entry.windows.push(posted);
        Ok((RemoteRegion::new(remote.addr, len, remote.rkey), grant))
    }

    /// Revokes the key of a window that was bound through this queue pair (`IBV_WR_LOCAL_INV`). The access of the peer
    /// has ended when the completion was polled: then [`MemoryWindow::is_bound`] returns `false`.
    ///
    /// Requests of the peer that come later, and READs that its adapter has not answered, fail at the peer. If the peer
    /// may invalidate the key at the same time, drop the window instead: the device may refuse a key that it has
    /// revoked already, and the queue pair fails. It takes three basic blocks of the send queue.
    ///
    /// ```
    /// # use doorbell::Completions;
    /// # let mut world = doorbell_doc::World::windows();
    /// # let (pd, queue) = (world.pd.clone(), world.queue());
    /// # let sender = &mut world.sender;
    /// use doorbell::{MemoryRegion, MemoryWindow, NotSent, RemoteAccess};
    ///
    /// let table = MemoryRegion::with_access(&pd, 4096, RemoteAccess::BIND)?;
    /// let mut window = MemoryWindow::new(&pd)?;
    /// sender.post(queue)?.bind(&mut window, &table, .., RemoteAccess::READ).map_err(NotSent::from)?;
    /// sender.post(queue)?.token(1).revoke(&mut window)?;
    /// while window.is_bound() {
    ///     sender.wait(None)?;
    ///     while let Some(done) = sender.next() {
    ///         done?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NotSent::WindowNotBound`] also for a window that was bound through another queue pair, or is being revoked;
    /// [`NotSent::WindowLost`]; [`NotSent::NoWindows`]; [`NotSent::WrongDomain`]; [`NotSent::Full`].
    pub fn revoke(&mut self, window: &mut MemoryWindow) -> Result<(), NotSent> {
        let options = self.take_options();
        let window = window.window();
        self.check_window(window)?;
        let grant = match window.grant() {
            Some((grant, _)) if grant.is_lost() => return Err(NotSent::WindowLost),
            Some((grant, queue)) if queue == self.entry.id && !grant.is_over() && !grant.is_ending() => grant,
            _ => return Err(NotSent::WindowNotBound),
        };
        // SAFETY: it gives access to nothing.
        unsafe { self.change(Change::Revoke(grant.rkey()), options)? }
        grant.note_revoking();
        self.entry.windows.push(Posted { window: Arc::clone(window), grant, is_bind: false });
        Ok(())
    }

    fn check_window(&self, window: &Window) -> Result<(), NotSent> {
        if !self.entry.has_windows {
            return Err(NotSent::NoWindows { what: "queue pair", setting: "QpConfig::memory_windows" });
        }
        if window.pd().id() != self.domain {
            return Err(NotSent::WrongDomain);
        }
        Ok(())
    }

    /// # Safety
    /// Memory that a bind gives access to stays, and is used as memory that a device accesses, until that is over.
    unsafe fn change(&mut self, change: Change<'_>, (flags, token): (Flags, u64)) -> Result<(), NotSent> {
        let request = WorkRequest::window(token);
        match &mut self.entry.ring {
            SendRing::Direct(DirectSq { ring, .. }) => {
                // The doorbell rings when this posting ends.
                let mut posting = ManuallyDrop::new(ring.posting());
                let unsignaled = flags.without(Flags::SIGNALED);
                // SAFETY: [ready] by `Sender::post`. The memory is as the caller says.
                let posted = unsafe {
                    match &change {
                        _ if posting.free_blocks() < change.blocks() => Err(PostError::Full),
                        Change::Bind(_, bind, ..) => posting.bind(bind, unsignaled, request),
                        Change::Revoke(rkey) => posting.invalidate(*rkey, unsignaled, request),
                    }
                };
                // libmlx5 gives the next request a fence. A NOP that waits for the change costs other requests nothing;
                // its CQE says that both are over.
                let behind = Flags::SMALL_FENCE | Flags::SIGNALED;
                // SAFETY: [ready] as above.
                let posted = posted.and_then(|()| unsafe { posting.nop(behind, WorkRequest::INTERNAL) });
                if self.is_single {
                    drop(ManuallyDrop::into_inner(posting));
                }
                posted.map_err(|error| self.entry.refusal(error, 0))
            }
            SendRing::Verbs(verbs) => {
                let wr = change.describe();
                // Its completion settles what the peer can access.
                let flags = flags | Flags::SIGNALED;
                // SAFETY: [ready], and the memory is as the caller says; there are no SGEs.
                let posted = unsafe { verbs.post(wr, None, &[], false, flags, request) };
                posted.map_err(|reason| self.entry.with_time(reason))
            }
        }
    }
}

impl Change<'_> {
    const fn blocks(&self) -> u32 {
        match self {
            Self::Bind(..) => BIND_BLOCKS,
            Self::Revoke(_) => REVOKE_BLOCKS,
        }
    }

    fn describe(&self) -> sys::ibv_send_wr {
        let mut wr = sys::ibv_send_wr::default();
        match self {
            Self::Bind(extent, bind, access, window) => {
                wr.opcode = sys::IBV_WR_BIND_MW;
                wr.__bindgen_anon_2.bind_mw = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                    mw: window.as_raw(),
                    rkey: bind.remote.rkey,
                    bind_info: sys::ibv_mw_bind_info {
                        mr: extent.mr,
                        addr: bind.remote.addr,
                        length: bind.len.into(),
                        mw_access_flags: access.bits(),
                    },
                };
            }
            Self::Revoke(rkey) => {
                wr.opcode = sys::IBV_WR_LOCAL_INV;
                wr.__bindgen_anon_1.invalidate_rkey = *rkey;
            }
        }
        wr
    }
}

impl Request<'_> {
    /// See [`Posting::bind`].
    ///
    /// # Errors
    /// The errors of [`Posting::bind`].
    pub fn bind<M: WindowMemory>(
        mut self,
        window: &mut MemoryWindow,
        memory: M,
        range: impl RangeBounds<usize>,
        access: RemoteAccess,
    ) -> Result<RemoteRegion, Refused<M>> {
        self.posting.bind(window, memory, range, access)
    }

    /// See [`Posting::revoke`].
    ///
    /// # Errors
    /// The errors of [`Posting::revoke`].
    pub fn revoke(mut self, window: &mut MemoryWindow) -> Result<(), NotSent> {
        self.posting.revoke(window)
    }
}
