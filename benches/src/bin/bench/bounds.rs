//! Upper bounds for the cost of operations, whatever they cost before.

use std::collections::BTreeMap;

use crate::Result;
use crate::cost::{Cost, TOLERANCE};

/// Upper bound of a count, in instructions per message.
enum Limit {
    /// A number.
    AtMost(f64),
    /// A multiple of another operation.
    Times(&'static str, f64),
}

use Limit::{AtMost, Times};

/// Operations of the safe layer on an SRQ unless stated otherwise.
const BOUNDS: [(&str, Limit); 32] = [
    ("SRQ cycle, lending batch", AtMost(79.0)),
    ("SRQ cycle, lending batch, random order", AtMost(86.0)),
    ("SRQ cycle, lending batch, 2 queues in turn", AtMost(101.0)),
    ("SRQ cycle, lending batch, batch 1", AtMost(168.0)),
    ("SRQ poll of nothing, lending batch", AtMost(32.0)),
    ("SRQ cycle, owned buffers", AtMost(156.0)),
    ("SRQ cycle, owned buffers, random order", AtMost(164.0)),
    ("SRQ cycle, buffers replaced", AtMost(128.0)),
    ("SRQ cycle, buffers replaced, random order", AtMost(135.0)),
    ("SRQ cycle, lending batch, compressed", AtMost(138.0)),
    ("SRQ cycle, lending batch, 32 bytes inline", AtMost(169.0)),
    ("SRQ cycle, lending batch, 1000 QPs", Times("SRQ cycle, lending batch", 1.1)),
    ("SRQ cycle, lending batch, 32768 slots", Times("SRQ cycle, lending batch, 64 slots", 1.1)),
    ("RQ cycle, lending batch", AtMost(79.0)),
    // Half of the count of ibv_post_srq_ops: see the reference's column of the table.
    ("tag add, batch 16", AtMost(60.0)),
    // A request of the ring and its completion.
    ("SEND post and poll", AtMost(53.0)),
    ("SEND post and poll, batch 1", AtMost(185.0)),
    ("SEND of 32 bytes inline post and poll", AtMost(61.0)),
    ("SEND of 32 bytes inline post and poll, batch 1", AtMost(194.0)),
    ("RDMA WRITE post and poll", AtMost(55.0)),
    ("RDMA READ post and poll", AtMost(55.0)),
    ("UD SEND post and poll", AtMost(74.0)),
    // A request of a sender and its completion.
    ("SEND post and poll, Sender", AtMost(98.0)),
    ("SEND post and poll, Sender, batch 1", AtMost(294.0)),
    ("SEND post and poll, Sender, batch 1, 1024 QPs", Times("SEND post and poll, Sender, batch 1", 1.1)),
    ("SEND of 32 bytes inline post and poll, Sender", AtMost(86.0)),
    ("SEND of 32 bytes inline post and poll, Sender, batch 1", AtMost(280.0)),
    ("RDMA WRITE post and poll, Sender", AtMost(107.0)),
    ("RDMA READ post and poll, Sender", AtMost(109.0)),
    ("UD SEND post and poll, Sender", AtMost(127.0)),
    // A frame that is lent and given back.
    ("frame lent", AtMost(43.0)),
    ("frame of a striding queue lent", AtMost(50.0)),
];

/// Fails when an operation costs more than its bound, times [`TOLERANCE`].
pub(crate) fn check(counts: &BTreeMap<String, Cost>) -> Result<()> {
    let count =
        |operation: &str| counts.get(operation).ok_or_else(|| format!("{operation}: has a bound and is not counted"));
    let mut above = Vec::new();
    for (operation, limit) in &BOUNDS {
        let instructions = count(operation)?.instructions;
        let limit = match *limit {
            AtMost(limit) => limit,
            Times(other, times) => count(other)?.instructions * times,
        };
        if instructions > limit * TOLERANCE {
            above.push(format!("{operation}: {instructions:.2} instructions, at most {limit:.2} are allowed"));
        }
    }
    if above.is_empty() {
        println!("counts: ok: {} operations within their bounds", BOUNDS.len());
        return Ok(());
    }
    Err(format!("counts: {}", above.join("\n")).into())
}
