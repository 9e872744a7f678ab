//! Members of multicast groups: what the subnet administrator of the fabric knows of identifiers that join and leave.

use std::os::fd::RawFd;

use crate::connections::{Channel, sockaddr};
use crate::world::World;

const JOIN_IP_MCAST: u32 = 16;
const LEAVE_MCAST: u32 = 17;
const JOIN_MCAST: u32 = 22;
const MULTICAST_JOIN: u32 = 12;
const UDP: u16 = 0x111;
const UD: u8 = 4;

const GROUP: [u8; 4] = [239, 1, 2, 3];
const MGID: [u8; 16] = [0xff, 0x12, 0x40, 0x01, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3];
const FULL: u8 = 1;
const SEND_ONLY: u8 = 8;

impl Channel {
    fn member(&self, uid: u64) -> u32 {
        let id = self.create_in(UDP, UD, uid);
        self.bind(id, [10, 219, 0, 1], 0).unwrap();
        id
    }

    fn join(&self, world: &World, id: u32) -> Result<u32, i32> {
        let mut group = 0u32;
        let mut body = (&raw mut group as u64).to_ne_bytes().to_vec();
        body.extend([0; 8]);
        body.extend(sockaddr(GROUP, 0));
        body.extend(id.to_ne_bytes());
        self.write(JOIN_IP_MCAST, &body, 4)?;
        self.expect(world, MULTICAST_JOIN);
        Ok(group)
    }

    fn join_to_send(&self, world: &World, id: u32) -> u32 {
        let mut group = 0u32;
        let mut body = (&raw mut group as u64).to_ne_bytes().to_vec();
        body.extend([0; 8]);
        body.extend(id.to_ne_bytes());
        body.extend([16u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
        body.extend(&sockaddr(GROUP, 0)[..16]);
        body.resize(152, 0);
        self.write(JOIN_MCAST, &body, 4).unwrap();
        self.expect(world, MULTICAST_JOIN);
        group
    }

    fn leave(&self, group: u32) -> Result<u32, i32> {
        let mut reported = u32::MAX;
        let mut body = (&raw mut reported as u64).to_ne_bytes().to_vec();
        body.extend(group.to_ne_bytes());
        body.extend([0; 4]);
        self.write(LEAVE_MCAST, &body, 4).map(|()| reported)
    }
}

/// The file of management datagrams, with an agent that asks the subnet administrator.
struct Administrator {
    fd: RawFd,
    agent: u32,
}

impl Administrator {
    fn open() -> Self {
        const REGISTER: u64 = 0xc01c_1b01;
        const ENABLE_PKEY: u64 = 0x1b03;
        // Queue pair 1, class and version of subnet administration, segmented transfers.
        let mut request = [0u8; 28];
        (request[20], request[21], request[22], request[26]) = (1, 3, 2, 1);
        // SAFETY: a C string; `request` has the size that the call writes.
        let fd = unsafe {
            let fd = libc::open(c"/dev/infiniband/umad0".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ioctl(fd, ENABLE_PKEY, 0), 0);
            assert_eq!(libc::ioctl(fd, REGISTER, request.as_mut_ptr()), 0);
            fd
        };
        Self { fd, agent: u32::from_ne_bytes(request[..4].try_into().unwrap()) }
    }

    /// Returns queue key and join state of each member of the group.
    fn members(&self, world: &World) -> Vec<(u32, u8)> {
        const LID: u16 = 49151;
        const HEADER: usize = 64;
        const DATA: usize = HEADER + 56;
        const RECORD: usize = 56;
        let mut table = [0u8; HEADER + 256];
        table[..4].copy_from_slice(&self.agent.to_ne_bytes());
        table[8..12].copy_from_slice(&1000u32.to_ne_bytes());
        table[20..24].copy_from_slice(&1u32.to_be_bytes());
        table[24..28].copy_from_slice(&0x8001_0000u32.to_be_bytes());
        table[28..30].copy_from_slice(&LID.to_be_bytes());
        // The table of all records of members.
        table[HEADER..HEADER + 4].copy_from_slice(&[1, 3, 2, 0x12]);
        table[HEADER + 15] = 7;
        table[HEADER + 17] = 0x38;
        let mut answer = [0u8; 4096];
        // SAFETY: both buffers have the lengths that are given.
        let len = unsafe {
            assert_eq!(libc::write(self.fd, table.as_ptr().cast(), table.len()), table.len() as isize);
            world.device().settle();
            libc::read(self.fd, answer.as_mut_ptr().cast(), answer.len())
        };
        assert!(len >= DATA as isize, "{len} {}", std::io::Error::last_os_error());
        let records = answer[DATA..len as usize].chunks_exact(RECORD).filter(|record| record[..16] == MGID);
        records.map(|record| (u32::from_be_bytes(record[32..36].try_into().unwrap()), record[48] & 0xf)).collect()
    }
}

impl Drop for Administrator {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this object's.
        unsafe { libc::close(self.fd) };
    }
}

#[test]
fn a_port_is_a_member_while_an_identifier_is() {
    const QKEY: u32 = 0x0123_4567;
    let world = World::stepped();
    let administrator = Administrator::open();
    let members = || administrator.members(&world);
    for _ in 0..2 {
        let channel = Channel::open();
        let (receiver, sender) = (channel.member(1), channel.member(2));
        assert_eq!(members(), []);
        let joined = channel.join(&world, receiver).unwrap();
        assert_eq!(members(), [(QKEY, FULL)]);
        assert_eq!(channel.join(&world, receiver), Err(libc::EADDRINUSE));
        assert_eq!(members(), [(QKEY, FULL)]);
        channel.join_to_send(&world, sender);
        assert_eq!(members(), [(QKEY, FULL | SEND_ONLY)]);
        assert_eq!(channel.leave(joined), Ok(1));
        assert_eq!(channel.leave(joined), Err(libc::ENOENT));
        assert_eq!(members(), [(QKEY, SEND_ONLY)]);
        // A second use of the group by the same identifier, and an identifier that ends as a member.
        channel.join(&world, receiver).unwrap();
        channel.destroy(sender).unwrap();
        assert_eq!(members(), [(QKEY, FULL)]);
        drop(channel);
        assert_eq!(members(), [], "the file of the last member is closed");
    }
}
