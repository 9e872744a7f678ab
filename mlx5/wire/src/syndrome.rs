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

    /// Returns the syndrome's name in `mlx5dv.h` without the prefix, its name in `ibv_wc_status_str` and the number of
    /// that `ibv_wc_status`, as libmlx5 converts them.
    pub fn names(self) -> Option<Names> {
        let row = TABLE.iter().find(|row| row.0 == self.0)?;
        Some(Names { mlx5: row.1, verbs: row.2, status: row.3 })
    }

    /// Returns the number of the `ibv_wc_status` that libmlx5 reports; for a syndrome without a name that of
    /// `IBV_WC_GENERAL_ERR`.
    #[cold]
    pub fn status(self) -> u32 {
        const GENERAL_ERR: u32 = 21;
        self.names().map_or(GENERAL_ERR, |names| names.status)
    }

    /// Returns the syndrome that libmlx5 reports as this `ibv_wc_status`.
    pub fn from_status(status: u32) -> Option<Self> {
        // Everything that has no status of its own is a general error.
        TABLE.iter().find(|row| row.3 == status).map(|row| Self(row.0))
    }
}

/// Names of a syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// In `mlx5dv.h`, without `MLX5_CQE_SYNDROME_`.
    pub mlx5: &'static str,
    /// In `ibv_wc_status_str`.
    pub verbs: &'static str,
    /// Number of the `ibv_wc_status`.
    pub status: u32,
}

/// Syndrome, name of mlx5, name and number of verbs.
const TABLE: [(u8, &str, &str, u32); 13] = [
    (0x01, "LOCAL_LENGTH_ERR", "local length error", 1),
    (0x02, "LOCAL_QP_OP_ERR", "local QP operation error", 2),
    (0x04, "LOCAL_PROT_ERR", "local protection error", 4),
    (0x05, "WR_FLUSH_ERR", "Work Request Flushed Error", 5),
    (0x06, "MW_BIND_ERR", "memory bind operation error", 6),
    (0x10, "BAD_RESP_ERR", "bad response error", 7),
    (0x11, "LOCAL_ACCESS_ERR", "local access error", 8),
    (0x12, "REMOTE_INVAL_REQ_ERR", "remote invalid request error", 9),
    (0x13, "REMOTE_ACCESS_ERR", "remote access error", 10),
    (0x14, "REMOTE_OP_ERR", "remote operation error", 11),
    (0x15, "TRANSPORT_RETRY_EXC_ERR", "transport retry counter exceeded", 12),
    (0x16, "RNR_RETRY_EXC_ERR", "RNR retry counter exceeded", 13),
    (0x22, "REMOTE_ABORTED_ERR", "aborted error", 16),
];

/// Vendor syndrome of an ODP page fault (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`).
pub const VENDOR_ODP_PFAULT: u8 = 0x93;
/// Another vendor syndrome that UCX takes for an ODP page fault; libmlx5 does not know it.
pub const VENDOR_ODP_PFAULT_UCX: u8 = 0x99;

/// Returns `true` if a receive failed because its memory, registered on demand, was not there.
#[inline]
pub const fn is_odp_page_fault(syndrome: Syndrome, vendor: u8) -> bool {
    syndrome.get() == Syndrome::REMOTE_ABORTED.get() && (vendor == VENDOR_ODP_PFAULT || vendor == VENDOR_ODP_PFAULT_UCX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_syndrome_has_the_names_of_mlx5dv_and_of_verbs() {
        let prot = Syndrome::LOCAL_PROT.names().unwrap();
        assert_eq!((prot.mlx5, prot.status), ("LOCAL_PROT_ERR", 4));
        assert_eq!(Syndrome::REMOTE_ACCESS.names().unwrap().verbs, "remote access error");
        assert_eq!(Syndrome::new(0x03).names(), None);
        assert_eq!((Syndrome::LOCAL_PROT.status(), Syndrome::new(0x03).status()), (4, 21));
        for row in TABLE {
            assert_eq!(Syndrome::from_status(row.3), Some(Syndrome::new(row.0)));
        }
        assert_eq!(Syndrome::from_status(3), None);
    }

    #[test]
    fn page_faults_are_recognised_by_both_syndromes() {
        assert!(is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0x93));
        assert!(is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0x99));
        assert!(!is_odp_page_fault(Syndrome::REMOTE_ABORTED, 0));
        assert!(!is_odp_page_fault(Syndrome::WR_FLUSH, 0x93));
    }
}
