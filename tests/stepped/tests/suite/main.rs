//! Tests of doorbell on a device that works only when the test steps it, in the same process.

mod clocks;
mod completions;
mod compression;
mod destroy;
mod events;
mod frames;
mod frames_conformance;
mod frames_endings;
mod frames_malformed;
mod frames_sockets;
mod frames_waiting;
mod invalidate;
mod memlock;
mod one_at_a_time;
mod opaque;
mod options;
mod queue_ends;
mod random_senders;
mod registers;
mod removal;
mod tags;
mod torn_reads;
mod unsignaled;
mod vectors;
mod verify;
mod wakeups;
