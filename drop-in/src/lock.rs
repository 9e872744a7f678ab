//! A spin lock, as libmlx5 has one for each queue.

use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value: the one that has set `is_held`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { is_held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    /// As [`lock`](Self::lock), but returns `None` once `gives_up` returns `true` while the lock is held.
    pub(crate) fn lock_unless(&self, gives_up: impl Fn() -> bool) -> Option<Guard<'_, T>> {
        let mut rounds = 0;
        while self.is_held.swap(true, Ordering::Acquire) {
            if gives_up() {
                return None;
            }
            pause(&mut rounds);
        }
        Some(Guard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        let mut rounds = 0;
        while self.is_held.load(Ordering::Relaxed) || self.is_held.swap(true, Ordering::Acquire) {
            pause(&mut rounds);
        }
    }

    /// Returns the value of a lock whose guard was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other reference to the value.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the guard that gives access is gone")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: this thread holds the lock, and has no other reference to the value.
        unsafe { &mut *self.value.get() }
    }

    /// Ends a lock whose guard was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no reference to the value.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}

/// Waits a little. The kernel may have suspended the thread that holds the lock, for this one if its priority is
/// higher: then only sleeping lets the other run.
fn pause(rounds: &mut u32) {
    *rounds += 1;
    match *rounds {
        rounds if rounds % 64 != 0 => hint::spin_loop(),
        ..=1024 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(10)),
    }
}

/// A lock that is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new([0_u64; 2]);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let values: &mut [u64; 2] = &mut lock.lock();
                        values[0] += 1;
                        hint::black_box(&mut *values);
                        values[1] += 1;
                        assert_eq!(values[0], values[1]);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [80_000; 2]);
    }
}
