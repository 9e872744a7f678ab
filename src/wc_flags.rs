//! What a completion says of a message, as a set.

use std::fmt;
use std::ops::BitOr;

use rdma_core_sys as sys;

/// The flags of a completion (`enum ibv_wc_flags`).
///
/// Bits without a name in the headers are kept, because drivers may report them.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send_with(b"hello", Some(7));
/// # let receiver = &mut world.receiver;
/// use doorbell::WcFlags;
///
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a message has arrived")?;
/// assert!(message.flags().contains(WcFlags::WITH_IMM));
/// println!("{:?}", message.flags());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WcFlags(sys::ibv_wc_flags);

/// Declares the named flags and the way back to their names.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $value:ident,)*) => {
        impl WcFlags {
            $($(#[$doc])* pub const $name: Self = Self(sys::$value);)*

            const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, stringify!($name)),)*];
        }
    };
}

flags! {
    /// The message came with a GRH. In a datagram it precedes the payload.
    GRH = IBV_WC_GRH,
    /// The message has immediate data.
    WITH_IMM = IBV_WC_WITH_IMM,
    /// The checksums of IPv4 and of the layer above are right.
    IP_CSUM_OK = IBV_WC_IP_CSUM_OK,
    /// The message invalidated a key.
    WITH_INV = IBV_WC_WITH_INV,
    /// Tag matching must be synchronized.
    TM_SYNC_REQ = IBV_WC_TM_SYNC_REQ,
    /// The message matched a tag.
    TM_MATCH = IBV_WC_TM_MATCH,
    /// The data is in the buffer of the tagged receive.
    TM_DATA_VALID = IBV_WC_TM_DATA_VALID,
}

impl WcFlags {
    /// No flag.
    pub const EMPTY: Self = Self(0);

    /// Returns the set with these bits.
    pub const fn from_raw(bits: sys::ibv_wc_flags) -> Self {
        Self(bits)
    }

    /// Returns the bits of the headers.
    pub const fn as_raw(self) -> sys::ibv_wc_flags {
        self.0
    }

    /// Returns `true` if the set has all of `flags`.
    ///
    /// ```
    /// use doorbell::WcFlags;
    ///
    /// let flags = WcFlags::GRH | WcFlags::WITH_IMM;
    /// assert!(flags.contains(WcFlags::GRH));
    /// assert!(!flags.contains(WcFlags::GRH | WcFlags::WITH_INV));
    /// ```
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for WcFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for WcFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut set = f.debug_set();
        for (flag, name) in Self::NAMED {
            if self.contains(*flag) {
                set.entry(&format_args!("{name}"));
                rest &= !flag.0;
            }
        }
        if rest != 0 {
            set.entry(&format_args!("{rest:#x}"));
        }
        set.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_it_has_and_keeps_the_rest() {
        assert_eq!(format!("{:?}", WcFlags::EMPTY), "{}");
        let flags = WcFlags::from_raw(sys::IBV_WC_WITH_IMM | 1 << 20);
        assert_eq!(format!("{flags:?}"), "{WITH_IMM, 0x100000}");
        assert_eq!(flags.as_raw(), sys::IBV_WC_WITH_IMM | 1 << 20);
    }
}
