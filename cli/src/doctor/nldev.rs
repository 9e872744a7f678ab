//! RDMA netlink (`rdma/rdma_netlink.h`): lists that the kernel answers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub const FAMILY: u16 = 5;
pub const GET: u16 = 1;
pub const RES_GET: u16 = 9;
pub const RES_QP_GET: u16 = 10;
pub const RES_MR_GET: u16 = 13;
pub const STAT_GET: u16 = 17;
pub const DEV_INDEX: u16 = 1;
pub const DEV_NAME: u16 = 2;
pub const PORT_INDEX: u16 = 3;
pub const RES_SUMMARY: u16 = 15;
pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
pub const RES_QP: u16 = 19;
pub const RES_LQPN: u16 = 21;
pub const RES_PID: u16 = 28;
pub const RES_MR: u16 = 40;
pub const STAT_RES: u16 = 75;
pub const STAT_COUNTER: u16 = 77;
pub const STAT_HWCOUNTERS: u16 = 80;
pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;

/// Returns the kernel's number of a device.
pub fn index(device: &str) -> io::Result<u32> {
    let devices = ask(GET, &[])?;
    let named = |body: &&Vec<u8>| find(body, DEV_NAME).is_some_and(|name| text(name) == device);
    let index = devices.iter().find(named).and_then(|body| number(find(body, DEV_INDEX)?));
    index.ok_or_else(|| io::Error::other(format!("without a device {device}")))
}

/// Asks the kernel for a list; returns the attributes of each message of the answer.
pub fn ask(command: u16, attributes: &[(u16, u32)]) -> io::Result<Vec<Vec<u8>>> {
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
    request.extend([(FAMILY << 10 | command).to_ne_bytes(), flags.to_ne_bytes()].concat());
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
            // Both messages have the errno of what was asked.
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
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_OR_SWAPPED: u16 = 0xc000;
    std::iter::from_fn(move || {
        let [l, m, k, n] = *rest.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l, m]));
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k, n]) & !NESTED_OR_SWAPPED, value))
    })
}

pub fn find(body: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(body).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

pub fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*value.first_chunk()?))
}

pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_list_ends_with_its_end_or_with_an_error() {
        let mut answers = Vec::new();
        let some = [message(0x1411, &[8, 0, 3, 0, 1, 0, 0, 0]), message(0x1411, &[])].concat();
        assert!(!take(&some, &mut answers).unwrap());
        assert_eq!((answers.len(), &answers[0]), (2, &vec![8, 0, 3, 0, 1, 0, 0, 0]));
        assert!(take(&message(3, &[0; 4]), &mut answers).unwrap());
        for kind in [2, 3] {
            let refused = take(&message(kind, &(-95i32).to_ne_bytes()), &mut answers).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        }
        assert!(take(&some[..20], &mut answers).is_err());
        assert!(take(&[8, 0, 0, 0, 0, 0, 0, 0], &mut answers).is_err());
    }
}
