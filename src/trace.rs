//! Events of the control path for subscribers of `tracing`; nothing without the feature.

/// An event of level DEBUG: fields and words as `tracing::debug!` takes them.
macro_rules! trace_event {
    ($($event:tt)*) => {
        #[cfg(feature = "tracing")]
        ::tracing::debug!($($event)*);
    };
}

pub(crate) use trace_event;
