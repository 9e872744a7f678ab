//! Whether the paths of a thread mean the real files, although the process sees a tree of its own.

use std::cell::Cell;

thread_local! {
    // This thread makes the tree: its paths mean the real one.
    static MEANT: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if this thread's paths are not replaced.
pub fn are_meant() -> bool {
    MEANT.get()
}

/// Runs the work that makes the tree, with paths that are not replaced.
pub fn during<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MEANT.set(self.0);
        }
    }
    let _restore = Restore(MEANT.replace(true));
    work()
}
