//! Vendor syndromes of error CQEs (`vendor_err_synd`): what adapters were seen to report.
//!
//! No public document lists them. Each row was read from reports of owners of ConnectX adapters, with the syndrome that
//! stood beside it; a vendor syndrome means something only together with its syndrome. A pair that is not in the table
//! is unknown, which says nothing about it.

use crate::syndrome::Syndrome;

/// A pair of syndromes that an adapter reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorSyndrome {
    /// `syndrome`.
    pub syndrome: Syndrome,
    /// `vendor_err_synd`.
    pub vendor: u8,
    /// Side that reports it.
    pub side: Side,
    /// Cause of the error in the reports.
    pub meaning: &'static str,
    /// Evidence for the meaning.
    pub evidence: Evidence,
    /// Where it was published.
    pub sources: &'static [&'static str],
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Send queues.
    Requester,
    /// Receive queues.
    Responder,
    /// Seen on both, or not known.
    Either,
}

/// Evidence for a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A header or the code of a driver names it.
    Named,
    /// CQEs of adapters, whose cause the report explains.
    Dumps,
    /// Reports without bytes, or a cause that the reporters only supposed.
    Reports,
}

/// Returns what is known of a pair of syndromes.
pub fn find(syndrome: Syndrome, vendor: u8) -> Option<&'static VendorSyndrome> {
    KNOWN.iter().find(|known| known.syndrome == syndrome && known.vendor == vendor)
}

/// Returns the pairs with this vendor syndrome, for a report without the syndrome.
pub fn with_vendor(vendor: u8) -> impl Iterator<Item = &'static VendorSyndrome> {
    KNOWN.iter().filter(move |known| known.vendor == vendor)
}

const fn row(
    syndrome: Syndrome,
    vendor: u8,
    side: Side,
    evidence: Evidence,
    meaning: &'static str,
    sources: &'static [&'static str],
) -> VendorSyndrome {
    VendorSyndrome { syndrome, vendor, side, meaning, evidence, sources }
}

use Evidence::{Dumps, Named, Reports};
use Side::{Either, Requester, Responder};

/// All pairs, in the order of their numbers.
pub const KNOWN: &[VendorSyndrome] = &[
    row(
        Syndrome::LOCAL_LENGTH,
        0x68,
        Requester,
        Dumps,
        "the WQE carries fewer inline header bytes than the adapter requires, or its sizes contradict each other",
        &["netdev 2021-01, Xuan Zhuo, ConnectX-4 Lx"],
    ),
    row(
        Syndrome::LOCAL_LENGTH,
        0x8e,
        Either,
        Reports,
        "reported by the asynchronous event of a queue pair; the peers had different path MTUs in a report alike",
        &["github.com/kvcache-ai/Mooncake/issues/3299", "github.com/kvcache-ai/Mooncake/issues/3868"],
    ),
    row(
        Syndrome::LOCAL_QP_OP,
        0x68,
        Requester,
        Dumps,
        "the adapter does not accept the WQE: bytes that are no WQE, a misaligned UMR, an operation that it does not have",
        &[
            "netdev 2022-11, Tariq Toukan (UMR alignment)",
            "netdev 2026-05, Dragos Tatulea (two writers of one send queue)",
            "github.com/openucx/ucx/issues/3618",
            "github.com/openucx/ucx/issues/1151",
        ],
    ),
    row(
        Syndrome::LOCAL_QP_OP,
        0xd6,
        Requester,
        Reports,
        "malformed WQE; an NVIDIA engineer calls it RDE_MAL_WQE",
        &["github.com/openucx/ucx/issues/11444"],
    ),
    row(
        Syndrome::LOCAL_PROT,
        0x32,
        Responder,
        Dumps,
        "the adapter may not write the received bytes to where the receive WQE points",
        &[
            "github.com/openucx/ucx/pull/7801 (lkey 0x12345678)",
            "netdev 2025-11-04, Dragos Tatulea (UMR that maps nothing)",
            "stable 2025, Lama Kayal fab058356885",
        ],
    ),
    row(
        Syndrome::LOCAL_PROT,
        0x51,
        Requester,
        Reports,
        "the adapter could not read what a send WQE points to; in the reports it was memory of a GPU (GPUDirect, peer-memory module, PCIe access control or MMIO placement)",
        &[
            "github.com/linux-rdma/perftest/issues/173",
            "github.com/NVIDIA/nccl/issues/214",
            "github.com/NVIDIA/nccl/issues/707",
            "github.com/openucx/ucx/issues/9515",
        ],
    ),
    row(
        Syndrome::LOCAL_PROT,
        0x52,
        Requester,
        Dumps,
        "the adapter may not read what a send WQE points to",
        &["github.com/spdk/spdk/issues/961", "github.com/FDio/csit/issues/3988"],
    ),
    row(
        Syndrome::LOCAL_PROT,
        0x53,
        Requester,
        Dumps,
        "the adapter may not read what a send WQE points to: key unknown, of another domain, or too short for the range",
        &["github.com/spdk/spdk/issues/500", "github.com/spdk/spdk/issues/507", "github.com/Juniper/warp17/issues/81"],
    ),
    row(
        Syndrome::LOCAL_PROT,
        0x56,
        Responder,
        Dumps,
        "the adapter could not write the received bytes; an IOMMU page fault stood beside it in the kernel log",
        &[
            "linux-nvme 2022, MT28908 (ConnectX-6), AMD-Vi IO_PAGE_FAULT",
            "linux-nvme 2022-05-17, Mark Ruijter, ConnectX-6",
        ],
    ),
    row(
        Syndrome::WR_FLUSH,
        0xf9,
        Either,
        Dumps,
        "the queue pair was in error before the WQE's turn came: an earlier completion holds the cause",
        &[
            "netdev 2026-05, Dragos Tatulea",
            "github.com/linux-nvme/nvme-cli/issues/3268",
            "github.com/NVIDIA/nccl/issues/1737 (printed as 249)",
        ],
    ),
    row(
        Syndrome::MW_BIND,
        0x78,
        Requester,
        Dumps,
        "a UMR could not change its key: more translations than the key has room for, or a key in the wrong state",
        &[
            "linux-rdma, Michael Guralnik \"IB/umem: fix ODP iova\"",
            "linux-rdma 2025-01-19, Leon Romanovsky (ODP race)",
        ],
    ),
    row(
        Syndrome::REMOTE_INVAL_REQ,
        0x8a,
        Requester,
        Dumps,
        "the peer refused the request as invalid: receive too short, operation not enabled, path MTUs that differ",
        &["github.com/openucx/ucx/issues/1770", "github.com/charmplusplus/charm/issues/2532 (printed as 138)"],
    ),
    row(
        Syndrome::REMOTE_ACCESS,
        0x88,
        Requester,
        Dumps,
        "the peer's adapter refused the access: rkey unknown or deregistered, out of range, or without the right",
        &[
            "github.com/ofiwg/libfabric/issues/4283",
            "github.com/openucx/ucx/issues/1569",
            "github.com/spdk/spdk/issues/1387",
            "github.com/spdk/spdk/issues/264",
        ],
    ),
    row(
        Syndrome::REMOTE_OP,
        0x89,
        Requester,
        Reports,
        "the peer's adapter failed while it executed the request: the peer has an error of its own",
        &["github.com/NVIDIA/nccl/issues/214 (printed as 137)", "github.com/openucx/ucx/issues/5472"],
    ),
    row(
        Syndrome::TRANSPORT_RETRY_EXC,
        0x81,
        Requester,
        Reports,
        "no acknowledgement came back",
        &[
            "github.com/openucx/ucx/issues/6669",
            "github.com/openucx/ucx/issues/5199",
            "github.com/openucx/ucx/issues/6000",
            "github.com/NVIDIA/nccl/issues/1405 (printed as 129)",
        ],
    ),
    row(
        Syndrome::TRANSPORT_RETRY_EXC,
        0x83,
        Requester,
        Reports,
        "no acknowledgement came back; what sets it apart from 0x81 is not known",
        &[
            "github.com/NVIDIA/nccl/issues/2383 (ConnectX-7, RoCE v2)",
            "a report from a ConnectX-7 with UCX without a link",
        ],
    ),
    row(
        Syndrome::RNR_RETRY_EXC,
        0x87,
        Requester,
        Dumps,
        "the peer had no receive posted",
        &["a sample of ibv_post_send without a receive at the peer, libmlx5; no public link is known"],
    ),
    row(
        Syndrome::REMOTE_ABORTED,
        0x93,
        Responder,
        Named,
        "page fault of memory that is registered on demand (ODP)",
        &["rdma-core providers/mlx5/mlx5dv.h, MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT"],
    ),
    row(
        Syndrome::REMOTE_ABORTED,
        0x99,
        Responder,
        Named,
        "page fault of memory that is registered on demand (ODP)",
        &["openucx/ucx src/uct/ib/mlx5/ib_mlx5.h"],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_there_once_and_in_order() {
        let number = |row: &VendorSyndrome| (row.syndrome.get(), row.vendor);
        assert!(KNOWN.windows(2).all(|pair| number(&pair[0]) < number(&pair[1])));
        assert!(KNOWN.iter().all(|row| !row.sources.is_empty() && row.syndrome.names().is_some()));
    }

    #[test]
    fn a_vendor_syndrome_means_something_with_its_syndrome() {
        assert_eq!(find(Syndrome::LOCAL_PROT, 0x53).unwrap().side, Side::Requester);
        assert_eq!(find(Syndrome::REMOTE_ACCESS, 0x53), None);
        assert_eq!(with_vendor(0x68).count(), 2);
        assert_eq!(with_vendor(0x00).count(), 0);
    }
}
