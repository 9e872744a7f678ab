//! Causes of errors: the operation that failed, where to look first, and the next checks.

use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::vendor::{self, Evidence};
use serde::Serialize;

/// Where to look first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The program that got the completion, or a library in it.
    ThisProgram,
    /// The program at the other end.
    Peer,
    /// Settings that both agreed upon: sizes, rights, MTU.
    BothEnds,
    /// The way between the ends, or a peer that has left.
    Path,
    /// The machine: IOMMU, GPU driver, registration on demand.
    Machine,
    /// An error before this one.
    EarlierError,
    /// Not known.
    Unknown,
}

impl Blame {
    /// Returns it in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ThisProgram => "this program, or a library in it",
            Self::Peer => "the peer",
            Self::BothEnds => "this program and the peer: what they agreed upon does not fit",
            Self::Path => "the path between the ends, or a peer that is gone",
            Self::Machine => "this machine: its IOMMU, GPU driver or memory registration",
            Self::EarlierError => "an earlier error",
            Self::Unknown => "unknown",
        }
    }
}

/// Meaning of an error.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The failure.
    pub failed: String,
    /// Where to look first.
    pub blame: Blame,
    /// The next checks, the likeliest first.
    pub checks: Vec<&'static str>,
    /// How sure that is.
    pub sure: String,
    /// Where it comes from.
    pub sources: Vec<Source>,
}

/// A claim and where it comes from.
#[derive(Debug, Serialize)]
pub struct Source {
    /// The claim.
    pub claim: &'static str,
    /// Where it was published.
    pub place: String,
}

/// An error to explain.
#[derive(Debug, Clone, Copy)]
pub struct Error {
    /// Syndrome.
    pub syndrome: Syndrome,
    /// Vendor syndrome, where it is known.
    pub vendor: Option<u8>,
    /// Whether a send queue reports it, where that is known.
    pub requester: Option<bool>,
    /// Opcode of the send WQE, where it is known.
    pub opcode: Option<u8>,
}

/// Explains an error.
pub fn explain(error: Error) -> Explanation {
    let (failed, blame, checks) = general(error);
    let mut explanation = Explanation {
        failed,
        blame,
        checks: checks.to_vec(),
        sure: String::new(),
        sources: Vec::new(),
    };
    let name = error.syndrome.names();
    if name.is_some() {
        explanation.sources.push(Source {
            claim: "syndrome",
            place: "rdma-core providers/mlx5/mlx5dv.h and cq.c; InfiniBand specification, completion return status".into(),
        });
    }
    let syndrome = if name.is_some() {
        "the syndrome is certain (a constant of mlx5dv.h)"
    } else {
        "the syndrome has no name in mlx5dv.h: what it means is unknown"
    };
    let vendor = match error.vendor {
        None => "the vendor syndrome was not given".to_owned(),
        Some(number) => match vendor::find(error.syndrome, number) {
            Some(known) => {
                explanation.failed +=
                    &format!(" (vendor syndrome {number:#04x}: {})", known.meaning);
                let places = known
                    .sources
                    .iter()
                    .map(|&place| Source { claim: "vendor syndrome", place: place.into() });
                explanation.sources.extend(places);
                special(error, number, &mut explanation);
                let rests_on = match known.evidence {
                    Evidence::Named => "is named in a driver",
                    Evidence::Dumps => {
                        "was read from dumps of adapters and what their reports found as the cause, no document"
                    }
                    Evidence::Reports => {
                        "rests on reports without bytes, whose cause was partly supposed"
                    }
                };
                format!("the meaning of the vendor syndrome {rests_on}")
            }
            None if number == 0 => "the vendor syndrome is 0, which says nothing".into(),
            None => unknown_vendor(number),
        },
    };
    explanation.sure = format!("{syndrome}; {vendor}; where to look first is experience, no proof");
    explanation
}

fn unknown_vendor(number: u8) -> String {
    let others: Vec<String> =
        vendor::with_vendor(number).map(|row| format!("{:#04x}", row.syndrome.get())).collect();
    if others.is_empty() {
        return format!(
            "vendor syndrome {number:#04x} is unknown: no report of it was found, or the adapter is no ConnectX"
        );
    }
    let others = others.join(", ");
    format!(
        "vendor syndrome {number:#04x} is unknown with this syndrome (seen with {others}): the adapter may be no ConnectX"
    )
}

/// Changes the explanation for certain vendor syndromes.
fn special(error: Error, vendor: u8, explanation: &mut Explanation) {
    let first: &[&'static str] = match (error.syndrome, vendor) {
        (Syndrome::LOCAL_PROT, 0x51) => &[
            "GPU memory: is nvidia-peermem (or dma-buf) loaded, PCIe access control (ACS) off, the IOMMU in passthrough",
            "MMIO above 4 GiB placed out of the adapter's reach by the firmware of the machine (perftest issue 173)",
        ],
        (Syndrome::LOCAL_PROT, 0x56) => {
            explanation.blame = Blame::Machine;
            &[
                "dmesg beside it: AMD-Vi IO_PAGE_FAULT or DMAR faults name the address that the IOMMU refused",
            ]
        }
        (Syndrome::LOCAL_LENGTH, 0x8e) => {
            explanation.blame = Blame::BothEnds;
            "a message does not fit what was posted or agreed upon for it"
                .clone_into(&mut explanation.failed);
            &["the path MTU of both queue pairs: ibv_query_qp on both ends (Mooncake issue 3868)"]
        }
        (Syndrome::REMOTE_ABORTED, 0x93 | 0x99) => {
            explanation.blame = Blame::Machine;
            "the receive's memory, registered on demand, was not present when the message came"
                .clone_into(&mut explanation.failed);
            &["post the receive again (libmlx5 does), or prefetch the pages with ibv_advise_mr"]
        }
        (Syndrome::LOCAL_QP_OP, 0x68) if error.opcode == Some(0x25) => {
            &["a UMR: alignment and number of its translation entries"]
        }
        _ => &[],
    };
    explanation.checks.splice(0..0, first.iter().copied());
}

type General = (String, Blame, &'static [&'static str]);

fn general(error: Error) -> General {
    let what = operation(error);
    let receives = error.requester == Some(false);
    match error.syndrome {
        Syndrome::LOCAL_LENGTH if receives => (
            "a message is longer than the receive that it met".into(),
            Blame::BothEnds,
            &[
                "the size of the receive against the longest message; a datagram needs 40 bytes more for its GRH",
                "the path MTU of both queue pairs, which must be the same",
            ],
        ),
        Syndrome::LOCAL_LENGTH => (
            format!("{what} has a length that the queue pair does not allow"),
            Blame::ThisProgram,
            &[
                "the length against max_msg_sz of the port, of a datagram against its MTU",
                "an answer (READ, atomic) against the size of its buffers",
                "Ethernet: does the adapter want the headers inline (ethtool, minimum inline mode)",
            ],
        ),
        Syndrome::LOCAL_QP_OP => (
            format!("the adapter refused {what} as illegal"),
            Blame::ThisProgram,
            &[
                "is the operation allowed on this type of queue pair, and supported by the adapter",
                "do two threads post to one queue without a lock: then the WQE is a mixture, or no WQE",
                "WQEs that the program builds itself: ds, sizes, alignment; compare with the WQE dump if there is one",
            ],
        ),
        Syndrome::LOCAL_PROT if receives => (
            "the adapter may not write a received message into the posted receive".into(),
            Blame::ThisProgram,
            &[
                "the receive's lkey, address and length against the memory region; it needs IBV_ACCESS_LOCAL_WRITE",
                "was the region deregistered, or its memory unmapped, while the receive was posted",
                "do the region and the queue (an SRQ has its own) belong to one protection domain",
                "dmesg for IOMMU faults of the adapter",
            ],
        ),
        Syndrome::LOCAL_PROT => (
            format!("the adapter may not access the local memory of {what}"),
            Blame::ThisProgram,
            &[
                "lkey, address and length of each SGE against its memory region; READ and atomics need IBV_ACCESS_LOCAL_WRITE",
                "was the region deregistered before the completion, or its memory freed, remapped or forked away",
                "do the region and the queue pair belong to one protection domain",
                "dmesg for IOMMU faults of the adapter",
            ],
        ),
        Syndrome::WR_FLUSH => (
            format!("{what} was not executed: the queue pair was in error before its turn came"),
            Blame::EarlierError,
            &[
                "the first completion of this queue pair that is not a flush, in either of its CQs: that is the cause",
                "asynchronous events of the queue pair (IBV_EVENT_QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR)",
                "no other error: the program, rdma_disconnect or the peer's disconnect moved it to error",
            ],
        ),
        Syndrome::MW_BIND => (
            format!("{what} could not change a memory key"),
            Blame::ThisProgram,
            &[
                "state, size and owner of the key that is bound or changed",
                "in the kernel (reg umr failed): a race or size error of mlx5_ib: compare the kernel version with the sources",
            ],
        ),
        Syndrome::BAD_RESP => (
            format!("the answer to {what} does not fit the request"),
            Blame::Path,
            &[
                "queue pair numbers and start PSNs that both ends were given",
                "a peer that connected again with the same queue pair while packets were under way",
            ],
        ),
        Syndrome::LOCAL_ACCESS => (
            "an access to local memory on behalf of the peer was refused".into(),
            Blame::BothEnds,
            &["rights and range of the memory region that was sent to the peer"],
        ),
        Syndrome::REMOTE_INVAL_REQ => (
            format!("the peer's adapter refused {what} as invalid"),
            Blame::BothEnds,
            &[
                "the peer's receive is shorter than the message (the peer then has a local length error)",
                "qp_access_flags of the peer's queue pair: are remote WRITE, READ and atomics enabled",
                "max_dest_rd_atomic of the peer against max_rd_atomic here",
                "the path MTU of both queue pairs, which must be the same",
                "atomics: 8-byte alignment; DC: the access key",
            ],
        ),
        Syndrome::REMOTE_ACCESS => (
            format!("the peer's adapter refused the access of {what} to its memory"),
            Blame::BothEnds,
            &[
                "is the rkey still valid: the peer may have deregistered the region, ended or restarted (common at shutdown)",
                "remote address and length against the peer's region",
                "rights of the region (IBV_ACCESS_REMOTE_WRITE, READ, ATOMIC) and of the peer's queue pair",
                "do the region and the peer's queue pair belong to one protection domain; was a memory window invalidated",
            ],
        ),
        Syndrome::REMOTE_OP => (
            format!("the peer's adapter failed while it executed {what}"),
            Blame::Peer,
            &[
                "the completions and events of the peer: it has an error of its own, often a receive that it may not write",
                "GPU memory at the peer",
            ],
        ),
        Syndrome::TRANSPORT_RETRY_EXC => (
            format!("no acknowledgement of {what} came after all retries"),
            Blame::Path,
            &[
                "is the peer's process alive, and its queue pair in RTR or RTS: a peer that ended looks like this",
                "RoCE: GID index and type (v1, v2) on both ends; ping the IP address that the GID holds",
                "RoCE: UDP port 4791 in firewalls; MTU of each switch and interface; PFC or ECN (drops under load)",
                "InfiniBand: LIDs and partition keys, subnet manager, ibdiagnet",
                "remote queue pair number and PSN; timeout and retry_cnt (a congested path needs timeout 14 or more)",
                "counters of both ports: local_ack_timeout_err, packet_seq_err, out_of_sequence, rx_discards_phy",
            ],
        ),
        Syndrome::RNR_RETRY_EXC => (
            format!("the peer had no receive posted for {what}"),
            Blame::Peer,
            &[
                "does the peer post receives before the connection is used, and again fast enough; is its SRQ empty",
                "rnr_retry here (7 is without end) and min_rnr_timer of the peer",
                "the peer's counter out_of_buffer rises with each refusal",
            ],
        ),
        Syndrome::REMOTE_ABORTED => (
            format!("{what} was aborted"),
            Blame::Unknown,
            &[
                "memory registered on demand (ODP) at either end",
                "the peer's completions and events",
            ],
        ),
        _ => (
            "an error whose syndrome has no name".into(),
            Blame::Unknown,
            &["is it a CQE of an mlx5 adapter at all"],
        ),
    }
}

fn operation(error: Error) -> String {
    match (error.requester, error.opcode) {
        (Some(false), _) => "a receive".into(),
        (_, Some(opcode)) => match super::wqe::opcode_name(opcode) {
            Some(name) => format!("{} {name}", article(name)),
            None => format!("a WQE of opcode {opcode:#04x}"),
        },
        (Some(true), None) => "a send request".into(),
        (None, None) => "a request".into(),
    }
}

fn article(name: &str) -> &'static str {
    if name.starts_with(['A', 'R', 'S', 'M', 'N'])
        && (name.starts_with("RDMA") || name.starts_with("ATOMIC"))
    {
        "an"
    } else {
        "a"
    }
}
