//! What happens before main: the process learns where libibverbs shall look for devices.
//!
//! It has to be then: the environment may be changed only while there is one thread.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::ACTIVE;
use crate::device::{Environment, set_environment};
use crate::options::{self, Options};
use crate::run_dir::fresh_path;

pub const ANCHOR: *const c_void = (&raw const AT_START).cast();

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    let options = std::env::var(options::VARIABLE).ok();
    let options = options.and_then(|text| Options::decode(&text));
    let root = match &options {
        Some(options) => options.dir.join(std::process::id().to_string()),
        None => fresh_path("process"),
    };
    // SAFETY: constructors run on the only thread.
    unsafe { std::env::set_var("SYSFS_PATH", &root) };
    set_environment(Environment { root, options });
    ACTIVE.store(true, Ordering::Release);
}
