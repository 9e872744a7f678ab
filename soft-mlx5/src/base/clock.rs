//! Time of a device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The clock of a device, in nanoseconds since power-up.
#[derive(Debug)]
pub enum Clock {
    /// Real time.
    Real(Instant),
    /// Time that moves only by `advance`.
    Virtual(AtomicU64),
}

impl Clock {
    /// Makes a clock that starts now.
    pub fn start(stepped: bool) -> Self {
        if stepped { Self::Virtual(AtomicU64::new(0)) } else { Self::Real(Instant::now()) }
    }

    /// Returns the time.
    pub fn now(&self) -> u64 {
        match self {
            Self::Real(start) => start.elapsed().as_nanos() as u64,
            Self::Virtual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Returns the time of day at time 0, in nanoseconds since 1970; 0 for virtual time.
    pub fn started_at(&self) -> u64 {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        if self.is_real() { today as u64 - self.now() } else { 0 }
    }

    /// Returns `true` if time passes by itself.
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }

    /// Moves a virtual clock forward.
    pub fn advance(&self, nanoseconds: u64) {
        if let Self::Virtual(now) = self {
            now.fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }
}
