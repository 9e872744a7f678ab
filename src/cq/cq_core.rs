//! A CQ and who polls it: what every receiver, sender and tag engine has in common.

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::{self as sys, Mlx5dv};

use super::channel::CompletionChannel;
use super::config::{CqConfig, Timestamps};
use super::object::{Cq, to_ask_for};
use super::poller::Poller;
use crate::clock::Clock;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::path::DataPath;
use crate::trace::trace_event;

/// A CQ, its poller, and its channel.
pub(crate) struct CqCore {
    pub(crate) poller: Poller,
    pub(crate) object: Arc<Cq>,
}

impl CqCore {
    /// Creates a CQ with a channel of its own, and chooses its path.
    pub(crate) fn create(context: &Context, config: &CqConfig) -> Result<Self> {
        let channel = Arc::new(CompletionChannel::create(context)?);
        Self::create_on(context, config, channel)
    }

    /// Creates a CQ whose channel other CQs may have, too.
    pub(crate) fn create_on(context: &Context, config: &CqConfig, channel: Arc<CompletionChannel>) -> Result<Self> {
        let mlx5dv = context.choose(config.path)?;
        let cq = Cq::create(context, config, mlx5dv, channel)?;
        Self::made(cq, mlx5dv)
    }

    /// Creates a CQ for tag matching by the device, with a channel of its own.
    pub(crate) fn create_for_tags(context: &Context, config: &CqConfig) -> Result<Self> {
        let mlx5dv = context.choose(config.path)?;
        let channel = Arc::new(CompletionChannel::create(context)?);
        let cq = Cq::create_for_tags(context, config, mlx5dv, channel)?;
        Self::made(cq, mlx5dv)
    }

    fn made(cq: Cq, mlx5dv: Option<&'static Mlx5dv>) -> Result<Self> {
        trace_event!(device = cq.context().name(), entries = cq.capacity(), "completion queue created");
        // SAFETY: a fresh CQ that no other code knows.
        unsafe { Self::of(cq, mlx5dv) }
    }

    /// A CQ that the caller made and will destroy. The capacity and the completion vector of `config` are not used.
    ///
    /// # Safety
    /// `cq` belongs to `context`, was created with what `config` says, and lives for as long as the value, and so does
    /// its channel. Nothing was polled from it, and no other code polls, arms or resizes it.
    pub(crate) unsafe fn from_raw(context: &Context, cq: *mut sys::ibv_cq, config: &CqConfig) -> Result<Self> {
        let mlx5dv = context.choose(config.path)?;
        // SAFETY: the caller's `cq` lives for as long as the value, and no other code polls or arms it.
        unsafe { Self::of(Cq::from_raw(context, cq, config, mlx5dv)?, mlx5dv) }
    }

    /// # Safety
    /// Nothing was polled from the CQ, and no other code polls, arms or resizes it.
    unsafe fn of(cq: Cq, mlx5dv: Option<&'static Mlx5dv>) -> Result<Self> {
        let object = Arc::new(cq);
        // SAFETY: nothing was polled from the caller's CQ, and no other code polls, arms or resizes it.
        Ok(Self { poller: unsafe { Poller::new(&object, mlx5dv) }?, object })
    }

    pub(crate) const fn path(&self) -> DataPath {
        match self.poller {
            Poller::Direct(_) => DataPath::Direct,
            Poller::Verbs(_) => DataPath::Verbs,
        }
    }

    /// libmlx5's functions, on the direct path.
    pub(crate) const fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        match &self.poller {
            Poller::Direct(direct) => Some(direct.mlx5dv),
            Poller::Verbs(_) => None,
        }
    }

    /// Returns a clock for the timestamps of the completions.
    pub(crate) fn clock(&self) -> Result<Clock> {
        match self.object.timestamps() {
            Timestamps::RealTime => Ok(Clock::REAL_TIME),
            Timestamps::Off | Timestamps::Ticks => self.object.context().clock(),
        }
    }

    pub(crate) fn channel(&self) -> Option<&CompletionChannel> {
        self.object.channel().map(|channel| &**channel)
    }

    /// Takes the events of this CQ from its channel, and asks for one at the next completion, or the next solicited
    /// one.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<()> {
        let (mut events, own) = (0, self.object.as_raw());
        let channel = self.channel().ok_or(NO_CHANNEL)?;
        channel.take_events(|cq| events += u32::from(cq == own))?;
        self.arm_after(events, solicited_only)
    }

    /// Asks for an event at the next completion, when `events` of the CQ were taken from its channel since the last
    /// call.
    pub(crate) fn arm_after(&mut self, events: u32, solicited_only: bool) -> Result<()> {
        self.poller.arm(&self.object, events, solicited_only)
    }

    /// Refuses a queue of `new` completions that can be outstanding, beside `committed` of the other queues, if the CQ
    /// has fewer entries than both.
    pub(crate) fn check_room(&self, committed: u64, new: u64, setting: &'static str) -> Result<()> {
        let (capacity, needed) = (u64::from(self.object.capacity()), committed + new);
        if needed > capacity {
            let made_elsewhere = "cqe in ibv_create_cq, with which the program created the CQ";
            let setting = if self.object.is_made_here() { setting } else { made_elsewhere };
            return Err(Error::CqTooSmall { setting, capacity, needed, new });
        }
        Ok(())
    }

    /// Resizes the CQ (`ibv_resize_cq(3)`).
    pub(crate) fn resize(&mut self, entries: u32) -> Result<()> {
        if let Poller::Direct(_) = self.poller {
            return Err(Error::Unsupported {
                operation: "resize_cq",
                when: "on the direct path: choose the size with CqConfig::new",
            });
        }
        let context = self.object.context();
        let max = context.attr().max_cqe.into();
        Error::check_range("entries", entries.into(), 1, max)?;
        let asked = to_ask_for(context, entries, true) as i32;
        // SAFETY: a live CQ, which this thread alone polls.
        match unsafe { sys::ibv_resize_cq(self.object.as_raw(), asked) } {
            0 => Ok(()),
            errno => Err(Error::returned("ibv_resize_cq", context.name(), errno)),
        }
    }

    /// Writes what an object that owns the CQ shows of itself.
    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("path", &self.path())
            .field("device", &self.object.context().name())
            .field("cq_capacity", &self.object.capacity())
            .finish_non_exhaustive()
    }
}

/// A CQ that the program made without a channel.
pub(crate) const NO_CHANNEL: Error =
    Error::Unsupported { operation: "waiting", when: "on a CQ without a completion channel: create the CQ with one" };
