//! The limit on the mappings of a process (`vm.max_map_count`), as a registration meets it: after `ibv_fork_init(3)`
//! libibverbs keeps the pages of a registration from children, which splits mappings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::base::tally::{Fault, Tally};

/// Mappings that the process may have; 0 without a limit.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Counts refusals.
static TALLY: Mutex<Option<Tally>> = Mutex::new(None);

/// Sets the limit of this process, or takes it away.
pub fn limit(count: Option<u64>, tally: &Tally) {
    let count = count.unwrap_or(0);
    if count != LIMIT.swap(count, Ordering::AcqRel) {
        *TALLY.lock().unwrap_or_else(PoisonError::into_inner) = Some(tally.clone());
    }
}

/// Returns `true` if the process has a limit.
pub fn are_limited() -> bool {
    LIMIT.load(Ordering::Acquire) > 0
}

/// Returns `true` if the kernel would split no mapping more.
pub fn are_used_up() -> bool {
    let limit = LIMIT.load(Ordering::Acquire);
    if limit == 0 {
        return false;
    }
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let count = maps.iter().filter(|byte| **byte == b'\n').count() as u64;
    let used_up = count >= limit;
    if let Some(tally) = &*TALLY.lock().unwrap_or_else(PoisonError::into_inner) {
        tally.count_if(used_up, Fault::Create);
    }
    used_up
}
