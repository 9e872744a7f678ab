//! Errors, each with what to do about it.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use rdma_core_sys::LoadError;

use crate::debug_is_display::debug_is_display;
use crate::path::NotDirect;
use crate::post_failure::PostFailure;
use crate::qp_state::QpState;

/// The result of an operation on the control path.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation on the control path failed. It changed nothing, unless the method says otherwise.
///
/// `{:?}` of each error type of the library prints the same text as `{}`, so `unwrap` and a `main` that returns the
/// error show it.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Error, Receiver};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// match Receiver::new(&pd, &CqConfig::new(1 << 30)) {
///     Err(Error::OutOfRange { what, max, .. }) => println!("{what}: at most {max}"),
///     Err(error) => println!("{error}"),
///     Ok(_) => println!("a large device"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system has no RDMA device.
    #[error(
        "no RDMA device found: load the driver of the adapter, or start the program with `soft-mlx5 run --`; `ibv_devices` lists the devices of libibverbs"
    )]
    NoDevice,

    /// The kernel has devices that libibverbs has no provider for.
    #[error(
        "libibverbs has no provider for {devices}: install ibverbs-providers (rdma-core), and check that /etc/libibverbs.d names the driver"
    )]
    NoProvider {
        /// The devices that the kernel shows, separated by commas.
        devices: String,
    },

    /// The port has no GID at the index of the queue pair.
    #[error(
        "GID {index} of port {port} of {device} is empty: choose one that Context::gids lists; on Ethernet the network interface may lack an IP address"
    )]
    NoGid {
        /// Name of the device.
        device: String,
        /// Number of the port, from 1.
        port: u8,
        /// Index in the GID table.
        index: u8,
    },

    /// The port is not up, so that nothing could be reached.
    #[error("port {port} of {device} is {state}: check the cable, the peer and, on InfiniBand, the subnet manager")]
    PortDown {
        /// Name of the device.
        device: String,
        /// Number of the port, from 1.
        port: u8,
        /// State of the port.
        state: &'static str,
    },

    /// No device has this name.
    #[error("no RDMA device named {name:?}: this host has {present}")]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        present: String,
    },

    /// A call into libibverbs or libmlx5 failed.
    #[error("{operation} on {device}: {source}{}", hint(.operation, .source))]
    Verbs {
        /// The C function, as in its man page.
        operation: &'static str,
        /// Name of the device.
        device: String,
        /// `errno`.
        source: io::Error,
    },

    /// The program asked for [`DataPath::Direct`](crate::DataPath::Direct), which is not possible.
    #[error("the direct path is not possible on {device}: {reason}; use DataPath::Auto or DataPath::Verbs")]
    NotDirect {
        /// Name of the device.
        device: String,
        /// Why.
        reason: NotDirect,
    },

    /// A value is outside its limits.
    #[error("{what} is {value}: it must be from {min} to {max}")]
    OutOfRange {
        /// Name of the value: the setting, or what it counts.
        what: &'static str,
        /// The value that was asked for.
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },

    /// A value is not one of the powers of two within its limits.
    #[error("{what} is {value}: it must be a power of two from {min} to {max}")]
    NotPowerOfTwo {
        /// Name of the value: the setting, or what it counts.
        what: &'static str,
        /// The value that was asked for.
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },

    /// The queues of a receiver, or of a sender, can complete more requests than its CQ holds.
    #[error(
        "the CQ has {capacity} entries, and its queues, whose sizes are rounded up, need {needed}{}: set a larger {setting}", of_the_new(*.new)
    )]
    CqTooSmall {
        /// The setting that determines the size of the CQ.
        setting: &'static str,
        /// Receives, or sends, that could be outstanding with the new queue.
        needed: u64,
        /// Entries of the CQ.
        capacity: u64,
        /// How many of `needed` are for the new queue. 0 if there is none.
        new: u64,
    },

    /// The CQ of the receiver has failed (`IBV_EVENT_CQ_ERR`): it overran, or the device could not write to it.
    #[error(
        "the CQ failed (IBV_EVENT_CQ_ERR) and reports no new completions: poll the messages that have arrived, then drop the receiver and create another"
    )]
    CqFailed,

    /// Receives were not posted, see [`Receiver::fill`](crate::Receiver::fill).
    #[error("receives were not posted: {reason}; {posted} were posted before")]
    NotPosted {
        /// Receives that were posted before.
        posted: usize,
        /// The reason.
        reason: PostFailure,
    },

    /// Buffers without room for the [header](crate::GRH_SIZE) that the device writes in front of each datagram.
    #[error(
        "a buffer of {capacity} bytes is too small for datagrams: the device writes a GRH of 40 bytes (GRH_SIZE) before the payload, and drops a datagram that does not fit; post buffers with room for both"
    )]
    NoRoomForHeader {
        /// Bytes of the smallest buffer.
        capacity: u32,
    },

    /// An object belongs to another protection domain, device, receiver or queue.
    #[error("{what} belongs to another {domain}: use objects of the same {domain}")]
    Foreign {
        /// The object that does not fit.
        what: &'static str,
        /// The kind of object that the two must share.
        domain: &'static str,
    },

    /// The object still has users, and cannot be destroyed or opened again.
    #[error("the {what} is in use by {users}: {action}")]
    InUse {
        /// The object.
        what: &'static str,
        /// Users of the object.
        users: &'static str,
        /// The action to take first.
        action: &'static str,
    },

    /// The object was destroyed.
    #[error("the {what} does not exist: it was destroyed or removed, or its receiver or sender was dropped")]
    Gone {
        /// The kind of object.
        what: &'static str,
    },

    /// This object or this path does not have the operation.
    #[error("{operation} is not supported {when}")]
    Unsupported {
        /// The method.
        operation: &'static str,
        /// Under which circumstances, and what to do instead.
        when: &'static str,
    },

    /// The queue pair is in a state in which the operation is not possible.
    #[error(
        "{operation} on QP {qp_num:#x}: the state is {state}, and must be {needed}; create a queue pair, or reset this one with Receiver::reset_qp (with tag matching: remove the peer, and add it again)"
    )]
    WrongState {
        /// The method.
        operation: &'static str,
        /// Number of the queue pair.
        qp_num: u32,
        /// Its state.
        state: QpState,
        /// The state that the method starts from.
        needed: QpState,
    },

    /// The address is not one of a multicast group.
    #[error(
        "{operation}: {} is not a multicast address: IP groups are in 224.0.0.0/4 and ff00::/8, and GIDs of InfiniBand groups begin with ff", group(.gid)
    )]
    NotMulticast {
        /// The method.
        operation: &'static str,
        /// The address, as a GID.
        gid: [u8; 16],
    },

    /// The queue pair is already a member of the multicast group.
    #[error("join: QP {qp_num:#x} is already a member of {}", group(.gid))]
    AlreadyMember {
        /// Number of the queue pair.
        qp_num: u32,
        /// The group.
        gid: [u8; 16],
    },

    /// The queue pair is not a member of the multicast group.
    #[error(
        "leave: QP {qp_num:#x} is not a member of {}", group(.gid)
    )]
    NotMember {
        /// Number of the queue pair.
        qp_num: u32,
        /// The group.
        gid: [u8; 16],
    },

    /// The read time-out of the stream expired, or the stream does not block, before the peer had sent its address.
    #[error(
        "exchange of addresses: {received} of {expected} bytes arrived before the read time-out of the stream: check that the peer calls connect_over, and that the stream blocks and has a longer time-out"
    )]
    SilentPeer {
        /// Bytes of the answer that came.
        received: usize,
        /// Bytes of the answer.
        expected: usize,
    },

    /// The peer sent something that is not an address, or an address that this port cannot reach.
    #[error("no connection to the peer: {0}")]
    Handshake(String),

    /// A library that doorbell loads at run time is missing.
    #[error(transparent)]
    Library(#[from] LoadError),

    /// The peer refused the connection, or no program listens there.
    #[error("{peer} rejected the connection (reason {reason}{})", refusal(.reason))]
    Rejected {
        /// The peer that was asked.
        peer: String,
        /// Reason, as in the REJ message of the InfiniBand specification, 12.6.7.2.
        reason: i32,
        /// Data of the program that refused, padded with zeros to 148 bytes.
        private_data: Vec<u8>,
    },

    /// Raw packets need a capability that the program does not have.
    #[error(
        "{operation} on {device}: raw packets need the capability CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep PROGRAM`"
    )]
    NeedsNetRaw {
        /// The C function that was refused.
        operation: &'static str,
        /// Name of the device.
        device: String,
    },

    /// An event or an answer did not arrive in time.
    #[error("{operation}: {subject} did not answer in time")]
    TimedOut {
        /// The C function that waited.
        operation: &'static str,
        /// The peer or event that it waited for.
        subject: String,
    },

    /// A stream or a descriptor failed, not the device.
    #[error("the stream to the peer: {0}")]
    Io(#[from] io::Error),
}

debug_is_display!(Error);

fn of_the_new(queue: u64) -> String {
    match queue {
        0 => String::new(),
        entries => format!(", {entries} of them the new queue, and as many each further queue of its size"),
    }
}

impl Error {
    /// The error of a C function that sets `errno`.
    pub(crate) fn last_os(operation: &'static str, device: &str) -> Self {
        Self::verbs(operation, device, io::Error::last_os_error())
    }

    /// The error of a C function that returns `errno`.
    pub(crate) fn returned(operation: &'static str, device: &str, errno: i32) -> Self {
        // Some providers return -1 and set errno where the man page promises the number.
        if errno < 0 {
            return Self::last_os(operation, device);
        }
        Self::verbs(operation, device, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn verbs(operation: &'static str, device: &str, source: io::Error) -> Self {
        Self::Verbs { operation, device: device.to_owned(), source }
    }

    /// The error of a C function that sets `errno`, and that asks for CAP_NET_RAW.
    pub(crate) fn raw_packet(operation: &'static str, device: &str) -> Self {
        let error = Self::last_os(operation, device);
        if error.is_os(libc::EPERM) {
            return Self::NeedsNetRaw { operation, device: device.to_owned() };
        }
        error
    }

    /// Returns `true` if a call failed with this `errno`.
    pub(crate) fn is_os(&self, errno: i32) -> bool {
        matches!(self, Self::Verbs { source, .. } if source.raw_os_error() == Some(errno))
    }

    /// `Ok` when `value` is in the range, else what is wrong with it.
    pub(crate) fn check_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<()> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, min, max })
    }

    /// `Ok` when `value` is a power of two in the range, else what is wrong with it.
    pub(crate) fn check_power_of_two(what: &'static str, value: u32, min: u64, max: u64) -> Result<()> {
        let (is_power_of_two, value) = (value.is_power_of_two(), value.into());
        if is_power_of_two && (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::NotPowerOfTwo { what, value, min, max })
    }
}

/// A GID as an IP address: IPv4 where it is one.
fn group(gid: &[u8; 16]) -> IpAddr {
    let address = Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The refusals that programs meet, in words.
fn refusal(reason: &i32) -> &'static str {
    match reason {
        4 => ": it no longer waits for an answer",
        8 => ": no program listens on that port",
        10 => ": it still holds an earlier connection of this queue pair: call disconnect and wait_disconnected before",
        28 => ": its program refused",
        _ => "",
    }
}

/// Returns the usual remedy.
fn hint(operation: &str, source: &io::Error) -> String {
    match (operation, source.raw_os_error()) {
        (
            "ibv_reg_mr" | "ibv_reg_dmabuf_mr" | "ibv_create_cq" | "ibv_create_cq_ex" | "mlx5dv_create_cq"
            | "ibv_create_srq" | "ibv_create_srq_ex" | "ibv_create_qp" | "mlx5dv_create_qp",
            Some(libc::ENOMEM),
        ) => memlock_hint(),
        _ => usual_hint(operation, source).to_owned(),
    }
}

/// Registered memory and queues are locked memory.
fn memlock_hint() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a writable structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    match limit.rlim_cur {
        _ if !known => ": ask for less memory, or raise RLIMIT_MEMLOCK (`ulimit -l`)".to_owned(),
        libc::RLIM_INFINITY => {
            ": RLIMIT_MEMLOCK is unlimited, so memory, mappings (vm.max_map_count) or objects of the device are short: \
             doorbell doctor looks at each"
                .to_owned()
        }
        bytes => format!(
            ": RLIMIT_MEMLOCK allows {} KiB of registered memory and queues: raise it (`ulimit -l`, or memlock in \
             /etc/security/limits.conf), or ask for less",
            bytes >> 10
        ),
    }
}

fn usual_hint(operation: &str, source: &io::Error) -> &'static str {
    match (operation, source.raw_os_error()) {
        ("ibv_open_device", Some(libc::EACCES | libc::EPERM)) => {
            ": this user needs read and write permission on /dev/infiniband/uverbs*"
        }
        ("ibv_open_device", Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => {
            ": the device node in /dev/infiniband is missing: load the kernel module ib_uverbs, or pass the node into the container"
        }
        ("ibv_create_qp" | "mlx5dv_create_qp", Some(libc::EINVAL)) => {
            ": the device has no queue pair of this size: ask for fewer sends, receives or buffers per receive, or less inline data"
        }
        ("ibv_reg_dmabuf_mr", Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)) => {
            ": the adapter or the kernel (5.12 is the first) takes no dma-bufs: load the peer-memory module of the GPU, and use OpaqueMemory::unreadable"
        }
        ("ibv_reg_dmabuf_mr", Some(libc::EINVAL)) => {
            ": the descriptor is no dma-buf, or the dma-buf ends before the range: count the offset from the start of what the exporter exported"
        }
        ("ibv_reg_mr", Some(libc::EFAULT)) => {
            ": there is no memory at that address, or the processor may not reach it: for memory of a GPU load its peer-memory module, or use OpaqueMemory::dma_buf"
        }
        ("ibv_alloc_dm", Some(libc::EOPNOTSUPP)) => ": the adapter has no memory for programs (max_dm_size is 0)",
        ("ibv_alloc_dm", Some(libc::EINVAL | libc::ENOMEM)) => {
            ": the adapter has less free memory (max_dm_size of ibv_devinfo -v): ask for less"
        }
        ("ibv_create_srq_ex", Some(libc::EAGAIN | libc::EINVAL | libc::EOPNOTSUPP)) => {
            ": the device does not match tags on this port (RoCE): use Offload::Auto or Offload::Never"
        }
        ("ibv_create_flow", Some(libc::EEXIST)) => {
            ": another rule has the same match: give both the same tag, drop the other, or change Flow::priority of a MAC rule"
        }
        ("ibv_attach_mcast", Some(libc::EINVAL)) => {
            ": the device refused the group; on InfiniBand MulticastGroup::lid must be the multicast LID that the subnet manager assigned"
        }
        ("ibv_attach_mcast", Some(libc::ENOMEM)) => {
            ": the device has no room for another member (max_mcast_grp and max_mcast_qp_attach of Context::attr)"
        }
        ("setsockopt(IP_ADD_MEMBERSHIP)", Some(libc::ENODEV)) => {
            ": no network interface has the address of Flow::join_on: pass an address that `ip -4 addr` lists"
        }
        ("mmap", Some(libc::ENOMEM)) => {
            ": the system does not have that much memory: use less, for example fewer or smaller buffers"
        }
        ("mmap(MAP_HUGETLB)", _) => {
            ": too few huge pages are reserved: raise vm.nr_hugepages with sysctl, or use HugePages::Transparent"
        }
        (_, Some(libc::EIO)) => ": the device failed or was removed",
        ("ibv_modify_qp", Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT)) => {
            ": the address of the peer does not resolve: check that both ports are up and in one network"
        }
        ("rdma_create_event_channel", Some(libc::EACCES | libc::EPERM)) => {
            ": this user needs read and write permission on /dev/infiniband/rdma_cm"
        }
        ("rdma_create_event_channel", _) => ": the RDMA connection manager is missing: load the kernel module rdma_ucm",
        ("rdma_init_qp_attr" | "rdma_accept", Some(libc::EINVAL)) => ": the peer closed the connection",
        ("rdma_resolve_addr" | "rdma_bind_addr", Some(libc::ENODEV | libc::EADDRNOTAVAIL)) => {
            ": no RDMA device has or reaches that address; `rdma link` lists devices and interfaces"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(operation: &'static str, errno: i32) -> String {
        Error::returned(operation, "mlx5_0", errno).to_string()
    }

    /// A program whose `main` returns an error prints the message.
    #[test]
    fn debugging_output_is_the_message() {
        let setting = "capacity in CqConfig::new";
        let error = Error::CqTooSmall { setting, needed: 4, capacity: 1, new: 2 };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:?}").contains("set a larger capacity"));
    }

    #[test]
    fn errors_say_what_to_do() {
        assert!(words("ibv_open_device", libc::EACCES).contains("/dev/infiniband/uverbs"));
        assert!(words("ibv_open_device", libc::ENOENT).contains("ib_uverbs"));
        assert!(words("ibv_create_qp", libc::EINVAL).contains("inline"));
        assert!(words("ibv_reg_mr", libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(words("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP).contains("OpaqueMemory::unreadable"));
        assert!(words("ibv_reg_dmabuf_mr", libc::EINVAL).contains("offset"));
        assert!(words("ibv_reg_mr", libc::EFAULT).contains("peer-memory module"));
        assert!(words("ibv_alloc_dm", libc::EOPNOTSUPP).contains("max_dm_size is 0"));
        assert!(words("ibv_alloc_dm", libc::ENOMEM).contains("ask for less"));
        assert!(words("ibv_create_srq", libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(words("mmap(MAP_HUGETLB)", libc::ENOMEM).contains("nr_hugepages"));
        assert!(words("mmap", libc::ENOMEM).contains("fewer or smaller buffers"));
        assert!(words("ibv_attach_mcast", libc::EINVAL).contains("MulticastGroup::lid"));
        assert!(words("ibv_attach_mcast", libc::ENOMEM).contains("max_mcast_qp_attach"));
        assert!(words("ibv_modify_qp", libc::EIO).contains("removed"));
        assert!(words("ibv_modify_qp", libc::ENETUNREACH).contains("both ports are up"));
        let cm = "rdma_create_event_channel";
        assert!(words(cm, libc::EACCES).contains("permission on /dev/infiniband/rdma_cm"));
        assert!(words(cm, libc::ENOENT).contains("rdma_ucm"));
        assert!(words("rdma_bind_addr", libc::EADDRNOTAVAIL).contains("`rdma link`"));
        let plain = words("ibv_query_port", libc::EINVAL);
        assert!(plain.starts_with("ibv_query_port on mlx5_0: ") && plain.ends_with("(os error 22)"));
    }
}
