//! What a completion says of a message, as a set.

use std::fmt;
use std::ops::BitOr;

use rdma_core_sys as sys;

/// What a completion says of a message (`enum ibv_wc_flags`).
///
/// Bits that the headers do not name are kept: they come from drivers.
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
    /// A GRH came with the message; of a datagram it is in front of the payload.
    GRH = IBV_WC_GRH,
    /// It has immediate data.
    WITH_IMM = IBV_WC_WITH_IMM,
    /// The device found the checksums of IPv4 and of the layer above it good.
    IP_CSUM_OK = IBV_WC_IP_CSUM_OK,
    /// It invalidated a key.
    WITH_INV = IBV_WC_WITH_INV,
    /// Tag matching has to be synchronised.
    TM_SYNC_REQ = IBV_WC_TM_SYNC_REQ,
    /// It matched a tag.
    TM_MATCH = IBV_WC_TM_MATCH,
    /// Its data is in the buffer of the tag.
    TM_DATA_VALID = IBV_WC_TM_DATA_VALID,
}

impl WcFlags {
    /// None of them.
    pub const EMPTY: Self = Self(0);

    /// The set with these bits.
    pub const fn from_raw(bits: sys::ibv_wc_flags) -> Self {
        Self(bits)
    }

    /// The bits in the headers.
    pub const fn as_raw(self) -> sys::ibv_wc_flags {
        self.0
    }

    /// Whether all of `flags` are in it.
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
