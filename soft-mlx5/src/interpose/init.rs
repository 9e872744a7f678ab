//! Work before main and after it.
//!
//! Before main, the process decides where libibverbs looks for devices: the environment may be changed
//! only while there is one thread.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::{ACTIVE, calls, mapping, provider};
use crate::base::run_dir::{fresh_name, fresh_path};
use crate::engine::options::{self, Options};
use crate::uverbs::process::{self, Environment};

/// Environment variable with the tree of the nearest ancestor process that has one.
const ANCESTOR: &str = "SOFT_MLX5_TREE";

pub const ANCHORS: [*const c_void; 2] = [(&raw const AT_START).cast(), (&raw const AT_END).cast()];

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_start() {
    let options = std::env::var(options::VARIABLE).ok();
    let options = options.and_then(|text| Options::decode(&text));
    let root = match &options {
        Some(options) => options.dir.join(fresh_name("process")),
        None => fresh_path("process"),
    };
    let of_this_run = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        options.as_ref().is_some_and(|options| path.starts_with(&options.dir)).then_some(path)
    };
    let inherited = of_this_run("SYSFS_PATH");
    let nearest = inherited.clone().filter(|root| root.exists());
    let ancestor = nearest.or_else(|| of_this_run(ANCESTOR));
    // SAFETY: constructors run on the only thread.
    unsafe {
        std::env::set_var("SYSFS_PATH", &root);
        if let Some(ancestor) = &ancestor {
            std::env::set_var(ANCESTOR, ancestor);
        }
    }
    process::set_environment(Environment { root, options, inherited, ancestor });
    calls::find_libc();
    provider::MMAP.store(mapping::provider_mmap as *mut c_void, Ordering::Release);
    ACTIVE.store(true, Ordering::Release);
}

extern "C" fn at_end() {
    process::finish();
}
