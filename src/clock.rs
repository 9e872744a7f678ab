//! The clock behind the timestamps of completions.

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

/// Turns timestamps of completions into nanoseconds; from [`Receiver::clock`](crate::Receiver::clock).
///
/// For timestamps in real time it is always the same. For ticks it is a reading of the device's clock. The driver corrects the clock now and then, and the counter of an
/// mlx5 device turns over after some minutes: take a new reading for each batch, or every second. That costs
/// no system call on an mlx5 device.
///
/// ```
/// # let config = doorbell::ReceiverConfig::new().timestamps(true);
/// # let mut world = doorbell_doc::World::with(&config);
/// let clock = world.pd.context().clock()?;
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// while let Some(message) = batch.next() {
///     if let Some(ticks) = message?.timestamp() {
///         println!("completed at {} ns", clock.nanoseconds(ticks));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Clock(Scale);

#[derive(Clone, Copy)]
enum Scale {
    /// Seconds in the upper half, nanoseconds in the lower.
    RealTime,
    /// As libmlx5 tells: the driver's reading of the counter, and how it runs.
    Mlx5(sys::mlx5dv_clock_info),
    /// Ticks in a millisecond.
    Frequency(u64),
}

impl Context {
    /// Reads the device's clock, whose ticks timestamps are unless they are in real time:
    /// [`Receiver::clock`](crate::Receiver::clock) knows.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::Unsupported`] when the device has no clock.
    pub fn clock(&self) -> Result<Clock> {
        if let Some(mlx5dv) = self.mlx5dv() {
            // SAFETY: a structure of integers.
            let mut info: sys::mlx5dv_clock_info = unsafe { std::mem::zeroed() };
            // SAFETY: an open context of an mlx5 device and a writable structure.
            let errno = unsafe { (mlx5dv.get_clock_info)(self.as_raw(), &mut info) };
            return match errno {
                0 => Ok(Clock(Scale::Mlx5(info))),
                _ => Err(Error::returned("mlx5dv_get_clock_info", self.name(), errno)),
            };
        }
        let mut attr = sys::ibv_device_attr_ex::default();
        // SAFETY: an open context, no input, and a writable structure.
        let errno = unsafe { sys::ibv_query_device_ex(self.as_raw(), std::ptr::null(), &mut attr) };
        match (errno, attr.hca_core_clock) {
            (0, 0) => Err(Error::Unsupported {
                operation: "timestamps",
                when: "on a device without a clock",
            }),
            (0, kilohertz) => Ok(Clock(Scale::Frequency(kilohertz))),
            _ => Err(Error::returned("ibv_query_device_ex", self.name(), errno)),
        }
    }
}

impl Clock {
    /// That of timestamps in real time.
    pub(crate) const REAL_TIME: Self = Self(Scale::RealTime);

    /// The time in nanoseconds of a [timestamp](crate::Message::timestamp).
    ///
    /// In real time it counts from 1970, as the adapter's PTP clock is set. Ticks of an mlx5 device are converted to
    /// the time of the driver's PTP clock, as `mlx5dv_ts_to_ns(3)` does it; right for timestamps at most half a turn
    /// of the counter before or after the reading. On other devices it counts from when the counter was zero.
    pub fn nanoseconds(&self, timestamp: u64) -> u64 {
        match &self.0 {
            Scale::RealTime => {
                (timestamp >> 32) * 1_000_000_000 + (timestamp & u64::from(u32::MAX))
            }
            Scale::Mlx5(info) => sys::mlx5dv_ts_to_ns(info, timestamp),
            Scale::Frequency(kilohertz) => {
                (u128::from(timestamp) * 1_000_000 / u128::from(*kilohertz)) as u64
            }
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Scale::RealTime => f.debug_struct("Clock").finish_non_exhaustive(),
            Scale::Mlx5(info) => {
                f.debug_struct("Clock").field("nanoseconds", &info.nsec).finish_non_exhaustive()
            }
            Scale::Frequency(kilohertz) => {
                f.debug_struct("Clock").field("kilohertz", kilohertz).finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_has_seconds_above_and_nanoseconds_below() {
        let clock = Clock::REAL_TIME;
        assert_eq!(clock.nanoseconds(0), 0);
        assert_eq!(clock.nanoseconds(999_999_999), 999_999_999);
        assert_eq!(clock.nanoseconds(1 << 32), 1_000_000_000);
        assert_eq!(clock.nanoseconds(0x6553_f100_3b9a_c9ff), 1_700_000_000_999_999_999);
        // 32 bits of seconds last until 2106, and fit.
        assert_eq!(clock.nanoseconds(u64::MAX), 4_294_967_295_000_000_000 + 4_294_967_295);
    }

    #[test]
    fn ticks_of_a_frequency() {
        let clock = Clock(Scale::Frequency(156_250));
        assert_eq!(clock.nanoseconds(0), 0);
        assert_eq!(clock.nanoseconds(5), 32);
        assert_eq!(clock.nanoseconds(u64::MAX / 100), 1_180_591_620_717_411_302);
    }
}
