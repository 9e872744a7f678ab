//! The device under test.

use doorbell::{Context, CqConfig, DataPath, ProtectionDomain, Receiver, Sender};

use crate::poison;

/// The path under test.
pub fn path() -> DataPath {
    match std::env::var("DOORBELL_PATH") {
        Ok(name) => name.parse().unwrap_or_else(|e| panic!("DOORBELL_PATH: {e}")),
        Err(_) => DataPath::Auto,
    }
}

/// Opens the device under test. If its queues will be driven directly, its post and poll entries abort
/// from now on.
pub fn open() -> Context {
    let context = open_unpoisoned();
    if drives_directly(&context) {
        // SAFETY: it was opened just now.
        unsafe { poison::post_and_poll(context.as_raw()) };
    }
    context
}

/// Opens the device under test for programs that use verbs themselves.
pub fn open_unpoisoned() -> Context {
    let opened = match std::env::var("DOORBELL_DEVICE") {
        Ok(name) => doorbell::open(&name),
        Err(_) => doorbell::devices().and_then(|devices| devices[0].open()),
    };
    opened.unwrap_or_else(|e| panic!("{e}\nThe tests need a device: `make test` runs them on a software one."))
}

/// Whether the path under test is the direct one on this device.
pub fn drives_directly(context: &Context) -> bool {
    match path() {
        DataPath::Auto => context.auto_path().0 == DataPath::Direct,
        path => path == DataPath::Direct,
    }
}

/// A domain of the device under test.
pub fn pd() -> ProtectionDomain {
    open().alloc_pd().unwrap()
}

/// A domain of the device under test, and a receiver on the path under test.
pub fn start(cq_capacity: u32) -> (ProtectionDomain, Receiver) {
    let pd = pd();
    let receiver = receiver(&pd, cq_capacity);
    (pd, receiver)
}

/// A receiver on the path under test.
pub fn receiver(pd: &ProtectionDomain, cq_capacity: u32) -> Receiver {
    let config = CqConfig::new(cq_capacity).path(path());
    let receiver = Receiver::new(pd, &config).unwrap();
    let direct = drives_directly(pd.context());
    assert_eq!(receiver.path(), if direct { DataPath::Direct } else { DataPath::Verbs });
    receiver
}

/// A sender on the path under test, with a CQ of at least `cq_capacity` entries. On the direct path nothing may be sent
/// through the driver from now on.
pub fn sender(pd: &ProtectionDomain, cq_capacity: u32) -> Sender {
    sender_with(pd, &CqConfig::new(cq_capacity))
}

/// A sender on the path under test, with a CQ like `config`. On the direct path nothing may be sent through the driver
/// from now on.
pub fn sender_with(pd: &ProtectionDomain, config: &CqConfig) -> Sender {
    let sender = Sender::new(pd, &config.clone().path(path())).unwrap();
    let direct = drives_directly(pd.context());
    assert_eq!(sender.path(), if direct { DataPath::Direct } else { DataPath::Verbs });
    if direct {
        poison::sends();
    }
    sender
}

/// The share of `messages` that this machine can send in reasonable time.
pub fn share(messages: u64) -> u64 {
    match std::env::var("DOORBELL_SHARE") {
        Ok(share) => messages / share.parse::<u64>().expect("DOORBELL_SHARE is a number").max(1),
        Err(_) => messages,
    }
}

/// Ends a test that cannot run here, saying why: the runner counts it as skipped.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        println!("skipped: {}", format_args!($($reason)*));
        return;
    }};
}

/// Skips a test of a feature that only the direct path has.
#[macro_export]
macro_rules! direct_only {
    ($context:expr) => {
        if !$crate::device::drives_directly($context) {
            $crate::skip!("it is about the direct path");
        }
    };
}
