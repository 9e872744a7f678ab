//! A spin lock, as verbs promise for each queue.

use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    held: AtomicBool,
    /// `false` if the program has promised to use it from one thread at a time.
    shared: bool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value: by `held`, or by the promise of a program of a single thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T, shared: bool) -> Self {
        Self { held: AtomicBool::new(false), shared, value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Returns `None` if another thread holds the lock.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.shared && self.held.swap(true, Ordering::Acquire) {
            None
        } else {
            Some(Guard(self))
        }
    }

    /// The holder may have been put aside by the kernel.
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut rounds = 0_u32;
        while self.held.load(Ordering::Relaxed) || self.held.swap(true, Ordering::Acquire) {
            rounds += 1;
            if rounds % 64 == 0 { std::thread::yield_now() } else { hint::spin_loop() }
        }
        Guard(self)
    }

    /// Returns the value of a lock whose guard was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other reference to the value.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the guard that gives access was forgotten")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.value.get() }
    }

    /// Ends a lock whose guard was forgotten.
    ///
    /// # Safety
    /// As [`held`](Self::held).
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        drop(Guard(self));
    }
}

/// A lock that is held.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.shared {
            self.0.held.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new([0_u64; 2], true);
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
