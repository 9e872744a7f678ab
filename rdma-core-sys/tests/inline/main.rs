//! The inline verbs against the header that defines them.
//!
//! `header.c`, compiled here, makes the verbs of the installed headers callable. Each is called
//! side by side with its Rust twin on the same made-up context, and both must reach the same
//! entries with the same arguments, return the same, and leave the same errno and memory.

mod extended;
mod header;
mod library;
mod plain;
mod recorder;
mod special;
mod world;
