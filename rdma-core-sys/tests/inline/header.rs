//! The compiled header.

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs, process};

/// The size of a structure in the headers.
pub fn size_of(structure: &str) -> usize {
    // SAFETY: `header.c` has a constant of this type under this name.
    unsafe { *symbol(&format!("size_of_{structure}")).cast() }
}

/// The address of something in `header.c`.
pub fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: LazyLock<usize> = LazyLock::new(|| load() as usize);
    let symbol = CString::new(format!("header_{name}")).unwrap();
    // SAFETY: an open handle and a string.
    let address = unsafe { libc::dlsym(*LIBRARY as *mut c_void, symbol.as_ptr()) };
    assert!(!address.is_null(), "header.c has no {name}");
    address
}

fn load() -> *mut c_void {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inline/header.c");
    // Several test processes may do this at once.
    let library = format!("header-{}.so", process::id());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(library);
    let compiler = env::var("CC").unwrap_or_else(|_| String::from("cc"));
    let mut compile = Command::new(compiler);
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    assert!(compile.status().unwrap().success());
    let path = CString::new(library.as_os_str().as_bytes()).unwrap();
    // SAFETY: the library has no constructors.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} cannot be loaded", library.display());
    fs::remove_file(&library).unwrap();
    handle
}

/// The function of `header.c` that wraps a verb, with the verb's type.
macro_rules! header {
    ($verb:ident($($type:ty),*) $(-> $ret:ty)?) => {{
        let address = $crate::header::symbol(stringify!($verb));
        // SAFETY: the types of the parameters are those of the header.
        unsafe {
            core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($type),*) $(-> $ret)?>(
                address,
            )
        }
    }};
}
pub(crate) use header;
