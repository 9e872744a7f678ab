//! A software mlx5 device: the other side of the queues.
//!
//! The modules are rooms, one above the other; none uses what stands above it. `base` has time, memory access, faults
//! and counters, `fabric` is the wire between devices, [`objects`] has the queues, keys and tables of an adapter,
//! [`engine`] is the adapter that drives them, and [`commands`] is its firmware. There are two entrances: `uverbs`
//! plays the uverbs character device and the mlx5 driver for a process, [`pci`] is a PCI function for a virtual
//! machine.
//! `interpose` leads the calls of a process to `uverbs`. The stock libibverbs and libmlx5 of the system open the result
//! like a ConnectX-5 and drive it with their own code.
//!
//! A test makes a [`Device`]; the program `soft-mlx5` ([`runner`]) gives one to each
//! process of any command.
//!
//! ```
//! use std::ptr;
//! use rdma_core_sys::*;
//! use soft_mlx5::faults::{ByKind, Which};
//! use soft_mlx5::{Device, Faults};
//!
//! # fn main() -> std::io::Result<()> {
//! // A stepped device has no thread and no clock: it works when stepped.
//! let device = Device::builder().name("mlx5_test").stepped().strict(true).build()?;
//!
//! // From here on this is a verbs program, which calls the libibverbs and libmlx5 of the system. Crates
//! // for verbs have safe forms of these calls.
//! let mut memory = [0u8; 128];
//! unsafe {
//!     let mut count = 0;
//!     let list = ibv_get_device_list(&mut count);
//!     let names = (0..count as usize).map(|i| ibv_get_device_name(*list.add(i)));
//!     let names = names.map(|name| std::ffi::CStr::from_ptr(name).to_str().unwrap());
//!     let index = names.into_iter().position(|name| name == device.name()).unwrap();
//!     let context = ibv_open_device(*list.add(index));
//!     let pd = ibv_alloc_pd(context);
//!     let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
//!     let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), 128, IBV_ACCESS_LOCAL_WRITE);
//!
//!     let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..Default::default() };
//!     init.qp_type = IBV_QPT_UD;
//!     (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
//!     (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
//!     let qp = ibv_create_qp(pd, &mut init);
//!     let mut attr = ibv_qp_attr { port_num: 1, qkey: 7, ..Default::default() };
//!     for (state, mask) in [
//!         (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
//!         (IBV_QPS_RTR, 0),
//!         (IBV_QPS_RTS, IBV_QP_SQ_PSN),
//!     ] {
//!         attr.qp_state = state;
//!         assert_eq!(ibv_modify_qp(qp, &mut attr, (IBV_QP_STATE | mask) as i32), 0);
//!     }
//!
//!     // A datagram arrives after the 40 bytes of its GRH. This one comes too early: there is no receive.
//!     let mut port = ibv_port_attr::default();
//!     ibv_query_port(context, 1, &mut port);
//!     let mut to = ibv_ah_attr { dlid: port.lid, port_num: 1, ..Default::default() };
//!     let ah = ibv_create_ah(pd, &mut to);
//!     let lkey = (*mr).lkey;
//!     let mut sge = ibv_sge { addr: (*mr).addr as u64 + 64, length: 8, lkey };
//!     let mut send = ibv_send_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
//!     (send.opcode, send.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
//!     (send.wr.ud.ah, send.wr.ud.remote_qpn, send.wr.ud.remote_qkey) = (ah, (*qp).qp_num, 7);
//!     assert_eq!(ibv_post_send(qp, &mut send, &mut ptr::null_mut()), 0);
//!     assert!(device.step(), "the device found the WQE");
//!     device.settle();
//!     let mut wc = ibv_wc::default();
//!     assert_eq!((ibv_poll_cq(cq, 1, &mut wc), wc.opcode), (1, IBV_WC_SEND));
//!     assert_eq!(ibv_poll_cq(cq, 1, &mut wc), 0, "no receive was posted");
//!
//!     // Faults that a real adapter has once a year happen here on request.
//!     let fail_destroy = ByKind { mr: Which::Nth(1), ..Default::default() };
//!     device.set_faults(Faults { fail_destroy, ..Default::default() });
//!     assert_ne!(ibv_dereg_mr(mr), 0, "the memory is still the device's");
//!     assert_eq!(ibv_dereg_mr(mr), 0);
//!
//!     ibv_destroy_ah(ah);
//!     ibv_destroy_qp(qp);
//!     ibv_destroy_cq(cq);
//!     ibv_dealloc_pd(pd);
//!     ibv_close_device(context);
//!     ibv_free_device_list(list);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! soft-mlx5 is a correctness model: its speed says nothing about an adapter.

mod base;
pub mod commands;
mod device;
pub mod engine;
mod fabric;
mod interpose;
pub mod objects;
pub mod pci;
pub mod runner;
mod uverbs;

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use base::faults::Faults;
pub use base::{counters, faults};
pub use device::{Builder, Device};
pub use engine::Timing;
pub use fabric::{Fabric, LinkLayer, Switch};
