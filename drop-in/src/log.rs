//! Lines of `DOORBELL_LOG=1`: the path of each object, and at exit the posts and polls by path.

use core::ffi::c_int;
use core::ptr;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::context;

/// Posts and polls of objects that are gone, or that libmlx5 drives.
#[derive(Default)]
pub(crate) struct Counts {
    posts: AtomicU64,
    polls: AtomicU64,
}

pub(crate) static DOORBELL: Counts = Counts { posts: AtomicU64::new(0), polls: AtomicU64::new(0) };
pub(crate) static LIBMLX5: Counts = Counts { posts: AtomicU64::new(0), polls: AtomicU64::new(0) };

impl Counts {
    pub(crate) fn add_posts(&self, count: u64) {
        self.posts.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_polls(&self, count: u64) {
        self.polls.fetch_add(count, Ordering::Relaxed);
    }
}

/// Counts the requests that libmlx5 has posted with this result; `next` returns the one after a request.
///
/// # Safety
/// `wr` is a list of which libmlx5 has posted all, or those before `bad_wr` if there is an error.
pub(crate) unsafe fn count_posts<T>(
    wr: *mut T,
    bad_wr: *mut *mut T,
    error: c_int,
    next: impl Fn(&T) -> *mut T,
) {
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

/// A count that the holder of one lock adds to, and any thread may read.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns `true` if `DOORBELL_LOG` is on.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Asks the environment whether `DOORBELL_LOG` is on.
pub(crate) fn read_environment() {
    let is_on = std::env::var_os("DOORBELL_LOG").is_some_and(|on| !on.is_empty() && on != "0");
    IS_ON.store(is_on, Ordering::Relaxed);
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

/// Posts and polls by doorbell and by libmlx5.
fn totals() -> [u64; 4] {
    let (posts, polls) = context::counts();
    let [our_posts, our_polls, their_posts, their_polls] =
        [&DOORBELL.posts, &DOORBELL.polls, &LIBMLX5.posts, &LIBMLX5.polls]
            .map(|count| count.load(Ordering::Relaxed));
    [posts + our_posts, polls + our_polls, their_posts, their_polls]
}

/// Posts and polls of the parent before the fork, which this process does not report.
static OF_PARENT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Has a forked child count from 0.
pub(crate) extern "C" fn in_child() {
    for (count, total) in OF_PARENT.iter().zip(totals()) {
        count.store(total, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    if !is_on() {
        return;
    }
    let mut totals = totals();
    for (total, of_parent) in totals.iter_mut().zip(&OF_PARENT) {
        *total = total.saturating_sub(of_parent.load(Ordering::Relaxed));
    }
    let [posts, polls, their_posts, their_polls] = totals;
    if totals.iter().any(|total| *total > 0) {
        say(format_args!(
            "posts: {posts} by doorbell, {their_posts} by libmlx5; polls: {polls} by doorbell, {their_polls} by libmlx5"
        ));
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
