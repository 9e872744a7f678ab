//! A device of a test, with the stock libibverbs and libmlx5 in the same process.

mod channels;
mod clocks;
mod commands;
mod connections;
mod datagrams;
mod descriptors;
mod faults;
mod frames;
mod gids;
mod lifecycle;
mod limits;
mod objects;
#[path = "../common/qp_states.rs"]
mod qp_states;
mod refusals;
mod registers;
mod states;
mod tags;
mod traffic;
mod unmapped;
mod world;
