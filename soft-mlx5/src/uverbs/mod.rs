//! The entrance of a process: the uverbs character device, its driver, sysfs, RDMA netlink, and management datagrams.

mod cm;
pub(crate) mod fd_table;
pub(crate) mod kernel;
mod mad;
mod netdev;
pub(crate) mod netlink;
pub(crate) mod process;
pub(crate) mod real_paths;
pub(crate) mod registry;
pub(crate) mod shared;
pub(crate) mod sysfs;
pub(crate) mod thread;
