//! Connections by IP address, through the RDMA connection manager of the system (`rdma_cm(7)`). Needs the feature
//! `rdmacm`.
//!
//! One side listens, the other resolves its address, and the system finds the device, the port and the route. A
//! [`Receiver`](crate::Receiver) on that device creates the queue pair; the connection manager only exchanges
//! addresses.
//!
//! librdmacm is loaded at the first use. Without it, or without the kernel module `rdma_ucm`, calls return an error
//! that names the missing part. [`QueuePair::connect_over`](crate::QueuePair::connect_over) needs neither.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use doorbell::rdmacm::{Listener, Route};
//! use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig};
//!
//! const PATIENCE: Duration = Duration::from_secs(5);
//!
//! fn server() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut listener = Listener::bind("0.0.0.0:18515".parse()?)?;
//!     let request = listener.accept(None)?.ok_or("no time-out was given")?;
//!     let pd = doorbell::open(request.device_name())?.alloc_pd()?;
//!     let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
//!     let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(128)).build()?;
//!     let connection = request.accept(&mut qp, b"welcome", PATIENCE)?;
//!     // Receive and send here.
//!     connection.disconnect(&qp)?;
//!     Ok(())
//! }
//!
//! fn client() -> Result<(), Box<dyn std::error::Error>> {
//!     let route = Route::resolve("192.0.2.1:18515".parse()?, PATIENCE)?;
//!     let pd = doorbell::open(route.device_name())?.alloc_pd()?;
//!     let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
//!     let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(128)).build()?;
//!     let connection = route.connect(&mut qp, b"hello", PATIENCE)?;
//!     assert!(connection.private_data().starts_with(b"welcome"));
//!     Ok(())
//! }
//! ```
//!
//! A `timeout` limits how long a call waits for the peer; calls wait for nothing else.

mod connection;
mod event;
mod id;
mod listener;
mod route;

pub use connection::Connection;
pub use listener::{ConnectRequest, Listener};
pub use route::Route;
