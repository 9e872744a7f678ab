//! The share of the WQEs of an SRQ that the next in memory follows, when several messages arrive at once.

use crate::adapter::Order;
use crate::case::Case;
use crate::name::Name;
use crate::operation::What;
use crate::report::Row;
use crate::rig::Rig;
use crate::world::{Kind, Locks, World};

/// Slots of the SRQ.
const SLOTS: u32 = 256;
/// Messages that are counted.
const MESSAGES: u32 = 20_000;

/// Measures the safe layer of doorbell, and libmlx5.
pub fn rows(filter: &str) -> Vec<Row> {
    let mut cases = Vec::new();
    for at_once in [1, 3, 10] {
        for batch in [1, 8, 32, 64] {
            let op = format!("SRQ of {SLOTS} slots, {at_once} at once, batch {batch}");
            if op.contains(filter) {
                cases.push((op, at_once, batch));
            }
        }
    }
    if cases.is_empty() {
        return Vec::new();
    }
    let world = World::new();
    let measure = |name, at_once, batch| {
        let mut case = Case::new(Kind::Srq, What::Cycle, name).slots(SLOTS).batch(batch);
        case.operation.order = Order::AtOnce(at_once);
        Rig::new(&world, case.operation, name).adjacent(MESSAGES)
    };
    let row = |(op, at_once, batch)| Row {
        op,
        unit: "share of next slots",
        doorbell: measure(Name::Lending, at_once, batch),
        reference: measure(Name::Libmlx5(Locks::Off), at_once, batch),
        reference_name: "ibv_post_srq_recv".into(),
    };
    cases.into_iter().map(row).collect()
}
