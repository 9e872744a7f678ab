//! Completion queue, the control object.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mlx5_wire::cqe::Cqe64;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use rdma_core_sys as sys;
use sys::Mlx5dv;

use super::channel::CompletionChannel;
use super::config::{CqConfig, Timestamps};
use crate::clock::TimestampClock;
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

/// Returns what to ask the driver for so that the CQ holds `entries`, rounded up to a power of two on an mlx5 device.
///
/// libmlx5 makes the power of two above what it is asked for, and says one entry less. A CQ that it polls gets twice as
/// many as it must hold: when a queue pair is reset or destroyed, libmlx5 (`__mlx5_cq_clean`) does not look at the last
/// entry of a full CQ.
pub(super) fn to_ask_for(context: &Context, entries: u32, through_verbs: bool) -> u32 {
    let max = context.attr().max_cqe.max(1);
    match context.mlx5dv() {
        Some(_) if through_verbs => entries.next_power_of_two().clamp(2, max.max(2)),
        Some(_) => (entries.next_power_of_two() - 1).max(1),
        None => entries,
    }
}

/// Form in which a CQ was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// The extended form, with the time of each completion.
    Extended(Timestamps),
    /// The extended form, with the fields of tag matching.
    Tagged,
    /// With mini CQEs.
    Compressed(MiniCqeFormat),
}

/// Fields that the CQ of a tag-matching SRQ reports.
const TAG_FIELDS: u32 = sys::IBV_WC_EX_WITH_BYTE_LEN | sys::IBV_WC_EX_WITH_QP_NUM | sys::IBV_WC_EX_WITH_TM_INFO;

// SAFETY: the handle is shared for creating and destroying queues only; one owner polls.
unsafe impl Send for Cq {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a CQ in the form that `config` asks for. Without a clock in the device it has no timestamps; real time
    /// is refused then.
    pub(super) fn create(
        context: &Context,
        config: &CqConfig,
        mlx5dv: Option<&Mlx5dv>,
        channel: Arc<CompletionChannel>,
    ) -> Result<Self> {
        let timestamps = config.timestamps;
        if timestamps == Timestamps::RealTime && !context.has_real_time()? {
            return Err(Error::Unsupported {
                operation: "timestamps in real time",
                when: "on this device: see Capabilities::timestamps, and the firmware's REAL_TIME_CLOCK_ENABLE; soft-mlx5 has them with --real-time",
            });
        }
        let format = config.mini_cqes(context, mlx5dv)?;
        config.check(context)?;
        let made = |cq, form| Self::of(context, cq, form, mlx5dv, Some(channel.clone()), true);
        if let (Some(format), Some(mlx5dv)) = (format, mlx5dv) {
            let cq = create_compressed(context, config, &channel, format, mlx5dv)?;
            return Ok(made(cq, Form::Compressed(format)));
        }
        if timestamps != Timestamps::Off {
            let fields = sys::IBV_WC_STANDARD_FLAGS | timestamps.wc_flag();
            match create_extended(context, config, mlx5dv, &channel, fields) {
                Err(error) if error.is_os(libc::EOPNOTSUPP) => {}
                cq => return Ok(made(cq?, Form::Extended(timestamps))),
            }
        }
        let entries = to_ask_for(context, config.cqe, mlx5dv.is_none()) as i32;
        let vector = config.comp_vector as i32;
        // SAFETY: an open context and a channel of it; no user pointer.
        let cq = unsafe { sys::ibv_create_cq(context.as_raw(), entries, ptr::null_mut(), channel.as_raw(), vector) };
        if cq.is_null() {
            return Err(Error::last_os("ibv_create_cq", context.name()));
        }
        Ok(made(cq, Form::Plain))
    }

    /// Creates a CQ of the extended form (`ibv_create_cq_ex(3)`) for tag matching by the device.
    pub(super) fn create_for_tags(
        context: &Context,
        config: &CqConfig,
        mlx5dv: Option<&Mlx5dv>,
        channel: Arc<CompletionChannel>,
    ) -> Result<Self> {
        config.check(context)?;
        let cq = create_extended(context, config, mlx5dv, &channel, TAG_FIELDS)?;
        Ok(Self::of(context, cq, Form::Tagged, mlx5dv, Some(channel), true))
    }

    fn of(
        context: &Context,
        cq: *mut sys::ibv_cq,
        form: Form,
        mlx5dv: Option<&Mlx5dv>,
        channel: Option<Arc<CompletionChannel>>,
        destroys: bool,
    ) -> Self {
        Self {
            cq,
            context: context.clone(),
            channel,
            form,
            through_verbs: mlx5dv.is_none(),
            destroys,
            ended: AtomicU32::new(0),
        }
    }

    /// A CQ that the caller made and will destroy. Through verbs it holds what libmlx5 says, one less than its entries.
    ///
    /// # Safety
    /// `cq` belongs to `context`, was created with the options of `config`, and lives for as long as the value, and so
    /// does its channel.
    pub(super) unsafe fn from_raw(
        context: &Context,
        cq: *mut sys::ibv_cq,
        config: &CqConfig,
        mlx5dv: Option<&Mlx5dv>,
    ) -> Result<Self> {
        let form = match (config.mini_cqes(context, mlx5dv)?, config.timestamps) {
            (Some(format), _) => Form::Compressed(format),
            (None, Timestamps::Off) => Form::Plain,
            (None, timestamps) => Form::Extended(timestamps),
        };
        // SAFETY: the caller's `cq` and its channel live for as long as the value.
        let channel = unsafe { CompletionChannel::of_cq(context, cq).map(Arc::new) };
        Ok(Self::of(context, cq, form, mlx5dv, channel, false))
    }

    /// Returns `true` if the library created it, and destroys it.
    pub(super) const fn is_made_here(&self) -> bool {
        self.destroys
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    /// Returns what time its completions have.
    pub(crate) const fn timestamps(&self) -> Timestamps {
        match self.form {
            Form::Extended(timestamps) => timestamps,
            _ => Timestamps::Off,
        }
    }

    /// Returns `true` if it has mini CQEs.
    pub(crate) const fn is_compressed(&self) -> bool {
        matches!(self.form, Form::Compressed(_))
    }

    /// Returns `true` if it counts time in seconds and nanoseconds.
    pub(crate) fn is_in_real_time(&self) -> bool {
        self.timestamps() == Timestamps::RealTime
    }

    /// Returns the clock of the time of its completions, if they have one.
    pub(crate) fn timestamp_clock(&self) -> Option<TimestampClock> {
        match self.timestamps() {
            Timestamps::Off => None,
            Timestamps::RealTime => Some(TimestampClock::RealTime),
            Timestamps::Ticks => Some(TimestampClock::Counter(self.context.attr().node_guid)),
        }
    }

    pub(super) const fn form(&self) -> Form {
        self.form
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns its channel, which other CQs may have, too.
    pub(crate) const fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
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

    /// Asks for an event when the next completion arrives (`ibv_req_notify_cq(3)`). Not for a CQ that is driven
    /// directly.
    pub(super) fn arm(&self, solicited_only: bool) -> Result<()> {
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
            (true, true) if self.destroys && printed < self.context.attr().max_cqe => printed.div_ceil(2),
            (true, false) => printed + 1,
            _ => printed,
        }
    }
}

/// Creates a CQ of the extended form that reports these fields.
fn create_extended(
    context: &Context,
    config: &CqConfig,
    mlx5dv: Option<&Mlx5dv>,
    channel: &CompletionChannel,
    fields: u32,
) -> Result<*mut sys::ibv_cq> {
    let mut extended = init(context, config, mlx5dv, channel, fields);
    // SAFETY: an open context, a channel of it, an initialised structure.
    let cq = unsafe { sys::ibv_create_cq_ex(context.as_raw(), &mut extended) };
    if cq.is_null() {
        return Err(Error::last_os("ibv_create_cq_ex", context.name()));
    }
    Ok(sys::ibv_cq_ex_to_cq(cq))
}

/// Creates a CQ of an mlx5 device with mini CQEs (basic layout).
fn create_compressed(
    context: &Context,
    config: &CqConfig,
    channel: &CompletionChannel,
    format: MiniCqeFormat,
    mlx5dv: &Mlx5dv,
) -> Result<*mut sys::ibv_cq> {
    let mut extended = init(context, config, Some(mlx5dv), channel, sys::IBV_WC_STANDARD_FLAGS);
    let mask = sys::MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
    let mut mlx5 = sys::mlx5dv_cq_init_attr {
        comp_mask: mask.into(),
        cqe_comp_res_format: format as u8,
        flags: 0,
        cqe_size: Cqe64::SIZE as u16,
    };
    // SAFETY: an open context of an mlx5 device, a channel of it, initialised structures.
    let cq = unsafe { (mlx5dv.create_cq)(context.as_raw(), &mut extended, &mut mlx5) };
    if cq.is_null() {
        return Err(Error::last_os("mlx5dv_create_cq", context.name()));
    }
    Ok(sys::ibv_cq_ex_to_cq(cq))
}

fn init(
    context: &Context,
    config: &CqConfig,
    mlx5dv: Option<&Mlx5dv>,
    channel: &CompletionChannel,
    fields: u32,
) -> sys::ibv_cq_init_attr_ex {
    sys::ibv_cq_init_attr_ex {
        cqe: to_ask_for(context, config.cqe, mlx5dv.is_none()),
        channel: channel.as_raw(),
        comp_vector: config.comp_vector,
        wc_flags: fields.into(),
        ..Default::default()
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
