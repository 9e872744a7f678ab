//! Causes of errors: the operation that failed, where to look first, and the next checks.

use std::borrow::Cow;

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::vendor::{self, Evidence};
use serde::Serialize;

use super::known::{Blame, Row, find};

impl Row {
    /// Returns what a row of the table says.
    pub fn explain(&self) -> Explanation {
        Explanation {
            failed: self.failed.to_owned(),
            blame: self.blame,
            checks: self.checks.iter().map(|&check| check.into()).collect(),
            sure: String::new(),
            sources: Vec::new(),
        }
    }
}

/// Returns the explanation of something that the table does not have.
pub fn unknown(failed: &str, check: &'static str) -> Explanation {
    Explanation {
        failed: failed.to_owned(),
        blame: Blame::Unknown,
        checks: vec![check.into()],
        sure: String::new(),
        sources: Vec::new(),
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
    pub checks: Vec<Cow<'static, str>>,
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
    /// The syndrome was printed, and does not only follow from a status of verbs.
    pub printed: bool,
}

/// Explains an error.
pub fn explain(error: Error) -> Explanation {
    let syndrome = format!("{:#04x}", error.syndrome.get());
    let receive = (error.requester == Some(false)).then(|| find("syndrome", &format!("{syndrome} receive")));
    let mut explanation = match receive.flatten().or_else(|| find("syndrome", &syndrome)) {
        Some(row) => row.explain(),
        None => unknown("an error whose syndrome has no name", "is it a CQE of an mlx5 adapter at all"),
    };
    explanation.failed = explanation.failed.replace("{what}", &operation(error));
    let name = error.syndrome.names();
    if name.is_some() {
        explanation.sources.push(Source {
            claim: "syndrome",
            place: "rdma-core providers/mlx5/mlx5dv.h and cq.c; InfiniBand specification, completion return status"
                .into(),
        });
    }
    let syndrome = match (name.is_some(), error.printed) {
        (true, true) => "the syndrome is certain (a constant of mlx5dv.h)",
        (true, false) => {
            "the status is certain (a constant of verbs.h); the syndrome was not printed and follows from it only if the adapter is an mlx5"
        }
        (false, _) => "the syndrome has no name in mlx5dv.h: what it means is unknown",
    };
    let vendor = match error.vendor {
        None => "the vendor syndrome was not given".to_owned(),
        Some(number) => match vendor::find(error.syndrome, number) {
            Some(known) => {
                explanation.failed += &format!(" (vendor syndrome {number:#04x}: {})", known.meaning);
                let places =
                    known.sources.iter().map(|&place| Source { claim: "vendor syndrome", place: place.into() });
                explanation.sources.extend(places);
                special(error, number, &mut explanation);
                let rests_on = match known.evidence {
                    Evidence::Named => "is named in a driver",
                    Evidence::Dumps => {
                        "was read from dumps of adapters and what their reports found as the cause, no document"
                    }
                    Evidence::Reports => "rests on reports without bytes, whose cause was partly supposed",
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

/// Explains a status that no syndrome has.
pub fn of_status(status: u32) -> Explanation {
    let known = find("status", &status.to_string()).map(Row::explain);
    let other = || unknown("a status that no mlx5 adapter reports", "which adapter and driver reported it");
    Explanation {
        sure: "the status is certain (a constant of verbs.h)".into(),
        sources: vec![Source { claim: "status", place: "rdma-core libibverbs/verbs.h, providers/mlx5/cq.c".into() }],
        ..known.unwrap_or_else(other)
    }
}

fn unknown_vendor(number: u8) -> String {
    let others: Vec<String> = vendor::with_vendor(number).map(|row| format!("{:#04x}", row.syndrome.get())).collect();
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
            &["dmesg beside it: AMD-Vi IO_PAGE_FAULT or DMAR faults name the address that the IOMMU refused"]
        }
        (Syndrome::LOCAL_LENGTH, 0x8e) => {
            explanation.blame = Blame::BothEnds;
            "a message does not fit what was posted or agreed upon for it".clone_into(&mut explanation.failed);
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
    explanation.checks.splice(0..0, first.iter().map(|&check| check.into()));
}

fn operation(error: Error) -> String {
    match (error.requester, error.opcode) {
        (Some(false), _) => "a receive".into(),
        (_, Some(opcode)) => match WqeOpcode::new(opcode).name() {
            Some(name) => format!("{} {name}", article(name)),
            None => format!("a WQE of opcode {opcode:#04x}"),
        },
        (Some(true), None) => "a send request".into(),
        (None, None) => "a request".into(),
    }
}

fn article(name: &str) -> &'static str {
    if name.starts_with("RDMA") || name.starts_with("ATOMIC") || name == "MMO" { "an" } else { "a" }
}
