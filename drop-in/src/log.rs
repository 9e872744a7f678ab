//! Lines of `DOORBELL_LOG=1`: the path of each object, and at exit the posts and polls by path.

use core::ffi::c_int;
use core::ptr;
use std::fmt;
use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Requests that were posted, and completions that were polled.
pub(crate) struct Counts {
    posts: AtomicU64,
    polls: AtomicU64,
}

pub(crate) static DOORBELL: Counts = Counts { posts: AtomicU64::new(0), polls: AtomicU64::new(0) };
pub(crate) static LIBMLX5: Counts = Counts { posts: AtomicU64::new(0), polls: AtomicU64::new(0) };

impl Counts {
    #[inline(always)]
    pub(crate) fn add_posts(&self, count: u32) {
        if is_on() {
            self.posts.fetch_add(count.into(), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn add_polls(&self, count: u32) {
        if is_on() {
            self.polls.fetch_add(count.into(), Ordering::Relaxed);
        }
    }
}

/// Counts the requests that libmlx5 has posted with this result; `next` returns the one after a request.
///
/// # Safety
/// `wr` is a list of which libmlx5 has posted all, or those before `bad_wr` if there is an error.
pub(crate) unsafe fn count_posts<T>(wr: *mut T, bad_wr: *mut *mut T, error: c_int, next: impl Fn(&T) -> *mut T) {
    if !is_on() {
        return;
    }
    // SAFETY: the list can be read, and libmlx5 has set `bad_wr` if there is an error.
    unsafe {
        let end = if error == 0 { ptr::null_mut() } else { *bad_wr };
        let mut posted = wr;
        while posted != end {
            LIBMLX5.add_posts(1);
            posted = next(&*posted);
        }
    }
}

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns `true` if `DOORBELL_LOG` is on.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Asks the environment whether `DOORBELL_LOG` is on, and counts from 0 in this process and in forked children.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let is_on = std::env::var_os("DOORBELL_LOG").is_some_and(|on| !on.is_empty() && on != "0");
        if is_on {
            IS_ON.store(true, Ordering::Relaxed);
            // SAFETY: the functions read and write atomics, and write to standard error.
            unsafe {
                libc::atexit(at_exit);
                libc::pthread_atfork(None, None, Some(in_child));
            }
        }
    });
}

/// Writes a line, if `DOORBELL_LOG` is on.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    if is_on() {
        warn(what);
    }
}

/// Writes a line that the user must see.
pub(crate) fn warn(what: fmt::Arguments<'_>) {
    // One write, so that lines of several processes do not mix. Standard error may be closed.
    let _ = std::io::stderr().write_all(format!("doorbell: {what}\n").as_bytes());
}

fn counts() -> [&'static AtomicU64; 4] {
    [&DOORBELL.posts, &LIBMLX5.posts, &DOORBELL.polls, &LIBMLX5.polls]
}

extern "C" fn in_child() {
    counts().into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

extern "C" fn at_exit() {
    let counts = counts().map(|count| count.load(Ordering::Relaxed));
    if counts != [0; 4] {
        let [posts, their_posts, polls, their_polls] = counts;
        say(format_args!(
            "posts: {posts} by doorbell, {their_posts} by libmlx5; polls: {polls} by doorbell, {their_polls} by libmlx5"
        ));
    }
}
