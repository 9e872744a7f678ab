//! Causes of an error CQE (`MLX5_CQE_SYNDROME_*`).

/// `syndrome` of an error CQE; any byte is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Syndrome(u8);

impl Syndrome {
    /// The message does not fit what was posted.
    pub const LOCAL_LENGTH: Self = Self(0x01);
    /// The WQE is not legal on this QP.
    pub const LOCAL_QP_OP: Self = Self(0x02);
    /// A local key does not cover the access.
    pub const LOCAL_PROT: Self = Self(0x04);
    /// The QP went to error before the WQE was executed.
    pub const WR_FLUSH: Self = Self(0x05);
    /// A memory window could not be bound.
    pub const MW_BIND: Self = Self(0x06);
    /// The responder answered something that does not fit the request.
    pub const BAD_RESP: Self = Self(0x10);
    /// A local access violated protection while serving a remote request.
    pub const LOCAL_ACCESS: Self = Self(0x11);
    /// The responder found the request invalid.
    pub const REMOTE_INVAL_REQ: Self = Self(0x12);
    /// The responder refused the access.
    pub const REMOTE_ACCESS: Self = Self(0x13);
    /// The responder could not complete the operation.
    pub const REMOTE_OP: Self = Self(0x14);
    /// No acknowledgement after all retries.
    pub const TRANSPORT_RETRY_EXC: Self = Self(0x15);
    /// Receiver not ready after all retries.
    pub const RNR_RETRY_EXC: Self = Self(0x16);
    /// The peer aborted; with a page-fault vendor syndrome, an ODP fault.
    pub const REMOTE_ABORTED: Self = Self(0x22);

    /// The syndrome with this number.
    #[inline]
    pub const fn new(value: u8) -> Self {
        Self(value)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Vendor syndrome of an ODP page fault (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`).
pub const VENDOR_ODP_PFAULT: u8 = 0x93;
/// Another vendor syndrome that UCX takes for an ODP page fault; libmlx5 does not know it.
pub const VENDOR_ODP_PFAULT_UCX: u8 = 0x99;

/// Whether a receive failed because its memory, registered on demand, was not there.
#[inline]
pub const fn is_odp_page_fault(syndrome: Syndrome, vendor: u8) -> bool {
    syndrome.get() == Syndrome::REMOTE_ABORTED.get()
        && (vendor == VENDOR_ODP_PFAULT || vendor == VENDOR_ODP_PFAULT_UCX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_are_told_by_both_syndromes() {
        assert!(is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0x93));
        assert!(is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0x99));
        assert!(!is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0));
        assert!(!is_odp_page_fault(Syndrome::WR_FLUSH, 0x93));
    }
}
