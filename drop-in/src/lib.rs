//! doorbell's data path for unmodified verbs programs: a second provider data path on the queues that libmlx5 made.
//!
//! The library is preloaded (`doorbell run -- COMMAND`). libmlx5 hands its functions to libibverbs with `verbs_set_ops`,
//! for each device that is opened. `install` puts its own functions in the place of those that post and poll. So it does not
//! matter how a program was linked to libibverbs. libmlx5 still creates, modifies and destroys objects; this library follows.
//!
//! A program that links the library attaches objects one by one ([`attach`]). Then the functions of a context are replaced
//! when its first object is attached, those for objects that have no record lead to libmlx5, and a group is decided at once.
//!
//! # Which path an object takes
//! Queue pairs, SRQs and CQs that are connected to each other are a *group*. Nothing of a group is touched until
//! something is posted to it: until then its CQs are empty. The first post decides for all of the group:
//!
//! - doorbell drives the group if each of its objects is covered: RC, UC and UD queue pairs, plain SRQs, CQs without
//!   compression, tag matching or wall-clock timestamps;
//! - else the whole group stays with libmlx5. So does a group of which the program has asked `mlx5dv_init_obj` for the
//!   memory, and each one that is decided after the program has allocated memory windows.
//!
//! An object that is created later and joins a group of doorbell's must be covered: otherwise its creation fails with
//! `EOPNOTSUPP`. `DOORBELL_LOG=1` shows which path each object takes, and why; `DOORBELL_PATH=libmlx5` leaves all to libmlx5.
//!
//! # Locks
//! Each queue and each CQ has a lock, as verbs promise; none with `MLX5_SINGLE_THREADED=1`, in a thread domain, or for a CQ that was
//! created for a single thread. A thread that posts holds the lock of its queue. A thread that polls holds the lock of the CQ, and that of
//! an SRQ while it completes a receive of it. It locks no queue of a queue pair: it shares the slots of the receive queue, and
//! the progress of the send queue, with the thread that posts (`Completer` in `mlx5_ring::rq` and `mlx5_ring::sq`). `SAFETY`
//! comments call `[polled]` that the thread holds the lock of the CQ on which the queue of a CQE completes, so that one thread at a
//! time completes a queue. The device is trusted to write a CQE to that CQ, as libmlx5 trusts it.
//!
//! A thread keeps the lock of the send queue from `ibv_wr_start` to the end of the batch, and may poll meanwhile. The functions of
//! `ibv_wr_*` leave no reference to the queue behind, which `SAFETY` comments call `[batch]`. `[memory]`, `[ready]`,
//! `[exclusive]` and `[register]` are those of `mlx5_ring::sq`.
//!
//! # Safety
//! Records of objects (`objects`) live from the creation of the verbs object to its destruction. Verbs forbids to use an
//! object while it is destroyed. The WQEs of a queue pair are libmlx5's and go with it, and its number may be that of a new
//! one at once. So the queue pair is taken to RESET before, and its CQEs are removed from its CQs under the locks of those: a
//! poller that holds such a lock finds the record of each CQE. `SAFETY` comments call this
//! `[record-lives]`. `[verbs]` is what every verbs function asks for: valid objects, lists that can be read, results that can
//! be written. It is the contract of a function without a section about safety: libibverbs calls it for the program.

mod arm;
pub mod attach;
mod av;
mod builder;
mod complete;
mod context;
mod control;
mod create;
mod decide;
mod domain;
mod extended;
mod find;
mod install;
mod lock;
mod log;
mod objects;
mod poll;
mod provider;
mod receive;
mod resize;
mod send;
mod table;
mod wc;
