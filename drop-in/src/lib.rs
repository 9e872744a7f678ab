//! doorbell's data path for unmodified verbs programs: a second provider data path on the queues that libmlx5 made.
//!
//! The library is preloaded (`doorbell run -- COMMAND`), or linked before libibverbs by a program that attaches objects
//! one by one ([`attach`]). It stands in front of the functions of libibverbs that create, modify and destroy objects
//! ([`exports`]), and puts its own functions in the tables that libibverbs publishes in each context, extended CQ and
//! queue pair with `ibv_wr_*`. libmlx5 still creates, modifies and destroys the objects, and `mlx5dv_init_obj` says
//! where their memory is.
//!
//! # Which path an object takes
//! A CQ or an SRQ is undecided until its first queue pair is created, or the first receive is posted to the SRQ. The
//! creation of a queue pair decides for it, its CQs and its SRQ (`decide`):
//!
//! - doorbell drives them if all are covered: RC, UC and UD queue pairs, plain SRQs, CQs without compression, tag
//!   matching or wall-clock timestamps;
//! - else all of them stay with libmlx5, and have no ring. If doorbell drives one of them already, the creation fails
//!   with `EOPNOTSUPP`.
//!
//! `DOORBELL_LOG=1` shows which path each object takes, and why; `DOORBELL_PATH=libmlx5` leaves all to libmlx5.
//!
//! # Locks
//! Each ring has a lock, as in libmlx5. A thread that polls holds the lock of the CQ, and takes that of the receive
//! queue of each CQE: `SAFETY` comments call `[polled]` that it holds the former. It takes no lock of a send queue: who
//! posts and who takes CQEs have a side each (`mlx5_ring::sq::Progress`). A thread that posts holds the lock of its
//! queue, and never takes that of a CQ. `ibv_wr_start` locks the send queue until the batch ends; the thread of the
//! batch may poll meanwhile, so no thread waits for the lock of a send queue while it holds that of a CQ, but to post.
//! The device is trusted to write a CQE to the CQ of its queue, as libmlx5 trusts it.
//!
//! # Safety
//! Records of objects (`objects`) live from the creation of the verbs object to its destruction. Verbs forbids to use
//! an object while it is destroyed. The WQEs of a queue pair are libmlx5's and go with it, and its number may be that
//! of a new one at once. So the queue pair is taken to RESET before, and its CQEs are removed from its CQs under the
//! locks of those: a poller that holds such a lock finds the record of each CQE. `SAFETY` comments call this
//! `[record-lives]`. `[verbs]` is what every verbs function asks for: valid objects, lists that can be read, results
//! that can be written. It is the contract of a function without a section about safety: libibverbs calls it for the
//! program. `[memory]`, `[ready]`, `[exclusive]` and `[register]` are those of `mlx5_ring::sq`.
//!
//! # Layers
//! Each module uses those before it: `log`, `lock`, `places`, `table`, `provider`, `sge`, `changes`; `objects`,
//! `context`; `rings`, `complete`, `wc`; `extended`, `poll`, `send`, `builder`; `decide`, `receive`; `create`,
//! `control`; `install`; `exports`, `attach`.

pub mod attach;
mod builder;
mod changes;
mod complete;
mod context;
mod control;
mod create;
mod decide;
pub mod exports;
mod extended;
mod install;
mod lock;
mod log;
mod objects;
mod places;
mod poll;
mod provider;
mod receive;
mod rings;
mod send;
mod sge;
mod table;
mod wc;
