//! A list that takes no operations any more.

use doorbell::tags::{CancelError, ListFailure, Offload, TagEvent, TagFailure, TaggedReceive};
use doorbell_tests::by_hand::no_memory;
use doorbell_tests::{
    assert_matches, device, skip,
    tags::{ALL, SHAPE, between, ways},
};
use rdma_core_sys as sys;

/// The driver refuses an operation that the library posts by itself. The error is not reported as one of the device.
#[test]
fn an_operation_that_cannot_be_posted_is_an_error() {
    if !ways().contains(&Offload::Required) {
        skip!("the device does not match tags");
    }
    let context = device::open_unpoisoned();
    if device::drives_directly(&context) {
        skip!("the list is posted to without the driver");
    }
    let pd = context.alloc_pd().unwrap();
    let (mut near, mut far) = between(&pd, (Offload::Required, Offload::Never), &SHAPE);
    // The message arrives before the receive is appended, which then reports too few messages to the device.
    far.deliver(2, 0, &[]);
    let receive = near.post(1, ALL);
    // SAFETY: an open context with the extended entries, which no other thread uses now.
    unsafe { (*sys::verbs_get_ctx(context.as_raw())).post_srq_ops = Some(no_memory) };
    // The buffer of a receive without one stays with the library.
    let refused = near.tags.post_all([TaggedReceive::empty(4, ALL)]).unwrap_err();
    assert_eq!(refused.reason, TagFailure::ListFull);
    assert!(refused.refused.len() == 1 && refused.refused[0].buffer.is_none(), "{:?}", refused.refused);
    let event = near.event();
    let cause = ListFailure::Verbs(libc::ENOMEM);
    assert_matches!(event, TagEvent::Broken { cause: reported } if reported == cause);
    assert!(cause.to_string().contains("Cannot allocate memory"), "{cause}");
    let refused = near.tags.post(3, ALL, near.pool.take().unwrap()).unwrap_err();
    assert_eq!(refused.reason, TagFailure::Broken(cause));
    assert_eq!(near.tags.cancel(receive), Err(CancelError::Broken(cause)));
    // The message for the receive needs another operation. Its failure is not reported again.
    far.deliver(1, 0, &[]);
    assert_matches!(near.tags.next(), None);
}
