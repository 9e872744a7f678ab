//! The programs of this repository, each on a software device of its own.
//!
//! Needs: examples

mod demo;
mod doctor;
mod drop_in;
mod event_server;
mod info;
mod latency;
mod market_data;
mod multicast;
mod pingpong;
mod selftest;
mod selftest_peer;
mod sender_examples;
mod tag_ranks;
mod tick_to_trade;
mod tokio_cm_client;
mod tokio_server;
