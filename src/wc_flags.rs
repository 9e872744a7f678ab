//! The flags of a completion, as a set.

use bitflags::bitflags;
use rdma_core_sys as sys;

bitflags! {
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
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: sys::ibv_wc_flags {
        /// The message came with a GRH. In a datagram it precedes the payload.
        const GRH = sys::IBV_WC_GRH;
        /// The message has immediate data.
        const WITH_IMM = sys::IBV_WC_WITH_IMM;
        /// The checksums of IPv4 and of the layer above are right.
        const IP_CSUM_OK = sys::IBV_WC_IP_CSUM_OK;
        /// The message invalidated a key.
        const WITH_INV = sys::IBV_WC_WITH_INV;
        /// Tag matching must be synchronized.
        const TM_SYNC_REQ = sys::IBV_WC_TM_SYNC_REQ;
        /// The message matched a tag.
        const TM_MATCH = sys::IBV_WC_TM_MATCH;
        /// The data is in the buffer of the tagged receive.
        const TM_DATA_VALID = sys::IBV_WC_TM_DATA_VALID;
        // Bits without a name are kept.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_it_has_and_keeps_the_rest() {
        assert_eq!(format!("{:?}", WcFlags::empty()), "WcFlags(0x0)");
        let flags = WcFlags::from_bits_retain(sys::IBV_WC_WITH_IMM | 1 << 20);
        assert_eq!(format!("{flags:?}"), "WcFlags(WITH_IMM | 0x100000)");
        assert_eq!(flags.bits(), sys::IBV_WC_WITH_IMM | 1 << 20);
    }
}
