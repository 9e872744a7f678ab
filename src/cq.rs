//! Completion queue, the control object.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mlx5_wire::cqe::Cqe64;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::error::{Error, Result};

/// A completion queue of libibverbs. The ring polls it on the direct path, `ibv_poll_cq` and its extended form on the
/// verbs path.
pub(crate) struct Cq {
    cq: *mut sys::ibv_cq,
    context: Context,
    // Dropped after the CQ is destroyed.
    channel: Option<Arc<CompletionChannel>>,
    form: Form,
    through_verbs: bool,
    destroys: bool,
    /// Resets and drops of queue pairs whose sends complete here.
    ended: AtomicU32,
}

/// Configuration of a CQ.
pub(crate) struct CqInit {
    /// Entries, at least.
    pub(crate) entries: u32,
    /// Where its events go.
    pub(crate) channel: Option<Arc<CompletionChannel>>,
    /// The interrupt that its events come by.
    pub(crate) comp_vector: u32,
    /// libibverbs polls it.
    pub(crate) through_verbs: bool,
}

impl CqInit {
    /// A CQ that is only polled, through libibverbs.
    const fn polled(entries: u32) -> Self {
        Self { entries, channel: None, comp_vector: 0, through_verbs: true }
    }

    fn check(&self, context: &Context) -> Result<()> {
        let max = context.attr().max_cqe.max(0) as u64;
        Error::check_range("cq_capacity", self.entries.into(), 1, max)?;
        let last = context.num_comp_vectors().saturating_sub(1);
        Error::check_range("comp_vector", self.comp_vector.into(), 0, last.into())
    }

    fn to_ask_for(&self, context: &Context) -> u32 {
        to_ask_for(context, self.entries, self.through_verbs)
    }

    fn raw_channel(&self) -> *mut sys::ibv_comp_channel {
        self.channel.as_ref().map_or(ptr::null_mut(), |channel| channel.as_raw())
    }

    /// The same in the extended form.
    fn extended(&self, context: &Context, wc_flags: u32) -> sys::ibv_cq_init_attr_ex {
        sys::ibv_cq_init_attr_ex {
            cqe: self.to_ask_for(context),
            channel: self.raw_channel(),
            comp_vector: self.comp_vector,
            wc_flags: wc_flags.into(),
            ..Default::default()
        }
    }
}

/// Returns what to ask the driver for so that the CQ holds `entries`, rounded up to a power of two on an mlx5 device.
///
/// libmlx5 makes the power of two above what it is asked for, and says one entry less. A CQ that it polls gets twice as
/// many as it must hold: when a queue pair is reset or destroyed, libmlx5 (`__mlx5_cq_clean`) does not look at the last
/// entry of a full CQ.
pub(crate) fn to_ask_for(context: &Context, entries: u32, through_verbs: bool) -> u32 {
    let max = context.attr().max_cqe.max(1) as u32;
    match context.mlx5dv() {
        Some(_) if through_verbs => entries.next_power_of_two().clamp(2, max.max(2)),
        Some(_) => (entries.next_power_of_two() - 1).max(1),
        None => entries,
    }
}

/// Form in which a CQ was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    /// With the time of each completion.
    Timestamps(Timestamps),
    /// With mini CQEs.
    Compressed(MiniCqeFormat),
}

/// Unit of the time of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timestamps {
    /// Ticks of the device's clock.
    Ticks,
    /// Seconds and nanoseconds.
    RealTime,
}

impl Timestamps {
    const fn wc_flag(self) -> u32 {
        match self {
            Self::Ticks => sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
            // With both flags libmlx5 asks the device for ticks.
            Self::RealTime => sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        }
    }
}

// SAFETY: the handle is shared for creating and destroying queues only; one owner polls.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A plain CQ.
    pub(crate) fn create(context: &Context, init: CqInit) -> Result<Self> {
        init.check(context)?;
        let vector = init.comp_vector as i32;
        let entries = init.to_ask_for(context) as i32;
        let channel = init.raw_channel();
        // SAFETY: an open context, a channel of it or none; no user pointer.
        let cq = unsafe {
            sys::ibv_create_cq(context.as_raw(), entries, ptr::null_mut(), channel, vector)
        };
        if cq.is_null() {
            return Err(Error::last_os("ibv_create_cq", context.name()));
        }
        Ok(Self::created(context, cq, init, Form::Plain))
    }

    /// The same, with the time of each completion; without where the device has no clock. Real time is refused
    /// where the device does not have it.
    pub(crate) fn create_with_timestamps(
        context: &Context,
        init: CqInit,
        timestamps: Timestamps,
    ) -> Result<Self> {
        if timestamps == Timestamps::RealTime && !context.has_real_time()? {
            return Err(Error::Unsupported {
                operation: "timestamps in real time",
                when: "on this device: see Capabilities::timestamps, and the firmware's REAL_TIME_CLOCK_ENABLE",
            });
        }
        init.check(context)?;
        let mut extended =
            init.extended(context, sys::IBV_WC_STANDARD_FLAGS | timestamps.wc_flag());
        // SAFETY: an open context, a channel of it or none, an initialised structure.
        let cq = unsafe { sys::ibv_create_cq_ex(context.as_raw(), &mut extended) };
        if cq.is_null() {
            let error = Error::last_os("ibv_create_cq_ex", context.name());
            return if error.is_os(libc::EOPNOTSUPP) {
                Self::create(context, init)
            } else {
                Err(error)
            };
        }
        let cq = sys::ibv_cq_ex_to_cq(cq);
        Ok(Self::created(context, cq, init, Form::Timestamps(timestamps)))
    }

    /// The same, of an mlx5 device, with mini CQEs (basic layout).
    pub(crate) fn create_compressed(
        context: &Context,
        init: CqInit,
        format: MiniCqeFormat,
        mlx5dv: &Mlx5dv,
    ) -> Result<Self> {
        init.check(context)?;
        let mut extended = init.extended(context, sys::IBV_WC_STANDARD_FLAGS);
        let mask =
            sys::MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
        let mut mlx5 = sys::mlx5dv_cq_init_attr {
            comp_mask: mask.into(),
            cqe_comp_res_format: format as u8,
            flags: 0,
            cqe_size: Cqe64::SIZE as u16,
        };
        // SAFETY: an open context of an mlx5 device, a channel of it or none, initialised structures.
        let cq = unsafe { (mlx5dv.create_cq)(context.as_raw(), &mut extended, &mut mlx5) };
        if cq.is_null() {
            return Err(Error::last_os("mlx5dv_create_cq", context.name()));
        }
        let cq = sys::ibv_cq_ex_to_cq(cq);
        Ok(Self::created(context, cq, init, Form::Compressed(format)))
    }

    /// A CQ of the extended form (`ibv_create_cq_ex(3)`) for tag matching, which reports `wc_flags`.
    pub(crate) fn create_for_tags(context: &Context, entries: u32, wc_flags: u32) -> Result<Self> {
        let channel = Some(Arc::new(CompletionChannel::create(context)?));
        let init = CqInit { channel, ..CqInit::polled(entries) };
        init.check(context)?;
        let mut extended = init.extended(context, wc_flags);
        // SAFETY: an open context and an initialised structure.
        let cq = unsafe { sys::ibv_create_cq_ex(context.as_raw(), &mut extended) };
        if cq.is_null() {
            return Err(Error::last_os("ibv_create_cq_ex", context.name()));
        }
        Ok(Self::created(context, sys::ibv_cq_ex_to_cq(cq), init, Form::Plain))
    }

    fn created(context: &Context, cq: *mut sys::ibv_cq, init: CqInit, form: Form) -> Self {
        Self {
            cq,
            context: context.clone(),
            channel: init.channel,
            form,
            through_verbs: init.through_verbs,
            destroys: true,
            ended: AtomicU32::new(0),
        }
    }

    /// A CQ that the caller made and will destroy. Through verbs it holds what libmlx5 says, one less than its entries.
    ///
    /// # Safety
    /// `cq` belongs to `context`, was created in this form, and lives for as long as the value, and so does its channel.
    pub(crate) unsafe fn from_raw(
        context: &Context,
        cq: *mut sys::ibv_cq,
        form: Form,
        through_verbs: bool,
    ) -> Self {
        // SAFETY: the caller's `cq` and its channel live for as long as the value.
        let channel = unsafe { CompletionChannel::of_cq(context, cq).map(Arc::new) };
        Self {
            cq,
            context: context.clone(),
            channel,
            form,
            through_verbs,
            destroys: false,
            ended: AtomicU32::new(0),
        }
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    /// The extended CQ, if it was created as one with timestamps.
    pub(crate) fn with_timestamps(&self) -> Option<(*mut sys::ibv_cq_ex, Timestamps)> {
        match self.form {
            Form::Timestamps(timestamps) => Some((self.cq.cast(), timestamps)),
            Form::Plain | Form::Compressed(_) => None,
        }
    }

    /// Returns `true` if it counts time in seconds and nanoseconds.
    pub(crate) fn is_in_real_time(&self) -> bool {
        self.form == Form::Timestamps(Timestamps::RealTime)
    }

    pub(crate) const fn form(&self) -> Form {
        self.form
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_deref()
    }

    /// Returns its channel, for another CQ to have, too.
    pub(crate) fn share_channel(&self) -> Option<Arc<CompletionChannel>> {
        self.channel.clone()
    }

    /// A queue pair whose sends complete here was reset or dropped.
    pub(crate) fn note_ended(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// Returns how often that happened, modulo 2^32.
    #[inline(always)]
    pub(crate) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Acquire)
    }

    /// Asks for an event when the next completion arrives (`ibv_req_notify_cq(3)`). Not for a CQ that is driven directly.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: a live CQ.
        match unsafe { sys::ibv_req_notify_cq(self.cq, i32::from(solicited_only)) } {
            0 => Ok(()),
            errno => Err(Error::returned("ibv_req_notify_cq", self.context.name(), errno)),
        }
    }

    /// Returns how many completions the CQ holds: on an mlx5 device a power of two, see [`to_ask_for`].
    pub(crate) fn capacity(&self) -> u32 {
        // SAFETY: the CQ is alive.
        let printed = unsafe { (*self.cq).cqe }.max(0) as u32;
        let is_mlx5 = self.context.mlx5dv().is_some() && (printed + 1).is_power_of_two();
        match (is_mlx5, self.through_verbs) {
            // The largest there is has no double.
            (true, true) if self.destroys && printed < self.context.attr().max_cqe as u32 => {
                printed.div_ceil(2)
            }
            (true, false) => printed + 1,
            _ => printed,
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.destroys || !self.context.owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once, and every queue that completes on it held this value.
        let errno = unsafe { sys::ibv_destroy_cq(self.cq) };
        self.context.destroyed("ibv_destroy_cq", errno);
    }
}
