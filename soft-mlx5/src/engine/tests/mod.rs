//! The device driven by a program that builds its queues itself: no libmlx5, no thread, virtual time.

mod atomics;
mod capture;
mod datagrams;
mod dc;
mod determinism;
mod errors;
mod faults;
mod flush;
mod frames;
mod intruder;
mod program;
mod queues;
mod rdma;
mod registers;
mod send;
mod silicon;
mod soak;
mod sockets;
mod starved;
mod tags;
mod timing;
mod umr;
mod unmapped;
mod unreliable;
