//! Counters of single queue pairs, which only RDMA netlink has (`RDMA_NLDEV_CMD_STAT_GET`): the kernel binds queue
//! pairs to counters when an administrator asks for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::counters::Counters;
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

/// Commands and attributes of `rdma/rdma_netlink.h`.
mod nldev {
    pub const FAMILY: u16 = 5;
    pub const GET: u16 = 1;
    pub const STAT_GET: u16 = 17;
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const RES_QP: u16 = 19;
    pub const RES_LQPN: u16 = 21;
    pub const STAT_RES: u16 = 75;
    pub const STAT_COUNTER: u16 = 77;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
}

/// Reads the counter sets of a port.
fn read(device: &str, port: u8) -> io::Result<Vec<Bound>> {
    let devices = ask(nldev::GET, &[])?;
    let named = |body: &&Vec<u8>| find(body, nldev::DEV_NAME).is_some_and(|name| text(name) == device);
    let index = devices.iter().find(named).and_then(|body| number(find(body, nldev::DEV_INDEX)?));
    let index = index.ok_or_else(|| io::Error::other(format!("without a device {device}")))?;
    let wanted = [(nldev::DEV_INDEX, index), (nldev::PORT_INDEX, port.into()), (nldev::STAT_RES, nldev::RES_QP.into())];
    let answers = ask(nldev::STAT_GET, &wanted)?;
    let mut sets: Vec<Bound> = answers.iter().flat_map(|body| bound(body)).collect();
    sets.retain(|set| set.port == u32::from(port) && !set.queue_pairs.is_empty());
    Ok(sets)
}

/// Asks the kernel for a list; returns the attributes of each message of the answer.
fn ask(command: u16, attributes: &[(u16, u32)]) -> io::Result<Vec<Vec<u8>>> {
    let patience = libc::timeval { tv_sec: 5, tv_usec: 0 };
    let check = |result: isize| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) };
    // SAFETY: the call involves no memory, and a descriptor that it made has no other owner.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_RDMA);
        check(fd as isize)?;
        OwnedFd::from_raw_fd(fd)
    };
    let fd = socket.as_raw_fd();
    // SAFETY: the option has this type, and outlives the call.
    unsafe {
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const patience).cast(), size);
    }
    let body: Vec<u8> = attributes
        .iter()
        .flat_map(|(kind, value)| {
            [8u16.to_ne_bytes(), kind.to_ne_bytes()].concat().into_iter().chain(value.to_ne_bytes())
        })
        .collect();
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut request = (HEADER as u32 + body.len() as u32).to_ne_bytes().to_vec();
    request.extend([(nldev::FAMILY << 10 | command).to_ne_bytes(), flags.to_ne_bytes()].concat());
    request.extend([0; 8]);
    request.extend(body);
    // SAFETY: the bytes can be read.
    check(unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) })?;
    let mut answers = Vec::new();
    let mut room = vec![0u8; 1 << 16];
    loop {
        // SAFETY: the bytes can be written.
        let len = check(unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) })?;
        if take(&room[..len], &mut answers)? {
            return Ok(answers);
        }
    }
}

/// Bytes of the header of a message.
const HEADER: usize = 16;

/// Takes the messages of a datagram. Returns `true` if the list ends with it.
fn take(mut rest: &[u8], answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while let Some(len) = number(rest) {
        let message = rest.get(..len as usize).filter(|message| message.len() >= HEADER);
        let message = message.ok_or_else(|| io::Error::other("a message that is cut"))?;
        let body = &message[HEADER..];
        match i32::from(u16::from_ne_bytes([message[4], message[5]])) {
            // Both have the errno of what was asked.
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                let errno = number(body).unwrap_or_default() as i32;
                return if errno == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-errno)) };
            }
            _ => answers.push(body.to_vec()),
        }
        rest = rest.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Kinds and values of attributes, up to the first broken one.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_OR_SWAPPED: u16 = 0xc000;
    std::iter::from_fn(move || {
        let [l, m, k, n] = *rest.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l, m]));
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k, n]) & !NESTED_OR_SWAPPED, value))
    })
}

fn find(body: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(body).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*value.first_chunk()?))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
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

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
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

    #[test]
    fn a_list_ends_with_its_end_or_with_an_error() {
        let mut answers = Vec::new();
        let some = [message(0x1411, &answer()), message(0x1411, &[])].concat();
        assert!(!take(&some, &mut answers).unwrap());
        assert_eq!((answers.len(), &answers[0]), (2, &answer()));
        assert!(take(&message(3, &[0; 4]), &mut answers).unwrap());
        for kind in [2, 3] {
            let refused = take(&message(kind, &(-95i32).to_ne_bytes()), &mut answers).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        }
        assert!(take(&some[..20], &mut answers).is_err());
        assert!(take(&[8, 0, 0, 0, 0, 0, 0, 0], &mut answers).is_err());
    }
}
