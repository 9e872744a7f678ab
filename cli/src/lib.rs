//! The parts of the program `doorbell`.
//!
//! [`decode`] is for other programs, too: it finds CQEs, WQEs and reports of errors in text, and explains them.

pub mod args;
pub mod decode;
pub mod doctor;
pub mod info;
mod output;
mod process;
pub mod run;
pub mod selftest;
mod sysfs;
