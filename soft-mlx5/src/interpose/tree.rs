//! Paths that lead into the tree of sysfs that this process sees.
//!
//! libibverbs looks below `SYSFS_PATH`. Other programs name the classes below `/sys`, and may do so before libibverbs
//! has asked for the devices: the first look makes the tree. A process without a tree sees the tree of its nearest
//! ancestor that has one, so that a shell child sees the device of the program.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{is_active, ours, raw, rdma_cm, umad};
use crate::uverbs::process::{self, Environment};
use crate::uverbs::real_paths;
use crate::uverbs::sysfs::{DEVICES, LISTS};

const SYS: &str = "/sys";

/// A path as the kernel gets it: the program's, or its replacement.
pub struct ResolvedPath {
    path: *const c_char,
    // Owns the string that `path` points to, if the path was replaced by one in the tree.
    replacement: Option<CString>,
}

impl ResolvedPath {
    /// Replaces a path of the tree.
    pub fn new(path: *const c_char) -> Self {
        match replacement_of(path) {
            Some(replacement) => Self { path: replacement.as_ptr(), replacement: Some(replacement) },
            None => Self { path, replacement: None },
        }
    }

    /// Replaces a path of the tree for a call that opens it: updates the files of counters first.
    pub fn to_open(path: *const c_char) -> Self {
        let resolved = Self::new(path);
        if is_active() && !path.is_null() && !real_paths::are_meant() {
            // SAFETY: a path that is not null is a string.
            let name = unsafe { CStr::from_ptr(path) }.to_bytes();
            if name.windows(9).any(|part| part == b"counters/") {
                process::show_counters();
            }
        }
        resolved
    }

    /// Replaces a path of the tree or of a device.
    pub fn with_devices(path: *const c_char) -> Self {
        let find = || ours::find(path).or_else(|| umad::find(path));
        match is_active().then(find).flatten() {
            Some((_, stand_in)) => Self { path: stand_in.as_ptr(), replacement: None },
            None if is_active() && rdma_cm::is_path(path) && rdma_cm::device().is_some() => {
                Self { path: rdma_cm::STAND_IN.as_ptr(), replacement: None }
            }
            None => Self::new(path),
        }
    }

    /// Returns the path.
    pub fn as_ptr(&self) -> *const c_char {
        self.path
    }

    /// Returns `true` if the path is a replacement in the tree.
    pub fn is_replaced(&self) -> bool {
        self.replacement.is_some()
    }
}

/// Returns the path below `/sys` for a path in the tree: the reverse of [`ResolvedPath::new`] for literal paths.
pub fn as_literal(path: &CStr) -> Option<CString> {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let inside = path.strip_prefix(root(process::environment()?)?).ok()?;
    CString::new(Path::new(SYS).join(inside).as_os_str().as_bytes()).ok()
}

/// Returns the path in the tree that replaces this one.
fn replacement_of(path: *const c_char) -> Option<CString> {
    // SAFETY: a path that is not null is a string; its first byte is looked at before the rest.
    if !is_active() || path.is_null() || unsafe { *path } as u8 != b'/' || real_paths::are_meant() {
        return None;
    }
    // SAFETY: as above.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let environment = process::environment()?;
    let inside = match path.strip_prefix(SYS) {
        Ok(inside) => {
            let ours = LISTS.into_iter().chain([DEVICES]).any(|dir| inside.starts_with(dir));
            ours.then_some(inside)?
        }
        Err(_) => {
            // A root that was not made yet.
            let roots = [Some(&environment.root), environment.inherited.as_ref()];
            let missing = |root: &&PathBuf| path.starts_with(root) && !exists(root);
            path.strip_prefix(roots.into_iter().flatten().find(missing)?).ok()?
        }
    };
    let mut replacement = root(environment)?.join(inside).into_os_string().into_vec();
    // A path that ends in a slash means the target of a link, also for calls that do not follow links.
    if [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_bytes().ends_with(end)) {
        replacement.push(b'/');
    }
    CString::new(replacement).ok()
}

// Returns the root of the tree that this process sees, if it exists.
fn root(environment: &Environment) -> Option<&Path> {
    if exists(&environment.root) {
        return Some(&environment.root);
    }
    environment.options.as_ref()?;
    if let Some(ancestor) = environment.ancestor.as_deref().filter(|root| exists(root)) {
        return Some(ancestor);
    }
    process::prepare();
    exists(&environment.root).then_some(&environment.root)
}

fn exists(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes());
    path.is_ok_and(|path| raw::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0)
}
