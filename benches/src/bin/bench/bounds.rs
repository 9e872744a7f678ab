//! What an operation may cost at most, whatever it cost before.

use std::collections::BTreeMap;

use crate::Result;
use crate::counts::{Cost, TOLERANCE};

/// What a count is held against, in instructions per message.
enum Limit {
    /// A number.
    AtMost(f64),
    /// So many times another operation.
    Times(&'static str, f64),
}

use Limit::{AtMost, Times};

/// Operations of the safe layer on an SRQ unless stated otherwise; of programs under the drop-in last.
const BOUNDS: [(&str, Limit); 60] = [
    ("SRQ cycle, lending batch", AtMost(79.0)),
    ("SRQ cycle, lending batch, random order", AtMost(86.0)),
    ("SRQ cycle, lending batch, 2 queues in turn", AtMost(102.0)),
    ("SRQ cycle, lending batch, batch 1", AtMost(168.0)),
    ("SRQ poll of nothing, lending batch", AtMost(32.0)),
    ("SRQ cycle, owned buffers", AtMost(158.0)),
    ("SRQ cycle, owned buffers, random order", AtMost(166.0)),
    ("SRQ cycle, buffers replaced", AtMost(129.0)),
    ("SRQ cycle, buffers replaced, random order", AtMost(136.0)),
    ("SRQ cycle, lending batch, compressed", AtMost(138.0)),
    ("SRQ cycle, lending batch, 32 bytes inline", AtMost(169.0)),
    ("SRQ cycle, lending batch, 1000 QPs", Times("SRQ cycle, lending batch", 1.1)),
    ("SRQ cycle, lending batch, 32768 slots", Times("SRQ cycle, lending batch, 64 slots", 1.1)),
    ("RQ cycle, lending batch", AtMost(79.0)),
    // Half of what ibv_post_srq_ops takes: see the reference's column of the table.
    ("tag add, batch 16", AtMost(60.0)),
    // A request of a sender and its completion.
    ("SEND post and poll", AtMost(108.0)),
    ("SEND post and poll, batch 1", AtMost(352.0)),
    ("SEND post and poll, batch 1, 1024 QPs", Times("SEND post and poll, batch 1", 1.1)),
    ("SEND of 32 bytes inline post and poll", AtMost(95.0)),
    ("SEND of 32 bytes inline post and poll, batch 1", AtMost(342.0)),
    ("RDMA WRITE post and poll", AtMost(117.0)),
    ("RDMA READ post and poll", AtMost(118.0)),
    ("UD SEND post and poll", AtMost(136.0)),
    // A frame that is lent and given back.
    ("frame lent", AtMost(39.0)),
    ("frame of a striding queue lent", AtMost(45.0)),
    // A program under the drop-in.
    ("RQ poll, drop-in", AtMost(82.0)),
    ("RQ poll, drop-in, batch 1", AtMost(226.0)),
    ("RQ poll of nothing, drop-in", AtMost(54.0)),
    ("RQ poll, drop-in, extended", AtMost(116.0)),
    ("RQ poll, drop-in, extended, batch 1", AtMost(166.0)),
    ("RQ poll of nothing, drop-in, extended", AtMost(56.0)),
    ("RQ post, drop-in", AtMost(40.0)),
    ("RQ post, drop-in, batch 1", AtMost(101.0)),
    ("RQ post, drop-in, 4 SGEs", AtMost(101.0)),
    ("SRQ poll, drop-in", AtMost(91.0)),
    ("SRQ poll, drop-in, batch 1", AtMost(235.0)),
    ("SRQ poll, drop-in, random order", AtMost(97.0)),
    ("SRQ poll of nothing, drop-in", AtMost(54.0)),
    ("SRQ poll, drop-in, extended", AtMost(125.0)),
    ("SRQ poll, drop-in, extended, batch 1", AtMost(178.0)),
    ("SRQ poll, drop-in, extended, random order", AtMost(131.0)),
    ("SRQ poll of nothing, drop-in, extended", AtMost(56.0)),
    ("SRQ post, drop-in", AtMost(38.0)),
    ("SRQ post, drop-in, batch 1", AtMost(101.0)),
    ("SRQ post, drop-in, 4 SGEs", AtMost(99.0)),
    ("SRQ post, drop-in, random order", AtMost(38.0)),
    ("SEND post and poll, drop-in", AtMost(116.0)),
    ("SEND post and poll, drop-in, batch 1", AtMost(439.0)),
    ("SEND of 32 bytes inline post and poll, drop-in", AtMost(196.0)),
    ("SEND of 32 bytes inline post and poll, drop-in, batch 1", AtMost(517.0)),
    ("RDMA WRITE post and poll, drop-in", AtMost(125.0)),
    ("RDMA READ post and poll, drop-in", AtMost(138.0)),
    ("UD SEND post and poll, drop-in", AtMost(164.0)),
    ("SEND post and poll, drop-in, ibv_wr_*", AtMost(126.0)),
    ("SEND post and poll, drop-in, ibv_wr_*, batch 1", AtMost(453.0)),
    ("SEND of 32 bytes inline post and poll, drop-in, ibv_wr_*", AtMost(161.0)),
    ("SEND of 32 bytes inline post and poll, drop-in, ibv_wr_*, batch 1", AtMost(484.0)),
    ("RDMA WRITE post and poll, drop-in, ibv_wr_*", AtMost(137.0)),
    ("RDMA READ post and poll, drop-in, ibv_wr_*", AtMost(137.0)),
    ("UD SEND post and poll, drop-in, ibv_wr_*", AtMost(171.0)),
];

/// Fails when an operation costs more than its bound, times [`TOLERANCE`].
pub(crate) fn check(counts: &BTreeMap<String, Cost>) -> Result<()> {
    let count = |operation: &str| {
        counts.get(operation).ok_or_else(|| format!("{operation}: has a bound and is not counted"))
    };
    let mut above = Vec::new();
    for (operation, limit) in &BOUNDS {
        let instructions = count(operation)?.instructions;
        let limit = match *limit {
            AtMost(limit) => limit,
            Times(other, times) => count(other)?.instructions * times,
        };
        if instructions > limit * TOLERANCE {
            above.push(format!(
                "{operation}: {instructions:.2} instructions, at most {limit:.2} are allowed"
            ));
        }
    }
    if above.is_empty() {
        println!("counts: ok: {} operations within their bounds", BOUNDS.len());
        return Ok(());
    }
    Err(format!("counts: {}", above.join("\n")).into())
}
