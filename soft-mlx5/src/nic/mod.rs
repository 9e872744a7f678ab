//! The adapter: executes WQEs that the program wrote, moves bytes, writes CQEs.

pub mod objects;
