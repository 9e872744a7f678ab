//! Keys of memory windows that peers can use, and what is known of their end.
//!
//! A peer ends the access that a key gives by a SEND that invalidates it, and the completion of that message is the
//! only sign of it. The completion may be polled late, and a key comes back after 256 binds. So a completion ends the
//! access of a key only if it cannot be of an earlier bind: a key whose access has ended in another way is not trusted
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rdma_core_sys as sys;

/// No peer can use the key.
const FREE: u8 = 0;
/// The bind was posted.
const BINDING: u8 = 1;
/// The bind has succeeded.
const BOUND: u8 = 2;
/// The invalidation was posted.
const REVOKING: u8 = 3;
/// A bind or an invalidation failed: whether peers can use the key is not known.
const LOST: u8 = 4;

/// The access that one bind of a window gives.
pub(crate) struct Grant {
    /// The address of the `ibv_context`, and the key.
    key: Key,
    state: AtomicU8,
}

type Key = (usize, u32);

struct Keys {
    /// Grants that the completion of a message can end.
    trusted: BTreeMap<Key, Arc<Grant>>,
    /// Keys that were used and whose access did not end by the completion of a message.
    spent: BTreeSet<Key>,
}

static KEYS: Mutex<Keys> = Mutex::new(Keys { trusted: BTreeMap::new(), spent: BTreeSet::new() });

fn keys() -> MutexGuard<'static, Keys> {
    KEYS.lock().expect("nothing panics while holding it")
}

impl Grant {
    /// Chooses another variant of a window's key for a bind that is about to be posted: the next that a peer's message
    /// can end, or the next if there is none.
    pub(crate) fn next(context: *mut sys::ibv_context, rkey: u32) -> Arc<Self> {
        let mut keys = keys();
        let variant = |step: u32| (context.addr(), rkey & !0xff | rkey.wrapping_add(step) & 0xff);
        let trusted = (1..=0xff).map(variant).find(|key| !keys.spent.contains(key));
        let key = trusted.unwrap_or(variant(1));
        let grant = Arc::new(Self { key, state: AtomicU8::new(BINDING) });
        if trusted.is_some() {
            keys.trusted.insert(key, Arc::clone(&grant));
        }
        grant
    }

    pub(crate) const fn rkey(&self) -> u32 {
        self.key.1
    }

    /// Returns `true` if no peer can use the key, nor will.
    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LOST
    }

    /// Returns `true` if an invalidation was posted.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REVOKING
    }

    fn advance(&self, from: u8, to: u8) {
        // A peer may have ended it.
        let _ = self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The bind was not posted.
    pub(crate) fn withdraw(&self) {
        keys().trusted.remove(&self.key);
    }

    /// The bind is over.
    pub(crate) fn note_bind(&self, succeeded: bool) {
        self.advance(BINDING, if succeeded { BOUND } else { LOST });
    }

    /// An invalidation was posted.
    pub(crate) fn note_revoking(&self) {
        self.advance(BINDING, REVOKING);
        self.advance(BOUND, REVOKING);
    }

    /// The invalidation is over.
    pub(crate) fn note_revoked(&self, succeeded: bool) {
        if succeeded { self.end() } else { self.advance(REVOKING, LOST) }
    }

    /// Ends the access, which the device has taken from the peer.
    fn end(&self) {
        self.forget();
        self.state.store(FREE, Ordering::Release);
    }

    /// Has no message end the access, and trusts the key no more. A message may have ended the access meanwhile.
    pub(crate) fn forget(&self) {
        let mut keys = keys();
        if keys.trusted.remove(&self.key).is_some() {
            keys.spent.insert(self.key);
        }
    }
}

/// Ends the access of a key that the message of a peer has invalidated.
#[cold]
pub(crate) fn invalidated(context: *mut sys::ibv_context, rkey: u32) {
    let grant = keys().trusted.remove(&(context.addr(), rkey));
    if let Some(grant) = grant {
        // After the loads that found the completion; whoever finds the access over uses the memory after this.
        grant.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: usize) -> *mut sys::ibv_context {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn a_message_ends_the_access_of_its_key_on_its_device() {
        let (grant, other) = (Grant::next(context(1), 0x1234_56ff), Grant::next(context(2), 0x1234_56ff));
        assert_eq!((grant.rkey(), other.rkey()), (0x1234_5600, 0x1234_5600));
        grant.note_bind(true);
        invalidated(context(1), 0x1234_5601);
        assert!(!grant.is_over());
        invalidated(context(1), 0x1234_5600);
        assert!(grant.is_over() && !other.is_over());
        // Late completions change nothing.
        grant.note_bind(false);
        grant.note_revoked(false);
        assert!(grant.is_over() && !grant.is_lost());
    }

    #[test]
    fn the_message_of_an_earlier_bind_ends_no_access() {
        // Each variant but one is used, and ended from this side. The peer may have ended any of them just before.
        let mut rkey = 0x700;
        for _ in 0..255 {
            let grant = Grant::next(context(3), rkey);
            rkey = grant.rkey();
            grant.note_bind(true);
            grant.note_revoking();
            grant.note_revoked(true);
            assert!(grant.is_over());
        }
        assert_eq!(rkey, 0x7ff);
        // The one that is left is trusted.
        let grant = Grant::next(context(3), 0x7ff);
        assert_eq!(grant.rkey(), 0x700);
        invalidated(context(3), 0x700);
        assert!(grant.is_over());
        let again = Grant::next(context(3), 0x701);
        assert_eq!(again.rkey(), 0x700);
        again.end();
        let old = Grant::next(context(3), 0x700);
        assert_eq!(old.rkey(), 0x701);
        invalidated(context(3), 0x701);
        assert!(!old.is_over(), "the completion of an earlier bind");
        old.note_revoked(true);
        assert!(old.is_over());
    }

    #[test]
    fn what_failed_is_lost_until_the_window_is_gone() {
        let grant = Grant::next(context(4), 0x900);
        grant.note_bind(false);
        assert!(grant.is_lost() && !grant.is_over());
        grant.end();
        assert!(grant.is_over());
        let next = Grant::next(context(4), 0x900);
        assert_eq!(next.rkey(), 0x902, "a key that a peer may have invalidated");
        next.withdraw();
        assert_eq!(Grant::next(context(4), 0x900).rkey(), 0x902, "nothing was bound");
    }
}
