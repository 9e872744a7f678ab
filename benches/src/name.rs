//! The names of the subjects.

use crate::world::Locks;

/// A subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The rings of doorbell.
    Ring,
    /// Batches of doorbell's receiver, which lend messages.
    Lending,
    /// Batches of doorbell's receiver, with each buffer moved out and posted again.
    Owned,
    /// Batches of doorbell's receiver, with each buffer moved out and another one put in its place.
    Replaced,
    /// Threads that give buffers back through a `SharedPoster`.
    Shared(Givers),
    /// Threads that give buffers back with a mutex around the receiver.
    Mutex(Givers),
    /// Stock libmlx5 through `ibv_poll_cq` and `ibv_post_recv` or `ibv_post_srq_recv`.
    Libmlx5(Locks),
    /// Stock libmlx5 through `ibv_start_poll` and `ibv_next_poll`, and `ibv_post_recv` or `ibv_post_srq_recv`.
    Libmlx5NextPoll(Locks),
    /// Stock libmlx5 through `ibv_post_srq_ops`, and `ibv_start_poll` and `ibv_next_poll`.
    Libmlx5SrqOps(Locks),
    /// Doorbell's sender. [`Ring`](Self::Ring) is its rings, where something is sent.
    Sender,
    /// Stock libmlx5 through `ibv_post_send` and `ibv_poll_cq`.
    PostSend(Locks),
    /// Stock libmlx5 through `ibv_wr_start` and the like, and `ibv_poll_cq`.
    WrBuilders(Locks),
    /// Doorbell's receiver of frames.
    Frames,
    /// The functions of libibverbs in a process that has preloaded the drop-in.
    DropIn(Calls),
}

/// The functions of libibverbs that a subject calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// As [`Name::Libmlx5`].
    PollCq,
    /// As [`Name::Libmlx5NextPoll`].
    NextPoll,
    /// As [`Name::PostSend`].
    PostSend,
    /// As [`Name::WrBuilders`].
    WrBuilders,
}

/// The side that gives buffers back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Givers {
    /// The thread of the receiver.
    Own,
    /// Another thread, while that of the receiver polls.
    Other,
    /// Both threads, half of the buffers each.
    Both,
}

impl Name {
    /// Returns `true` for a subject of doorbell.
    pub const fn is_doorbell(self) -> bool {
        !matches!(
            self,
            Self::Libmlx5(_)
                | Self::Libmlx5NextPoll(_)
                | Self::Libmlx5SrqOps(_)
                | Self::PostSend(_)
                | Self::WrBuilders(_)
        )
    }

    /// Locks of its objects.
    pub const fn locks(self) -> Locks {
        match self {
            Self::Libmlx5(locks)
            | Self::Libmlx5NextPoll(locks)
            | Self::Libmlx5SrqOps(locks)
            | Self::PostSend(locks)
            | Self::WrBuilders(locks) => locks,
            Self::Ring
            | Self::Lending
            | Self::Owned
            | Self::Replaced
            | Self::Shared(_)
            | Self::Mutex(_)
            | Self::Sender
            | Self::Frames
            | Self::DropIn(_) => Locks::Default,
        }
    }
}
