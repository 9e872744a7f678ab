//! The device clock of the timestamps in completions.

use std::time::Duration;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::debug_is_display::debug_is_display;
use crate::error::{Error, Result};

/// When the device completed a message or a send, from [`Message::timestamp`](crate::Message::timestamp) or
/// [`SendCompletion::timestamp`](crate::SendCompletion::timestamp): ticks of the device's clock or real time.
/// [`Clock::nanoseconds`] converts both.
///
/// ```
/// # use doorbell::Timestamps;
/// # let config = doorbell::CqConfig::new(4096).timestamps(Timestamps::Ticks);
/// # let mut world = doorbell_doc::World::with(&config);
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a message has arrived")?;
/// let timestamp = message.timestamp().expect("the receiver was made with timestamps");
/// // Not in real time: the device counts ticks.
/// assert_eq!(timestamp.real_time(), None);
/// println!("{:#x}", timestamp.raw());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    raw: u64,
    clock: TimestampClock,
}

/// Clock of the time of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampClock {
    /// Seconds and nanoseconds of the time of day, in an upper and a lower half.
    RealTime,
    /// The free-running counter of the device with this `node_guid`.
    Counter(u64),
}

impl Timestamp {
    pub(crate) const fn new(raw: u64, clock: TimestampClock) -> Self {
        Self { raw, clock }
    }

    /// Returns the value as the CQE has it.
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// Returns the time since 1970 by the adapter's PTP clock if the timestamp is in [real
    /// time](crate::Timestamps::RealTime), or `None` if it is in ticks.
    pub const fn real_time(self) -> Option<Duration> {
        match self.clock {
            // 32 bits of nanoseconds may be more than a second: nothing overflows.
            TimestampClock::RealTime => Some(Duration::new(self.raw >> 32, self.raw as u32)),
            TimestampClock::Counter(_) => None,
        }
    }
}

/// A clock cannot convert a timestamp of another device.
///
/// ```
/// use doorbell::{Clock, Timestamp, WrongClock};
///
/// fn nanoseconds(clock: &Clock, timestamp: Timestamp) -> Option<u64> {
///     match clock.nanoseconds(timestamp) {
///         Ok(nanoseconds) => Some(nanoseconds),
///         Err(WrongClock { .. }) => None,
///     }
/// }
/// # let _ = nanoseconds;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "timestamp {:#x} is in ticks of another device: use the clock of the Receiver or Sender that returned it", .timestamp.raw
)]
pub struct WrongClock {
    /// The timestamp.
    pub timestamp: Timestamp,
}

debug_is_display!(WrongClock);

/// A reading of the device's clock that converts timestamps to nanoseconds, from
/// [`Receiver::clock`](crate::Receiver::clock).
///
/// Take a new reading at least once a second: the driver corrects the clock, and the counter of an mlx5 device wraps
/// after some minutes. A reading costs no system call on an mlx5 device. Timestamps in real time need no reading; any
/// `Clock` converts them.
///
/// ```
/// # use doorbell::Timestamps;
/// # let config = doorbell::CqConfig::new(4096).timestamps(Timestamps::Ticks);
/// # let mut world = doorbell_doc::World::with(&config);
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let clock = receiver.clock()?;
/// let mut batch = receiver.poll();
/// while let Some(message) = batch.next() {
///     if let Some(timestamp) = message?.timestamp() {
///         println!("completed at {} ns", clock.nanoseconds(timestamp)?);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Clock {
    scale: Scale,
    /// The device with the counter, by `node_guid`.
    node_guid: u64,
}

#[derive(Clone, Copy)]
enum Scale {
    /// No counter: only timestamps in real time.
    RealTime,
    /// As libmlx5 reports: the driver's reading of the counter, and how it runs.
    Mlx5(sys::mlx5dv_clock_info),
    /// Ticks in a millisecond.
    Frequency(u64),
}

impl Context {
    /// Reads the clock of the device, for [timestamps](crate::Message::timestamp) of every receiver on it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no clock; [`Error::Verbs`].
    pub fn clock(&self) -> Result<Clock> {
        let node_guid = self.attr().node_guid;
        if let Some(mlx5dv) = self.mlx5dv() {
            // SAFETY: a structure of integers.
            let mut info: sys::mlx5dv_clock_info = unsafe { std::mem::zeroed() };
            // SAFETY: an open context of an mlx5 device and a writable structure.
            let errno = unsafe { (mlx5dv.get_clock_info)(self.as_raw(), &mut info) };
            return match errno {
                0 => Ok(Clock { scale: Scale::Mlx5(info), node_guid }),
                _ => Err(Error::returned("mlx5dv_get_clock_info", self.name(), errno)),
            };
        }
        let mut attr = sys::ibv_device_attr_ex::default();
        // SAFETY: an open context, no input, and a writable structure.
        let errno = unsafe { sys::ibv_query_device_ex(self.as_raw(), std::ptr::null(), &mut attr) };
        match (errno, attr.hca_core_clock) {
            (0, 0) => Err(Error::Unsupported { operation: "timestamps", when: "on a device without a clock" }),
            (0, kilohertz) => Ok(Clock { scale: Scale::Frequency(kilohertz), node_guid }),
            _ => Err(Error::returned("ibv_query_device_ex", self.name(), errno)),
        }
    }
}

impl Context {
    /// Reads the counter of the device now (`ibv_query_rt_values_ex(3)`), to compare it with the timestamps of
    /// completions in ticks. [`Clock::nanoseconds`] converts it. On an mlx5 device this is a read of a register,
    /// without a system call.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let context = doorbell::open("mlx5_0")?;
    /// let clock = context.clock()?;
    /// println!("{} ns by the clock of the device", clock.nanoseconds(context.now()?)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if programs cannot read the counter of the device; [`Error::Verbs`].
    pub fn now(&self) -> Result<Timestamp> {
        let mut values = sys::ibv_values_ex {
            comp_mask: sys::IBV_VALUES_MASK_RAW_CLOCK,
            raw_clock: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        };
        // SAFETY: an open context and an initialised structure.
        let errno = unsafe { sys::ibv_query_rt_values_ex(self.as_raw(), &mut values) };
        let has_clock = values.comp_mask & sys::IBV_VALUES_MASK_RAW_CLOCK != 0;
        match errno {
            // libmlx5 stores all 64 bits of the counter in the nanoseconds.
            0 if has_clock => {
                let counter = TimestampClock::Counter(self.attr().node_guid);
                Ok(Timestamp::new(values.raw_clock.tv_nsec as u64, counter))
            }
            0 | libc::EOPNOTSUPP | libc::ENOSYS => Err(Error::Unsupported {
                operation: "Context::now",
                when: "on this device, whose counter programs cannot read: take the time of the system",
            }),
            _ => Err(Error::returned("ibv_query_rt_values_ex", self.name(), errno)),
        }
    }
}

impl Clock {
    /// Clock of a receiver with timestamps in real time.
    pub(crate) const REAL_TIME: Self = Self { scale: Scale::RealTime, node_guid: 0 };

    /// Converts a [timestamp](crate::Message::timestamp) to nanoseconds.
    ///
    /// Real time counts from 1970 as the adapter's PTP clock is set: the driver starts it at the system's real time
    /// (UTC), and `ptp4l` or `phc2sys` may set it to TAI, which is 37 s ahead. Ticks of an mlx5 device become the time
    /// of the driver's PTP clock, as in `mlx5dv_ts_to_ns(3)`; the result is correct for timestamps within half a wrap
    /// of the counter before or after the reading. On other devices the result counts from zero of the counter.
    ///
    /// # Errors
    /// [`WrongClock`] for ticks of another device.
    pub fn nanoseconds(&self, timestamp: Timestamp) -> Result<u64, WrongClock> {
        let Timestamp { raw, clock } = timestamp;
        match (clock, &self.scale) {
            (TimestampClock::RealTime, _) => Ok((raw >> 32) * 1_000_000_000 + (raw & u64::from(u32::MAX))),
            (TimestampClock::Counter(node_guid), _) if node_guid != self.node_guid => Err(WrongClock { timestamp }),
            (TimestampClock::Counter(_), Scale::RealTime) => Err(WrongClock { timestamp }),
            (TimestampClock::Counter(_), Scale::Mlx5(info)) => Ok(sys::mlx5dv_ts_to_ns(info, raw)),
            (TimestampClock::Counter(_), Scale::Frequency(kilohertz)) => {
                Ok((u128::from(raw) * 1_000_000 / u128::from(*kilohertz)) as u64)
            }
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.scale {
            Scale::RealTime => f.debug_struct("Clock").finish_non_exhaustive(),
            Scale::Mlx5(info) => f.debug_struct("Clock").field("nanoseconds", &info.nsec).finish_non_exhaustive(),
            Scale::Frequency(kilohertz) => f.debug_struct("Clock").field("kilohertz", kilohertz).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: u64 = 0x0c42_a103_0012_3456;

    fn ticks(raw: u64) -> Timestamp {
        Timestamp::new(raw, TimestampClock::Counter(GUID))
    }

    fn real_time(raw: u64) -> Timestamp {
        Timestamp::new(raw, TimestampClock::RealTime)
    }

    #[test]
    fn real_time_has_seconds_above_and_nanoseconds_below() {
        let time = |raw| Clock::REAL_TIME.nanoseconds(real_time(raw)).unwrap();
        assert_eq!(time(0), 0);
        assert_eq!(time(999_999_999), 999_999_999);
        assert_eq!(time(1 << 32), 1_000_000_000);
        assert_eq!(time(0x6553_f100_3b9a_c9ff), 1_700_000_000_999_999_999);
        // 32 bits of seconds last until 2106, and fit.
        assert_eq!(time(u64::MAX), 4_294_967_295_000_000_000 + 4_294_967_295);
        let since = real_time(0x6553_f100_3b9a_c9ff).real_time().unwrap();
        assert_eq!(since.as_nanos(), 1_700_000_000_999_999_999);
        assert!(real_time(u64::MAX).real_time().is_some());
    }

    #[test]
    fn ticks_of_a_frequency() {
        let clock = Clock { scale: Scale::Frequency(156_250), node_guid: GUID };
        let time = |raw| clock.nanoseconds(ticks(raw)).unwrap();
        assert_eq!(time(0), 0);
        assert_eq!(time(5), 32);
        assert_eq!(time(u64::MAX / 100), 1_180_591_620_717_411_302);
    }

    #[test]
    fn ticks_are_not_converted_with_another_clock_and_real_time_needs_none() {
        let other = Clock { scale: Scale::Frequency(156_250), node_guid: GUID + 1 };
        let timestamp = ticks(5);
        for clock in [other, Clock::REAL_TIME] {
            assert_eq!(clock.nanoseconds(timestamp), Err(WrongClock { timestamp }));
        }
        assert!(WrongClock { timestamp }.to_string().contains("the clock of the Receiver"));
        assert_eq!(timestamp.real_time(), None);
        assert_eq!(other.nanoseconds(real_time(1 << 32)), Ok(1_000_000_000));
    }
}
