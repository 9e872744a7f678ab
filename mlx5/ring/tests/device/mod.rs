//! A model of the device: it takes WQEs and writes CQEs as the hardware would, and checks what the ring
//! does against what a device may rely on.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod buffers;
pub mod cq;
pub mod memory;
pub mod random;
pub mod subject;
pub mod world;
pub mod wq;
