//! The library under the twins: the stock libmlx5, with the drop-in or without.

use std::sync::OnceLock;

/// Returns the file name of the libmlx5 in this process.
pub fn library() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let name = maps.lines().find_map(|line| line.rsplit('/').next().filter(|name| name.contains("libmlx5")));
    name.map(str::to_owned)
}

/// Returns `true` if the drop-in is preloaded: then it serves the twin of doorbell, through libibverbs.
pub fn is_dropped_in() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libdoorbell_drop_in"))
    })
}

/// Has the drop-in, if there is one, leave objects alone.
const PATH: &str = "DOORBELL_PATH";

/// Makes the twin of libmlx5.
pub fn make<T>(twin: impl FnOnce() -> T) -> T {
    // SAFETY: the program has one thread.
    unsafe { std::env::set_var(PATH, "libmlx5") }
    let twin = twin();
    // SAFETY: as above.
    unsafe { std::env::remove_var(PATH) }
    twin
}

/// Returns `true` while the twin of libmlx5 is made.
pub fn is_being_made() -> bool {
    std::env::var_os(PATH).is_some()
}

/// Returns `true` if libmlx5 is known to append freed slots of an SRQ to its list in the order in which they were
/// freed, as doorbell does. Newer versions look for a run of free slots.
pub fn appends_freed_slots() -> bool {
    static APPENDS: OnceLock<bool> = OnceLock::new();
    *APPENDS.get_or_init(|| library().is_some_and(|name| name.contains(".24.44.")))
}
