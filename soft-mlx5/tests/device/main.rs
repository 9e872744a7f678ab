//! A device of a test, with the stock libibverbs and libmlx5 in the same process.

mod buffers;
mod channels;
mod clocks;
mod commands;
mod connections;
mod counters;
mod datagrams;
mod descriptors;
mod devx;
#[path = "../common/dma_buf.rs"]
mod dma_buf;
mod faults;
mod frames;
mod gids;
mod lifecycle;
mod limits;
mod memberships;
mod objects;
mod paths;
#[path = "../common/qp_states.rs"]
mod qp_states;
mod rdma;
mod refusals;
mod refused_calls;
mod registers;
mod states;
mod tags;
mod traps;
mod unmapped;
mod windows;
mod world;
