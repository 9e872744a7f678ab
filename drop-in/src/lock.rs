//! A spin lock, as verbs promise for each queue.

use core::cell::UnsafeCell;
use core::hint;
use core::mem;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A thread holds the lock.
const HELD: u32 = 1;

/// Longer than a batch takes whose thread waits for nothing.
const A_MOMENT: Duration = Duration::from_millis(20);

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    /// [`HELD`] or 0.
    held: AtomicU32,
    /// `false` if the program has promised to use it from one thread at a time.
    shared: bool,
    /// The thread that [keeps](Guard::keep) the lock for its next calls; 0 if there is none.
    keeper: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value: `held` says so, or the program has promised it.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T, shared: bool) -> Self {
        Self {
            held: AtomicU32::new(0),
            shared,
            keeper: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.acquire() {
            self.wait();
        }
        Guard { lock: self, is_kept: false }
    }

    /// As [`lock`](Self::lock), but a thread that [keeps](Guard::keep) the lock does not wait for itself.
    ///
    /// # Safety
    /// This thread has no reference to the value.
    pub(crate) unsafe fn lock_or_reenter(&self) -> Guard<'_, T> {
        let mut rounds = 0_u32;
        loop {
            // SAFETY: this thread has no reference to the value.
            if let Some(guard) = unsafe { self.try_lock_or_reenter() } {
                return guard;
            }
            pause(&mut rounds);
        }
    }

    /// As [`lock_or_reenter`](Self::lock_or_reenter), but returns `None` if another thread holds the lock for [`A_MOMENT`]: that
    /// thread may wait for this one.
    ///
    /// # Safety
    /// This thread has no reference to the value.
    pub(crate) unsafe fn lock_for_a_moment(&self) -> Option<Guard<'_, T>> {
        let (start, mut rounds) = (Instant::now(), 0_u32);
        loop {
            // SAFETY: this thread has no reference to the value.
            let guard = unsafe { self.try_lock_or_reenter() };
            if guard.is_some() || start.elapsed() > A_MOMENT {
                return guard;
            }
            pause(&mut rounds);
        }
    }

    /// # Safety
    /// This thread has no reference to the value.
    unsafe fn try_lock_or_reenter(&self) -> Option<Guard<'_, T>> {
        // Only this thread stores its own number.
        let is_kept = self.keeper.load(Ordering::Relaxed) == this_thread();
        if is_kept || self.acquire() { Some(Guard { lock: self, is_kept }) } else { None }
    }

    /// Returns `None` if the lock is held.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.acquire() { Some(Guard { lock: self, is_kept: false }) } else { None }
    }

    #[inline(always)]
    fn acquire(&self) -> bool {
        // `lock bts` sets a bit and tests it.
        !self.shared || self.held.fetch_or(HELD, Ordering::Acquire) & HELD == 0
    }

    #[cold]
    fn wait(&self) {
        let mut rounds = 0_u32;
        while self.held.load(Ordering::Relaxed) != 0 || !self.acquire() {
            pause(&mut rounds);
        }
    }

    /// Returns the guard of a lock that was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no reference to the value.
    #[inline(always)]
    pub(crate) unsafe fn regain(&self) -> Guard<'_, T> {
        Guard { lock: self, is_kept: false }
    }

    /// Returns the value of a lock whose guard was forgotten or kept.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other reference to the value.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the guard that gives access is gone")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: this thread holds the lock, and has no other reference to the value.
        unsafe { &mut *self.value.get() }
    }

    /// Ends a lock whose guard was forgotten or kept.
    ///
    /// # Safety
    /// As [`held`](Self::held).
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        self.keeper.store(0, Ordering::Relaxed);
        drop(Guard { lock: self, is_kept: false });
    }
}

/// Pauses between two attempts. The kernel may have suspended the thread that holds the lock, for this one if its priority is
/// higher: then only sleeping lets the other run.
fn pause(rounds: &mut u32) {
    *rounds += 1;
    match *rounds {
        rounds if rounds % 64 != 0 => hint::spin_loop(),
        ..=1024 => yield_now(),
        _ => thread::sleep(Duration::from_micros(10)),
    }
}

/// Lets another thread run. `std::thread::yield_now` may unwind as far as the compiler knows, so calls at the end of a function
/// would not become jumps.
pub(crate) fn yield_now() {
    // SAFETY: the function has no conditions.
    unsafe { libc::sched_yield() };
}

/// Returns a number that no other thread has at the same time, and never 0.
#[inline(always)]
fn this_thread() -> usize {
    // SAFETY: the function has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// A lock that is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Whether the lock was held before by this thread, and stays so.
    is_kept: bool,
}

impl<T> Guard<'_, T> {
    /// Keeps the lock for calls of this thread that follow, until [`unlock`](Lock::unlock).
    #[inline(always)]
    pub(crate) fn keep(self) {
        self.lock.keeper.store(this_thread(), Ordering::Relaxed);
        mem::forget(self);
    }
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
        // A lock that is not shared always has 0: storing it again costs less than a branch.
        if !self.is_kept {
            self.lock.held.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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

    #[test]
    fn a_thread_that_keeps_the_lock_reenters_it() {
        let lock = Lock::new(0, true);
        lock.lock().keep();
        // SAFETY: there is no reference to the value.
        unsafe { *lock.lock_or_reenter() += 1 };
        assert!(lock.try_lock().is_none());
        let (tried, has_tried) = mpsc::channel();
        thread::scope(|scope| {
            let lock = &lock;
            // SAFETY: the thread has no reference to the value.
            let other = scope.spawn(move || unsafe {
                assert!(lock.try_lock().is_none());
                tried.send(()).unwrap();
                *lock.lock_or_reenter() += 10;
            });
            has_tried.recv().unwrap();
            // SAFETY: this thread holds the lock, and has no reference to the value.
            unsafe {
                assert_eq!(*lock.lock_or_reenter(), 1);
                lock.unlock();
            }
            other.join().unwrap();
        });
        assert_eq!(*lock.lock(), 11);
    }
}
