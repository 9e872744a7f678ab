//! Counters of single queue pairs, which only RDMA netlink has (`RDMA_NLDEV_CMD_STAT_GET`): the kernel binds queue
//! pairs to counters when an administrator asks for it.

use std::collections::BTreeMap;
use std::io;

use super::counters::Counters;
use super::nldev::{self, attributes, find, number, text};
use super::{Level, Patient};

/// A counter set of the device, and the queue pairs that count in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Bound {
    port: u32,
    queue_pairs: Vec<u32>,
    values: BTreeMap<String, u64>,
}

/// Adds the counters of trouble of the queue pairs that are bound to counters.
pub fn examine(patient: &mut Patient, port: &str, device: &str, number: u8) {
    let what = format!("{port} counters of single queue pairs");
    let bound = match read(device, number) {
        Ok(bound) => bound,
        Err(error) => {
            let text = format!("not seen: RDMA netlink answers {error}; rdma statistic qp show asks the same");
            return patient.add(Level::Note, what, text);
        }
    };
    if bound.is_empty() {
        let how = format!("rdma statistic qp set link {device}/{number} auto type on");
        let text = format!("none is bound to a counter: {how} (as root) binds those that are connected later");
        return patient.add(Level::Note, what, text);
    }
    for Bound { queue_pairs, values, .. } in bound {
        let numbers: Vec<_> = queue_pairs.iter().map(|number| format!("{number:#x}")).collect();
        let what = format!("{port} queue pairs {}", numbers.join(", "));
        let trouble = Counters::of(values).trouble();
        if trouble.is_empty() {
            patient.add(Level::Ok, &what, "all counters of trouble are 0");
        }
        for (name, value, meaning) in trouble {
            patient.add(Level::Note, &what, format!("{name} {value} since they were bound: {meaning}"));
        }
    }
}

/// Reads the counter sets of a port.
fn read(device: &str, port: u8) -> io::Result<Vec<Bound>> {
    let index = nldev::index(device)?;
    let wanted = [(nldev::DEV_INDEX, index), (nldev::PORT_INDEX, port.into()), (nldev::STAT_RES, nldev::RES_QP.into())];
    let answers = nldev::ask(nldev::STAT_GET, &wanted)?;
    let mut sets: Vec<Bound> = answers.iter().flat_map(|body| bound(body)).collect();
    sets.retain(|set| set.port == u32::from(port) && !set.queue_pairs.is_empty());
    Ok(sets)
}

/// The counter sets of a message.
fn bound(body: &[u8]) -> Vec<Bound> {
    let entries = |table: Option<_>| attributes(table.unwrap_or_default()).map(|(_, entry)| entry);
    let value = |entry| {
        let value = find(entry, nldev::STAT_HWCOUNTER_ENTRY_VALUE)?.first_chunk()?;
        Some((text(find(entry, nldev::STAT_HWCOUNTER_ENTRY_NAME)?), u64::from_ne_bytes(*value)))
    };
    let set = |entry| Bound {
        port: find(entry, nldev::PORT_INDEX).and_then(number).unwrap_or_default(),
        queue_pairs: entries(find(entry, nldev::RES_QP))
            .filter_map(|one| number(find(one, nldev::RES_LQPN)?))
            .collect(),
        values: entries(find(entry, nldev::STAT_HWCOUNTERS)).filter_map(value).collect(),
    };
    entries(find(body, nldev::STAT_COUNTER)).map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn nest(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        attribute(0x8000 | kind, &parts.concat())
    }

    /// Two counter sets as a kernel answers: the second one has no queue pair any more.
    fn answer() -> Vec<u8> {
        let counter = |name: &str, value: u64| {
            let name = attribute(nldev::STAT_HWCOUNTER_ENTRY_NAME, &[name.as_bytes(), &[0]].concat());
            nest(81, &[name, attribute(nldev::STAT_HWCOUNTER_ENTRY_VALUE, &value.to_ne_bytes())])
        };
        let qp = |number: u32| nest(20, &[attribute(nldev::RES_LQPN, &number.to_ne_bytes())]);
        let set = |qps: &[Vec<u8>]| {
            let port = attribute(nldev::PORT_INDEX, &1u32.to_ne_bytes());
            let values = nest(nldev::STAT_HWCOUNTERS, &[counter("out_of_buffer", 3), counter("rx_read_requests", 9)]);
            nest(78, &[port, attribute(79, &4u32.to_ne_bytes()), nest(nldev::RES_QP, qps), values])
        };
        let name = attribute(nldev::DEV_NAME, b"mlx5_0\0");
        [name, nest(nldev::STAT_COUNTER, &[set(&[qp(0x11), qp(0x2345)]), set(&[])])].concat()
    }

    #[test]
    fn a_set_has_its_queue_pairs_and_its_values() {
        let [first, second] = &bound(&answer())[..] else { panic!("two sets") };
        assert_eq!((first.port, &first.queue_pairs[..]), (1, &[0x11, 0x2345][..]));
        assert_eq!(Counters::of(first.values.clone()).trouble()[..1], [first_trouble()]);
        assert_eq!((second.port, second.queue_pairs.len()), (1, 0));
        assert_eq!(bound(&[]), []);
        // No cut shows a queue pair or a value that is not there.
        for len in 0..answer().len() {
            for set in bound(&answer()[..len]) {
                assert!(set.queue_pairs.iter().all(|number| [0x11, 0x2345].contains(number)));
                assert!(set.values.values().all(|value| [3, 9].contains(value)));
            }
        }
    }

    fn first_trouble() -> (&'static str, u64, &'static str) {
        ("out_of_buffer", 3, "messages that found no receive posted: post more receives, or sooner")
    }
}
