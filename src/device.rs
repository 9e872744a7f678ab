//! Finding and opening devices.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::{local_cpus, node};

/// Returns the RDMA devices of the host in the order of libibverbs.
///
/// ```
/// # let _device = doorbell_doc::device();
/// for device in doorbell::devices()? {
///     println!("{}: firmware {}", device.name(), device.open()?.firmware());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NoDevice`] if the host has none; [`Error::NoProvider`] if libibverbs has no driver for those it has;
/// [`Error::Verbs`] if the list cannot be read.
pub fn devices() -> Result<Vec<Device>> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOSYS) {
            return Err(none());
        }
        return Err(Error::last_os("ibv_get_device_list", "the system"));
    }
    let list = Arc::new(List(list));
    let devices: Vec<_> = (0..count as usize)
        // SAFETY: the list has `count` entries.
        .map(|i| Device { device: unsafe { *list.0.add(i) }, list: Arc::clone(&list) })
        .collect();
    if devices.is_empty() {
        return Err(none());
    }
    Ok(devices)
}

/// Why libibverbs shows no device.
fn none() -> Error {
    let root = std::env::var_os("SYSFS_PATH").unwrap_or("/sys".into());
    let class = Path::new(&root).join("class/infiniband_verbs");
    let mut devices: Vec<_> = std::fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("ibdev")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    devices.sort();
    if devices.is_empty() {
        return Error::NoDevice;
    }
    Error::NoProvider { devices: devices.join(", ") }
}

/// Opens the device with this name, for example `mlx5_0`.
///
/// ```
/// # let _device = doorbell_doc::device();
/// let context = doorbell::open("mlx5_0")?;
/// assert_eq!(context.name(), "mlx5_0");
/// // An error says which names there are.
/// let error = doorbell::open("mlx5_9").unwrap_err();
/// assert!(error.to_string().contains("mlx5_0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::UnknownDevice`], which lists the devices of the host; the errors of [`devices`] and [`Device::open`].
pub fn open(name: &str) -> Result<Context> {
    let devices = devices()?;
    match devices.iter().find(|device| device.name() == name) {
        Some(device) => device.open(),
        None => Err(Error::UnknownDevice {
            name: name.to_owned(),
            present: devices.iter().map(Device::name).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The array of libibverbs; its entries live until it is freed.
struct List(*mut *mut sys::ibv_device);

// SAFETY: the array is only read until it is freed, by the last owner.
unsafe impl Send for List {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, freed once. Open contexts keep their device.
        unsafe { sys::ibv_free_device_list(self.0) }
    }
}

/// A device that can be opened, from [`devices`].
///
/// ```
/// # let _device = doorbell_doc::device();
/// let devices = doorbell::devices()?;
/// let context = devices[0].open()?;
/// println!("{} in {}", devices[0].name(), context.sysfs_path().display());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    device: *mut sys::ibv_device,
    list: Arc<List>,
}

// SAFETY: libibverbs reads a device without changing it; the list keeps it alive.
unsafe impl Send for Device {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Device {}

impl Device {
    /// Returns the name, for example `mlx5_0`.
    pub fn name(&self) -> &str {
        let _ = &self.list;
        // SAFETY: the device is alive, and its name is a string that lives as long.
        unsafe { CStr::from_ptr(sys::ibv_get_device_name(self.device)) }.to_str().unwrap_or("?")
    }

    /// Opens the device (`ibv_open_device(3)`).
    ///
    /// # Errors
    /// [`Error::Verbs`] if the user may not open the device node, or the device was removed.
    pub fn open(&self) -> Result<Context> {
        // SAFETY: the device is alive.
        let context = unsafe { sys::ibv_open_device(self.device) };
        if context.is_null() {
            let failed = io::Error::last_os_error();
            return Err(Error::verbs("ibv_open_device", self.name(), self.denied().unwrap_or(failed)));
        }
        // SAFETY: a fresh context that no other code closes.
        unsafe { Context::from_open(context, self.name()) }
    }

    /// Returns the processors on the NUMA node of the device (`local_cpulist` in sysfs), where threads that poll
    /// belong. The list is empty if the system does not say, as for devices without a PCI function.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// for device in doorbell::devices()? {
    ///     println!("{} is near the processors {:?}", device.name(), device.local_cpus());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_cpus(&self) -> Vec<usize> {
        // SAFETY: the device is alive, and libibverbs has ended the path.
        let path = unsafe { CStr::from_ptr((*self.device).ibdev_path.as_ptr()) };
        local_cpus::of(Path::new(&*path.to_string_lossy()))
    }

    /// Returns the error if this user may not open the node of the device.
    fn denied(&self) -> Option<io::Error> {
        // SAFETY: the device is alive, and libibverbs has ended the name.
        let name = unsafe { CStr::from_ptr((*self.device).dev_name.as_ptr()) };
        node::denied(name.to_str().ok()?)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}
