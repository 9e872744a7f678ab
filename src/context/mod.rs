//! An open device.

mod event_file;

use std::ffi::c_char;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rdma_core_sys as sys;
use sys::Mlx5dv;

use crate::attributes::{DeviceAttr, PortAttr};
use crate::error::{Error, Result};
use crate::owner::{Owner, warn_leak};
use crate::path::{DataPath, NotDirect};
use crate::trace::trace_event;

pub(crate) use event_file::{Patience, wait};

use event_file::EventFile;

/// Vendor identifier (OUI) that NVIDIA's adapters report.
const VENDOR_MELLANOX: u32 = 0x02c9;
/// Identifier that Soft-RoCE reports in its place.
const VENDOR_SOFT_ROCE: u32 = 0xff_ffff;

/// Variables with which libmlx5 puts signatures into WQEs.
const SIGNATURE_VARIABLES: [&str; 2] = ["MLX5_SRQ_SIGNATURE", "MLX5_QP_SIGNATURE"];

/// An open device. Clones share one device. The device closes when the last object made from it is dropped.
///
/// ```
/// # let _device = doorbell_doc::device();
/// let context = doorbell::open("mlx5_0")?;
/// println!("{}: at most {} entries in a CQ", context.name(), context.attr().max_cqe);
/// let pd = context.alloc_pd()?;
/// // The device stays open as long as anything that was made from it.
/// drop(context);
/// assert_eq!(pd.context().name(), "mlx5_0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    context: *mut sys::ibv_context,
    name: String,
    attr: DeviceAttr,
    firmware: String,
    direct: Result<&'static Mlx5dv, NotDirect>,
    owner: Owner,
    closes: bool,
    events: EventFile,
    /// A completion channel without CQs. The kernel ends the objects of a removed device from the newest to the oldest.
    first: *mut sys::ibv_comp_channel,
    /// The device was removed: see [`Context::mark_removed`].
    removed: AtomicBool,
}

// SAFETY: verbs calls on a context are thread-safe (ibverbs(7)).
unsafe impl Send for Inner {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Inner {}

impl Context {
    /// # Safety
    /// `context` is open and no other code closes it.
    pub(crate) unsafe fn from_open(context: *mut sys::ibv_context, name: &str) -> Result<Self> {
        // SAFETY: the caller's context is open, and no other code closes it.
        unsafe { Self::adopt(context, name, true) }
    }

    /// Wraps a context that the caller opened and will close.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{Context, PoolConfig};
    /// use doorbell::raw::rdma_core_sys as sys;
    ///
    /// // A program that has opened the device itself.
    /// let mut count = 0;
    /// // SAFETY: the list is freed when the context is open; the context is closed last.
    /// unsafe {
    ///     let list = sys::ibv_get_device_list(&mut count);
    ///     let opened = sys::ibv_open_device(*list);
    ///     sys::ibv_free_device_list(list);
    ///     let context = Context::from_raw(opened)?;
    ///     let pool = doorbell::BufferPool::new(&context.alloc_pd()?, &PoolConfig::new(16, 256))?;
    ///     drop((pool, context));
    ///     sys::ibv_close_device(opened);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`] when the device cannot be queried.
    ///
    /// # Safety
    /// `context` stays open for as long as the value and everything made from it exist.
    pub unsafe fn from_raw(context: *mut sys::ibv_context) -> Result<Self> {
        // SAFETY: an open context has a device with a name.
        let name = unsafe { std::ffi::CStr::from_ptr(sys::ibv_get_device_name((*context).device)).to_string_lossy() };
        // SAFETY: the caller's context stays open for as long as the value.
        unsafe { Self::adopt(context, &name, false) }
    }

    /// # Safety
    /// `context` stays open for as long as the value and everything made from it exist; with `closes`, no other code
    /// closes it.
    unsafe fn adopt(context: *mut sys::ibv_context, name: &str, closes: bool) -> Result<Self> {
        let mut attr = sys::ibv_device_attr::default();
        // SAFETY: an open context and a writable structure.
        let errno = unsafe { sys::ibv_query_device(context, &mut attr) };
        let mut inner = Inner {
            context,
            name: name.to_owned(),
            attr: DeviceAttr::new(&attr),
            firmware: text(&attr.fw_ver),
            direct: Err(NotDirect::NotMlx5),
            owner: Owner::this_process(),
            closes,
            events: EventFile::new(),
            // SAFETY: an open context.
            first: unsafe { sys::ibv_create_comp_channel(context) },
            removed: AtomicBool::new(false),
        };
        if inner.first.is_null() {
            return Err(Error::last_os("ibv_create_comp_channel", name));
        }
        if errno != 0 {
            return Err(Error::returned("ibv_query_device", name, errno));
        }
        // SAFETY: an open context.
        inner.direct = unsafe { find_mlx5dv((*context).device, &inner.attr) };
        trace_event!(device = name, firmware = inner.firmware, "device opened");
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the name of the device, for example `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the attributes and limits of the device (`ibv_query_device(3)`).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let context = doorbell::open("mlx5_0")?;
    /// println!("SRQs of up to {} receives", context.attr().max_srq_wr);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    /// Returns how many completion vectors this process can use on the device, see
    /// [`CqConfig::comp_vector`](crate::CqConfig::comp_vector).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{CqConfig, Receiver};
    ///
    /// let context = doorbell::open("mlx5_0")?;
    /// let pd = context.alloc_pd()?;
    /// // Four receivers share the vectors in turn.
    /// let receivers = (0..4)
    ///     .map(|thread| CqConfig::new(4096).comp_vector(thread % context.num_comp_vectors()))
    ///     .map(|config| Receiver::new(&pd, &config))
    ///     .collect::<doorbell::Result<Vec<_>>>()?;
    /// # assert_eq!(receivers.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open, and the number never changes.
        unsafe { (*self.as_raw()).num_comp_vectors }.max(0) as u32
    }

    /// Returns the attributes of a port (`ibv_query_port(3)`). The first port is 1.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let port = doorbell::open("mlx5_0")?.query_port(1)?;
    /// println!("LID {}, {} GIDs, state {}", port.lid, port.gid_tbl_len, port.state);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`] when there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttr> {
        let (mut attr, mut speed) = (sys::ibv_port_attr::default(), 0);
        // SAFETY: an open context.
        let errno = unsafe { sys::query_port_and_speed(self.0.context, port, &mut attr, &mut speed) };
        if errno != 0 {
            return Err(Error::returned("ibv_query_port", self.name(), errno));
        }
        Ok(PortAttr::new(&attr, speed))
    }

    /// Returns a GID of a port in network byte order (`ibv_query_gid(3)`).
    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<[u8; 16]> {
        let mut gid = sys::ibv_gid::default();
        // SAFETY: an open context and a writable GID.
        let errno = unsafe { sys::ibv_query_gid(self.0.context, port, index.into(), &mut gid) };
        if errno != 0 {
            return Err(Error::last_os("ibv_query_gid", self.name()));
        }
        // SAFETY: every bit pattern is a GID in raw form.
        Ok(unsafe { gid.raw })
    }

    /// Returns the version of the firmware as the device reports it, or an empty string.
    pub fn firmware(&self) -> String {
        self.0.firmware.clone()
    }

    /// Returns the directory of the device in sysfs, for example `/sys/class/infiniband/mlx5_0`.
    pub fn sysfs_path(&self) -> PathBuf {
        // SAFETY: an open context has a device, and libibverbs has written its path.
        let path = unsafe { &(*(*self.0.context).device).ibdev_path };
        PathBuf::from(text(path))
    }

    /// Returns the path that [`DataPath::Auto`] selects now, and the reason if it is not the direct path.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let context = doorbell::open("mlx5_0")?;
    /// if let (path, Some(reason)) = context.auto_path() {
    ///     println!("path {path}: {reason}");
    /// }
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn auto_path(&self) -> (DataPath, Option<NotDirect>) {
        match self.direct() {
            Ok(_) => (DataPath::Direct, None),
            Err(reason) => (DataPath::Verbs, Some(reason)),
        }
    }

    /// Decides for a new object: libmlx5's functions for the direct path, `None` for verbs.
    pub(crate) fn choose(&self, path: DataPath) -> Result<Option<&'static Mlx5dv>> {
        let direct = match path {
            DataPath::Verbs => {
                trace_event!(device = self.name(), path = %DataPath::Verbs, asked = %path, "path chosen");
                return Ok(None);
            }
            DataPath::Auto | DataPath::Direct => self.direct(),
        };
        match (direct, path) {
            (Ok(mlx5dv), _) => {
                trace_event!(device = self.name(), path = %DataPath::Direct, asked = %path, "path chosen");
                Ok(Some(mlx5dv))
            }
            (Err(reason), DataPath::Direct) => Err(self.not_direct(reason)),
            (Err(_reason), _) => {
                trace_event!(device = self.name(), path = %DataPath::Verbs, asked = %path, reason = %_reason, "path chosen");
                Ok(None)
            }
        }
    }

    fn direct(&self) -> Result<&'static Mlx5dv, NotDirect> {
        let mlx5dv = self.0.direct.clone()?;
        // libmlx5 reads its environment when a queue is created, so this is not decided earlier.
        match SIGNATURE_VARIABLES.into_iter().find(|name| is_set(name)) {
            Some(name) => Err(NotDirect::Signature(name)),
            None => Ok(mlx5dv),
        }
    }

    /// libmlx5's functions, if it drives the device.
    pub(crate) fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        self.0.direct.as_ref().ok().copied()
    }

    pub(crate) fn not_direct(&self, reason: NotDirect) -> Error {
        Error::NotDirect { device: self.name().to_owned(), reason }
    }

    /// Returns the handle of libibverbs.
    pub fn as_raw(&self) -> *mut sys::ibv_context {
        self.0.context
    }

    pub(crate) fn event_file(&self) -> &EventFile {
        &self.0.events
    }

    /// Returns `true` if queue pairs on an SRQ are known to be silent about their last WQE. Soft-RoCE of Linux 6.1 is:
    /// it flushes in a tasklet some time after the change to ERROR, and a RESET before that drops the receive
    /// (`rxe_qp_error` and `rxe_qp_reset` in drivers/infiniband/sw/rxe/rxe_qp.c).
    pub(crate) fn hides_last_wqe(&self) -> bool {
        self.attr().vendor_id == VENDOR_SOFT_ROCE
    }

    /// Returns `true` if the channel that was made first on the context has ended: the kernel has destroyed all objects
    /// that were made later.
    pub(crate) fn first_channel_has_ended(&self) -> Result<bool> {
        // SAFETY: the channel lives as long as the context.
        let channel = unsafe { BorrowedFd::borrow_raw((*self.0.first).fd) };
        // The first channel has no events to be read.
        wait(self, channel, Some(Instant::now()))
    }

    /// Notes that the kernel has ended everything that was made on the device, and with it all access of the device to
    /// memory. The signs are the end of the first channel and a fatal event, which is the last that the kernel does for
    /// a context. A fatal event alone may come from an adapter that has failed, and still writes to memory.
    pub(crate) fn mark_removed(&self) {
        self.0.removed.store(true, Ordering::Release);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.0.is_removed()
    }

    /// Returns `true` if an object no longer exists after `operation`, the function that destroys it, returned `errno`.
    /// Otherwise warns.
    pub(crate) fn destroyed(&self, operation: &str, errno: i32) -> bool {
        self.0.destroyed(operation, errno)
    }

    /// Deregisters a memory region; returns `true` if the device has no access any more. A forked child leaves the
    /// region to its parent.
    ///
    /// # Safety
    /// `mr` was registered with this context, and is not used any more.
    pub(crate) unsafe fn deregister(&self, mr: *mut sys::ibv_mr) -> bool {
        // SAFETY: `mr` was registered with this context, and is not used any more.
        self.owner().is_this_process() && self.destroyed("ibv_dereg_mr", unsafe { sys::ibv_dereg_mr(mr) })
    }

    pub(crate) fn owner(&self) -> Owner {
        self.0.owner
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.context == other.0.context
    }
}

/// A string of C in an array, which ends at the first zero.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// libmlx5 asks whether such a variable exists; its value does not matter.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

/// # Safety
/// `device` is alive.
unsafe fn find_mlx5dv(device: *mut sys::ibv_device, attr: &DeviceAttr) -> Result<&'static Mlx5dv, NotDirect> {
    // libmlx5 drives no devices of other vendors.
    if attr.vendor_id != VENDOR_MELLANOX {
        return Err(NotDirect::NotMlx5);
    }
    let mlx5dv = Mlx5dv::get().map_err(|error| NotDirect::Library(error.to_string()))?;
    // SAFETY: the device is alive.
    if unsafe { (mlx5dv.is_supported)(device) } { Ok(mlx5dv) } else { Err(NotDirect::NotMlx5) }
}

impl Inner {
    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    fn destroyed(&self, operation: &str, errno: i32) -> bool {
        // The kernel has destroyed the objects of a removed device itself.
        if errno == 0 || self.is_removed() {
            trace_event!(device = self.name, operation, "destroyed");
            return true;
        }
        warn_leak(operation, &self.name, errno);
        false
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owner.is_this_process() {
            return;
        }
        if !self.first.is_null() {
            // SAFETY: created with the context, destroyed once, and no CQ uses it.
            let errno = unsafe { sys::ibv_destroy_comp_channel(self.first) };
            self.destroyed("ibv_destroy_comp_channel", errno);
        }
        if !self.closes {
            return;
        }
        // SAFETY: opened by us, closed once, and everything made from it held this value.
        let errno = unsafe { sys::ibv_close_device(self.context) };
        self.destroyed("ibv_close_device", errno);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.name()).finish_non_exhaustive()
    }
}
