//! What an operation may cost at most, whatever it cost before.

use std::collections::BTreeMap;

use crate::Result;
use crate::counts::Cost;

/// Instructions and stores per message.
struct Bound {
    operation: &'static str,
    instructions: Limit,
    stores: Option<f64>,
}

/// What a count is held against.
enum Limit {
    /// A number.
    AtMost(f64),
    /// So much more than another operation.
    Above(&'static str, f64),
    /// So many times another operation.
    Times(&'static str, f64),
}

const BOUNDS: [Bound; 20] = [
    Bound { operation: "SRQ cycle", instructions: Limit::AtMost(20.0), stores: Some(2.0) },
    Bound { operation: "RQ cycle", instructions: Limit::AtMost(20.0), stores: Some(2.0) },
    Bound { operation: "SRQ poll", instructions: Limit::AtMost(20.0), stores: None },
    Bound { operation: "RQ poll", instructions: Limit::AtMost(20.0), stores: None },
    // Two of a data segment and one of `wr_id`.
    Bound { operation: "SRQ post", instructions: Limit::AtMost(14.0), stores: Some(4.0) },
    Bound { operation: "RQ post", instructions: Limit::AtMost(14.0), stores: Some(4.0) },
    Bound {
        operation: "SRQ cycle, lending batch",
        instructions: Limit::Above("SRQ cycle", 8.0),
        stores: None,
    },
    Bound {
        operation: "RQ cycle, lending batch",
        instructions: Limit::Above("RQ cycle", 8.0),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, 4096 slots",
        instructions: Limit::Times("SRQ cycle, 64 slots", 1.5),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, 1000 QPs",
        instructions: Limit::Times("SRQ cycle", 1.1),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, one held",
        instructions: Limit::Times("SRQ cycle", 1.1),
        stores: None,
    },
    // Half of what ibv_post_srq_ops takes: see the reference's column of the table.
    Bound { operation: "tag add, batch 16", instructions: Limit::AtMost(61.0), stores: None },
    Bound {
        operation: "SRQ cycle, owned buffers",
        instructions: Limit::AtMost(111.0),
        stores: None,
    },
    Bound {
        operation: "RQ cycle, owned buffers",
        instructions: Limit::AtMost(102.0),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, buffers replaced",
        instructions: Limit::AtMost(75.0),
        stores: None,
    },
    Bound {
        operation: "RQ cycle, buffers replaced",
        instructions: Limit::AtMost(78.0),
        stores: None,
    },
    // libmlx5 takes 233, and longer for each of them.
    Bound {
        operation: "SRQ cycle, random order",
        instructions: Limit::AtMost(155.0),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, lending batch, random order",
        instructions: Limit::AtMost(155.0),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, buffers replaced, random order",
        instructions: Limit::AtMost(208.0),
        stores: None,
    },
    Bound {
        operation: "SRQ cycle, owned buffers, random order",
        instructions: Limit::AtMost(300.0),
        stores: None,
    },
];

/// Fails when an operation costs more than its bound, times the tolerance.
pub(crate) fn check(counts: &BTreeMap<String, Cost>, tolerance: f64) -> Result<()> {
    let count = |operation: &str| {
        counts.get(operation).ok_or_else(|| format!("{operation}: has a bound and is not counted"))
    };
    let mut above = Vec::new();
    for Bound { operation, instructions, stores } in &BOUNDS {
        let cost = count(operation)?;
        let limit = match *instructions {
            Limit::AtMost(limit) => limit,
            Limit::Above(other, more) => count(other)?.instructions + more,
            Limit::Times(other, times) => count(other)?.instructions * times,
        };
        let stores = stores.unwrap_or(f64::INFINITY);
        for (what, count, limit) in
            [("instructions", cost.instructions, limit), ("stores", cost.stores, stores)]
        {
            if count > limit * tolerance {
                above.push(format!(
                    "{operation}: {count:.2} {what}, at most {limit:.2} are allowed"
                ));
            }
        }
    }
    if above.is_empty() {
        println!("counts: ok: {} operations within their bounds", BOUNDS.len());
        return Ok(());
    }
    Err(format!("counts: {}", above.join("\n")).into())
}
